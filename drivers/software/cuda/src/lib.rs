//! `libcuda_soft.so`: a CUDA driver in software. **A testing device, not a GPU.**
//!
//! It stands in for `libcuda.so.1`, with the functions that `umf-cuda-sys` declares. Memory,
//! streams, events and handles for other processes are real; nothing computes. Memory of its
//! devices cannot be touched by the CPU: a program that tries gets SIGSEGV. Faults happen on
//! demand.
//!
//! `docs/cuda-soft.md` has its settings and what it does differently from a GPU's driver.
//!
//! The crate `soft-device` is the memory and the streams, and knows nothing of CUDA; the modules
//! here are the interface.

#![allow(non_snake_case, reason = "the interface's names")]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the driver needs 64-bit Linux");

mod context;
mod memory;
mod state;
mod stream;
mod virtual_memory;

pub use context::*;
pub use memory::*;
pub use state::{cudaSoftQuery, cudaSoftSetFaults};
pub use stream::*;
pub use virtual_memory::*;
