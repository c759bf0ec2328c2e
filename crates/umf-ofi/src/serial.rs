//! [`Serial`]: a lock that is left out where the application promises to call one function of a
//! domain at a time (`FI_THREAD_DOMAIN`, fi_domain(3)).

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::waiting::lock;

/// A value that one thread uses at a time.
#[derive(Debug)]
pub(crate) struct Serial<T> {
    /// `None` if the application sees to it.
    mutex: Option<Mutex<()>>,
    /// Whether the value is in use. Read and written without a lock, so that it finds most calls
    /// that the application does not serialise, and not all.
    is_used: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: a guard is the only access to the value. There is one at a time, by the mutex or by the
// promise that [`Serial::new`] asks for.
unsafe impl<T: Send> Sync for Serial<T> {}

impl<T> Serial<T> {
    /// Returns a value with a lock, or without one if `is_serialized`.
    ///
    /// # Safety
    /// If `is_serialized`, one thread at a time uses the value.
    pub(crate) unsafe fn new(value: T, is_serialized: bool) -> Self {
        let mutex = (!is_serialized).then(Mutex::default);
        Self { mutex, is_used: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until the value is free.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let mutex = self.mutex.as_ref().map(lock);
        if mutex.is_none() && self.is_used.load(Ordering::Relaxed) {
            concurrent();
        }
        self.guard(mutex)
    }

    /// Returns `None` if the value is in use.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let Some(mutex) = &self.mutex else {
            return (!self.is_used.load(Ordering::Relaxed)).then(|| self.guard(None));
        };
        match mutex.try_lock() {
            Ok(guard) => Some(self.guard(Some(guard))),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(Some(poisoned.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn guard<'s>(&'s self, mutex: Option<MutexGuard<'s, ()>>) -> Guard<'s, T> {
        if mutex.is_none() {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Guard { serial: self, mutex }
    }
}

/// Ends the process: two threads are about to change one value.
#[cold]
fn concurrent() -> ! {
    tracing::error!(
        "libfabric: two threads call functions of a domain that was opened with FI_THREAD_DOMAIN; \
         open it with FI_THREAD_SAFE"
    );
    std::process::abort()
}

/// Access to the value of a [`Serial`].
#[derive(Debug)]
pub(crate) struct Guard<'s, T> {
    serial: &'s Serial<T>,
    mutex: Option<MutexGuard<'s, ()>>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard, and it is borrowed.
        unsafe { &*self.serial.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and it is borrowed mutably.
        unsafe { &mut *self.serial.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.mutex.is_none() {
            self.serial.is_used.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_used_by_one_at_a_time() {
        for is_serialized in [false, true] {
            // SAFETY: this thread alone uses it.
            let serial = unsafe { Serial::new(1, is_serialized) };
            let mut guard = serial.lock();
            *guard += 1;
            assert!(serial.try_lock().is_none());
            drop(guard);
            assert_eq!(*serial.try_lock().unwrap(), 2);
            assert_eq!(*serial.lock(), 2);
        }
    }

    #[test]
    fn threads_wait_for_each_other_unless_the_application_sees_to_it() {
        // SAFETY: it has a lock.
        let serial = unsafe { Serial::new(0_u64, false) };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *serial.lock() += 1));
            }
        });
        assert_eq!(*serial.lock(), 40_000);
    }
}
