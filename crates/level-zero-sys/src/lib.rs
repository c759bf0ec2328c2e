//! Raw Level Zero bindings: the types and function tables of the core interface (specification 1.17) that contexts, devices,
//! memory, handles for other processes, command lists, queues, events, fences, virtual and physical memory need.
//!
//! Nothing is linked: [`Api::load`] opens `libze_loader.so.1` at run time, [`Api::load_driver`] a driver without a loader. A
//! function that is not there is an error value when it is called.
//!
//! Names are those of the specification (<https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/api.html>), which
//! says what they mean. Structures begin with their type set when they are made with `Default`.
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
//! // SAFETY: the arguments are what the specification says.
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
mod declare;

mod api;
mod base;
pub mod chain;
mod device;
mod device_ext;
mod driver;
mod event;
mod extensions;
mod external;
mod failure;
mod handles;
#[doc(hidden)]
pub mod layout;
mod list;
mod memory;
mod queue;
mod result;
mod structure_type;
mod table;
mod tables;
mod version;
mod virtual_memory;

pub use api::{Api, Has, LOADER, OpenError};
pub use base::*;
pub use device::*;
pub use device_ext::*;
pub use driver::*;
pub use event::*;
pub use extensions::*;
pub use external::*;
pub use failure::{Answer, Failure};
pub use handles::*;
pub use list::*;
pub use memory::*;
pub use queue::*;
pub use result::*;
pub use structure_type::*;
pub use table::{Member, Table};
pub use tables::execution::*;
pub use tables::memory::*;
pub use tables::other::*;
pub use tables::setup::*;
pub use tables::synchronization::*;
pub use version::*;
pub use virtual_memory::*;
