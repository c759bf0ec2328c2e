//! [`Exports`]: what of a producer is exported, and what of it is freed but still open elsewhere.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use umf_core::lock::Lock;
use umf_core::observer::Leases;
use umf_core::{Address, Region, fork};

use super::Door;
use crate::Result;
use crate::exporter::NativeGuard;
use crate::ledger::event::RetireReason;
use crate::ledger::{Event, LedgerWriter};

/// The ledger and the door of one producer. It lives as long as the exporter, and after that as long as memory is held
/// for somebody who has it open.
#[derive(Debug)]
pub(crate) struct Exports {
    pub(crate) ledger: LedgerWriter,
    pub(crate) door: Door,
    left: Lock<Lefts>,
    count: AtomicUsize,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
}

/// A retired export that somebody has open still. Its slot is not used again before that ends.
#[derive(Debug)]
struct Left {
    slot: u32,
    generation: u64,
    base: Address,
    size: usize,
    /// Keeps the provider's native export from being taken back, which may end the others' mappings.
    native: Arc<NativeGuard>,
}

/// Those of one producer, by address and slot.
#[derive(Debug, Default)]
struct Lefts {
    by_address: BTreeMap<(Address, u32), Left>,
    /// None of them has had more bytes since there was none.
    longest: usize,
    bytes: u64,
}

impl Lefts {
    fn add(&mut self, left: Left) {
        self.longest = self.longest.max(left.size);
        self.bytes += left.size as u64;
        self.by_address.insert((left.base, left.slot), left);
    }

    fn remove(&mut self, key: &(Address, u32)) -> Option<Left> {
        let left = self.by_address.remove(key);
        self.bytes -= left.as_ref().map_or(0, |left| left.size as u64);
        if self.by_address.is_empty() {
            self.longest = 0;
        }
        left
    }

    /// The first from `from` on that shares a byte with a range.
    fn next(&self, from: (Address, u32), base: Address, size: usize) -> Option<&Left> {
        let end = Address::from_bits(base.to_bits().saturating_add(size as u64));
        let mut range = self.by_address.range(from..(end, 0));
        range.find(|(_, left)| left.meets(base, size)).map(|(_, left)| left)
    }

    /// Where those begin that may share a byte with what begins at `base`.
    const fn first(&self, base: Address) -> (Address, u32) {
        (Address::from_bits(base.to_bits().saturating_sub(self.longest as u64)), 0)
    }
}

impl Left {
    fn meets(&self, base: Address, size: usize) -> bool {
        self.base.space() == base.space()
            && self.base.to_bits() < base.to_bits().saturating_add(size as u64)
            && base.to_bits() < self.base.to_bits().saturating_add(self.size as u64)
    }
}

impl Exports {
    /// A ledger with room for `slots` exports, and its door.
    pub(crate) fn new(slots: u32, served: bool) -> Result<Self> {
        let ledger = LedgerWriter::new(slots, served)?;
        let door = Door::new(ledger.capacity(), ledger.nonce())?;
        ledger.show_door(door.raw_fd(), door.rows());
        Ok(Self {
            ledger,
            door,
            left: Lock::default(),
            count: AtomicUsize::new(0),
            generation: fork::generation(),
        })
    }

    /// A slot that nothing uses.
    pub(crate) fn take(&self) -> Result<u32> {
        self.ledger.take(|first, count| self.door.reserve(first, count))
    }

    /// Ends the export of a range. Whether somebody has it open still is kept in mind, together with `native`.
    pub(crate) fn retire(
        &self,
        (slot, generation): (u32, u64),
        (base, size): (Address, usize),
        native: &Arc<NativeGuard>,
        reason: RetireReason,
    ) {
        let region = native.region.id().get();
        self.ledger.end(slot, generation, region, reason);
        if self.door.is_leased(slot) {
            self.ledger.record(Event::Hold { slot, generation, region, bytes: size as u64 });
            let mut left = self.left.lock();
            left.add(Left { slot, generation, base, size, native: Arc::clone(native) });
            self.count.store(left.by_address.len(), Ordering::Release);
        } else {
            self.ledger.give_back(slot);
        }
    }

    /// Whether anything that was retired here may be open still.
    #[inline]
    pub(crate) fn may_be_leased(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// How many retired exports are open still, and how many bytes they have, as far as was looked.
    pub(crate) fn left(&self) -> (u64, u64) {
        if !self.may_be_leased() {
            return (0, 0);
        }
        let left = self.left.lock();
        (left.by_address.len() as u64, left.bytes)
    }

    /// The native export of a region that was evicted while somebody had it open.
    pub(crate) fn native_of(&self, region: &Region) -> Option<Arc<NativeGuard>> {
        if !self.may_be_leased() {
            return None;
        }
        let left = self.left.lock();
        let mut from = left.first(region.base());
        while let Some(one) = left.next(from, region.base(), region.size()) {
            if one.native.region.id() == region.id() {
                return Some(Arc::clone(&one.native));
            }
            from = (one.base, one.slot + 1);
        }
        None
    }

    pub(crate) fn lock_for_fork(&self) {
        self.left.lock_for_fork();
        self.door.lock_for_fork();
        self.ledger.lock_for_fork();
    }

    /// # Safety
    /// [`Exports::lock_for_fork`] ran in this thread, or in the one of which it is the forked copy.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller, here and below.
        unsafe { self.ledger.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.door.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.left.unlock_after_fork() };
    }
}

impl Leases for Exports {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        if self.generation != fork::generation() || !self.may_be_leased() {
            // (A forked child has none of this memory to give to anybody.)
            return false;
        }
        let mut left = self.left.lock();
        let mut leased = false;
        let mut from = left.first(base);
        while let Some(one) = left.next(from, base, size) {
            let key = (one.base, one.slot);
            from = (one.base, one.slot + 1);
            if self.door.is_leased(one.slot) {
                leased = true;
            } else if let Some(one) = left.remove(&key) {
                let (slot, generation) = (one.slot, one.generation);
                let (region, bytes) = (one.native.region.id().get(), one.size as u64);
                self.ledger.record(Event::Release { slot, generation, region, bytes });
                self.ledger.give_back(slot);
                // With the lock held: who is told that nothing is leased may free the region at once, so its native export
                // is back with the provider by then.
                drop(one);
            }
        }
        self.count.store(left.by_address.len(), Ordering::Release);
        leased
    }
}
