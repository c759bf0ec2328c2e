//! Raw bindings of the CUDA driver interface (versions 12 and 13): devices, contexts, memory of
//! every kind, memory pools, IPC handles, virtual memory, streams and events; no modules and kernels.
//!
//! Nothing is linked: [`Api::load`] opens `libcuda.so.1` at run time, [`Api::load_from`] a library
//! by its path. Calling a function that the library lacks returns [`Failure::Absent`].
//!
//! Names and meanings are those of the interface (<https://docs.nvidia.com/cuda/cuda-driver-api/>).
//! Symbols are those that its header maps the names to (`cuMemAlloc` is `cuMemAlloc_v2`).
//!
//! ```
//! use cuda_sys::Api;
//!
//! // SAFETY: the system's driver is trusted.
//! let api = match unsafe { Api::load() } {
//!     Ok(api) => api,
//!     Err(error) => return println!("{error}"), // There is no driver here.
//! };
//! let mut devices = 0;
//! // SAFETY: the arguments are valid for these functions.
//! match unsafe { api.cuInit(0).and_then(|()| api.cuDeviceGetCount(&raw mut devices)) } {
//!     Ok(()) => println!("{devices} devices"),
//!     Err(error) => println!("{error}"),
//! }
//! ```

#![allow(non_camel_case_types, non_snake_case, reason = "the interface's names")]

#[macro_use]
mod declare;

mod api;
mod result;
mod types;

pub use api::{Api, Functions, LIBRARY, NAMES, OpenError};
pub use result::*;
pub use types::*;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
