//! [`SequenceLock`]: seqlocks. Readers copy a record without a lock, and detect a concurrent write.
//!
//! The protocol is generic over the word, so that loom's can replace it (`loom_` tests; exhaustive
//! with `tests/run --loom`).
//!
//! | | writers | promise |
//! |---|---|---|
//! | [`write`](SequenceLock::write), [`withdraw`](SequenceLock::withdraw), [`read`](SequenceLock::read) | one at a time | a record is read consistently, or not at all |
//! | [`write`](SequenceLock::write) around a change of a whole map, [`settled`](SequenceLock::settled) | one at a time | an object that exists during the look-up is found |
//! | [`record`](SequenceLock::record), [`read_record`](SequenceLock::read_record) | any number | a record of a ring is read consistently or not at all, and never an older one after a newer one; no thread waits |

use core::sync::atomic::{AtomicU64, Ordering};

use crate::chunks::Zeroable;
use crate::words::Number;

/// The *sequence* of a record. It is odd while the record is being written, and while it is
/// withdrawn.
#[derive(Debug)]
#[repr(transparent)]
pub struct SequenceLock<W = AtomicU64>(W);

// SAFETY: zero is the sequence of words that were never written.
unsafe impl Zeroable for SequenceLock {}

impl SequenceLock {
    /// Returns the sequence of a record that may be read.
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

/// Returns the sequence of a record after the writer with this ticket has written it. 0 is that of
/// a record that was never written.
#[must_use]
pub const fn stamp_of(ticket: u64) -> u64 {
    ticket.wrapping_mul(2).wrapping_add(2)
}

/// The result of [`SequenceLock::settled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled<T> {
    /// The look-up found this.
    Found(T),
    /// There is nothing to find.
    Nothing,
    /// The look-up raced with a write and found nothing: try again.
    Unknown,
}

impl<W: Number> SequenceLock<W> {
    /// Makes a sequence of a word.
    pub const fn over(word: W) -> Self {
        Self(word)
    }

    /// Views a word that lies elsewhere, such as in a shared mapping, as a sequence.
    pub const fn of(word: &W) -> &Self {
        // SAFETY: a sequence lock is transparent over its word.
        unsafe { &*core::ptr::from_ref(word).cast() }
    }

    /// Runs `write` with the sequence odd, and leaves a new even sequence. The caller excludes
    /// other writers.
    pub fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        let open = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(open, Ordering::Relaxed);
        // A reader that sees a word that `write` stored also sees this odd sequence, or a later
        // one.
        W::fence(Ordering::Release);
        let result = write();
        self.0.store(open.wrapping_add(1), Ordering::Release);
        result
    }

    /// Makes the record unreadable until the next [`SequenceLock::write`].
    pub fn withdraw(&self) {
        self.0.fetch_or(1, Ordering::Release);
    }

    /// Reads the record with `fields`. `None` if it is being written or is withdrawn.
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

    /// Runs the look-up `look` once. If it finds nothing, that is [`Settled::Nothing`] only if no
    /// write overlapped. Comparing the inspected entry before and after would not be enough:
    /// numbers are reused, so an entry can change and change back (ABA).
    pub fn settled<T>(&self, look: impl FnOnce() -> Option<T>) -> Settled<T> {
        let before = self.0.load(Ordering::Acquire);
        if let Some(found) = look() {
            return Settled::Found(found);
        }
        W::fence(Ordering::Acquire);
        let is_settled = before & 1 == 0 && self.0.load(Ordering::Relaxed) == before;
        if is_settled { Settled::Nothing } else { Settled::Unknown }
    }

    /// Writes a record of a ring with the ticket (below 2^63) of the writer. Returns `false` and
    /// writes nothing if another writer is in the record (it was overtaken by a whole round), or a
    /// writer with a later ticket was. Does not block.
    ///
    /// While a writer is in the record, every other writer is turned away. The writer in the record
    /// stores the sequence last.
    pub fn record(&self, ticket: u64, write: impl FnOnce()) -> bool {
        let writing = stamp_of(ticket) - 1;
        // Acquire: orders the writes below after those of the record's last writer.
        let before = self.0.fetch_max(writing, Ordering::Acquire);
        if before & 1 == 1 || before > writing {
            return false;
        }
        // A reader that sees a field stored below also sees the odd sequence.
        W::fence(Ordering::Release);
        write();
        self.0.store_after_max(stamp_of(ticket));
        true
    }

    /// Reads a record of a ring: its ticket, and the result of `fields`. `None` if it is being
    /// written or was never written.
    pub fn read_record<T>(&self, fields: impl FnOnce() -> T) -> Option<(u64, T)> {
        let (stamp, content) = self.read_stamped(fields)?;
        Some((stamp.checked_sub(2)? / 2, content))
    }
}

#[cfg(test)]
mod model;
