//! The lock-free protocols of this crate, each in one place and generic over where its words live:
//! in a mapping, or in loom's model (`loom_` tests; in full with `tests/run --loom`), whose atomics
//! cannot lie in one.
//!
//! | protocol | between | promise |
//! |---|---|---|
//! | [`pin`], [`close`] | a thread that uses an entry and one that evicts it | what is pinned is not closed |
//! | [`publish`], [`retire`], [`read`] | a producer and its importers | an export is seen whole, and not after it was retired |
//! | [`set_opened_bit`], [`count_lease`], [`is_current`]; [`retire`], [`clear_opened_rows`] | an importer that opens an export and the producer that frees it | what is open is seen to be open, or does not open |
//! | [`stack`] | threads that give numbers back and one that takes them | each is there once |
//! | [`lazy`] | threads that make what they all need | all have the same one, and no other is left |
//! | [`SequenceLock::record`](umf_sync::SequenceLock::record), [`read_stable`] | threads that write a ring and readers of it | a record is seen whole or not at all; no thread waits |

pub(crate) mod lazy;
pub(crate) mod stack;

use core::sync::atomic::Ordering;

use umf_sync::words::{Number, Word};

/// Adds a pin to `count`, which only this thread writes, if the entry still has this stamp.
#[inline]
pub(crate) fn pin<W: Word>(count: &W, stamp: &W, expected: u64) -> bool {
    let before = count.load(Ordering::Relaxed);
    count.store(before.wrapping_add(1), Ordering::Relaxed);
    // Of this and the fence in `close` one comes first: then either the stamp is seen gone here, or
    // the pin there.
    W::light_fence();
    if stamp.load(Ordering::Acquire) == expected {
        return true;
    }
    count.store(before, Ordering::Release);
    false
}

/// Counts an open of an export in a word of a row that the caller's process owns. [`is_current`]
/// then tells whether the export is current.
///
/// This addition, the load in [`is_current`], the change in [`retire`] and the loads of a scan are
/// `SeqCst`. Either the addition precedes the scan's load, or the retirement the importer's load.
#[inline]
pub(crate) fn count_lease<W: Number>(word: &W) {
    word.fetch_add(1, Ordering::SeqCst);
}

/// Whether an export has this generation, after [`count_lease`]. (An Acquire load could pass the
/// addition on ARM.)
#[inline]
pub(crate) fn is_current<W: Word>(generation: &W, expected: u64) -> bool {
    generation.load(Ordering::SeqCst) == expected
}

/// Takes a lease back, in the word in which it was counted.
#[inline]
pub(crate) fn release_lease<W: Number>(word: &W) {
    // Release: what was done with the memory happens before the producer sees the lease gone.
    word.fetch_add(u64::MAX, Ordering::Release);
}

/// Sets a row's bit in the marks of a slot, if it is not set. Comes before [`count_lease`], and
/// after the importer has seen the generation that it opens. Returns whether there was something to
/// do.
///
/// The producer clears the marks of a retired export ([`clear_opened_rows`]) before it publishes
/// another in its slot: an importer that has seen the new generation does not see the old marks.
pub(crate) fn set_opened_bit<W: Number>(marks: &W, bit: u64) -> bool {
    let is_missing = marks.load(Ordering::SeqCst) & bit == 0;
    if is_missing {
        marks.fetch_or(bit, Ordering::SeqCst);
    }
    is_missing
}

/// Clears the marks of a slot whose export was retired and found not leased, before the slot is
/// used again. (An importer that sets its bit meanwhile does so for a handle that it will find
/// stale.)
pub(crate) fn clear_opened_rows<W: Word>(marks: &W) {
    marks.store(0, Ordering::SeqCst);
}

/// Takes a pin back from a count that only this thread writes.
#[inline]
pub(crate) fn unpin<W: Word>(count: &W) {
    // Release: uses of the entry happen before the evicting thread sees the pin gone.
    count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Release);
}

/// Invalidates an entry's stamp if `sum` says that it has no pins. Only one thread at a time closes
/// an entry: it holds the lock of the shard.
pub(crate) fn close<W: Word>(stamp: &W, expected: u64, sum: impl Fn() -> u64) -> bool {
    // The usual case for an entry in use: no `membarrier`, and no hit fails.
    if sum() != 0 {
        return false;
    }
    stamp.store(0, Ordering::SeqCst);
    W::heavy_fence();
    if sum() == 0 {
        return true;
    }
    stamp.store(expected, Ordering::SeqCst);
    false
}

/// Makes an export visible: `write` fills its slot, then the generation becomes the next one, an
/// odd number above all that it was before. Returns it. Only one thread at a time publishes in a
/// slot, which is retired or was never used.
pub(crate) fn publish<W: Word>(generation: &W, write: impl FnOnce()) -> u64 {
    let next = generation.load(Ordering::Relaxed) + 1;
    // A reader that sees a field of this export also sees that the previous one was retired.
    W::fence(Ordering::Release);
    write();
    generation.store(next, Ordering::Release);
    next
}

/// Ends the export with this generation; `false` if another thread has done so. Height, marks and
/// words are loaded after that, sequentially consistent, before anything becomes of the memory.
pub(crate) fn retire<W: Number>(generation: &W, current: u64) -> bool {
    generation.fetch_max(current + 1, Ordering::SeqCst) == current
}

/// What `fields` yields, if the slot has this generation before and after; otherwise the generation
/// that it has.
pub(crate) fn read<W: Word, T>(generation: &W, expected: u64, fields: impl FnOnce() -> T) -> Result<T, u64> {
    let before = generation.load(Ordering::Acquire);
    if before != expected {
        return Err(before);
    }
    let content = fields();
    W::fence(Ordering::Acquire);
    let after = generation.load(Ordering::Relaxed);
    if after == expected { Ok(content) } else { Err(after) }
}

/// Reads stamps, then fields, then stamps again. What has the same even stamp on both sides was
/// whole in between, since no ticket is drawn twice. All are read as they come (from a file, for
/// one): `fence` keeps the three apart.
pub(crate) fn read_stable<S, T>(
    stamps: impl Fn() -> S,
    fields: impl FnOnce() -> T,
    fence: impl Fn(Ordering),
) -> (S, T, S) {
    let before = stamps();
    fence(Ordering::Acquire);
    let content = fields();
    fence(Ordering::Acquire);
    (before, content, stamps())
}

#[cfg(test)]
mod model;
