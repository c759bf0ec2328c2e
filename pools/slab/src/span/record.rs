//! How a span's record is read while it may be made anew; apart from where the words lie.

use core::sync::atomic::Ordering;

/// What orders the words of one record.
pub(super) trait Record {
    fn generation(&self, order: Ordering) -> u32;
    fn advance(&self, order: Ordering);
    fn count(&self, order: Ordering) -> u64;
    fn set_count(&self, count: u64, order: Ordering);
    fn fence(order: Ordering);
}

/// Fills a record that is not in use: `write` writes its words, relaxed, and `count` says how many blocks there are.
#[inline(always)]
pub(super) fn publish<R: Record>(record: &R, count: u64, write: impl FnOnce()) {
    // Whoever sees a word from below sees that the generation has advanced since `retract`.
    R::fence(Ordering::Release);
    write();
    record.set_count(count, Ordering::Release);
}

/// Marks a record as not in use, before anybody fills it again. `clear` clears words, relaxed.
#[inline(always)]
pub(super) fn retract<R: Record>(record: &R, clear: impl FnOnce()) {
    record.set_count(0, Ordering::Relaxed);
    clear();
    record.advance(Ordering::Release);
}

/// The generation, the count and what `read` reads, relaxed: all of one moment; `None` if the record is just being made anew.
#[inline(always)]
pub(super) fn read<R: Record, T>(record: &R, read: impl FnOnce() -> T) -> Option<(u32, u64, T)> {
    let generation = record.generation(Ordering::Acquire);
    let count = record.count(Ordering::Acquire);
    let words = read();
    R::fence(Ordering::Acquire);
    (record.generation(Ordering::Relaxed) == generation).then_some((generation, count, words))
}

/// Whether the record is still what a [`read`] saw, once something was taken from a state that it named: `false` means that it is to be
/// put back.
#[inline(always)]
pub(super) fn is_current<R: Record>(record: &R, generation: u32) -> bool {
    record.generation(Ordering::Acquire) == generation
}
