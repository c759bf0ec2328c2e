//! A stack of numbers that any thread pushes on without waiting, and one thread at a time takes from.

use core::sync::atomic::{AtomicU32, Ordering};

/// A link, or the top: a number plus one, 0 for none. In loom's model its atomics stand in.
pub(crate) trait Link {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn replace(&self, current: u32, new: u32, order: Ordering) -> Result<(), u32>;
}

impl Link for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn replace(&self, current: u32, new: u32, order: Ordering) -> Result<(), u32> {
        self.compare_exchange_weak(current, new, order, Ordering::Relaxed).map(drop)
    }
}

/// Pushes a number, whose link nobody else writes: who pushes it owns it.
#[inline]
pub(crate) fn push<L: Link>(top: &L, number: u32, link: &L) {
    let mut first = top.load(Ordering::Relaxed);
    loop {
        link.store(first, Ordering::Relaxed);
        // Release: whoever takes it sees its link, and what was done with what it stands for.
        match top.replace(first, number + 1, Ordering::Release) {
            Ok(()) => return,
            Err(now) => first = now,
        }
    }
}

/// Takes the number that was pushed last. By one thread at a time: what is on top does not go and come back meanwhile.
pub(crate) fn pop<'l, L: Link + 'l>(top: &L, link: impl Fn(u32) -> Option<&'l L>) -> Option<u32> {
    let mut first = top.load(Ordering::Acquire);
    loop {
        let number = first.checked_sub(1)?;
        let next = link(number)?.load(Ordering::Relaxed);
        match top.replace(first, next, Ordering::Acquire) {
            Ok(()) => return Some(number),
            // (Another one is on top now, or none of this happened. Acquire, for its link.)
            Err(_) => first = top.load(Ordering::Acquire),
        }
    }
}
