//! Raw Level Zero bindings: the types and function tables of the core interface (specification
//! 1.17) for contexts, devices, memory, IPC handles, command lists, queues, events and fences.
//!
//! Nothing is linked: [`Api::load`] opens `libze_loader.so.1` at run time, [`Api::load_driver`] a
//! driver without a loader. Calling a function that is missing returns [`Failure::Absent`].
//!
//! Names and meanings are those of the specification
//! (<https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/api.html>). `Default` sets
//! the type of a structure. Arrays of `char` are arrays of `u8`, since the sign of `char` depends
//! on the processor; [`core::ffi::CStr::from_bytes_until_nul`] reads them.
//!
//! ```
//! use level_zero_sys::{Api, ZE_INIT_FLAG_GPU_ONLY};
//!
//! // SAFETY: the system's loader is trusted.
//! let api = match unsafe { Api::load() } {
//!     Ok(api) => api,
//!     Err(error) => return println!("{error}"), // There is no loader here.
//! };
//! let mut drivers = 0;
//! // SAFETY: the arguments are valid for these functions.
//! let found = unsafe {
//!     api.zeInit(ZE_INIT_FLAG_GPU_ONLY).and_then(|()| api.zeDriverGet(&raw mut drivers, core::ptr::null_mut()))
//! };
//! match found {
//!     Ok(()) => println!("{drivers} drivers"),
//!     Err(error) => println!("{error}"),
//! }
//! ```

#![allow(non_camel_case_types, non_snake_case, reason = "the specification's names")]
#![allow(clippy::too_many_arguments, reason = "the specification's functions")]

#[macro_use]
pub mod layout;

mod api;
mod base;
mod context;
mod device;
mod result;
mod tables;

pub use api::{Api, HasTable, LOADER, Member, OpenError, Table};
pub use base::*;
pub use context::*;
pub use device::*;
pub use result::*;
pub use tables::*;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
