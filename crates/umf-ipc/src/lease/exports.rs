//! [`Exports`]: what of a producer is exported, and what of it is freed but still open elsewhere.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use umf_core::lock::Lock;
use umf_core::observer::Leases;
use umf_core::step::{Step, step};
use umf_core::{Address, fork};

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
    left: Lock<Vec<Left>>,
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
        step(Step::DoorShown);
        Ok(Self {
            ledger,
            door,
            left: Lock::new(Vec::new()),
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
        step(Step::LeaseLooking);
        if self.door.is_leased(slot) {
            self.ledger.record(Event::Hold { slot, generation, region, bytes: size as u64 });
            let mut left = self.left.lock();
            left.push(Left { slot, generation, base, size, native: Arc::clone(native) });
            self.count.store(left.len(), Ordering::Release);
            step(Step::LeaseLeft);
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
        (left.len() as u64, left.iter().map(|one| one.size as u64).sum())
    }

    /// The native export of a region that was evicted while somebody had it open.
    pub(crate) fn native_of(&self, region: u64) -> Option<Arc<NativeGuard>> {
        if !self.may_be_leased() {
            return None;
        }
        let left = self.left.lock();
        left.iter().find(|left| left.native.region.id().get() == region).map(|left| Arc::clone(&left.native))
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
        let mut index = 0;
        while let Some(one) = left.get(index) {
            if !one.meets(base, size) {
                index += 1;
            } else if self.door.is_leased(one.slot) {
                leased = true;
                index += 1;
            } else {
                let one = left.swap_remove(index);
                let (slot, generation) = (one.slot, one.generation);
                let (region, bytes) = (one.native.region.id().get(), one.size as u64);
                self.ledger.record(Event::Release { slot, generation, region, bytes });
                self.ledger.give_back(slot);
                step(Step::LeaseEnded);
                // With the lock held: who is told that nothing is leased may free the region at once, so its native export
                // is back with the provider by then.
                drop(one);
            }
        }
        self.count.store(left.len(), Ordering::Release);
        leased
    }
}
