//! [`race`]: two threads that do the same thing at the same instant.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Calls `act` for each of `items` in two threads, one of them the calling one. Both come to each item
/// at the same time, as far as the processors allow it.
///
/// # Panics
/// If `act` does.
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

/// Says, when a thread ends, that it has arrived everywhere: if `act` panics in one thread, the other
/// one does not wait for it.
struct Arrives<'a>(&'a AtomicUsize);

impl Drop for Arrives<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(usize::MAX / 4, Ordering::AcqRel);
    }
}
