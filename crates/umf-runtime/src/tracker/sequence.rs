//! Words that change while others read them without a lock: the protocol of the tracker's records, lists and map, in one
//! place and generic over the word, so that loom's can stand in (`loom_` tests; in full with `tests/run --loom`).
//!
//! A *sequence* is odd while what belongs to it is being written, or is nobody's. One thread at a time writes.
//!
//! | | promise |
//! |---|---|
//! | [`write`], [`withdraw`], [`read`] | a record is seen whole, or not at all |
//! | [`write`] around a change of the whole map, [`settled`] | what was there all the time is found |

use core::sync::atomic::{AtomicU32, Ordering};

/// A word that threads share.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn fetch_or(&self, bits: u32, order: Ordering);
    fn fence(order: Ordering);
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fetch_or(&self, bits: u32, order: Ordering) {
        self.fetch_or(bits, order);
    }

    #[inline]
    fn fence(order: Ordering) {
        core::sync::atomic::fence(order);
    }
}

/// Runs `write` with the sequence odd, and leaves it even, and never what it was.
pub(super) fn write<W: Word, T>(sequence: &W, write: impl FnOnce() -> T) -> T {
    let open = sequence.load(Ordering::Relaxed) | 1;
    sequence.store(open, Ordering::Relaxed);
    // Whoever sees a word from below sees the sequence odd, or later.
    W::fence(Ordering::Release);
    let result = write();
    sequence.store(open.wrapping_add(1), Ordering::Release);
    result
}

/// What belongs to the sequence is nobody's from here on.
pub(super) fn withdraw<W: Word>(sequence: &W) {
    sequence.fetch_or(1, Ordering::Release);
}

/// What `fields` yields, if it was all written by one; `None` if it is being written, or nobody's.
#[inline]
pub(super) fn read<W: Word, T>(sequence: &W, fields: impl FnOnce() -> T) -> Option<T> {
    let before = sequence.load(Ordering::Acquire);
    let content = fields();
    W::fence(Ordering::Acquire);
    (before & 1 == 0 && sequence.load(Ordering::Relaxed) == before).then_some(content)
}

/// What [`settled`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled<T> {
    Found(T),
    /// It is not there.
    Nothing,
    /// It may be there: something was being changed meanwhile.
    Unknown,
}

/// Looks once. What is found is true. That nothing is found counts only where nothing was changed meanwhile. (Comparing just
/// what was looked at before and after would not do: numbers are used again, so that an entry can change and come back.)
pub(super) fn settled<W: Word, T>(changes: &W, look: impl FnOnce() -> Option<T>) -> Settled<T> {
    let before = changes.load(Ordering::Acquire);
    if let Some(found) = look() {
        return Settled::Found(found);
    }
    W::fence(Ordering::Acquire);
    let is_settled = before & 1 == 0 && changes.load(Ordering::Relaxed) == before;
    if is_settled { Settled::Nothing } else { Settled::Unknown }
}

#[cfg(test)]
mod model;
