//! Threads that are measured while all of them are at work.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Several threads that begin together, and wait for each other in the end. Nobody waits for one that failed.
pub(super) struct Meeting {
    count: usize,
    ready: AtomicUsize,
    done: AtomicUsize,
}

/// A thread's part in it.
pub(super) struct Presence<'a> {
    meeting: &'a Meeting,
    ready: bool,
    done: bool,
}

impl Meeting {
    pub(super) const fn new(count: usize) -> Meeting {
        Meeting { count, ready: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }

    /// To be called once by each of the threads.
    pub(super) const fn enter(&self) -> Presence<'_> {
        Presence { meeting: self, ready: false, done: false }
    }
}

impl Presence<'_> {
    /// Waits until all are here.
    pub(super) fn begin(&mut self) {
        self.is_ready();
        wait_until(|| self.meeting.ready.load(Ordering::Acquire) >= self.meeting.count);
    }

    fn is_ready(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            self.meeting.ready.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// This thread has what it wants.
    pub(super) fn done(&mut self) {
        if !std::mem::replace(&mut self.done, true) {
            self.meeting.done.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn all_are_done(&self) -> bool {
        self.meeting.done.load(Ordering::Acquire) >= self.meeting.count
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.is_ready();
        self.done();
    }
}

/// Waits for another thread, which may have to come to this processor first.
pub(super) fn wait_until(is_it: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while !is_it() {
        spins += 1;
        if spins < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}
