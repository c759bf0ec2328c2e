//! Dense thread indices, for per-thread state without a lock.
//!
//! Each thread that uses umf gets a small index. When the thread ends, a later thread reuses it.
//! Per-thread state (block caches, pins) lies in a table by that index, outside of thread-local
//! storage. So it can be summed over all threads, and the next thread with the index inherits it
//! instead of losing it. Thread-local storage holds one word without a destructor.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::panic::catch_unwind;

use crate::chunks::Chunks;
use crate::fork::{self, LeafUnindexed};
use umf_core::{Error, Result};

use crate::{Lock, thread_word};

/// The index of a running thread: dense, from 0, reused after the thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadIndex(u32);

impl ThreadIndex {
    /// The largest number of threads that can have an index at the same time.
    pub const LIMIT: u32 = 1 << 16;

    /// Returns the number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

const NONE: u32 = 0;
const ENDED: u32 = u32::MAX;

// The thread-local word: 0 before the first use, `u32::MAX` while the thread ends, otherwise the
// index plus one.

struct Numbers {
    next: u32,
    free: u32,
}

static NUMBERS: Lock<Numbers, LeafUnindexed> = Lock::new(Numbers { next: 0, free: NONE });
/// A copy of `Numbers::next` for iterations over all threads, which do not take the lock.
static END: AtomicU32 = AtomicU32::new(0);
static LINKS: Chunks<AtomicU32> = Chunks::new();

const HOOKS: usize = 16;
type Hook = fn(ThreadIndex);
static EXIT_HOOKS: Lock<([Option<Hook>; HOOKS], usize), LeafUnindexed> = Lock::new(([None; HOOKS], 0));

/// Returns the index of the calling thread, and assigns one at the first call.
///
/// `None` while the thread ends (after this crate's pthread key destructor ran) and past
/// [`ThreadIndex::LIMIT`] threads. Callers then work without per-thread state.
#[inline]
pub fn current() -> Option<ThreadIndex> {
    match thread_word::get() as u32 {
        NONE => enter(),
        ENDED => None,
        number => Some(ThreadIndex(number - 1)),
    }
}

/// Returns the index of the calling thread, if one was assigned before.
pub(crate) fn known() -> Option<ThreadIndex> {
    match thread_word::get() as u32 {
        NONE | ENDED => None,
        number => Some(ThreadIndex(number - 1)),
    }
}

/// Returns the index of the calling thread plus one. 0 if [`current`] has not assigned one yet, and
/// more than any index if the thread is ending. For hot paths: calls no function.
#[inline(always)]
#[must_use]
pub fn index_plus_one() -> u64 {
    thread_word::get()
}

/// Returns an upper bound of all indices that were ever assigned.
pub fn end() -> u32 {
    END.load(Ordering::SeqCst)
}

/// Runs `hook` at the exit of each thread that has an index, before the index is released.
///
/// # Errors
/// [`Error::TooMany`] past 16 hooks.
pub fn on_exit(hook: fn(ThreadIndex)) -> Result<()> {
    let mut hooks = EXIT_HOOKS.lock();
    let len = hooks.1;
    if hooks.0[..len].iter().flatten().any(|known| core::ptr::fn_addr_eq(*known, hook)) {
        return Ok(());
    }
    if len == HOOKS {
        return Err(Error::TooMany { what: "thread exit hooks", limit: HOOKS });
    }
    hooks.0[len] = Some(hook);
    hooks.1 += 1;
    Ok(())
}

#[cold]
fn enter() -> Option<ThreadIndex> {
    // Installs the fork handlers before a lock is acquired.
    fork::generation();
    let key = exit_key()?;
    let number = allocate()?;
    // SAFETY: the key exists; any non-null value makes its destructor run at thread exit.
    if unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(number as usize + 1)) } != 0 {
        release(number);
        return None;
    }
    thread_word::set(number + 1);
    Some(ThreadIndex(number))
}

/// Returns the key whose destructor runs at thread exit. Lock-free: a child that is forked
/// meanwhile does not have the thread that it would wait for.
fn exit_key() -> Option<libc::pthread_key_t> {
    /// The key plus one.
    static KEY: AtomicU64 = AtomicU64::new(0);
    let known = |word: u64| libc::pthread_key_t::try_from(word.checked_sub(1)?).ok();
    if let Some(key) = known(KEY.load(Ordering::Acquire)) {
        return Some(key);
    }
    let mut key = 0;
    // SAFETY: `key` is valid for the write; the destructor is a function of this crate.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, u64::from(key) + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(first) => {
            // SAFETY: another thread was first, so no thread has this key.
            unsafe { libc::pthread_key_delete(key) };
            known(first)
        }
    }
}

extern "C" fn leave(_value: *mut libc::c_void) {
    let number = thread_word::get() as u32;
    if number == NONE || number == ENDED {
        return;
    }
    let hooks = { EXIT_HOOKS.lock().0 };
    for hook in hooks.into_iter().flatten() {
        // A hook may panic in a `tracing` subscriber, and this function must not unwind.
        if let Err(payload) = catch_unwind(|| hook(ThreadIndex(number - 1))) {
            // Dropping the payload may panic again.
            core::mem::forget(payload);
        }
    }
    thread_word::set(ENDED);
    release(number - 1);
}

fn allocate() -> Option<u32> {
    let mut numbers = NUMBERS.lock();
    if numbers.free != NONE {
        let number = numbers.free - 1;
        numbers.free = LINKS.get(number)?.load(Ordering::Relaxed);
        return Some(number);
    }
    let number = numbers.next;
    if number == ThreadIndex::LIMIT {
        return None;
    }
    LINKS.get_or_grow(number).ok()?;
    numbers.next += 1;
    // Before the thread uses its index.
    END.store(numbers.next, Ordering::SeqCst);
    Some(number)
}

fn release(number: u32) {
    fork::reset_count_words(number);
    let mut numbers = NUMBERS.lock();
    if let Some(link) = LINKS.get(number) {
        link.store(numbers.free, Ordering::Relaxed);
        numbers.free = number + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_dense_and_reused() {
        let this = current().unwrap();
        assert_eq!(current(), Some(this));
        for _ in 0..100 {
            let other = std::thread::spawn(|| current().unwrap()).join().unwrap();
            assert_ne!(other, this);
        }
        // Other tests of this program run at the same time, but far fewer than a hundred.
        assert!(end() < 100, "indices are not reused: {}", end());
    }

    #[test]
    fn exit_hooks_run_with_the_index_of_the_thread() {
        static EXITED: Lock<Vec<u32>> = Lock::new(Vec::new());
        fn hook(index: ThreadIndex) {
            EXITED.lock().push(index.get());
        }
        on_exit(hook).unwrap();
        on_exit(hook).unwrap();
        let number = std::thread::spawn(|| current().unwrap().get()).join().unwrap();
        assert!(EXITED.lock().contains(&number));
    }
}
