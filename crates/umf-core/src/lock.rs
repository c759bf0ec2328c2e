//! [`Lock`]: a mutual exclusion lock that needs no allocator and survives a fork.
//!
//! `std::sync::Mutex` would do, but for one thing: `fork` needs the lock taken in the parent and let
//! go in the child by somebody who holds no guard (see [`crate::fork`]).

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

mod protocol;

/// A lock around a `T`. Waiting spins shortly, then sleeps on a futex.
#[derive(Debug, Default)]
pub struct Lock<T> {
    state: AtomicU32,
    /// How many forks, each begun amid the one before, it is taken for. Written by whoever has it.
    forks: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: as above; a shared `Lock` gives access to `T` only through its guard.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        let (state, forks) = (AtomicU32::new(protocol::FREE), AtomicU32::new(0));
        Self { state, forks, value: UnsafeCell::new(value) }
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

    /// Takes the lock and keeps it without a guard, for [`Lock::unlock_after_fork`]; says whether it is taken for a fork now.
    ///
    /// A handler of signals may fork that came while this very thread had the lock. Where there are no other threads it is left
    /// to what was interrupted, which goes on in parent and child and lets go of it there. (Where there are others, this waits for
    /// ever then: nobody knows whose it is.) What was interrupted may be a fork that has the lock: then it is taken for both,
    /// until both are over.
    pub fn lock_for_fork(&self) -> bool {
        if !protocol::try_take(&self.state) {
            if !sys::is_only_thread() {
                protocol::take(&self.state);
            } else if self.forks.load(Ordering::Relaxed) == 0 && !protocol::try_take(&self.state) {
                // (Tried once more: who had it may have been a thread that let go of it and ended meanwhile.)
                return false;
            }
        }
        self.forks.store(self.forks.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        true
    }

    /// Lets go of a lock that [`Lock::lock_for_fork`] took, in the parent or in the child. One that it did not take stays as it is,
    /// and one that is taken for another fork too stays taken.
    ///
    /// # Safety
    /// `lock_for_fork` returned in the calling thread, or in the one of which it is the forked copy.
    pub unsafe fn unlock_after_fork(&self) {
        let forks = self.forks.load(Ordering::Relaxed);
        self.forks.store(forks.saturating_sub(1), Ordering::Relaxed);
        if forks == 1 {
            self.unlock();
        }
    }

    /// The value of a lock that [`Lock::lock_for_fork`] took; `None` if it did not, since what was interrupted may be changing
    /// the value.
    ///
    /// # Safety
    /// As [`Lock::unlock_after_fork`], and the reference is not kept past it. Of one lock either this is called or
    /// [`Lock::get_locked_mut`].
    pub unsafe fn get_locked(&self) -> Option<&T> {
        // SAFETY: the lock is taken for this thread's forks, which only read.
        (self.forks.load(Ordering::Relaxed) > 0).then(|| unsafe { &*self.value.get() })
    }

    /// As [`Lock::get_locked`], to change it: `None` too if this fork was begun amid another that has the lock.
    ///
    /// # Safety
    /// As [`Lock::get_locked`], and the thread has no other such reference from this fork.
    #[allow(clippy::mut_from_ref, reason = "the lock is what makes it exclusive")]
    pub unsafe fn get_locked_mut(&self) -> Option<&mut T> {
        // SAFETY: the lock is taken for one fork, and the caller vouches that it is the calling thread's, and for the rest.
        (self.forks.load(Ordering::Relaxed) == 1).then(|| unsafe { &mut *self.value.get() })
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

    /// What is wrong, if anything, in a process of one thread.
    fn wrong_of_one_thread(lock: &Lock<u64>) -> Option<&'static str> {
        let held = lock.lock();
        // A handler of signals came here, and forks.
        if lock.lock_for_fork() {
            return Some("what was interrupted has it");
        }
        // SAFETY: called above, here and below; no reference is kept.
        if unsafe { lock.get_locked().is_some() || lock.get_locked_mut().is_some() } {
            return Some("what was interrupted may be changing it");
        }
        // SAFETY: called above.
        unsafe { lock.unlock_after_fork() };
        if lock.try_lock().is_some() {
            return Some("it is let go of, and was not taken");
        }
        drop(held);
        // A fork, and one amid it.
        for forks in 1..3 {
            if !lock.lock_for_fork() {
                return Some("it is a fork that has it");
            }
            // SAFETY: called above.
            if unsafe { lock.get_locked().is_none() || lock.get_locked_mut().is_some() != (forks == 1) } {
                return Some("who is the first may change it, and all may read");
            }
        }
        // SAFETY: called above.
        unsafe { lock.unlock_after_fork() };
        // SAFETY: as above.
        if lock.try_lock().is_some() || unsafe { lock.get_locked_mut() }.is_none() {
            return Some("the first fork is not over");
        }
        // SAFETY: called above.
        unsafe { lock.unlock_after_fork() };
        lock.try_lock().is_none().then_some("both are over")
    }

    #[test]
    fn forks_amid_forks_and_amid_who_has_it_leave_it_as_it_was() {
        let lock = Lock::new(0);
        // SAFETY: the child only takes this lock, and ends within a bounded time.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets an alarm for this child.
            unsafe { libc::alarm(20) };
            let wrong = wrong_of_one_thread(&lock);
            if let Some(wrong) = wrong {
                // SAFETY: the bytes are valid.
                unsafe { libc::write(2, wrong.as_ptr().cast(), wrong.len()) };
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(wrong.is_some())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
