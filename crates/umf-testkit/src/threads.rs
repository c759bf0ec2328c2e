//! Helpers for tests with several threads: [`race`] and [`SetOnDrop`].

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Calls `act` for each of `items` in two threads, one of them the calling thread. Both threads
/// reach each item at about the same time.
///
/// # Panics
/// Panics if `act` does.
pub fn race<T: Sync>(items: &[T], act: impl Fn(&T) + Sync) {
    let arrived = AtomicUsize::new(0);
    let run = || {
        let _arrives = Arrives(&arrived);
        for (turn, item) in (1..).zip(items) {
            arrived.fetch_add(1, Ordering::AcqRel);
            let mut spins = 0_u32;
            while arrived.load(Ordering::Acquire) < 2 * turn {
                spins += 1;
                if spins.is_multiple_of(4096) {
                    std::thread::yield_now();
                }
            }
            act(item);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(run);
        run();
        other.join().expect("the other thread does not panic");
    });
}

/// Guard that marks a thread as arrived everywhere when it ends. If `act` panics in one thread, the
/// other thread does not wait for it.
struct Arrives<'a>(&'a AtomicUsize);

impl Drop for Arrives<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(usize::MAX / 4, Ordering::AcqRel);
    }
}

/// Guard that sets a flag when it is dropped. A thread scope joins its threads even if the test
/// panics. Threads that run until the flag is set then end instead of running forever.
#[derive(Debug)]
pub struct SetOnDrop<'e>(pub &'e AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
