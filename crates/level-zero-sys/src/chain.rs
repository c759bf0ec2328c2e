//! The chain of structures behind `pNext`.

use core::ffi::c_void;

use crate::base::ze_base_desc_t;
use crate::structure_type::ze_structure_type_t;

/// How many structures a chain may have: one that is longer has a loop in it.
pub const LONGEST_CHAIN: usize = 64;

/// A structure that begins with its type and a pointer to the next.
///
/// # Safety
/// The type begins with `stype` and `pNext`, and structures of it carry [`Chained::TYPE`].
pub unsafe trait Chained {
    /// What `stype` is in it.
    const TYPE: ze_structure_type_t;
}

/// The first structure of type `T` in a chain that begins at `next`; null if there is none.
///
/// # Safety
/// `next` is null or leads to a chain of structures, each of the type that its `stype` says.
#[must_use]
pub unsafe fn find<T: Chained>(next: *const c_void) -> *const T {
    // SAFETY: the caller's promise.
    unsafe { find_type(next, T::TYPE) }.cast()
}

/// As [`find`], for a structure that will be written.
///
/// # Safety
/// As for [`find`], and the chain may be written to.
#[must_use]
pub unsafe fn find_mut<T: Chained>(next: *mut c_void) -> *mut T {
    // SAFETY: the caller's promise.
    unsafe { find_type(next, T::TYPE) }.cast_mut().cast()
}

unsafe fn find_type(mut next: *const c_void, wanted: ze_structure_type_t) -> *const c_void {
    for _ in 0..LONGEST_CHAIN {
        if next.is_null() {
            break;
        }
        // SAFETY: each link is null or a structure that begins so, as the callers of this promise.
        let link = unsafe { next.cast::<ze_base_desc_t>().read_unaligned() };
        if link.stype == wanted {
            return next;
        }
        next = link.pNext;
    }
    core::ptr::null()
}
