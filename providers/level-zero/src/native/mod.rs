//! Calls of the driver: each function is one call, with its pointers and structures kept out of the rest of the crate.
//!
//! Every call is sound for the same reasons, which are not said again at each: the [`Api`] is a loader's or a driver's, whose
//! functions have the specification's prototypes; structures carry their type and live until the call returns; handles are
//! those that the driver gave out, or that the application vouched for ([`crate::LevelZeroProvider::over`]), and are not used
//! after they were destroyed. An address that is none is an answer of the driver.

pub(crate) mod device;
pub(crate) mod handle;
pub(crate) mod list;
pub(crate) mod memory;

use core::ffi::c_void;

use level_zero_sys::Failure;
use umf_core::Address;

pub(crate) type Answer<T = ()> = Result<T, Failure>;

/// An address as drivers take it.
fn pointer(address: Address) -> *mut c_void {
    address.as_ptr().map_or(core::ptr::null_mut(), <*mut u8>::cast)
}

/// An address as drivers give it; `None` for null, and for what no process can have.
fn address(pointer: *mut c_void) -> Option<Address> {
    Address::new(pointer.expose_provenance()).filter(|_| !pointer.is_null())
}
