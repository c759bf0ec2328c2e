//! A pointer that the first user initializes. All threads create a value if they find none valid;
//! one of the values stays.
//!
//! [`install`] replaces exactly the value that [`get_valid`] found invalid. If it compared with the
//! current value instead, it could replace what another thread installed meanwhile, and leak it.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_sync::words::Word;

/// The pointer that was found: null, or not valid.
#[derive(Debug)]
pub(crate) struct Vacant<T>(*mut T);

/// Returns the value, if there is one and it is valid.
#[inline]
pub(crate) fn get_valid<T>(
    lazy: &impl Word<*mut T>,
    is_valid: impl FnOnce(NonNull<T>) -> bool,
) -> Result<NonNull<T>, Vacant<T>> {
    let seen = lazy.load(Ordering::Acquire);
    match NonNull::new(seen) {
        Some(found) if is_valid(found) => Ok(found),
        _ => Err(Vacant(seen)),
    }
}

/// Installs `new`, if the pointer has not changed since [`get_valid`]. Otherwise returns what
/// another thread installed, and `new` still belongs to the caller.
pub(crate) fn install<T>(
    lazy: &impl Word<*mut T>,
    vacant: Vacant<T>,
    new: NonNull<T>,
) -> Result<(), Option<NonNull<T>>> {
    // Release: readers see the value initialized. Acquire: this thread sees that of another one.
    lazy.compare_exchange(vacant.0, new.as_ptr(), Ordering::AcqRel, Ordering::Acquire)
        .map(drop)
        .map_err(NonNull::new)
}
