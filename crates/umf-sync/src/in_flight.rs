//! [`InFlight`]: a count of threads inside of something, which a forked child begins anew.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fork;

const COUNT: u64 = u32::MAX as u64;

/// How many threads of this process are inside. Those of a parent process do not count.
#[derive(Debug, Default)]
pub struct InFlight(
    /// The process, as [`fork::generation`] counts, in the upper half; the count in the lower.
    AtomicU64,
);

/// A thread is inside until this is dropped.
#[derive(Debug)]
pub struct InFlightGuard<'v> {
    in_flight: &'v InFlight,
    process: u64,
    not_send: PhantomData<*const ()>,
}

fn process() -> u64 {
    u64::from(fork::generation()) << 32
}

impl InFlight {
    /// Nobody is inside.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Goes inside. Sequentially consistent: if a thread takes something away and then [waits](Self::wait), a visitor
    /// that looks for it after this finds it gone, or is waited for.
    #[must_use]
    pub fn enter(&self) -> InFlightGuard<'_> {
        let process = process();
        let add = |word: u64| Some(if word & !COUNT == process { word + 1 } else { process | 1 });
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        InFlightGuard { in_flight: self, process, not_send: PhantomData }
    }

    /// Waits until no thread is inside. The calling thread must not be.
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
        // A child that was forked inside does not count itself.
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
    fn a_child_counts_its_own_threads() {
        static IN_FLIGHT: InFlight = InFlight::new();
        let outer = IN_FLIGHT.enter();
        let inner = IN_FLIGHT.enter();
        assert_eq!(inside(&IN_FLIGHT), 2);
        // SAFETY: the child runs code of this crate, and ends within a bounded time.
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
            // SAFETY: ends the child at once.
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
