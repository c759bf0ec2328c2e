//! Handles that were looked at before, whole.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use umf_core::metadata::{Chunks, Zeroed};

/// A handle as 32 words.
pub(crate) type Words = [u64; WORDS];
/// Words in a handle.
pub(crate) const WORDS: usize = crate::handle::SIZE / 8;
/// Words that the user of the memo keeps beside it.
const NOTES: usize = 6;
const RECORDS: usize = 4096;

/// A lossy table of handles with notes beside them: two places per hash, the older one is replaced.
///
/// Reading takes no lock and writes nothing: each record is a sequence lock over atomics. A record that is
/// being written, or was, is a miss. Nothing depends on a record being found; and what is found was stored as
/// one, so its notes belong to its handle.
#[derive(Debug)]
pub(crate) struct Memo {
    records: Chunks<Record, RECORDS>,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Record {
    /// Odd while being written; 0 if never written.
    sequence: AtomicU32,
    words: [AtomicU64; WORDS],
    notes: [AtomicU64; NOTES],
}

// SAFETY: all fields are atomics.
unsafe impl Zeroed for Record {}

impl Memo {
    pub(crate) const fn new() -> Self {
        Self { records: Chunks::new() }
    }

    #[inline]
    fn places(hash: u64) -> [u32; 2] {
        let first = (hash % RECORDS as u64) as u32;
        [first, first ^ 1]
    }

    /// The notes beside exactly this handle.
    #[inline]
    pub(crate) fn notes(&self, hash: u64, words: &Words) -> Option<[u64; NOTES]> {
        Self::places(hash).into_iter().find_map(|place| {
            let record = self.records.get(place)?;
            let sequence = record.begin()?;
            let different =
                record.words.iter().zip(words).fold(0, |different, (stored, given)| {
                    different | (stored.load(Ordering::Relaxed) ^ given)
                });
            if different != 0 {
                return None;
            }
            let notes = core::array::from_fn(|index| record.notes[index].load(Ordering::Relaxed));
            record.is_unchanged(sequence).then_some(notes)
        })
    }

    /// The handle whose first note is `key`, and its notes.
    #[inline]
    pub(crate) fn by_key(&self, hash: u64, key: u64) -> Option<(Words, [u64; NOTES])> {
        Self::places(hash).into_iter().find_map(|place| {
            let record = self.records.get(place)?;
            let sequence = record.begin()?;
            if record.notes[0].load(Ordering::Relaxed) != key {
                return None;
            }
            let words = core::array::from_fn(|index| record.words[index].load(Ordering::Relaxed));
            let notes = core::array::from_fn(|index| record.notes[index].load(Ordering::Relaxed));
            record.is_unchanged(sequence).then_some((words, notes))
        })
    }

    /// Remembers a handle. Forgets another one where there is no place, and gives up where another thread is
    /// writing.
    pub(crate) fn store(&self, hash: u64, words: &Words, notes: [u64; NOTES]) {
        let [first, second] = Self::places(hash);
        let (Ok(first), Ok(second)) = (self.records.get_or_grow(first), self.records.get_or_grow(second))
        else {
            return;
        };
        let same_key = |record: &Record| {
            record.sequence.load(Ordering::Relaxed) != 0
                && record.notes[0].load(Ordering::Relaxed) == notes[0]
        };
        let age = |record: &Record| record.sequence.load(Ordering::Relaxed);
        // Same key in place; else the one that was written less often, which alternates the two.
        let record =
            if same_key(second) || (!same_key(first) && age(second) < age(first)) { second } else { first };
        record.write(words, notes);
    }
}

impl Record {
    #[inline]
    fn begin(&self) -> Option<u32> {
        let sequence = self.sequence.load(Ordering::Acquire);
        (sequence != 0 && sequence & 1 == 0).then_some(sequence)
    }

    #[inline]
    fn is_unchanged(&self, sequence: u32) -> bool {
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == sequence
    }

    fn write(&self, words: &Words, notes: [u64; NOTES]) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        let taken = sequence & 1 == 0
            && self
                .sequence
                .compare_exchange(sequence, sequence.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !taken {
            return;
        }
        fence(Ordering::Release);
        for (stored, given) in self.words.iter().zip(words) {
            stored.store(*given, Ordering::Relaxed);
        }
        for (stored, given) in self.notes.iter().zip(notes) {
            stored.store(given, Ordering::Relaxed);
        }
        // Never back to 0, which means never written.
        self.sequence.store(sequence.wrapping_add(2).max(2), Ordering::Release);
    }
}
