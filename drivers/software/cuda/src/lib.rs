//! `libcuda_soft.so`: a software driver for CUDA. **A testing device, not a GPU.**
//!
//! It replaces `libcuda.so.1`, with the functions that `umf-cuda-sys` declares. Memory, streams,
//! events and IPC handles are real; nothing computes. Touching device memory with the CPU is
//! SIGSEGV. Faults can be injected.
//!
//! `docs/cuda-soft.md` describes its settings and its differences from NVIDIA's driver.
//!
//! The crate `soft-device` implements memory and streams. The modules here are the CUDA interface.

#![allow(non_snake_case, reason = "the interface's names")]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the driver needs 64-bit Linux");

mod context;
mod copy;
mod device;
mod entry_points;
mod event;
mod ipc;
mod managed;
mod memory;
mod pointer;
mod pool;
mod pool_calls;
mod pool_space;
mod state;
mod stream;
mod virtual_memory;

pub use context::*;
pub use copy::*;
pub use device::*;
pub use entry_points::*;
pub use event::*;
pub use ipc::*;
pub use managed::*;
pub use memory::*;
pub use pointer::*;
pub use pool_calls::*;
pub use state::{cudaSoftQuery, cudaSoftSetFaults};
pub use stream::*;
pub use virtual_memory::*;
