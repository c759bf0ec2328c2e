//! [`Slot`]: a place in a ring that is written over again and again, while others read it.
//!
//! The protocol is generic over the word, so that loom's can stand in (`loom_` tests; in full with `tests/run --loom`).
//!
//! The *stamp* of a slot says which position of the ring it holds (twice that, plus two), and is odd while it is being
//! written. Whoever comes to a slot that somebody else is writing, or that holds a later position already, gives up: what it
//! had to say would be written over at once.

use core::sync::atomic::{AtomicU64, Ordering};

use umf_sync::chunks::Zeroed;

/// Words in a slot.
pub const SLOT_WORDS: usize = 5;

/// A word that threads share.
trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn take(&self, from: u64, to: u64) -> bool;
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn take(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn fence(order: Ordering) {
        core::sync::atomic::fence(order);
    }
}

/// What it says at `position`, unless somebody else is writing it, or something later is there.
fn write<W: Word, const WORDS: usize>(
    stamp: &W,
    words: &[W; WORDS],
    position: u64,
    values: [u64; WORDS],
) -> bool {
    let (before, open) = (stamp.load(Ordering::Relaxed), position.wrapping_mul(2) | 1);
    if before & 1 == 1 || before > open || !stamp.take(before, open) {
        return false;
    }
    // Whoever sees a word from below sees the stamp odd, or later.
    W::fence(Ordering::Release);
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
    stamp.store(open.wrapping_add(1), Ordering::Release);
    true
}

/// The position and what it says, if it was all written by one.
fn read<W: Word, const WORDS: usize>(stamp: &W, words: &[W; WORDS]) -> Option<(u64, [u64; WORDS])> {
    let before = stamp.load(Ordering::Acquire);
    if before == 0 || before & 1 == 1 {
        return None;
    }
    let mut values = [0; WORDS];
    for (word, value) in words.iter().zip(&mut values) {
        *value = word.load(Ordering::Relaxed);
    }
    W::fence(Ordering::Acquire);
    (stamp.load(Ordering::Relaxed) == before).then_some((before / 2 - 1, values))
}

/// A place in a ring. Any number of threads may write and read it at one time.
#[derive(Debug)]
pub struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; SLOT_WORDS],
}

// SAFETY: zeros are a slot that was never written.
unsafe impl Zeroed for Slot {}

impl Slot {
    /// Writes what stands at `position` of the ring (below 2^63). `false` if somebody else is writing here at this moment, or
    /// something later is here: then it is lost.
    pub fn write(&self, position: u64, values: [u64; SLOT_WORDS]) -> bool {
        write(&self.stamp, &self.words, position, values)
    }

    /// The position that was written here last, and what stands there; `None` if nothing does, or it is being written.
    #[must_use]
    pub fn read(&self) -> Option<(u64, [u64; SLOT_WORDS])> {
        read(&self.stamp, &self.words)
    }
}

#[cfg(test)]
mod model;
