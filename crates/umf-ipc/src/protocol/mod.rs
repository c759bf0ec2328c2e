//! The lock-free protocols of this crate, each in one place and generic over where its words live: in a mapping, or
//! in loom's model (`tests/run --loom`), whose atomics cannot lie in one.
//!
//! | protocol | between | promise |
//! |---|---|---|
//! | [`pin`], [`close`] | a thread that uses an entry and one that evicts it | what is pinned is not closed |
//! | [`publish`], [`retire`], [`read`] | a producer and its importers | an export is seen whole, and not after it was retired |
//! | [`lease`], [`retire`] and [`look`] | an importer that opens an export and the producer that frees it | what is open is seen to be open, or does not open |

use core::sync::atomic::{AtomicU64, Ordering};

/// A word that threads or processes share.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fence(order: Ordering) {
        core::sync::atomic::fence(order);
    }
}

/// Adds a pin to `count`, which only this thread writes, if the entry still has this stamp.
#[inline]
pub(crate) fn pin<W: Word>(count: &W, stamp: &W, expected: u64) -> bool {
    let before = count.load(Ordering::Relaxed);
    count.store(before.wrapping_add(1), Ordering::Relaxed);
    // Of this and the fence in `close` one comes first: then either the stamp is seen gone here, or the pin there.
    W::fence(Ordering::SeqCst);
    if stamp.load(Ordering::Acquire) == expected {
        return true;
    }
    count.store(before, Ordering::Relaxed);
    false
}

/// Adds a pin to `count` and a lease to `lease`, both of which only this thread writes, if the entry still has this stamp and
/// the export is current: [`pin`] and [`lease`] with one fence for both.
#[inline]
pub(crate) fn pin_and_lease<W: Word>(
    (count, stamp, expected): (&W, &W, u64),
    lease: &W,
    is_current: impl FnOnce() -> bool,
) -> bool {
    let pins = count.load(Ordering::Relaxed);
    count.store(pins.wrapping_add(1), Ordering::Relaxed);
    let leases = lease.load(Ordering::Relaxed);
    lease.store(leases.wrapping_add(1), Ordering::Relaxed);
    W::fence(Ordering::SeqCst);
    // In this order: only the entry keeps the generation's word mapped.
    if stamp.load(Ordering::Acquire) == expected && is_current() {
        return true;
    }
    lease.store(leases, Ordering::Relaxed);
    count.store(pins, Ordering::Release);
    false
}

/// Counts an open of an export in `lease`, which only this thread writes. Whether the export is current has to be looked at
/// afterwards: of this fence and the one in [`look`] one comes first, so that either the lease is seen there or the new
/// generation here.
pub(crate) fn lease<W: Word>(lease: &W) {
    lease.store(lease.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    W::fence(Ordering::SeqCst);
}

/// What a word of an importer says, to be asked after the export was retired.
#[inline]
pub(crate) fn look<W: Word>(word: &W) -> u64 {
    W::fence(Ordering::SeqCst);
    word.load(Ordering::Acquire)
}

/// Takes a pin or a lease back from a count that only this thread writes.
#[inline]
pub(crate) fn unpin<W: Word>(count: &W) {
    // Release: what was done with the entry happens before whoever sums up sees the pin gone.
    count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Release);
}

/// Makes an entry's stamp invalid if `sum` says that nobody has it pinned. Only one thread at a time closes an entry
/// (it holds the lock of its shard).
pub(crate) fn close<W: Word>(stamp: &W, expected: u64, sum: impl FnOnce() -> u64) -> bool {
    stamp.store(0, Ordering::SeqCst);
    W::fence(Ordering::SeqCst);
    if sum() == 0 {
        return true;
    }
    stamp.store(expected, Ordering::SeqCst);
    false
}

/// Makes an export visible: `write` fills its slot, then the generation becomes `next`, an odd number above all that it
/// was before. Only one thread at a time publishes in a slot.
///
/// (`next` is given and not read here because loom 0.7 loses interleavings where a thread reads a word before it
/// writes it.)
pub(crate) fn publish<W: Word>(generation: &W, next: u64, write: impl FnOnce()) {
    // Whoever sees a field of this export also sees that the one before was retired.
    W::fence(Ordering::Release);
    write();
    generation.store(next, Ordering::Release);
}

/// Ends the export with this generation. Sequentially consistent: an importer that announces its use first and looks
/// after must either be seen by whoever frees or see this.
pub(crate) fn retire<W: Word>(generation: &W, current: u64) {
    generation.store(current + 1, Ordering::SeqCst);
}

/// What `fields` yields, if the slot has this generation before and after; otherwise the generation that it has.
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

#[cfg(all(test, loom))]
mod model;
