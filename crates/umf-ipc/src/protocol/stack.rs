//! A stack of slot numbers. Any thread pushes without waiting; one thread at a time pops.
//!
//! The top and each link hold a number plus one; 0 is none.

use core::sync::atomic::Ordering;

use umf_sync::words::Word;

/// Pushes a number. The caller owns the number, and with it the link.
#[inline]
pub(crate) fn push<L: Word<u32>>(top: &L, number: u32, link: &L) {
    let mut first = top.load(Ordering::Relaxed);
    loop {
        link.store(first, Ordering::Relaxed);
        // Release: the thread that pops it sees its link and all uses of the slot.
        match top.compare_exchange(first, number + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Pops the number that was pushed last. Only one thread pops at a time, so that the top cannot be
/// popped and pushed again (ABA).
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
