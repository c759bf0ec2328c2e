//! Blocks that a thread frees while it is busy: the next one that is not frees them.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::early::EARLY;

/// One of them. (Not in the block itself: that is live until then, and may be named twice; and a child's may be what it was before the fork.)
struct Deferred {
    block: NonNull<u8>,
    next: *mut Self,
}

/// The latest of them.
static FIRST: AtomicPtr<Deferred> = AtomicPtr::new(ptr::null_mut());

/// The block is handed out by [`each`]. Where there is no memory to remember it, it stays as it is.
pub(crate) fn defer(block: NonNull<u8>) {
    let Some(place) = EARLY.allocate(size_of::<Deferred>(), align_of::<Deferred>()) else { return };
    let place = place.cast::<Deferred>();
    let mut first = FIRST.load(Ordering::Relaxed);
    loop {
        // SAFETY: memory of this size and alignment that nobody else has yet.
        unsafe { place.write(Deferred { block, next: first }) };
        match FIRST.compare_exchange_weak(first, place.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

/// Hands all of them to `free`, one after the other.
#[inline]
pub(crate) fn each(free: impl FnMut(NonNull<u8>)) {
    if !FIRST.load(Ordering::Relaxed).is_null() {
        take(free);
    }
}

#[cold]
fn take(mut free: impl FnMut(NonNull<u8>)) {
    let mut next = FIRST.swap(ptr::null_mut(), Ordering::Acquire);
    while let Some(place) = NonNull::new(next) {
        // SAFETY: `defer` wrote it, and it is this call's since the swap.
        let deferred = unsafe { place.read() };
        // SAFETY: as above; it is not used any more.
        unsafe { EARLY.free(place.cast()) };
        next = deferred.next;
        free(deferred.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deferred_comes_once() {
        let mut blocks = [[0_usize; 2]; 3];
        let places: Vec<_> = blocks.iter_mut().map(|block| NonNull::from(block).cast::<u8>()).collect();
        for &place in &places {
            defer(place);
        }
        let mut seen = Vec::new();
        each(|block| seen.push(block));
        seen.reverse();
        assert_eq!(seen, places);
        each(|_| panic!("there are no more"));
    }
}
