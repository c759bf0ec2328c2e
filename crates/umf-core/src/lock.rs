//! [`Lock`]: a mutual exclusion lock that needs no allocator and survives a fork.
//!
//! `std::sync::Mutex` would do, but for one thing: `fork` needs the lock taken in the parent and let
//! go in the child by somebody who holds no guard (see [`crate::fork`]).

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sys;

mod protocol;

/// A lock around a `T`. Waiting spins shortly, then sleeps on a futex.
#[derive(Debug, Default)]
pub struct Lock<T> {
    state: AtomicU32,
    /// It was taken for the time of a fork. Written by whoever has it.
    for_fork: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: as above; a shared `Lock` gives access to `T` only through its guard.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        let (state, for_fork) = (AtomicU32::new(protocol::FREE), AtomicBool::new(false));
        Self { state, for_fork, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> LockGuard<'_, T> {
        protocol::take(&self.state);
        LockGuard { lock: self, not_send: PhantomData }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<LockGuard<'_, T>> {
        // (Not `then_some`: a guard that is made lets go of the lock when it is dropped, whoever has that.)
        protocol::try_take(&self.state).then(|| LockGuard { lock: self, not_send: PhantomData })
    }

    /// Takes the lock and keeps it without a guard, for [`Lock::unlock_after_fork`]; says whether it did.
    ///
    /// A handler of signals may fork that came while this very thread had the lock. Where there are no other threads it is left
    /// to what was interrupted, which goes on in parent and child and lets go of it there. (Where there are others, this waits for
    /// ever then: nobody knows whose it is.)
    pub fn lock_for_fork(&self) -> bool {
        if !protocol::try_take(&self.state) {
            if !sys::is_only_thread() {
                protocol::take(&self.state);
            } else if !protocol::try_take(&self.state) {
                // (Tried once more: who had it may have been a thread that let go of it and ended meanwhile.)
                return false;
            }
        }
        self.for_fork.store(true, Ordering::Relaxed);
        true
    }

    /// Lets go of a lock that [`Lock::lock_for_fork`] took, in the parent or in the child. One that it did not take stays as it is.
    ///
    /// # Safety
    /// `lock_for_fork` returned in the calling thread, or in the one of which it is the forked copy.
    pub unsafe fn unlock_after_fork(&self) {
        if self.for_fork.swap(false, Ordering::Relaxed) {
            self.unlock();
        }
    }

    /// The value of a lock for which [`Lock::lock_for_fork`] was called. (What was interrupted may be changing it.)
    ///
    /// # Safety
    /// As [`Lock::unlock_after_fork`], and the reference is not kept past it.
    pub unsafe fn get_locked(&self) -> &T {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.value.get() }
    }

    /// As [`Lock::get_locked`], to change it.
    ///
    /// # Safety
    /// As [`Lock::get_locked`]; `lock_for_fork` took the lock, and there is no other such reference.
    #[allow(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    pub unsafe fn get_locked_mut(&self) -> &mut T {
        // SAFETY: this thread holds the lock, and the caller vouches for the rest.
        unsafe { &mut *self.value.get() }
    }

    fn unlock(&self) {
        protocol::let_go(&self.state);
    }
}

/// Access to the value of a [`Lock`], until dropped.
#[derive(Debug)]
pub struct LockGuard<'a, T> {
    lock: &'a Lock<T>,
    /// Neither `Send` nor `Sync` by itself: a shared guard gives `&T`.
    not_send: PhantomData<*const ()>,
}

// SAFETY: a shared guard gives out `&T` and nothing else.
unsafe impl<T: Sync> Sync for LockGuard<'_, T> {}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread alone holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so this thread alone holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for LockGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_under_contention() {
        let lock = Lock::new(0_u64);
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
        // Twice: a refusal leaves the lock as it is.
        for _ in 0..2 {
            assert!(lock.try_lock().is_none());
        }
        drop(held);
        lock.lock_for_fork();
        assert!(lock.try_lock().is_none());
        // SAFETY: taken on the line above.
        unsafe { lock.unlock_after_fork() };
        let held = lock.try_lock().unwrap();
        // As where it was not taken: what was interrupted has it still.
        // SAFETY: nothing happens.
        unsafe { lock.unlock_after_fork() };
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
