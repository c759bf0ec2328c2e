//! [`ExportTable`]: what a producer exports, and which retired exports are still open elsewhere.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use umf_core::Address;
use umf_core::Freed;
use umf_runtime::observer::{self, ExportObserver, Leases, ObserverGuard};
use umf_sync::{Lock, failpoint, fork};

use super::deferred::{self, AddressRange, DeferredExport, DeferredExports};
use super::{LeaseTable, Scan};
use crate::Result;
use crate::exporter::NativeGuard;
use crate::ledger::{LedgerWriter, RetireReason};

/// The ledger and the lease table of one producer. It lives as long as the exporter, and after that
/// as long as retired exports are leased.
#[derive(Debug)]
pub(crate) struct ExportTable {
    pub(crate) ledger: LedgerWriter,
    pub(crate) leases: LeaseTable,
    left: Lock<DeferredExports>,
    /// How many there are in `left`, and native exports on their way back.
    count: AtomicUsize,
    /// The exporter was dropped.
    is_orphan: AtomicBool,
    weak_self: Weak<Self>,
    /// The process that made it, as [`fork::generation`] counts.
    generation: u32,
}

/// An export: its slot, and the memory that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportedRange {
    pub slot: u32,
    pub generation: u64,
    pub base: Address,
    pub size: usize,
    /// It is a whole region's, and not a block's (which may be all of its region).
    pub is_region: bool,
    /// A device may have imported the memory.
    pub is_device: bool,
}

/// What [`ExportTable::retire_fast`] did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RetireOutcome {
    /// All that there is to do.
    Reclaimed,
    /// The export has ended and is leased: [`ExportTable::reclaim_or_defer`] is to do.
    Leased(Scan),
    /// Nothing.
    NotCurrent,
}

/// Those of dropped exporters of which something is leased. (Those of a parent process stay where they
/// are: nothing of them may be touched here.)
static ORPHANS: Lock<Vec<(Arc<ExportTable>, ObserverGuard)>> = Lock::new(Vec::new());

/// Takes out those of which nothing is leased any more. Dropping them waits for frees that go on: not
/// with a lock.
fn take_reclaimed() -> Vec<(Arc<ExportTable>, ObserverGuard)> {
    let is_closed =
        |(one, _): &mut (Arc<ExportTable>, ObserverGuard)| one.is_of_this_process() && !one.has_pending();
    ORPHANS.lock().extract_if(.., is_closed).collect()
}

/// Looks which are closed by now, and drops their ledgers and lease tables.
fn drop_reclaimed() {
    let all = ORPHANS.lock().iter().map(|(one, _)| Arc::clone(one)).collect::<Vec<_>>();
    for one in &all {
        // Without the lock: native exports may go back to their providers now.
        one.is_leased(Address::from_bits(0), usize::MAX);
    }
    drop(all);
    drop(take_reclaimed());
}

impl ExportTable {
    /// A ledger with room for `slots` exports, and its lease table.
    pub(crate) fn new(slots: u32, served: bool) -> Result<Arc<Self>> {
        let ledger = LedgerWriter::new(slots, served)?;
        let leases = LeaseTable::new(ledger.capacity(), ledger.nonce())?;
        ledger.publish_lease_table(leases.raw_fd(), leases.rows());
        failpoint!("lease.table_named");
        Ok(Arc::new_cyclic(|weak_self| Self {
            ledger,
            leases,
            left: Lock::default(),
            count: AtomicUsize::new(0),
            is_orphan: AtomicBool::new(false),
            weak_self: Weak::clone(weak_self),
            generation: fork::generation(),
        }))
    }

    /// A slot that nothing uses.
    pub(crate) fn allocate_slot(&self) -> Result<u32> {
        self.leases.write_header();
        self.ledger.allocate_slot(|first, count| self.leases.reserve(first, count))
    }

    /// Ends the export of a freed block, and gives its slot back if the block is not open
    /// elsewhere. Takes no lock if the block was never opened.
    pub(crate) fn retire_fast(&self, slot: u32, generation: u64, is_device: bool) -> RetireOutcome {
        if !self.ledger.retire_with_reason(slot, generation, RetireReason::BlockFreed) {
            return RetireOutcome::NotCurrent;
        }
        if let Some(mut scan) = self.leases.scan(slot)
            && self.is_open(slot, &mut scan, is_device)
        {
            return RetireOutcome::Leased(scan);
        }
        self.ledger.free_slot(slot);
        RetireOutcome::Reclaimed
    }

    /// Ends the export of a range, unless another thread does. If the export is leased, it is kept
    /// in the list of deferred ones, together with `native`.
    pub(crate) fn retire(
        &self,
        export: &ExportedRange,
        native: &Arc<NativeGuard>,
        reason: RetireReason,
    ) -> bool {
        let retired = self.ledger.retire_with_reason(export.slot, export.generation, reason);
        if retired {
            match self.leases.scan(export.slot) {
                Some(scan) => self.reclaim_or_defer(export, scan, native.region.id().get(), Some(native)),
                None => self.ledger.free_slot(export.slot),
            }
        }
        retired
    }

    /// Gives the slot of a retired export back, or keeps it in the list of deferred ones if it is
    /// leased. For the thread that retired it. `native` is the region's, if its exporter still has
    /// it.
    pub(crate) fn reclaim_or_defer(
        &self,
        export: &ExportedRange,
        mut scan: Scan,
        region: u64,
        native: Option<&Arc<NativeGuard>>,
    ) {
        let ExportedRange { slot, base, size, is_region, is_device, .. } = *export;
        failpoint!("lease.scanning");
        let range = AddressRange { base, size };
        if self.is_open(slot, &mut scan, is_device) {
            let one = DeferredExport { slot, range, region, scan, is_device, has_native: false };
            let mut left = self.left.lock();
            left.add(one, is_region, native);
            self.count.store(left.pending(), Ordering::Release);
            drop(left);
            failpoint!("lease.deferred");
            // Either this sees the store in `outlive_exporter`, or that sees the count above.
            core::sync::atomic::fence(Ordering::SeqCst);
            if self.is_orphan.load(Ordering::SeqCst)
                && let Some(me) = self.weak_self.upgrade()
            {
                me.outlive_exporter();
            }
        } else {
            self.ledger.free_slot(slot);
        }
    }

    /// Whether a retired export is open elsewhere. Once it is not, its slot is the caller's.
    fn is_open(&self, slot: u32, scan: &mut Scan, is_device: bool) -> bool {
        self.leases.is_leased(slot, scan) || (is_device && self.leases.is_in_device_grace())
    }

    /// Whether anything that was retired here may be open still.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// How many retired exports are open still, and how many bytes they have, as far as was looked.
    pub(crate) fn deferred_size(&self) -> (u64, u64) {
        if !self.has_pending() {
            return (0, 0);
        }
        let left = self.left.lock();
        let (count, bytes) = left.size();
        (count as u64, bytes)
    }

    /// The native export of a region that was evicted while somebody had it open.
    pub(crate) fn native_of(&self, region: u64) -> Option<Arc<NativeGuard>> {
        if !self.has_pending() {
            return None;
        }
        self.left.lock().native_of(region)
    }

    /// The exporter is gone. If retired exports of it are leased, their memory may not be freed
    /// yet: from here on this object itself is asked when that is freed.
    pub(crate) fn outlive_exporter(self: &Arc<Self>) {
        self.is_orphan.store(true, Ordering::SeqCst);
        core::sync::atomic::fence(Ordering::SeqCst);
        if !self.has_pending() {
            return;
        }
        let observing = match observer::register(Arc::clone(self) as _) {
            Ok(observing) => observing,
            Err(error) => {
                tracing::error!(%error, "what is open elsewhere of a dropped exporter is not held when it is freed");
                return;
            }
        };
        let closed = take_reclaimed();
        ORPHANS.lock().push((Arc::clone(self), observing));
        umf_runtime::deferred::after_poll(drop_reclaimed);
        drop(closed);
    }

    fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Leases for ExportTable {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        if !self.is_of_this_process() || !self.has_pending() {
            // (A forked child has none of this memory to give to anybody.)
            return false;
        }
        let range = AddressRange { base, size };
        let mut left = self.left.lock();
        let (is_left, closed, natives) =
            left.reclaim(range, |one| self.is_open(one.slot, &mut one.scan, one.is_device));
        self.count.store(left.pending(), Ordering::Release);
        drop(left);
        if !closed.is_empty() {
            self.ledger.note_change();
        }
        for DeferredExport { slot, .. } in closed {
            self.ledger.free_slot(slot);
            failpoint!("lease.ended");
        }
        if !natives.is_empty() {
            // The caller, told that nothing is leased, may free the region at once, so its native
            // export goes back before that. It may be in use as an export once more; then
            // the end of that gives it back.
            let regions: Vec<AddressRange> =
                natives.iter().map(|guard| deferred::region_range(guard)).collect();
            drop(natives);
            let mut left = self.left.lock();
            left.finish_returns(&regions);
            self.count.store(left.pending(), Ordering::Release);
        }
        is_left
    }
}

impl ExportObserver for ExportTable {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        let (base, size) = match freed {
            // Its size is what was exported of it.
            Freed::Block { address } => (address, 1),
            Freed::Region(region) => (region.base(), region.size()),
        };
        let me = self.weak_self.upgrade()?;
        self.is_leased(base, size).then_some(me as _)
    }
}
