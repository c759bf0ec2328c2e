//! `libze_soft.so`: a Level Zero driver in software. **A testing device, not a GPU.**
//!
//! The real loader loads it (`ZE_ENABLE_ALT_DRIVERS=/path/to/libze_soft.so`). Memory, queues,
//! events and handles for other processes are real; nothing computes: modules and kernels answer
//! `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`. Memory of its devices cannot be touched by the CPU: a
//! program that tries gets SIGSEGV, as it should. Faults happen on demand.
//!
//! `docs/level-zero-soft.md` has its settings and what it does differently from a GPU's driver.
//!
//! It has the functions that its clients call; the others answer
//! `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`. The crate `soft-device` is memory, streams and events,
//! and knows nothing of Level Zero; the modules here are the interface; [`tables`] is what the
//! loader asks for.

#![allow(non_snake_case, reason = "the specification's names")]
#![allow(clippy::too_many_arguments, reason = "the specification's functions")]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the driver needs 64-bit Linux");

mod append;
mod device;
mod driver;
mod ipc;
mod memory;
mod queue;
mod state;
mod tables;

pub use driver::{zeSoftQuery, zeSoftSetFaults};
pub use tables::*;
