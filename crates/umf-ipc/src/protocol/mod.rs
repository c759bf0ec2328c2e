//! The lock-free protocols of this crate. They are generic over their words, which are in a shared
//! mapping, or are loom's atomics in the models (`loom_` tests; in full with `tests/run --loom`).
//!
//! | protocol | between | guarantee |
//! |---|---|---|
//! | [`pin`], [`close`] | a thread that uses an entry and one that evicts it | a pinned entry is not closed |
//! | [`publish`], [`retire`], [`read`] | a producer and its importers | a read is consistent, and fails after the export was retired |
//! | [`set_opened_bit`], [`count_lease`], [`is_current`]; [`retire`], [`clear_opened_rows`] | an importer that opens an export and the producer that frees it | the producer sees the lease, or the open fails |
//! | [`count_lease`], [`is_collected`]; [`mark_collected`] | an importer that opens an export and a collector of its dead producer's memory | the collector sees the lease, or the open fails |
//! | [`ticket`] with the row above | a sender, the openers of its ticket, and the producer that frees the export | the memory is kept until a ticket is claimed and its opener has closed; a ticket is claimed as often as its sender said |
//! | [`stack`] | threads that push numbers and one that pops them | each number is popped once |
//! | [`lazy`] | threads that initialise a pointer | all use the same value, and no other one is leaked |
//! | [`SequenceLock::record`](umf_sync::SequenceLock::record), [`read_stable`] | threads that write a ring and readers of it | a read is consistent or skips the record; no thread waits |

use core::sync::atomic::Ordering;

use umf_sync::words::{Number, Word};

/// Adds a pin to `count`, which only this thread writes, if the entry still has this stamp. Returns
/// whether it did.
#[inline]
pub(crate) fn pin<W: Word>(count: &W, stamp: &W, expected: u64) -> bool {
    let before = count.load(Ordering::Relaxed);
    count.store(before.wrapping_add(1), Ordering::Relaxed);
    // Either this fence or the one in `close` comes first. So this thread sees the invalid stamp,
    // or the closing thread sees the pin.
    W::light_fence();
    if stamp.load(Ordering::Acquire) == expected {
        return true;
    }
    count.store(before, Ordering::Release);
    false
}

/// Counts an open of an export in a word of a row that the caller's process owns. Afterwards the
/// caller checks the export with [`is_current`].
///
/// This addition, the load in [`is_current`], the change in [`retire`] and the loads of a scan are
/// `SeqCst`. Either the addition precedes the scan's load, or the retirement the importer's load.
#[inline]
pub(crate) fn count_lease<W: Number>(word: &W) {
    word.fetch_add(1, Ordering::SeqCst);
}

/// Returns whether an export has this generation, after [`count_lease`]. An Acquire load could pass
/// the addition on ARM.
#[inline]
pub(crate) fn is_current<W: Word>(generation: &W, expected: u64) -> bool {
    generation.load(Ordering::SeqCst) == expected
}

/// Marks a dead producer's memory as collected. Afterwards the collector loads the events, the
/// height and the leases, all `SeqCst`, and releases what is not leased.
pub(crate) fn mark_collected<V: From<u8>, W: Word<V>>(dead: &W) {
    dead.store(V::from(1), Ordering::SeqCst);
}

/// Returns whether a producer's memory was collected, after [`count_lease`]. An opener that has
/// claimed a ticket does not ask: the memory of a ticket is leased.
#[inline]
pub(crate) fn is_collected<V: From<u8> + PartialEq, W: Word<V>>(dead: &W) -> bool {
    dead.load(Ordering::SeqCst) != V::from(0)
}

/// Releases a lease, in the word in which it was counted.
#[inline]
pub(crate) fn release_lease<W: Number>(word: &W) {
    // Release: accesses to the memory happen before the producer sees that the lease has ended.
    word.fetch_add(u64::MAX, Ordering::Release);
}

/// Sets a row's bit in a slot's bitmap of opened rows, if it is not set. Returns whether it was not
/// set. An importer calls it after it has loaded the generation that it opens, and before
/// [`count_lease`].
///
/// The producer clears the bitmap of a retired export ([`clear_opened_rows`]) before it publishes
/// another one in the slot. So an importer that has loaded the new generation does not see old
/// bits.
pub(crate) fn set_opened_bit<W: Number>(opened_rows: &W, bit: u64) -> bool {
    let is_missing = opened_rows.load(Ordering::SeqCst) & bit == 0;
    if is_missing {
        opened_rows.fetch_or(bit, Ordering::SeqCst);
    }
    is_missing
}

/// Clears a slot's bitmap of opened rows, after its export was retired and has no lease, before the
/// slot is reused. If an importer sets its bit meanwhile, its open fails as stale.
pub(crate) fn clear_opened_rows<W: Word>(opened_rows: &W) {
    opened_rows.store(0, Ordering::SeqCst);
}

/// Removes a pin from a count that only this thread writes.
#[inline]
pub(crate) fn unpin<W: Word>(count: &W) {
    // Release: uses of the entry happen before the evicting thread sees that the pin was removed.
    count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Release);
}

/// Invalidates an entry's stamp if its number of pins, `sum`, is 0. Returns whether it did. Only
/// one thread at a time closes an entry: it holds the lock of the shard.
pub(crate) fn close<W: Word>(stamp: &W, expected: u64, sum: impl Fn() -> u64) -> bool {
    // The usual case of an entry in use: this saves the `membarrier`, and no hit fails.
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

/// Tickets: words that openers claim. `docs/tickets.md` has the protocol.
///
/// A ticket word is 0, or has the ticket's number in the upper 48 bits and the number of readers
/// that may still claim it in the lower 16.
pub(crate) mod ticket {
    use core::sync::atomic::Ordering;

    use umf_sync::words::{Number, Word};

    const READERS: u32 = 16;
    /// The largest number of a ticket.
    pub(crate) const MAX_NUMBER: u64 = u64::MAX >> READERS;

    const fn number(word: u64) -> u64 {
        word >> READERS
    }

    /// Sends a ticket of an export for which the sender has counted a lease
    /// ([`super::count_lease`]) in the row of `word`, a word without readers. Returns the ticket's
    /// number. `is_unused`: no ticket of the sender has the number.
    pub(crate) fn send<W: Number>(
        word: &W,
        events: &W,
        readers: u16,
        is_unused: impl Fn(u64) -> bool,
    ) -> u64 {
        let number = loop {
            // Another process may have written any value there.
            let number = events.fetch_add(1, Ordering::SeqCst).wrapping_add(1) & MAX_NUMBER;
            if number != 0 && is_unused(number) {
                break number;
            }
        };
        word.store(number << READERS | u64::from(readers), Ordering::SeqCst);
        number
    }

    /// Returns how many readers can still claim a ticket, from its word; `None` if none can.
    pub(crate) const fn readers(word: u64, expected: u64) -> Option<u16> {
        let left = word as u16;
        if number(word) == expected && left != 0 { Some(left) } else { None }
    }

    /// Returns whether a ticket can be claimed.
    pub(crate) fn is_open<W: Word>(word: &W, expected: u64) -> bool {
        readers(word.load(Ordering::SeqCst), expected).is_some()
    }

    /// Claims a ticket for one reader. The opener has counted a lease before. If this returns
    /// `true`, the memory is kept until the opener releases its lease, whatever the generation is.
    pub(crate) fn claim<W: Number>(word: &W, events: &W, expected: u64) -> bool {
        if !is_open(word, expected) {
            return false;
        }
        // Before the exchange: a scan that has passed the opener's row, and then finds the sender's
        // lease released, starts again.
        events.fetch_add(1, Ordering::SeqCst);
        let mut now = word.load(Ordering::SeqCst);
        while let Some(readers) = readers(now, expected) {
            let left = if readers == 1 { 0 } else { now - 1 };
            match word.compare_exchange(now, left, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Returns whether the sender of a ticket has cancelled it. `false` once the word has another
    /// ticket.
    pub(crate) fn is_cancelled<W: Word>(word: &W, expected: u64) -> bool {
        word.load(Ordering::SeqCst) == expected << READERS && expected != 0
    }

    /// Cancels a ticket, by its sender. Returns whether a reader could have claimed it.
    pub(crate) fn cancel<W: Word>(word: &W, expected: u64) -> bool {
        let mut now = word.load(Ordering::SeqCst);
        while readers(now, expected).is_some() {
            // The number stays, for openers that ask why they cannot claim it.
            match word.compare_exchange(now, expected << READERS, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }
}

/// Publishes an export: calls `write`, which fills its slot, then increments the generation to an
/// odd number. Returns the generation. Only one thread at a time publishes in a slot. The slot is
/// retired or was never used.
pub(crate) fn publish<W: Word>(generation: &W, write: impl FnOnce()) -> u64 {
    let next = generation.load(Ordering::Relaxed) + 1;
    // A reader that loads a field of this export also sees that the previous one was retired.
    W::fence(Ordering::Release);
    write();
    generation.store(next, Ordering::Release);
    next
}

/// Retires the export with this generation. Returns `false` if another thread has retired it.
/// Afterwards, before it reuses the memory, the producer loads the opened rows, the height and the
/// leases, all `SeqCst`.
pub(crate) fn retire<W: Number>(generation: &W, current: u64) -> bool {
    generation.fetch_max(current + 1, Ordering::SeqCst) == current
}

/// Calls `fields`, which loads a slot's fields. Returns its result if the slot has this generation
/// before and afterwards, or else the slot's generation.
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

/// Reads stamps, then fields, then stamps again. The fields of a record with the same even stamp
/// before and afterwards are consistent, because no ticket is drawn twice. The reads may be plain
/// ones, for example of a file: `fence` orders them.
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

/// A stack of slot numbers. Any thread pushes without waiting. One thread at a time pops.
///
/// The top and each link hold a number plus one; 0 is none.
pub(crate) mod stack {
    use core::sync::atomic::Ordering;

    use umf_sync::words::Word;

    /// Pushes a number. The caller owns the number, and with it the link.
    #[inline]
    pub(crate) fn push<L: Word<u32>>(top: &L, number: u32, link: &L) {
        let mut first = top.load(Ordering::Relaxed);
        loop {
            link.store(first, Ordering::Relaxed);
            // Release: the thread that pops the number sees its link and all uses of the slot.
            match top.compare_exchange(first, number + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Pops the number that was pushed last. Only one thread at a time pops, so that no other
    /// thread can pop the top and push it again (ABA).
    pub(crate) fn pop<'l, L: Word<u32> + 'l>(top: &L, link: impl Fn(u32) -> Option<&'l L>) -> Option<u32> {
        let mut first = top.load(Ordering::Acquire);
        loop {
            let number = first.checked_sub(1)?;
            let next = link(number)?.load(Ordering::Relaxed);
            match top.compare_exchange(first, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(number),
                // Another number is on top, or the exchange failed spuriously. Acquire, for its
                // link.
                Err(_) => first = top.load(Ordering::Acquire),
            }
        }
    }
}

/// A pointer that the first user initialises. Each thread that finds no valid value creates one,
/// and one of them is installed.
///
/// [`install`](lazy::install) replaces exactly the value that [`get_valid`](lazy::get_valid) found
/// invalid. If it compared with the current value instead, it could replace and leak a value that
/// another thread has installed meanwhile.
pub(crate) mod lazy {
    use core::ptr::NonNull;
    use core::sync::atomic::Ordering;

    use umf_sync::words::Word;

    /// The pointer that [`get_valid`] found: null, or not valid.
    #[derive(Debug)]
    pub(crate) struct Vacant<T>(*mut T);

    /// Returns the value, if there is one and it is valid.
    #[inline]
    pub(crate) fn get_valid<T>(
        lazy: &impl Word<*mut T>,
        is_valid: impl FnOnce(NonNull<T>) -> bool,
    ) -> Result<NonNull<T>, Vacant<T>> {
        let pointer = lazy.load(Ordering::Acquire);
        match NonNull::new(pointer) {
            Some(value) if is_valid(value) => Ok(value),
            _ => Err(Vacant(pointer)),
        }
    }

    /// Installs `new` if the pointer has not changed since [`get_valid`]. Otherwise returns the
    /// value that another thread has installed, and `new` still belongs to the caller.
    pub(crate) fn install<T>(
        lazy: &impl Word<*mut T>,
        vacant: Vacant<T>,
        new: NonNull<T>,
    ) -> Result<(), Option<NonNull<T>>> {
        // Release: readers see the initialised value. Acquire: this thread sees that of another
        // one.
        lazy.compare_exchange(vacant.0, new.as_ptr(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(NonNull::new)
    }
}

#[cfg(test)]
mod model;
