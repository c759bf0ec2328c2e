//! [`Visits`]: threads look at something without a lock, and whoever has taken it away waits until they are gone.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::metadata::Chunks;
use crate::{barrier, fork, thread};

/// Who is inside. For a `static`.
///
/// A visitor enters, then loads the pointer to what it looks at; whoever takes that away swaps the pointer, and then waits:
/// either the visitor loads the new pointer, or it is waited for.
#[derive(Debug)]
pub(crate) struct Visits {
    /// By thread: the process that it was last inside in, as [`fork::generation`] counts, and below that a number that is odd
    /// while it is. Written by that thread alone.
    threads: Chunks<AtomicU64>,
    /// Of threads without a number: the process, and below that how many are inside.
    others: AtomicU64,
}

/// A thread is inside.
#[derive(Debug)]
pub(crate) struct Visit<'v> {
    word: Word<'v>,
}

#[derive(Debug)]
enum Word<'v> {
    /// What the word is to be when the thread leaves.
    Own(&'v AtomicU64, u64),
    Others(&'v AtomicU64),
    /// It was inside already.
    Nested,
}

const LOW: u64 = u32::MAX as u64;

const fn is_inside(word: u64, here: u64) -> bool {
    // A thread of a parent process has never left, and is not here.
    word & !LOW == here && word & 1 == 1
}

fn here() -> u64 {
    u64::from(fork::generation()) << 32
}

impl Visits {
    pub(crate) const fn new() -> Self {
        Self { threads: Chunks::new(), others: AtomicU64::new(0) }
    }

    /// What is loaded from here on, and was not taken away before, stays until the visit is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Visit<'_> {
        let here = here();
        let own = thread::current().and_then(|thread| self.threads.get_or_grow(thread.get()).ok());
        let word = match own {
            Some(word) => {
                let before = word.load(Ordering::Relaxed);
                if is_inside(before, here) {
                    Word::Nested
                } else {
                    let number = ((before + 1) & LOW) | 1;
                    word.store(here | number, Ordering::Relaxed);
                    Word::Own(word, here | ((number + 1) & LOW))
                }
            }
            None => {
                let count = |word: u64| if word & !LOW == here { word & LOW } else { 0 };
                let add = |word| Some(here | (count(word) + 1));
                let _ = self.others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                Word::Others(&self.others)
            }
        };
        barrier::full();
        Visit { word }
    }

    /// Waits until all threads are gone that may have seen what was taken away before. `false` if the calling thread is one.
    pub(crate) fn wait(&self) -> bool {
        barrier::full();
        let here = here();
        let own = thread::current().map(thread::ThreadIndex::get);
        let mut is_outside = true;
        for index in 0..thread::end() {
            let Some(word) = self.threads.get(index) else { continue };
            let seen = word.load(Ordering::Acquire);
            if !is_inside(seen, here) {
                continue;
            }
            if Some(index) == own {
                is_outside = false;
                continue;
            }
            while word.load(Ordering::Acquire) == seen {
                std::thread::yield_now();
            }
        }
        let others = || Some(self.others.load(Ordering::Acquire)).filter(|word| word & !LOW == here);
        while others().is_some_and(|word| word & LOW != 0) {
            std::thread::yield_now();
        }
        is_outside
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        match self.word {
            Word::Own(word, left) => word.store(left, Ordering::Release),
            Word::Others(word) => {
                word.fetch_sub(1, Ordering::Release);
            }
            Word::Nested => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicPtr};

    #[test]
    fn nobody_looks_at_what_is_gone() {
        const GONE: u64 = 0;
        static VISITS: Visits = Visits::new();
        let place = AtomicPtr::new(Box::into_raw(Box::new(AtomicU64::new(1))));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let outer = VISITS.enter();
                        let nested = VISITS.enter();
                        // SAFETY: freed after `wait` alone.
                        let seen = unsafe { &*place.load(Ordering::Acquire) };
                        drop(nested);
                        std::hint::spin_loop();
                        assert_ne!(seen.load(Ordering::Relaxed), GONE);
                        drop(outer);
                    }
                });
            }
            for number in 2..2_000 {
                let new = Box::into_raw(Box::new(AtomicU64::new(number)));
                let old = place.swap(new, Ordering::AcqRel);
                assert!(VISITS.wait());
                // SAFETY: nobody sees it any more.
                let old = unsafe { Box::from_raw(old) };
                old.store(GONE, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // SAFETY: nobody looks any more.
        drop(unsafe { Box::from_raw(place.into_inner()) });
        let inside = VISITS.enter();
        assert!(!VISITS.wait(), "it does not wait for itself");
        drop(inside);
        assert!(VISITS.wait());
    }

    #[test]
    fn a_child_does_not_wait_for_threads_that_it_does_not_have() {
        static VISITS: Visits = Visits::new();
        let (inside, leave) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let visit = VISITS.enter();
                inside.store(true, Ordering::Release);
                while !leave.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                drop(visit);
            });
            while !inside.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            // SAFETY: the child takes no lock, and ends within a bounded time.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: an alarm, and the end of this child.
                unsafe {
                    libc::alarm(20);
                    libc::_exit(i32::from(!VISITS.wait()));
                }
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            leave.store(true, Ordering::Release);
            assert_eq!(status, 0);
        });
    }
}
