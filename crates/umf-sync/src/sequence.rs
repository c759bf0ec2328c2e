//! [`SequenceLock`]: words that change while others read them without a lock.
//!
//! The protocol is generic over the word, so that loom's can stand in (`loom_` tests; in full with `tests/run --loom`).
//!
//! | | writers | promise |
//! |---|---|---|
//! | [`write`](SequenceLock::write), [`withdraw`](SequenceLock::withdraw), [`read`](SequenceLock::read) | one at a time | a record is seen whole, or not at all |
//! | [`write`](SequenceLock::write) around a change of a whole map, [`settled`](SequenceLock::settled) | one at a time | what was there all the time is found |
//! | [`record`](SequenceLock::record), [`read_record`](SequenceLock::read_record) | any number | a record of a ring is seen whole or not at all, and never goes back; no thread waits |

use core::sync::atomic::{AtomicU64, Ordering};

use crate::chunks::Zeroable;
use crate::words::Number;

/// The *sequence* of words that change together. It is odd while they are being written, or belong to nothing.
#[derive(Debug)]
#[repr(transparent)]
pub struct SequenceLock<W = AtomicU64>(W);

// SAFETY: zero is the sequence of words that were never written.
unsafe impl Zeroable for SequenceLock {}

impl SequenceLock {
    /// The sequence of words that may be read as they are.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Default for SequenceLock {
    fn default() -> Self {
        Self::new()
    }
}

/// The sequence of a record that holds what the writer with this ticket wrote. 0 is that of one that was never written.
#[must_use]
pub const fn stamp_of(ticket: u64) -> u64 {
    ticket.wrapping_mul(2).wrapping_add(2)
}

/// What [`SequenceLock::settled`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled<T> {
    /// It is there.
    Found(T),
    /// It is not there.
    Nothing,
    /// It may be there: something was being changed meanwhile.
    Unknown,
}

impl<W: Number> SequenceLock<W> {
    /// A sequence in a word.
    pub const fn over(word: W) -> Self {
        Self(word)
    }

    /// A sequence in a word that lies elsewhere, in a mapping for one.
    pub const fn of(word: &W) -> &Self {
        // SAFETY: a sequence lock is transparent over its word.
        unsafe { &*core::ptr::from_ref(word).cast() }
    }

    /// Runs `write` with the sequence odd, and leaves it even, and never what it was. By one thread at a time.
    pub fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let open = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(open, Ordering::Relaxed);
        // A thread that sees a word from below sees the sequence odd, or later.
        W::fence(Ordering::Release);
        let result = write();
        self.0.store(open.wrapping_add(1), Ordering::Release);
        result
    }

    /// The words belong to nothing from here on.
    pub fn withdraw(&self) {
        self.0.fetch_or(1, Ordering::Release);
    }

    /// What `fields` yields, if it was all written by one; `None` if it is being written, or belongs to nothing.
    #[inline(always)]
    pub fn read<T>(&self, fields: impl FnOnce() -> T) -> Option<T> {
        self.read_stamped(fields).map(|(_, content)| content)
    }

    #[inline(always)]
    fn read_stamped<T>(&self, fields: impl FnOnce() -> T) -> Option<(u64, T)> {
        let before = self.0.load(Ordering::Acquire);
        let content = fields();
        W::fence(Ordering::Acquire);
        (before & 1 == 0 && self.0.load(Ordering::Relaxed) == before).then_some((before, content))
    }

    /// Looks once. What is found is true. That nothing is found counts only where nothing was changed meanwhile. (Comparing just
    /// what was looked at before and after would not do: numbers are used again, so that an entry can change and come back.)
    pub fn settled<T>(&self, look: impl FnOnce() -> Option<T>) -> Settled<T> {
        let before = self.0.load(Ordering::Acquire);
        if let Some(found) = look() {
            return Settled::Found(found);
        }
        W::fence(Ordering::Acquire);
        let is_settled = before & 1 == 0 && self.0.load(Ordering::Relaxed) == before;
        if is_settled { Settled::Nothing } else { Settled::Unknown }
    }

    /// Writes the record that a ticket (below 2^63) leads to, or returns `false`: another writer is in it (it was overtaken by a
    /// whole round), or a later one was. No thread waits: what was to be written is lost then.
    ///
    /// Of the writers that come while one is inside none gets in, whatever they leave in the sequence: the one that is inside
    /// writes it last.
    pub fn record(&self, ticket: u64, write: impl FnOnce()) -> bool {
        let writing = stamp_of(ticket) - 1;
        // Acquire: the fields written here come after those of the record's last writer.
        let before = self.0.fetch_max(writing, Ordering::Acquire);
        if before & 1 == 1 || before > writing {
            return false;
        }
        // A thread that sees a field of this record also sees that it is being written.
        W::fence(Ordering::Release);
        write();
        self.0.leave(stamp_of(ticket));
        true
    }

    /// The ticket of a record and what `fields` yields, if it was all written by one.
    pub fn read_record<T>(&self, fields: impl FnOnce() -> T) -> Option<(u64, T)> {
        let (stamp, content) = self.read_stamped(fields)?;
        Some((stamp.checked_sub(2)? / 2, content))
    }
}

#[cfg(test)]
mod model;
