//! [`Global`]: a value that a process has one of, behind a lock that comes through forks.

use core::sync::atomic::AtomicBool;

use crate::fork::{self, ForkAware, Order};
use crate::lock::{Lock, LockGuard};

/// For a `static` that is changed now and then. Where a `std::sync::Mutex` may be found taken for ever by a child that was
/// forked while another thread had it, this one is free there.
///
/// Under it neither [`fork::register`] nor [`fork::unregister`] is called, nor anything that does (making a pool, or dropping
/// what may own one): these wait for a fork, which waits for this lock. What else may be done with it is said when it is made.
#[derive(Debug)]
pub struct Global<T> {
    lock: Lock<T>,
    order: Order,
    takes_part: AtomicBool,
}

impl<T: Send> Global<T> {
    /// One that a fork takes before the locks of pools and all others: whoever holds it may allocate and free, and nobody takes it
    /// who holds one of those.
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(value), order: Order::First, takes_part: AtomicBool::new(false) }
    }

    /// One that a fork takes after all others: whoever holds it takes no other lock, and neither allocates nor frees.
    pub const fn leaf(value: T) -> Self {
        Self { lock: Lock::new(value), order: Order::Leaf, takes_part: AtomicBool::new(false) }
    }

    /// Waits for the lock, and for a fork that is going on if it is the first time.
    ///
    /// Where the table of what takes part in forks is full (see [`fork::register`]) a child may find the lock taken.
    pub fn lock(&'static self) -> LockGuard<'static, T> {
        let _ = fork::once(self, &self.takes_part, self.order);
        self.lock.lock()
    }
}

impl<T: Send> ForkAware for Global<T> {
    fn prepare(&self) {
        self.lock.lock_for_fork();
    }

    fn parent(&self) {
        // SAFETY: `prepare` took it in this thread, or in the one of which this is the forked copy.
        unsafe { self.lock.unlock_after_fork() };
    }

    fn child(&self) {
        self.parent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;

    #[test]
    fn a_child_finds_it_free_and_whole() {
        static PAIRS: [Global<(u64, u64)>; 2] = [Global::new((0, 0)), Global::leaf((0, 0))];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for pair in &PAIRS {
                        let mut pair = pair.lock();
                        pair.0 += 1;
                        std::hint::spin_loop();
                        pair.1 += 1;
                    }
                }
            });
            for _ in 0..100 {
                // SAFETY: the child only takes this crate's locks, and ends within a bounded time.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: sets an alarm for this child.
                    unsafe { libc::alarm(20) };
                    let are_whole = PAIRS.iter().all(|pair| {
                        let pair = *pair.lock();
                        pair.0 == pair.1
                    });
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(!are_whole)) };
                }
                let mut status = 0;
                // SAFETY: waits for the child made above.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                assert_eq!(status, 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
