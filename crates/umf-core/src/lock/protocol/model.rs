//! The lock in loom's model: what it guards is one thread's at a time, and nobody sleeps for ever. It guards the central stores
//! of the slab pool, and whatever changes the tracker.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::model::{Reached, explore};

use super::{Futex, Ordering, let_go, take, try_take};

/// A word with the kernel's queue of those that sleep on it: looking at the word and going to sleep is one step.
struct ModelFutex {
    word: AtomicU32,
    queue: Mutex<()>,
    woken: Condvar,
    reached: Reached,
}

impl Futex for ModelFutex {
    // Once, so that this way in is part of the model.
    const SPINS: u32 = 1;

    fn load(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    fn replace(&self, current: u32, new: u32) -> bool {
        self.word.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.word.swap(value, order)
    }

    fn sleep(&self, expected: u32) {
        let queue = self.queue.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == expected {
            self.reached.reach("somebody slept");
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake_one(&self) {
        // The kernel looks at its queue under a lock too.
        drop(self.queue.lock().unwrap());
        self.woken.notify_one();
    }
}

/// What the lock guards. Loom tells of accesses at the same time.
struct Guarded {
    lock: ModelFutex,
    count: UnsafeCell<u32>,
}

// SAFETY: loom tells of accesses to the cell at the same time, which is what it is there for.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn add(&self) {
        self.count.with_mut(|count| {
            // SAFETY: the lock is held, or loom ends the test.
            unsafe { *count += 1 }
        });
    }
}

fn threads_take_turns(others: u32, rounds: u32, preemptions: usize) {
    let reached = Reached::default();
    let in_model = reached.clone();
    explore(preemptions, Some(preemptions + 1), move || {
        let lock = ModelFutex {
            word: AtomicU32::new(super::FREE),
            queue: Mutex::new(()),
            woken: Condvar::new(),
            reached: in_model.clone(),
        };
        let guarded = Arc::new(Guarded { lock, count: UnsafeCell::new(0) });
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let guarded = Arc::clone(&guarded);
                thread::spawn(move || {
                    for _ in 0..rounds {
                        take(&guarded.lock);
                        guarded.add();
                        let_go(&guarded.lock);
                    }
                })
            })
            .collect();
        let mut taken = 0;
        if try_take(&guarded.lock) {
            guarded.add();
            let_go(&guarded.lock);
            taken = 1;
        }
        // Loom ends the test if somebody sleeps and nobody is left to wake him.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: nobody else is left.
        guarded.count.with(|count| assert_eq!(unsafe { *count }, others * rounds + taken));
        assert_eq!(guarded.lock.load(), super::FREE);
    });
    reached.check(["somebody slept"]);
}

#[test]
fn loom_two_threads_take_turns() {
    threads_take_turns(1, 2, 3);
}

#[test]
fn loom_three_threads_take_turns() {
    threads_take_turns(2, 1, 2);
}
