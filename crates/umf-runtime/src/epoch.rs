//! [`Epoch`]: epoch-based reclamation. Readers enter a section without a lock; the thread that unlinks
//! an object waits for all sections that may have seen it to end.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_sync::words::Word as Shared;
use umf_sync::{chunks::Chunks, fence, fork, thread};

/// The read sections of all threads. For a `static`.
///
/// A reader enters a section, then loads the pointer to an object. A writer swaps the pointer, then
/// waits. Either the reader loads the new pointer, or the writer waits for its section.
#[derive(Debug)]
pub(crate) struct Epoch {
    /// By thread index. Upper half: [`fork::generation`] of the process of the thread's last
    /// section. Lower half: a counter that is odd while the thread is in a section. Only that
    /// thread writes.
    threads: Chunks<AtomicU64>,
    /// For threads without an index: the generation, and below it the number of open sections.
    others: AtomicU64,
}

/// A read section of the calling thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ReadSection<'v> {
    word: Word<'v>,
    not_send: PhantomData<*const ()>,
}

#[derive(Debug)]
enum Word<'v> {
    /// The word of the thread, and its value after the section.
    Own(&'v AtomicU64, u64),
    /// The word that threads without an index share.
    Others(&'v AtomicU64),
    /// The thread was already in a section.
    Nested,
}

/// Opens a section. This fence and the one before [`wait_for`] are ordered: either the reader sees
/// the object unlinked, or the writer sees the section.
#[inline]
fn begin<W: Shared>(word: &W, inside: u64) {
    word.store(inside, Ordering::Relaxed);
    W::light_fence();
}

/// Closes a section.
#[inline]
fn end<W: Shared>(word: &W, outside: u64) {
    word.store(outside, Ordering::Release);
}

/// Waits until a section that is open now has ended. Runs after a fence.
fn wait_for<W: Shared>(word: &W, is_inside: impl Fn(u64) -> bool) {
    let seen = word.load(Ordering::Acquire);
    if is_inside(seen) {
        while word.load(Ordering::Acquire) == seen {
            W::pause();
        }
    }
}

thread_local! {
    /// The number of sections, in all epochs, that this thread has open without an index.
    static UNNUMBERED: Cell<u32> = const { Cell::new(0) };
}

const LOW: u64 = u32::MAX as u64;

const fn is_inside(word: u64, here: u64) -> bool {
    // A section of a thread of the parent process stays open in a child, and does not count.
    word & !LOW == here && word & 1 == 1
}

fn here() -> u64 {
    u64::from(fork::generation()) << 32
}

impl Epoch {
    pub(crate) const fn new() -> Self {
        Self { threads: Chunks::new(), others: AtomicU64::new(0) }
    }

    /// Enters a section. An object whose pointer is loaded after this stays until the section ends.
    #[inline]
    pub(crate) fn enter(&self) -> ReadSection<'_> {
        let here = here();
        let own = thread::current().and_then(|thread| self.threads.get_or_grow(thread.get()).ok());
        let word = match own {
            Some(word) => {
                let before = word.load(Ordering::Relaxed);
                if is_inside(before, here) {
                    Word::Nested
                } else {
                    let number = ((before + 1) & LOW) | 1;
                    begin(word, here | number);
                    Word::Own(word, here | ((number + 1) & LOW))
                }
            }
            None => {
                let count = |word: u64| if word & !LOW == here { word & LOW } else { 0 };
                let add = |word| Some(here | (count(word) + 1));
                let _ = self.others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                UNNUMBERED.set(UNNUMBERED.get() + 1);
                fence::full();
                Word::Others(&self.others)
            }
        };
        ReadSection { word, not_send: PhantomData }
    }

    /// Waits until all sections that may have seen an unlinked object have ended. Returns `false`
    /// at once if the calling thread is in a section: two such threads would deadlock.
    pub(crate) fn wait(&self) -> bool {
        fence::heavy();
        let here = here();
        let own = thread::current().and_then(|thread| self.threads.get(thread.get()));
        if UNNUMBERED.get() != 0 || own.is_some_and(|word| is_inside(word.load(Ordering::Relaxed), here)) {
            return false;
        }
        for word in (0..thread::end()).filter_map(|index| self.threads.get(index)) {
            wait_for(word, |word| is_inside(word, here));
        }
        let others = || Some(self.others.load(Ordering::Acquire)).filter(|word| word & !LOW == here);
        while others().is_some_and(|word| word & LOW != 0) {
            std::thread::yield_now();
        }
        true
    }
}

impl Drop for ReadSection<'_> {
    fn drop(&mut self) {
        match self.word {
            Word::Own(word, left) => end(word, left),
            Word::Others(word) => {
                word.fetch_sub(1, Ordering::Release);
                UNNUMBERED.set(UNNUMBERED.get() - 1);
            }
            Word::Nested => {}
        }
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicPtr};

    #[test]
    fn wait_returns_after_the_last_reader_left() {
        const GONE: u64 = 0;
        static VISITS: Epoch = Epoch::new();
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
                // SAFETY: no reader can load the pointer any more.
                let old = unsafe { Box::from_raw(old) };
                old.store(GONE, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // SAFETY: all readers have ended.
        drop(unsafe { Box::from_raw(place.into_inner()) });
        let inside = VISITS.enter();
        assert!(!VISITS.wait(), "it does not wait for itself");
        drop(inside);
        assert!(VISITS.wait());
    }

    #[test]
    fn two_that_are_inside_do_not_wait_for_each_other() {
        static VISITS: Epoch = Epoch::new();
        let (tell, told) = std::sync::mpsc::channel();
        let are_inside = std::sync::Arc::new(std::sync::Barrier::new(2));
        for _ in 0..2 {
            let (tell, are_inside) = (tell.clone(), std::sync::Arc::clone(&are_inside));
            // Not joined: if this fails they never end.
            std::thread::spawn(move || {
                let _visit = VISITS.enter();
                are_inside.wait();
                let _ = tell.send(VISITS.wait());
            });
        }
        for _ in 0..2 {
            assert_eq!(told.recv_timeout(core::time::Duration::from_secs(20)), Ok(false));
        }
    }

    #[test]
    fn a_thread_without_a_number_does_not_wait_for_itself() {
        static VISITS: Epoch = Epoch::new();
        static TELL: std::sync::Mutex<Option<std::sync::mpsc::Sender<Option<bool>>>> =
            std::sync::Mutex::new(None);
        struct AtTheEnd;
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                let mut seen = None;
                if thread::current().is_none() {
                    let visit = VISITS.enter();
                    let inside = VISITS.wait();
                    drop(visit);
                    seen = (!inside).then(|| VISITS.wait());
                }
                if let Some(tell) = TELL.lock().unwrap().as_ref() {
                    tell.send(seen).unwrap();
                }
            }
        }
        extern "C" fn end(_value: *mut libc::c_void) {
            // Destructors of keys run in the order of their numbers, in glibc and musl: behind the
            // one of thread numbers.
            drop(AtTheEnd);
        }
        let (tell, told) = std::sync::mpsc::channel();
        *TELL.lock().unwrap() = Some(tell);
        thread::current().unwrap();
        let mut key = 0;
        // SAFETY: `key` is valid for the write; the destructor stays.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(end)) }, 0);
        std::thread::spawn(move || {
            thread::current().unwrap();
            // SAFETY: the key exists; the value is any but null.
            unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(1)) };
        });
        assert_eq!(told.recv_timeout(core::time::Duration::from_secs(20)), Ok(Some(true)));
    }

    #[test]
    fn a_child_does_not_wait_for_threads_that_it_does_not_have() {
        static VISITS: Epoch = Epoch::new();
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
