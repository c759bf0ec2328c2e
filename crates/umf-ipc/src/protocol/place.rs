//! A place in which a process keeps what its first user makes: each looks, whoever finds nothing makes one, and one of those
//! that are made stays.
//!
//! What was found is the key to putting something there: only what was seen to be of no use is ever replaced. (Whoever
//! compares with what is there *now* replaces what another thread has put there meanwhile, and what is replaced is nobody's.)

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Where the pointer lies.
pub(crate) trait Place<T> {
    /// Acquire.
    fn load(&self) -> *mut T;
    /// `new` in the place of `seen`, or what is there instead. Both orders: who finds it finds it whole.
    fn replace(&self, seen: *mut T, new: *mut T) -> Result<(), *mut T>;
}

impl<T> Place<T> for AtomicPtr<T> {
    #[inline]
    fn load(&self) -> *mut T {
        self.load(Ordering::Acquire)
    }

    fn replace(&self, seen: *mut T, new: *mut T) -> Result<(), *mut T> {
        self.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}

/// Nothing of use was found; this is what was.
#[derive(Debug)]
pub(crate) struct Vacant<T>(*mut T);

/// What lies there, if it is of use.
#[inline]
pub(crate) fn find<T>(
    place: &impl Place<T>,
    is_of_use: impl FnOnce(NonNull<T>) -> bool,
) -> Result<NonNull<T>, Vacant<T>> {
    let seen = place.load();
    match NonNull::new(seen) {
        Some(found) if is_of_use(found) => Ok(found),
        _ => Err(Vacant(seen)),
    }
}

/// Puts `new` there, if what was found still is. Otherwise another thread was faster: what it put there is the error, and
/// `new` is still the caller's.
pub(crate) fn fill<T>(
    place: &impl Place<T>,
    vacant: Vacant<T>,
    new: NonNull<T>,
) -> Result<(), Option<NonNull<T>>> {
    place.replace(vacant.0, new.as_ptr()).map_err(NonNull::new)
}
