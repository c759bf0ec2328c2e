//! [`InFlight`]: the number of threads in a section. It restarts at 0 in a forked child.
//!
//! A thread that unlinks an object waits until the count is 0 before it frees the object. Entering
//! is an atomic update of a shared word; for hot paths use an epoch per thread instead.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fork;

const COUNT: u64 = u32::MAX as u64;

/// A counter of the threads of this process that are in a section. Threads of the parent process
/// do not count.
#[derive(Debug, Default)]
pub struct InFlight(
    /// [`fork::generation`] of the counting process in the upper half, the count in the lower.
    AtomicU64,
);

/// The calling thread's section, which ends when this is dropped.
#[derive(Debug)]
pub struct InFlightGuard<'c> {
    in_flight: &'c InFlight,
    process: u64,
    not_send: PhantomData<*const ()>,
}

fn process() -> u64 {
    u64::from(fork::generation()) << 32
}

impl InFlight {
    /// Returns a counter of 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Enters the section. The update is sequentially consistent: if another thread unlinks an
    /// object and then [waits](Self::wait), a thread that loads the link after this call either
    /// finds the object unlinked or is waited for.
    #[must_use]
    pub fn enter(&self) -> InFlightGuard<'_> {
        let process = process();
        let add = |word: u64| Some(if word & !COUNT == process { word + 1 } else { process | 1 });
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        InFlightGuard { in_flight: self, process, not_send: PhantomData }
    }

    /// Waits until no thread is in the section. The calling thread must not be in it.
    pub fn wait(&self) {
        let process = process();
        let are_inside = |word: u64| word & !COUNT == process && word & COUNT != 0;
        while are_inside(self.0.load(Ordering::SeqCst)) {
            std::thread::yield_now();
        }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        // A child that was forked in the section has an empty count of its own.
        if self.process == process() {
            self.in_flight.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(in_flight: &InFlight) -> u64 {
        in_flight.0.load(Ordering::SeqCst) & COUNT
    }

    #[test]
    fn forked_child_counts_its_own_threads() {
        static IN_FLIGHT: InFlight = InFlight::new();
        let outer = IN_FLIGHT.enter();
        let inner = IN_FLIGHT.enter();
        assert_eq!(inside(&IN_FLIGHT), 2);
        // SAFETY: the child runs code of this crate only, and exits within a bounded time.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets an alarm for this child.
            unsafe { libc::alarm(20) };
            drop(inner);
            drop(outer);
            IN_FLIGHT.wait();
            let one = IN_FLIGHT.enter();
            let counted = inside(&IN_FLIGHT);
            drop(one);
            IN_FLIGHT.wait();
            // SAFETY: `_exit` runs no code of this process.
            unsafe { libc::_exit(i32::from(counted != 1)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        drop((inner, outer));
        IN_FLIGHT.wait();
        assert_eq!(inside(&IN_FLIGHT), 0);
    }
}
