//! Per-thread use counts.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use std::collections::VecDeque;

use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::thread::{self, ThreadIndex};
use umf_sync::{Lock, fence};

use crate::{Result, protocol};

/// Use counts of numbered entries, split by thread.
///
/// A count is the sum over all threads: an entry may be pinned in one thread and unpinned in
/// another, whose own part then goes "below zero" (they are added modulo 2^64). Only the sum means
/// something, and only while the entry's stamp is 0, when it can but fall.
///
/// Pinning and closing are the protocol of [`protocol::pin`] and [`protocol::close`], whose fences
/// are asymmetric: a pin costs a store and a load, an eviction a `membarrier(2)`.
#[derive(Debug)]
pub(crate) struct Pins {
    by_thread: Chunks<ThreadCounts>,
    /// Of threads without a number.
    shared: ThreadCounts,
    /// By number: the stamp of the entry that has it, 0 while it must not be pinned.
    stamps: Chunks<AtomicU64>,
    /// By number: used since the LRU looked last.
    referenced: Chunks<AtomicU8>,
    numbers: Lock<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    next: u32,
    free: Vec<u32>,
    /// Given back while still pinned, the longest ago first.
    pinned: VecDeque<u32>,
}

/// What one thread writes.
#[derive(Debug)]
struct ThreadCounts {
    counts: Chunks<AtomicU64>,
}

// SAFETY: an empty `Chunks` is an array of null pointers.
unsafe impl Zeroable for ThreadCounts {}

/// Where one thread counts its uses of one entry: what a hit needs, without a look-up.
///
/// The words stay where they are as long as the [`Pins`] exist.
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
    /// The [`Pins`] that the cell came from exist, and the calling thread has the number that it
    /// was made for.
    #[inline]
    pub(crate) unsafe fn pin_stamped(&self, stamp: u64) -> bool {
        // SAFETY: the words stay as long as the pins, which exist.
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

/// A pin that its holder gives back through the [`Pins`]: in whatever thread, but fast in the one
/// that took it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    number: u32,
    /// The thread that took it, `u32::MAX` if it had no number.
    thread: u32,
    /// Where that thread counts; dangling without one.
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

    /// A number with no pins, unstamped.
    pub(crate) fn allocate(&self) -> Result<u32> {
        let mut numbers = self.numbers.lock();
        // A few at a time: they drain as their guards are dropped.
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
        // What unpinning may need must exist: it cannot fail.
        self.stamps.get_or_grow(number)?;
        self.referenced.get_or_grow(number)?;
        self.shared.counts.get_or_grow(number)?;
        numbers.next += 1;
        Ok(number)
    }

    /// As if all numbers were given out.
    #[cfg(test)]
    pub(super) fn exhaust(&self) {
        let mut numbers = self.numbers.lock();
        numbers.free.clear();
        numbers.next = u32::MAX;
    }

    /// Takes a number back. Its entry is gone; guards may still hold pins.
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

    /// Where the calling thread counts its uses of an entry; `None` for threads without a number,
    /// and where there is no memory.
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

    /// Pins an entry that the caller keeps from being evicted (it holds the lock of its shard, or
    /// another pin).
    pub(crate) fn pin(&self, number: u32) {
        self.add(number, 1);
    }

    /// Takes a pin back, in whatever thread.
    pub(crate) fn unpin(&self, number: u32) {
        self.add(number, 1_u64.wrapping_neg());
    }

    /// Takes a pin back: without a look-up in the thread that took it.
    #[inline]
    pub(crate) fn give_back(&self, pin: Pin, current: Option<ThreadIndex>) {
        if current.is_some_and(|thread| thread.get() == pin.thread) {
            // SAFETY: the pin was made by this thread, whose words stay as long as the pins.
            protocol::unpin(unsafe { pin.count.as_ref() });
        } else {
            self.unpin(pin.number);
        }
    }

    fn add(&self, number: u32, delta: u64) {
        if let Some((_, cell)) = self.cell(number) {
            // SAFETY: the words stay as long as `self`.
            let count = unsafe { cell.count.as_ref() };
            count.store(count.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Release);
        } else if let Some(count) = self.shared.counts.get(number) {
            count.fetch_add(delta, Ordering::SeqCst);
        }
        // A pin has to be seen by a thread that evicts, a pin that is taken back has not.
        if delta == 1 {
            fence::full();
        }
    }

    /// Makes the stamp of an entry invalid, if it is idle. Under the lock of its shard.
    pub(crate) fn close(&self, number: u32, stamp: u64) -> bool {
        self.stamps.get(number).is_some_and(|word| protocol::close(word, stamp, || self.sum(number)))
    }

    /// Returns the number of pins. Exact only while no thread pins: with the stamp at 0, under the
    /// shard's lock.
    pub(crate) fn sum(&self, number: u32) -> u64 {
        fence::full();
        let count =
            |row: &ThreadCounts| row.counts.get(number).map_or(0, |count| count.load(Ordering::Acquire));
        let by_thread = (0..thread::end()).filter_map(|thread| self.by_thread.get(thread));
        by_thread.map(count).fold(count(&self.shared), u64::wrapping_add)
    }

    /// Whether the entry was used since the last call.
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
        // What `Chunks` does not do: rows have mappings of their own.
        for row in (0..thread::end()).filter_map(|thread| self.by_thread.get(thread)) {
            // SAFETY: `&mut self` excludes other users. Each row is dropped once, and its memory is
            // not read again before it is unmapped.
            unsafe { core::ptr::drop_in_place(core::ptr::from_ref(row).cast_mut()) };
        }
    }
}
