//! How a lock is taken and let go, generic over its word, so that loom's can stand in (`loom_` tests; in full with
//! `tests/run --loom`).
//!
//! A word that says [`CONTENDED`] may have threads asleep on it, and whoever lets go of it wakes one; a thread that slept takes
//! the lock as contended, since others may sleep still.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

pub(super) const FREE: u32 = 0;
const TAKEN: u32 = 1;
const CONTENDED: u32 = 2;

/// A word that threads can sleep on.
pub(super) trait Futex {
    /// How often a thread looks before it sleeps.
    const SPINS: u32;

    fn load(&self) -> u32;
    /// Writes `new` where `current` is (acquiring), and says whether it was.
    fn replace(&self, current: u32, new: u32) -> bool;
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Sleeps until woken, unless the word has another value than `expected` by then. May return at any time.
    fn sleep(&self, expected: u32);
    fn wake_one(&self);
}

impl Futex for AtomicU32 {
    const SPINS: u32 = 100;

    #[inline]
    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn replace(&self, current: u32, new: u32) -> bool {
        self.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }

    fn sleep(&self, expected: u32) {
        sys::futex_wait(self, expected);
    }

    fn wake_one(&self) {
        sys::futex_wake_one(self);
    }
}

/// Waits for the lock.
#[inline]
pub(super) fn take<F: Futex>(state: &F) {
    if !try_take(state) {
        take_contended(state);
    }
}

/// Takes the lock if it is free.
#[inline]
pub(super) fn try_take<F: Futex>(state: &F) -> bool {
    state.replace(FREE, TAKEN)
}

#[cold]
fn take_contended<F: Futex>(state: &F) {
    for _ in 0..F::SPINS {
        core::hint::spin_loop();
        if state.load() == FREE && try_take(state) {
            return;
        }
    }
    while state.swap(CONTENDED, Ordering::Acquire) != FREE {
        state.sleep(CONTENDED);
    }
}

/// Lets go of it.
#[inline]
pub(super) fn let_go<F: Futex>(state: &F) {
    if state.swap(FREE, Ordering::Release) == CONTENDED {
        state.wake_one();
    }
}

#[cfg(test)]
mod model;
