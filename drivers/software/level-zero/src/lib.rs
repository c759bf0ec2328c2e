//! `libze_soft.so`: a software driver for Level Zero. **A testing device, not a GPU.**
//!
//! The loader loads it with `ZE_ENABLE_ALT_DRIVERS=/path/to/libze_soft.so`. Memory, queues, events
//! and IPC handles are real; nothing computes. An access of the CPU to device memory raises
//! SIGSEGV. Tests can inject faults. Missing functions return
//! `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`.
//!
//! `docs/level-zero-soft.md` describes its settings and its differences from hardware drivers.
//!
//! The crate `soft-device` implements memory, streams and events. The modules here are the Level
//! Zero interface; [`tables`] has the function tables that the loader requests.

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
