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
    /// For threads without an index: the generation in the upper half, and the number of open
    /// sections in the lower half.
    unindexed: AtomicU64,
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
    Thread(&'v AtomicU64, u64),
    /// The word that threads without an index share.
    Shared(&'v AtomicU64),
    /// The thread was already in a section.
    Nested,
}

/// Begins a section. This fence and the one before [`wait_for`] are ordered: either the reader sees
/// the object unlinked, or the writer sees the section.
#[inline]
fn begin<W: Shared>(word: &W, inside: u64) {
    word.store(inside, Ordering::Relaxed);
    W::light_fence();
}

/// Ends a section.
#[inline]
fn end<W: Shared>(word: &W, outside: u64) {
    word.store(outside, Ordering::Release);
}

/// Waits until a section that is open now has ended. The caller has executed a heavy fence.
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
    static UNINDEXED_SECTIONS: Cell<u32> = const { Cell::new(0) };
}

/// The lower half of a word.
const LOW: u64 = u32::MAX as u64;

/// Returns whether a thread of this process is in the section of `word`. In a forked child,
/// sections of the parent's threads stay open and do not count.
const fn is_inside(word: u64, process: u64) -> bool {
    word & !LOW == process && word & 1 == 1
}

/// Returns the fork generation of this process in the upper half of a word.
fn current_process() -> u64 {
    u64::from(fork::generation()) << 32
}

impl Epoch {
    pub(crate) const fn new() -> Self {
        Self { threads: Chunks::new(), unindexed: AtomicU64::new(0) }
    }

    /// Enters a section. An object whose pointer is loaded after this is not freed before the
    /// section ends.
    #[inline]
    pub(crate) fn enter(&self) -> ReadSection<'_> {
        let process = current_process();
        let indexed = thread::current().and_then(|thread| self.threads.get_or_grow(thread.get()).ok());
        let word = match indexed {
            Some(word) => {
                let before = word.load(Ordering::Relaxed);
                if is_inside(before, process) {
                    Word::Nested
                } else {
                    let number = ((before + 1) & LOW) | 1;
                    begin(word, process | number);
                    Word::Thread(word, process | ((number + 1) & LOW))
                }
            }
            None => {
                let count = |word: u64| if word & !LOW == process { word & LOW } else { 0 };
                let add = |word| Some(process | (count(word) + 1));
                let _ = self.unindexed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                UNINDEXED_SECTIONS.set(UNINDEXED_SECTIONS.get() + 1);
                fence::full();
                Word::Shared(&self.unindexed)
            }
        };
        ReadSection { word, not_send: PhantomData }
    }

    /// Waits until all sections that may have seen an unlinked object have ended. Returns `false`
    /// at once if the calling thread is in a section: two such threads would deadlock.
    pub(crate) fn wait(&self) -> bool {
        fence::heavy();
        let process = current_process();
        let indexed = thread::current().and_then(|thread| self.threads.get(thread.get()));
        let is_in_section = |word: &AtomicU64| is_inside(word.load(Ordering::Relaxed), process);
        if UNINDEXED_SECTIONS.get() != 0 || indexed.is_some_and(is_in_section) {
            return false;
        }
        for word in (0..thread::end()).filter_map(|index| self.threads.get(index)) {
            wait_for(word, |word| is_inside(word, process));
        }
        let unindexed = || Some(self.unindexed.load(Ordering::Acquire)).filter(|word| word & !LOW == process);
        while unindexed().is_some_and(|word| word & LOW != 0) {
            std::thread::yield_now();
        }
        true
    }
}

impl Drop for ReadSection<'_> {
    fn drop(&mut self) {
        match self.word {
            Word::Thread(word, after) => end(word, after),
            Word::Shared(word) => {
                word.fetch_sub(1, Ordering::Release);
                UNINDEXED_SECTIONS.set(UNINDEXED_SECTIONS.get() - 1);
            }
            Word::Nested => {}
        }
    }
}

/// The epoch in loom: the writer waits for every reader that loaded the unlinked object.
#[cfg(test)]
mod model {
    use std::sync::Arc;

    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use umf_sync::model::{ModelWord, Reached, explore};

    use super::{Ordering, Shared, begin, end, wait_for};

    #[test]
    fn loom_writer_waits_for_readers_of_the_unlinked_object() {
        struct Model {
            words: [ModelWord; 2],
            is_linked: AtomicBool,
            is_freed: AtomicBool,
        }
        let reached = Reached::default();
        let in_model = reached.clone();
        explore(3, None, move || {
            let model = Arc::new(Model {
                words: [ModelWord::new(0), ModelWord::new(0)],
                is_linked: AtomicBool::new(true),
                is_freed: AtomicBool::new(false),
            });
            let readers: Vec<_> = (0..2)
                .map(|me: usize| {
                    let (model, reached) = (Arc::clone(&model), in_model.clone());
                    thread::spawn(move || {
                        begin(&model.words[me], 1);
                        if model.is_linked.load(Ordering::Acquire) {
                            assert!(!model.is_freed.load(Ordering::Relaxed), "freed during a section");
                            reached.reach("linked");
                        } else {
                            reached.reach("unlinked");
                        }
                        end(&model.words[me], 2);
                    })
                })
                .collect();
            model.is_linked.store(false, Ordering::Release);
            <ModelWord>::heavy_fence();
            model.words.iter().for_each(|word| wait_for(word, |word| word == 1));
            model.is_freed.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        reached.check(["linked", "unlinked"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicPtr};

    #[test]
    fn wait_returns_after_the_last_reader_left() {
        const GONE: u64 = 0;
        static EPOCH: Epoch = Epoch::new();
        let pointer = AtomicPtr::new(Box::into_raw(Box::new(AtomicU64::new(1))));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let outer = EPOCH.enter();
                        let nested = EPOCH.enter();
                        // SAFETY: the object is freed only after `wait`, which waits for `outer`.
                        let object = unsafe { &*pointer.load(Ordering::Acquire) };
                        drop(nested);
                        std::hint::spin_loop();
                        assert_ne!(object.load(Ordering::Relaxed), GONE);
                        drop(outer);
                    }
                });
            }
            for number in 2..2_000 {
                let new = Box::into_raw(Box::new(AtomicU64::new(number)));
                let old = pointer.swap(new, Ordering::AcqRel);
                assert!(EPOCH.wait());
                // SAFETY: no reader can load the pointer any more.
                let old = unsafe { Box::from_raw(old) };
                old.store(GONE, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // SAFETY: all readers have ended.
        drop(unsafe { Box::from_raw(pointer.into_inner()) });
        let inside = EPOCH.enter();
        assert!(!EPOCH.wait(), "a thread does not wait for its own section");
        drop(inside);
        assert!(EPOCH.wait());
    }

    #[test]
    fn wait_inside_of_a_section_fails_without_deadlock() {
        static EPOCH: Epoch = Epoch::new();
        let (sender, receiver) = std::sync::mpsc::channel();
        let are_inside = std::sync::Arc::new(std::sync::Barrier::new(2));
        for _ in 0..2 {
            let (sender, are_inside) = (sender.clone(), std::sync::Arc::clone(&are_inside));
            // Not joined: if this fails they never end.
            std::thread::spawn(move || {
                let _section = EPOCH.enter();
                are_inside.wait();
                let _ = sender.send(EPOCH.wait());
            });
        }
        for _ in 0..2 {
            assert_eq!(receiver.recv_timeout(core::time::Duration::from_secs(20)), Ok(false));
        }
    }

    #[test]
    fn wait_of_a_thread_without_an_index_fails_inside_of_its_section() {
        static EPOCH: Epoch = Epoch::new();
        static SENDER: std::sync::Mutex<Option<std::sync::mpsc::Sender<Option<bool>>>> =
            std::sync::Mutex::new(None);
        struct AtTheEnd;
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                let mut result = None;
                if thread::current().is_none() {
                    let section = EPOCH.enter();
                    let inside = EPOCH.wait();
                    drop(section);
                    result = (!inside).then(|| EPOCH.wait());
                }
                if let Some(sender) = SENDER.lock().unwrap().as_ref() {
                    sender.send(result).unwrap();
                }
            }
        }
        extern "C" fn end(_value: *mut libc::c_void) {
            // glibc and musl run the destructors of keys in the order of their numbers, so this one
            // runs after that of the thread index.
            drop(AtTheEnd);
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        *SENDER.lock().unwrap() = Some(sender);
        thread::current().unwrap();
        let mut key = 0;
        // SAFETY: `key` is valid for the write; the destructor stays.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(end)) }, 0);
        std::thread::spawn(move || {
            thread::current().unwrap();
            // SAFETY: the key exists; the value is any but null.
            unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(1)) };
        });
        assert_eq!(receiver.recv_timeout(core::time::Duration::from_secs(20)), Ok(Some(true)));
    }

    #[test]
    fn wait_in_a_forked_child_ignores_sections_of_the_parent() {
        static EPOCH: Epoch = Epoch::new();
        let (inside, leave) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let section = EPOCH.enter();
                inside.store(true, Ordering::Release);
                while !leave.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                drop(section);
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
                    libc::_exit(i32::from(!EPOCH.wait()));
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
