//! [`Lock`]: a mutual exclusion lock that survives a fork and needs no allocator.
//!
//! The word follows "Futexes Are Tricky" (Drepper), mutex 3. The [fork gate](crate::fork) around it
//! delays a fork until no other thread holds a lock.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fork::{ForkGate, ForkGuard, Outer};
use crate::sys;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and threads may sleep on it.
const CONTENDED: u32 = 2;

/// How often a thread polls a taken lock before it sleeps.
const SPINS: u32 = 100;

/// A lock around a `T`, for a `static` or a field. It may be moved while it is free.
///
/// `G` is the fork gate that the lock passes: [`Outer`], or [`crate::fork::Leaf`] for a lock that
/// is acquired while locks of another library with fork handlers are held.
///
/// A lock is not poisoned: if its holder panics, it is free afterwards.
#[derive(Debug, Default)]
pub struct Lock<T, G = Outer> {
    state: AtomicU32,
    gate: PhantomData<G>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send, G> Send for Lock<T, G> {}
// SAFETY: a shared `Lock` gives access to `T` only through its guard, to one thread at a time.
unsafe impl<T: Send, G> Sync for Lock<T, G> {}

impl<T, G> Lock<T, G> {
    /// Returns a free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), gate: PhantomData, value: UnsafeCell::new(value) }
    }

    /// Returns the value. The exclusive borrow shows that the lock is free.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T, G: ForkGate> Lock<T, G> {
    /// Waits for the lock and takes it. Deadlocks if the calling thread holds it.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_, T, G> {
        let entry = ForkGuard::new();
        if !self.try_take() {
            self.take_contended();
        }
        LockGuard { lock: self, _entry: entry }
    }

    /// Takes the lock if it is free. Does not wait for its holder, but waits for a fork that
    /// another thread has begun.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_, T, G>> {
        let entry = ForkGuard::new();
        self.try_take().then(|| LockGuard { lock: self, _entry: entry })
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn take_contended(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.state.load(Ordering::Relaxed) == FREE && self.try_take() {
                return;
            }
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.state, CONTENDED);
        }
    }
}

/// Access to the value of a [`Lock`]. Dropping it releases the lock.
#[derive(Debug)]
pub struct LockGuard<'l, T, G: ForkGate = Outer> {
    lock: &'l Lock<T, G>,
    /// Dropped after the lock is released. Not `Send`, so the guard stays in its thread.
    _entry: ForkGuard<G>,
}

// SAFETY: a shared guard yields `&T` only.
unsafe impl<T: Sync, G: ForkGate> Sync for LockGuard<'_, T, G> {}

impl<T, G: ForkGate> Deref for LockGuard<'_, T, G> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread alone holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, G: ForkGate> DerefMut for LockGuard<'_, T, G> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so this thread alone holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, G: ForkGate> Drop for LockGuard<'_, T, G> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake(&self.lock.state, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_under_contention() {
        let lock = Lock::<_, Outer>::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 80_000);
        let held = lock.lock();
        // Twice: a failed attempt leaves the lock as it is.
        for _ in 0..2 {
            assert!(lock.try_lock().is_none());
        }
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
