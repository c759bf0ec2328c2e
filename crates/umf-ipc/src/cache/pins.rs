//! [`Pins`]: per-thread use counts of cache entries.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use std::collections::VecDeque;

use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::thread::{self, ThreadIndex};
use umf_sync::{Lock, fence};

use crate::{Result, protocol};

/// Use counts of numbered entries, split by thread.
///
/// The count of an entry is the sum over all threads, modulo 2^64: a thread may unpin an entry that
/// another thread pinned, and then its own part is negative. The sum is exact only while the
/// entry's stamp is 0, when no thread can pin.
///
/// [`protocol::pin`] and [`protocol::close`] are the protocol of pinning and closing. Their fences
/// are asymmetric: a pin costs a store and a load, an eviction costs a `membarrier(2)`.
#[derive(Debug)]
pub(crate) struct Pins {
    by_thread: Chunks<ThreadCounts>,
    /// Counts of threads without a number.
    shared: ThreadCounts,
    /// The stamp of the entry with each number; 0 while it must not be pinned.
    stamps: Chunks<AtomicU64>,
    /// Whether the entry with each number was used since an eviction last checked it.
    referenced: Chunks<AtomicU8>,
    numbers: Lock<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    next: u32,
    free: Vec<u32>,
    /// Numbers that were released while pinned, the oldest first.
    pinned: VecDeque<u32>,
}

/// The counts that one thread writes, by number.
#[derive(Debug)]
struct ThreadCounts {
    counts: Chunks<AtomicU64>,
}

// SAFETY: an empty `Chunks` is an array of null pointers.
unsafe impl Zeroable for ThreadCounts {}

/// Addresses of one thread's count of one entry and of the entry's words, so that a hit needs no
/// look-up.
///
/// The words do not move as long as the [`Pins`] exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinCell {
    pub number: u32,
    count: NonNull<AtomicU64>,
    stamp: NonNull<AtomicU64>,
    referenced: NonNull<AtomicU8>,
}

impl PinCell {
    /// Pins the entry if it still has this stamp.
    ///
    /// # Safety
    /// The [`Pins`] of the cell exist, and the calling thread has the number that the cell was made
    /// for.
    #[inline]
    pub(crate) unsafe fn pin_stamped(&self, stamp: u64) -> bool {
        // SAFETY: by the contract the pins exist, and with them the words.
        let (count, current, referenced) =
            unsafe { (self.count.as_ref(), self.stamp.as_ref(), self.referenced.as_ref()) };
        if !protocol::pin(count, current, stamp) {
            return false;
        }
        if referenced.load(Ordering::Relaxed) == 0 {
            referenced.store(1, Ordering::Relaxed);
        }
        true
    }
}

/// A pin, to release with [`Pins::give_back`]. Any thread may do so; it is fast in the thread that
/// took the pin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    number: u32,
    /// Number of the thread that took it; `u32::MAX` if it had none.
    thread: u32,
    /// That thread's count; dangling if it had no number.
    count: NonNull<AtomicU64>,
}

impl Pin {
    #[inline]
    pub(crate) const fn new(thread: ThreadIndex, cell: PinCell) -> Self {
        Self { number: cell.number, thread: thread.get(), count: cell.count }
    }

    pub(crate) const fn without_cell(number: u32) -> Self {
        Self { number, thread: u32::MAX, count: NonNull::dangling() }
    }
}

impl Pins {
    pub(crate) const fn new() -> Self {
        Self {
            by_thread: Chunks::new(),
            shared: ThreadCounts { counts: Chunks::new() },
            stamps: Chunks::new(),
            referenced: Chunks::new(),
            numbers: Lock::new(Numbers { next: 0, free: Vec::new(), pinned: VecDeque::new() }),
        }
    }

    /// Allocates a number without pins and without a stamp.
    pub(crate) fn allocate(&self) -> Result<u32> {
        let mut numbers = self.numbers.lock();
        // Checks only a few: the pins are released as their guards are dropped.
        for _ in 0..numbers.pinned.len().min(4) {
            let Some(number) = numbers.pinned.pop_front() else { break };
            if self.sum(number) == 0 {
                numbers.free.push(number);
            } else {
                numbers.pinned.push_back(number);
            }
        }
        if let Some(number) = numbers.free.pop() {
            return Ok(number);
        }
        let number = numbers.next;
        // Unpinning cannot fail, so everything that it needs is allocated here.
        self.stamps.get_or_grow(number)?;
        self.referenced.get_or_grow(number)?;
        self.shared.counts.get_or_grow(number)?;
        numbers.next += 1;
        Ok(number)
    }

    /// Makes the next allocation fail.
    #[cfg(test)]
    pub(super) fn exhaust(&self) {
        let mut numbers = self.numbers.lock();
        numbers.free.clear();
        numbers.next = u32::MAX;
    }

    /// Releases a number whose entry was removed. Guards may still hold pins.
    pub(crate) fn release(&self, number: u32) {
        let mut numbers = self.numbers.lock();
        if self.sum(number) == 0 {
            numbers.free.push(number);
        } else {
            numbers.pinned.push_back(number);
        }
    }

    pub(crate) fn stamp(&self, number: u32, stamp: u64) {
        if let Some(word) = self.stamps.get(number) {
            word.store(stamp, Ordering::SeqCst);
        }
    }

    /// Returns the calling thread's number and its cell for an entry. `None` if the thread has no
    /// number, or without memory.
    pub(crate) fn cell(&self, number: u32) -> Option<(ThreadIndex, PinCell)> {
        let thread = thread::current()?;
        let row = self.by_thread.get_or_grow(thread.get()).ok()?;
        let cell = PinCell {
            number,
            count: NonNull::from(row.counts.get_or_grow(number).ok()?),
            stamp: NonNull::from(self.stamps.get(number)?),
            referenced: NonNull::from(self.referenced.get(number)?),
        };
        Some((thread, cell))
    }

    /// Pins an entry. The caller prevents its eviction: it holds the lock of its shard, or another
    /// pin.
    pub(crate) fn pin(&self, number: u32) {
        self.add(number, 1);
    }

    /// Removes a pin. Any thread may do so.
    pub(crate) fn unpin(&self, number: u32) {
        self.add(number, 1_u64.wrapping_neg());
    }

    /// Removes a pin. The thread that took it needs no look-up.
    #[inline]
    pub(crate) fn give_back(&self, pin: Pin, current: Option<ThreadIndex>) {
        if current.is_some_and(|thread| thread.get() == pin.thread) {
            // SAFETY: this thread made the pin, and its words live as long as the pins.
            protocol::unpin(unsafe { pin.count.as_ref() });
        } else {
            self.unpin(pin.number);
        }
    }

    fn add(&self, number: u32, delta: u64) {
        if let Some((_, cell)) = self.cell(number) {
            // SAFETY: the words live as long as `self`.
            let count = unsafe { cell.count.as_ref() };
            count.store(count.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Release);
        } else if let Some(count) = self.shared.counts.get(number) {
            count.fetch_add(delta, Ordering::SeqCst);
        }
        // An evicting thread must see a new pin. It may miss a removed one.
        if delta == 1 {
            fence::full();
        }
    }

    /// Invalidates the stamp of an entry if it is idle. The caller holds the lock of its shard.
    pub(crate) fn close(&self, number: u32, stamp: u64) -> bool {
        self.stamps.get(number).is_some_and(|word| protocol::close(word, stamp, || self.sum(number)))
    }

    /// Returns the number of pins. It is exact only while no thread pins: the stamp is 0 and the
    /// caller holds the shard's lock.
    pub(crate) fn sum(&self, number: u32) -> u64 {
        fence::full();
        let count =
            |row: &ThreadCounts| row.counts.get(number).map_or(0, |count| count.load(Ordering::Acquire));
        let by_thread = (0..thread::end()).filter_map(|thread| self.by_thread.get(thread));
        by_thread.map(count).fold(count(&self.shared), u64::wrapping_add)
    }

    /// Returns whether the entry was used since the last call.
    pub(crate) fn take_referenced(&self, number: u32) -> bool {
        self.referenced.get(number).is_some_and(|referenced| {
            referenced.load(Ordering::Relaxed) != 0 && {
                referenced.store(0, Ordering::Relaxed);
                true
            }
        })
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        // `Chunks` does not drop its elements, and the rows own mappings.
        for row in (0..thread::end()).filter_map(|thread| self.by_thread.get(thread)) {
            // SAFETY: `&mut self` excludes other users. Each row is dropped once, and its memory is
            // not read again before it is unmapped.
            unsafe { core::ptr::drop_in_place(core::ptr::from_ref(row).cast_mut()) };
        }
    }
}
