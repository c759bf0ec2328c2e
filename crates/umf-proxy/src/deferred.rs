//! Blocks that a thread frees while it is busy: the next one that is not frees them.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The first of them. Each has the next one's address in its first word.
static FIRST: AtomicPtr<usize> = AtomicPtr::new(ptr::null_mut());

/// # Safety
/// A block of the pool, which nobody uses any more. (It can be written to: it is the host's, of 16 bytes at least.)
pub(crate) unsafe fn defer(block: NonNull<u8>) {
    let block = block.cast::<usize>();
    let mut first = FIRST.load(Ordering::Relaxed);
    loop {
        // SAFETY: passed on to the caller.
        unsafe { block.write(first.expose_provenance()) };
        match FIRST.compare_exchange_weak(first, block.as_ptr(), Ordering::Release, Ordering::Relaxed) {
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
    while let Some(block) = NonNull::new(next) {
        // SAFETY: `defer` wrote it, and the block is this call's since the swap.
        next = ptr::with_exposed_provenance_mut(unsafe { block.read() });
        free(block.cast());
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
            // SAFETY: memory of this test, of that size.
            unsafe { defer(place) };
        }
        let mut seen = Vec::new();
        each(|block| seen.push(block));
        seen.reverse();
        assert_eq!(seen, places);
        each(|_| panic!("there are no more"));
    }
}
