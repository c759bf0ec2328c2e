//! A stack of numbers that any thread pushes on without waiting, and one thread at a time takes from.
//!
//! A link, and the top, is a number plus one; 0 is none.

use core::sync::atomic::Ordering;

use umf_sync::words::Word;

/// Pushes a number, whose link nobody else writes: who pushes it owns it.
#[inline]
pub(crate) fn push<L: Word<u32>>(top: &L, number: u32, link: &L) {
    let mut first = top.load(Ordering::Relaxed);
    loop {
        link.store(first, Ordering::Relaxed);
        // Release: whoever takes it sees its link, and what was done with what it stands for.
        match top.compare_exchange(first, number + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Takes the number that was pushed last. By one thread at a time: what is on top does not go and come back meanwhile.
pub(crate) fn pop<'l, L: Word<u32> + 'l>(top: &L, link: impl Fn(u32) -> Option<&'l L>) -> Option<u32> {
    let mut first = top.load(Ordering::Acquire);
    loop {
        let number = first.checked_sub(1)?;
        let next = link(number)?.load(Ordering::Relaxed);
        match top.compare_exchange(first, next, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(number),
            // (Another one is on top now, or none of this happened. Acquire, for its link.)
            Err(_) => first = top.load(Ordering::Acquire),
        }
    }
}
