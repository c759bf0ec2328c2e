//! [`ExportTable`]: the exports of one producer: its ledger, its lease table, and the retired
//! exports that are still open.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use umf_core::Address;
use umf_core::Freed;
use umf_os::ReceivedFd;
use umf_runtime::observer::{self, ExportObserver, Leases, ObserverGuard};
use umf_sync::fork::{ForkGuard, Outer};
use umf_sync::{Lock, failpoint, fork};

use super::deferred::{self, AddressRange, DeferredExport, DeferredExports};
use super::{ImporterLeases, LeaseTable, LeaseTableId, Scan};
use crate::exporter::NativeGuard;
use crate::handle::Ticket;
use crate::ledger::{LedgerWriter, RetireReason};
use crate::{Error, Result};

/// The ledger and the lease table of one producer. It lives as long as the exporter, and after that
/// as long as a retired export is leased.
#[derive(Debug)]
pub(crate) struct ExportTable {
    pub(crate) ledger: LedgerWriter,
    pub(crate) leases: LeaseTable,
    /// This process's rows of its own table, for its tickets. The first ticket takes one.
    tickets: Lock<Option<ImporterLeases>>,
    /// Whether `tickets` was ever used.
    has_sent: AtomicBool,
    deferred: Lock<DeferredExports>,
    /// [`DeferredExports::pending`], to be read without the lock.
    pending: AtomicUsize,
    /// The exporter was dropped.
    is_orphan: AtomicBool,
    weak_self: Weak<Self>,
    /// [`fork::generation`] of the process that made it.
    generation: u32,
}

/// An export: its slot, and the memory that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportedRange {
    pub slot: u32,
    pub generation: u64,
    pub base: Address,
    pub size: usize,
    /// The export is of a whole region, not of a block (which may fill its region).
    pub is_region: bool,
    /// A device may have imported the memory.
    pub is_device: bool,
}

/// What [`ExportTable::retire_fast`] did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RetireOutcome {
    /// Retired the export and freed its slot.
    Reclaimed,
    /// Retired the export. It is leased: the caller calls [`ExportTable::reclaim_or_defer`].
    Leased(Scan),
    /// Nothing: the export had already ended.
    NotCurrent,
}

/// Tables of dropped exporters with leased exports. Tables of a parent process stay in the list: a
/// forked child must not touch them.
static ORPHANS: Lock<Vec<(Arc<ExportTable>, ObserverGuard)>> = Lock::new(Vec::new());

/// The tables of this process, and of processes that it was forked from.
static TABLES: Lock<Vec<Weak<ExportTable>>> = Lock::new(Vec::new());

/// Adds a new table to [`TABLES`]. If the process has others, importers may have the same memory
/// open by any of them, and all their ledgers say so.
fn note_tables_at_the_same_time(table: &Arc<ExportTable>) {
    let mut tables = TABLES.lock();
    tables.retain(|known| known.strong_count() > 0);
    // Dropped without the lock.
    let others: Vec<_> = tables.iter().filter_map(Weak::upgrade).collect();
    tables.push(Arc::downgrade(table));
    drop(tables);
    let mut others = others.into_iter().filter(|known| known.is_of_this_process()).peekable();
    if others.peek().is_some() {
        table.ledger.note_other_exporter();
        others.for_each(|other| other.ledger.note_other_exporter());
    }
}

/// Removes the tables without leases from [`ORPHANS`]. The caller drops them without a lock,
/// because dropping waits for frees in progress.
fn take_reclaimed() -> Vec<(Arc<ExportTable>, ObserverGuard)> {
    let is_closed =
        |(one, _): &mut (Arc<ExportTable>, ObserverGuard)| one.is_of_this_process() && !one.has_pending();
    ORPHANS.lock().extract_if(.., is_closed).collect()
}

/// Checks all orphaned tables, and drops those without leases.
pub(crate) fn drop_reclaimed() {
    let all = ORPHANS.lock().iter().map(|(one, _)| Arc::clone(one)).collect::<Vec<_>>();
    for one in &all {
        // Without the lock: this may return native exports to their providers.
        one.is_leased(Address::from_bits(0), usize::MAX);
    }
    drop(all);
    drop(take_reclaimed());
}

impl ExportTable {
    /// Creates a ledger with `slots` slots, and its lease table.
    pub(crate) fn new(slots: u32, served: bool) -> Result<Arc<Self>> {
        let ledger = LedgerWriter::new(slots, served)?;
        let leases = LeaseTable::new(ledger.capacity(), ledger.nonce())?;
        ledger.publish_lease_table(leases.raw_fd(), leases.rows());
        failpoint!("lease.table_named");
        let table = Arc::new_cyclic(|weak_self| Self {
            ledger,
            leases,
            tickets: Lock::new(None),
            has_sent: AtomicBool::new(false),
            deferred: Lock::default(),
            pending: AtomicUsize::new(0),
            is_orphan: AtomicBool::new(false),
            weak_self: Weak::clone(weak_self),
            generation: fork::generation(),
        });
        note_tables_at_the_same_time(&table);
        Ok(table)
    }

    /// Allocates a slot that nothing uses.
    pub(crate) fn allocate_slot(&self) -> Result<u32> {
        self.leases.write_header();
        self.ledger.allocate_slot(|first, count| self.leases.reserve(first, count))
    }

    /// Sends a ticket of a current export of `bytes` bytes, whose block the caller does not free
    /// meanwhile.
    pub(crate) fn send(&self, slot: u32, bytes: u64, readers: u16) -> Result<Ticket> {
        let mut tickets = self.tickets.lock();
        let own = match &mut *tickets {
            Some(own) => own,
            None => tickets.insert(self.open_own_rows()?),
        };
        self.has_sent.store(true, Ordering::SeqCst);
        own.send(slot, bytes, readers)
    }

    #[cold]
    fn open_own_rows(&self) -> Result<ImporterLeases> {
        // Delays `fork`, so that no child inherits the descriptor.
        let _no_fork = ForkGuard::<Outer>::new();
        let fd = self.leases.checked_fd().and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0));
        let fd = fd.map_err(|errno| Error::system("fcntl(F_DUPFD_CLOEXEC) of the lease table", errno))?;
        let id = LeaseTableId {
            pid: umf_os::process::pid(),
            nonce: self.ledger.nonce(),
            slots: self.ledger.capacity(),
            rows: self.leases.rows(),
        };
        ImporterLeases::open(ReceivedFd::from(fd), None, id)
    }

    /// Returns whether this process has sent a ticket, and readers have still to claim it.
    pub(crate) fn is_in_transit(&self, slot: u32, ticket: Ticket) -> bool {
        self.tickets.lock().as_ref().is_some_and(|own| own.is_in_transit(slot, ticket))
    }

    /// Cancels a ticket of this process. Returns whether a reader could have claimed it.
    pub(crate) fn cancel(&self, slot: u32, ticket: Ticket) -> bool {
        self.tickets.lock().as_ref().is_some_and(|own| own.cancel(slot, ticket))
    }

    /// Releases the leases of this process's tickets that were claimed. Returns the number of the
    /// others.
    pub(crate) fn poll_tickets(&self) -> usize {
        if !self.has_sent.load(Ordering::SeqCst) {
            return 0;
        }
        self.tickets.lock().as_ref().map_or(0, ImporterLeases::poll_tickets)
    }

    /// Returns the number of tickets of this process that were not released.
    pub(crate) fn sent_tickets(&self) -> u64 {
        if !self.has_sent.load(Ordering::SeqCst) {
            return 0;
        }
        self.tickets.lock().as_ref().map_or(0, |own| own.sent_tickets() as u64)
    }

    /// Retires the export of a freed block, and frees its slot if no other process has the block
    /// open. Takes no lock if the block was never opened.
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

    /// Retires an export, unless another thread already has. If the export is leased, defers it
    /// together with `native`. Returns whether this thread retired it.
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

    /// Frees the slot of a retired export, or defers it if it is leased. Called by the thread that
    /// retired the export. `native` is the region's native export, if its exporter still has it.
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
            let mut deferred = self.deferred.lock();
            deferred.add(one, is_region, native);
            self.pending.store(deferred.pending(), Ordering::Release);
            drop(deferred);
            failpoint!("lease.deferred");
            // Either this thread sees the store in `outlive_exporter`, or that function sees the
            // count above.
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

    /// Returns whether an importer has a retired export open. Once it returns `false`, the slot
    /// belongs to the caller.
    fn is_open(&self, slot: u32, scan: &mut Scan, is_device: bool) -> bool {
        if self.has_sent.load(Ordering::SeqCst)
            && let Some(own) = &*self.tickets.lock()
        {
            own.poll_tickets_of(slot);
        }
        self.leases.is_leased(slot, scan) || (is_device && self.leases.is_in_device_grace())
    }

    /// Returns whether a retired export may still be open.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Returns the number of deferred exports and their bytes, as of the last scan.
    pub(crate) fn deferred_size(&self) -> (u64, u64) {
        if !self.has_pending() {
            return (0, 0);
        }
        let deferred = self.deferred.lock();
        let (count, bytes) = deferred.size();
        (count as u64, bytes)
    }

    /// Returns the native export of a region that was evicted while an importer had it open.
    pub(crate) fn native_of(&self, region: u64) -> Option<Arc<NativeGuard>> {
        if !self.has_pending() {
            return None;
        }
        self.deferred.lock().native(region).map(Arc::clone)
    }

    /// Returns the descriptor of the region's native export that deferred exports hold, as
    /// [`NativeGuard::checked_fd`] does.
    pub(crate) fn deferred_fd(&self, region: u64) -> Option<Result<Arc<OwnedFd>>> {
        if !self.has_pending() {
            return None;
        }
        self.deferred.lock().native(region)?.checked_fd()
    }

    /// Called when the exporter is dropped. If retired exports are leased, their memory must not be
    /// freed yet: this table then registers itself as the observer of frees.
    pub(crate) fn outlive_exporter(self: &Arc<Self>) {
        self.is_orphan.store(true, Ordering::SeqCst);
        core::sync::atomic::fence(Ordering::SeqCst);
        if !self.has_pending() {
            return;
        }
        let observing = match observer::register(Arc::clone(self) as _) {
            Ok(observing) => observing,
            Err(error) => {
                tracing::error!(%error, "memory of a dropped exporter is not held for importers that have it open");
                return;
            }
        };
        let closed = take_reclaimed();
        ORPHANS.lock().push((Arc::clone(self), observing));
        umf_runtime::deferred::after_poll(crate::after_poll);
        drop(closed);
    }

    fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Leases for ExportTable {
    fn is_leased(&self, base: Address, size: usize) -> bool {
        if !self.is_of_this_process() || !self.has_pending() {
            // A forked child has none of this memory.
            return false;
        }
        let range = AddressRange { base, size };
        let mut deferred = self.deferred.lock();
        let (is_open, closed, natives) =
            deferred.reclaim(range, |one| self.is_open(one.slot, &mut one.scan, one.is_device));
        self.pending.store(deferred.pending(), Ordering::Release);
        drop(deferred);
        if !closed.is_empty() {
            self.ledger.note_change();
        }
        for DeferredExport { slot, .. } in closed {
            self.ledger.free_slot(slot);
            failpoint!("lease.ended");
        }
        if !natives.is_empty() {
            // The caller frees the region once this returns `false`, so its native export is
            // returned before. If the region was exported again, the drop of that export returns
            // it.
            let regions: Vec<AddressRange> =
                natives.iter().map(|guard| deferred::region_range(guard)).collect();
            drop(natives);
            let mut deferred = self.deferred.lock();
            deferred.finish_returns(&regions);
            self.pending.store(deferred.pending(), Ordering::Release);
        }
        is_open
    }
}

impl ExportObserver for ExportTable {
    fn before_free(&self, freed: Freed) -> Option<Arc<dyn Leases>> {
        let (base, size) = match freed {
            // Size 1 suffices: it finds every export that contains the address.
            Freed::Block { address } => (address, 1),
            Freed::Region(region) => (region.base(), region.size()),
        };
        let me = self.weak_self.upgrade()?;
        self.is_leased(base, size).then_some(me as _)
    }
}
