//! Per-thread use counts.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use umf_core::lock::Lock;
use umf_core::metadata::{Chunks, Zeroed};
use umf_core::thread::{self, ThreadIndex};

use crate::{Error, Result};

/// Use counts of numbered entries, split by thread.
///
/// A count is the sum over all threads: an entry may be pinned in one thread and unpinned in another, whose
/// own part then goes "below zero" (they are added modulo 2^64). Only the sum means something, and only while
/// the entry's stamp is 0, when it can but fall.
#[derive(Debug)]
pub(crate) struct Pins {
    rows: Chunks<Row>,
    /// By number: the stamp of the entry that has it, 0 while it must not be pinned.
    stamps: Chunks<AtomicU64>,
    /// By number: used since the LRU looked last.
    touched: Chunks<AtomicU8>,
    numbers: Lock<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    next: u32,
    free: Vec<u32>,
    /// Given back while still pinned.
    pinned: Vec<u32>,
}

/// What one thread writes. The last row is shared by threads that have no number.
#[derive(Debug)]
struct Row {
    counts: Chunks<AtomicU64>,
    hits: AtomicU64,
}

// SAFETY: an empty `Chunks` is an array of null pointers, and the rest are atomics.
unsafe impl Zeroed for Row {}

const SHARED_ROW: u32 = ThreadIndex::LIMIT;

impl Pins {
    pub(crate) const fn new() -> Self {
        Self {
            rows: Chunks::new(),
            stamps: Chunks::new(),
            touched: Chunks::new(),
            numbers: Lock::new(Numbers { next: 0, free: Vec::new(), pinned: Vec::new() }),
        }
    }

    /// A number with no pins, unstamped.
    pub(crate) fn allocate(&self) -> Result<u32> {
        let mut numbers = self.numbers.lock();
        // A few at a time: they drain as their guards are dropped.
        for _ in 0..numbers.pinned.len().min(4) {
            let number = numbers.pinned.swap_remove(0);
            if self.sum(number) == 0 {
                numbers.free.push(number);
            } else {
                numbers.pinned.push(number);
            }
        }
        if let Some(number) = numbers.free.pop() {
            return Ok(number);
        }
        let number = numbers.next;
        // What unpinning may need must exist: it cannot fail.
        self.stamps.get_or_grow(number).map_err(Error::Memory)?;
        self.touched.get_or_grow(number).map_err(Error::Memory)?;
        self.rows
            .get_or_grow(SHARED_ROW)
            .and_then(|row| row.counts.get_or_grow(number))
            .map_err(Error::Memory)?;
        numbers.next += 1;
        Ok(number)
    }

    /// Takes a number back. Its entry is gone; guards may still hold pins.
    pub(crate) fn release(&self, number: u32) {
        let mut numbers = self.numbers.lock();
        if self.sum(number) == 0 {
            numbers.free.push(number);
        } else {
            numbers.pinned.push(number);
        }
    }

    pub(crate) fn stamp(&self, number: u32, stamp: u64) {
        if let Some(word) = self.stamps.get(number) {
            word.store(stamp, Ordering::SeqCst);
        }
    }

    /// Pins an entry if it still has this stamp. The hit path of both caches.
    #[inline]
    pub(crate) fn pin_stamped(&self, number: u32, stamp: u64) -> bool {
        let Some(row) = self.own_row() else { return false };
        let Some(count) = row.counts.get(number).or_else(|| row.counts.get_or_grow(number).ok()) else {
            return false;
        };
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let current = self.stamps.get(number).is_some_and(|word| word.load(Ordering::Acquire) == stamp);
        if !current {
            count.store(before, Ordering::Relaxed);
            return false;
        }
        row.hits.store(row.hits.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if let Some(touched) = self.touched.get(number)
            && touched.load(Ordering::Relaxed) == 0
        {
            touched.store(1, Ordering::Relaxed);
        }
        true
    }

    /// Pins an entry that the caller keeps from being evicted (it holds the lock of its shard).
    pub(crate) fn pin(&self, number: u32) {
        self.add(number, 1);
        fence(Ordering::SeqCst);
    }

    /// Takes a pin back, in whatever thread.
    #[inline]
    pub(crate) fn unpin(&self, number: u32) {
        self.add(number, 1_u64.wrapping_neg());
    }

    #[inline]
    fn add(&self, number: u32, delta: u64) {
        let own = self
            .own_row()
            .and_then(|row| row.counts.get(number).or_else(|| row.counts.get_or_grow(number).ok()));
        if let Some(count) = own {
            // Release: what was done with the memory happens before whoever sums up sees the pin gone.
            count.store(count.load(Ordering::Relaxed).wrapping_add(delta), Ordering::Release);
        } else if let Some(count) = self.rows.get(SHARED_ROW).and_then(|row| row.counts.get(number)) {
            count.fetch_add(delta, Ordering::Release);
        }
    }

    #[inline]
    fn own_row(&self) -> Option<&Row> {
        let index = thread::current()?.get();
        self.rows.get(index).or_else(|| self.rows.get_or_grow(index).ok())
    }

    /// The number of pins. Exact only while nobody pins: with the stamp at 0, under the shard's lock.
    pub(crate) fn sum(&self, number: u32) -> u64 {
        fence(Ordering::SeqCst);
        let count = |row: u32| {
            let count = self.rows.get(row).and_then(|row| row.counts.get(number));
            count.map_or(0, |count| count.load(Ordering::Acquire))
        };
        (0..thread::end()).map(count).fold(count(SHARED_ROW), u64::wrapping_add)
    }

    /// Whether the entry was used since the last call.
    pub(crate) fn take_touched(&self, number: u32) -> bool {
        self.touched.get(number).is_some_and(|touched| {
            touched.load(Ordering::Relaxed) != 0 && {
                touched.store(0, Ordering::Relaxed);
                true
            }
        })
    }

    /// Hits of all threads.
    pub(crate) fn hits(&self) -> u64 {
        let hits = |row: u32| self.rows.get(row).map_or(0, |row| row.hits.load(Ordering::Relaxed));
        (0..thread::end()).map(hits).sum()
    }

    pub(crate) fn lock_for_fork(&self) {
        self.numbers.lock_for_fork();
    }

    /// # Safety
    /// [`Pins::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.numbers.unlock_after_fork() };
    }
}
