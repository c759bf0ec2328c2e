//! A place in which a process keeps what its first user makes: each looks, whoever finds nothing makes one, and one of those
//! that are made stays.
//!
//! What was found is the key to putting something there: only what was seen to be of no use is ever replaced. (Whoever
//! compares with what is there *now* replaces what another thread has put there meanwhile, and what is replaced is nobody's.)

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_sync::words::Word;

/// Nothing of use was found; this is what was.
#[derive(Debug)]
pub(crate) struct Vacant<T>(*mut T);

/// What lies there, if it is of use.
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

/// Puts `new` there, if what was found still is. Otherwise another thread was faster: what it put there is the error, and
/// `new` is still the caller's.
pub(crate) fn install<T>(
    lazy: &impl Word<*mut T>,
    vacant: Vacant<T>,
    new: NonNull<T>,
) -> Result<(), Option<NonNull<T>>> {
    // Both orders: a thread that finds it finds it whole.
    lazy.compare_exchange(vacant.0, new.as_ptr(), Ordering::AcqRel, Ordering::Acquire)
        .map(drop)
        .map_err(NonNull::new)
}
