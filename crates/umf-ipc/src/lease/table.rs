//! [`LeaseTable`]: the producer's side of the lease table. It scans rows for leases and clears rows
//! of ended importers.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use hashbrown::HashSet;
use rustix::fs::SealFlags;
use umf_sync::fork::{ForkGuard, Outer};
use umf_sync::{Lock, chunks::Chunks, failpoint};

use super::layout::{BITMAP_BITS, HeaderMapping, MAGIC, ROW_HEADER, TableShape, VERSION};
use crate::identity::Nonce;
use crate::{Error, Result, protocol};
use umf_os::{CheckedFile, OfdLocks, ReopenedFile, SharedMapping};

/// Time for which a device may still write to what an importer had open after the importer ended,
/// in nanoseconds. At exit the kernel unmaps a process's memory, which drops its locks, before it
/// closes the descriptors of its devices.
const DEVICE_GRACE: u64 = 100_000_000;

/// Scans for leases of one export in one check, if tickets are sent or claimed meanwhile.
const SCANS: u32 = 8;

/// The producer's side of its lease table.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    fd: CheckedFile,
    nonce: Nonce,
    head: HeaderMapping,
    /// Per row: address of its mapped counters, null until the first read.
    rows: Chunks<AtomicPtr<AtomicU64>>,
    mappings: Lock<Vec<SharedMapping>>,
    /// Held by the thread that clears a row. All threads share one open file description, so that
    /// the kernel lock of the row does not exclude them from each other.
    clearing: Lock<()>,
    /// Last seen value of the table's `cleared` counter, and the time of its last change in
    /// nanoseconds of `CLOCK_BOOTTIME`.
    cleared: (AtomicU64, AtomicU64),
}

/// Position of a scan for leases of a retired export.
///
/// If a row is seen at zero or without an owner after the export was retired, it can hold a valid
/// lease of it only if a ticket was claimed since. Hence a scan resumes where it stopped, and starts
/// again at its end if the table's `events` have changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    events: u64,
    opened_rows: u64,
    height: u32,
    row: u32,
}

impl LeaseTable {
    /// Creates the table of a ledger with this nonce and number of slots.
    pub(crate) fn new(slots: u32, nonce: Nonce) -> Result<Self> {
        Self::within(slots, nonce, umf_os::process::file_size_limit())
    }

    /// Creates a table of at most `limit` bytes.
    pub(super) fn within(slots: u32, nonce: Nonce, limit: u64) -> Result<Self> {
        let shape = TableShape::within(slots, limit).ok_or(Error::System {
            call: "ftruncate of the lease table",
            errno: rustix::io::Errno::FBIG,
            hint: "; raise RLIMIT_FSIZE (ulimit -f)",
        })?;
        // Delays `fork`, so that no child inherits the descriptor.
        let _no_fork = ForkGuard::<Outer>::new();
        let fd = umf_os::memfd::create("umf-leases", shape.size())
            .map_err(|errno| Error::system("memfd_create", errno))?;
        failpoint!("lease.table_file_made");
        umf_os::file::reserve(&fd, 0, shape.bitmaps())
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        // Fails here, and not at the first free, if the kernel has no such locks.
        OfdLocks::of_file(&fd).is_write_locked(shape.row(0)).map_err(|errno| Error::System {
            call: "fcntl(F_OFD_GETLK) of the lease table",
            errno,
            hint: "; a sandbox or seccomp filter refuses open file description locks: allow F_OFD_GETLK and F_OFD_SETLK",
        })?;
        let head = HeaderMapping::new(&fd, shape)?;
        failpoint!("lease.table_mapped");
        umf_os::memfd::add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| Error::system("sealing of the lease table", errno))?;
        let table = Self {
            fd: CheckedFile::closed_on_fork(fd)
                .map_err(|errno| Error::system("fstat of the lease table", errno))?,
            nonce,
            head,
            rows: Chunks::new(),
            mappings: Lock::new(Vec::new()),
            clearing: Lock::new(()),
            cleared: (AtomicU64::new(0), AtomicU64::new(0)),
        };
        table.write_header();
        failpoint!("lease.table_made");
        Ok(table)
    }

    /// Writes the fields that importers check. Any importer can overwrite them, so each export
    /// writes them again.
    pub(crate) fn write_header(&self) {
        let (header, shape) = (self.head.header(), self.head.shape());
        header.version.store(VERSION, Ordering::Relaxed);
        header.rows.store(shape.rows, Ordering::Relaxed);
        header.slots.store(shape.slots, Ordering::Relaxed);
        for (word, half) in header.nonce.iter().zip(self.nonce.halves()) {
            word.store(half, Ordering::Relaxed);
        }
        header.magic.store(MAGIC, Ordering::Release);
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.unchecked().as_raw_fd()
    }

    #[cfg(test)]
    pub(super) const fn shared_fd(&self) -> &Arc<OwnedFd> {
        self.fd.unchecked()
    }

    /// Returns the table's descriptor. Importers must not lock through it. Fails if its number
    /// names another file by now.
    pub(crate) fn checked_fd(&self) -> umf_os::SystemResult<&Arc<OwnedFd>> {
        self.fd.get()
    }

    /// Opens a new description of the table, to be sent to one importer.
    pub(crate) fn reopen(&self) -> umf_os::SystemResult<ReopenedFile> {
        ReopenedFile::of(self.checked_fd()?.as_fd(), self.fd.identity())
    }

    /// Returns the number of rows. The ledger publishes it.
    pub(crate) const fn rows(&self) -> u32 {
        self.head.shape().rows
    }

    /// Allocates the memory of some slots' opened bitmaps, before these slots are used.
    pub(crate) fn reserve(&self, first: u32, count: u32) -> Result<()> {
        let offset = self.head.shape().bitmaps() + u64::from(first) * 8;
        self.checked_fd()
            .and_then(|fd| umf_os::file::reserve(fd, offset, u64::from(count) * 8))
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        failpoint!("lease.table_grown");
        Ok(())
    }

    /// Starts a scan for leases of a retired slot. Returns `None` if the slot was never opened.
    #[inline]
    pub(crate) fn scan(&self, slot: u32) -> Option<Scan> {
        match self.head.opened_rows(slot).load(Ordering::SeqCst) {
            0 => None,
            _ => Some(self.start_scan(slot)),
        }
    }

    /// Returns whether a row counts a lease of the export in `slot`. Its owner may have ended.
    ///
    /// A lease that moves between rows may be missed. That of a ticket does not move before the
    /// ticket is claimed.
    pub(crate) fn is_counted(&self, slot: u32) -> bool {
        let Some(mut scan) = self.scan(slot) else { return false };
        while let Some(row) = next_opened(&scan) {
            // A row that cannot be mapped counts as leased, as in `is_leased`.
            if self.word(row, slot).is_none_or(|word| word.load(Ordering::SeqCst) != 0) {
                return true;
            }
            scan.row = row + 1;
        }
        false
    }

    fn start_scan(&self, slot: u32) -> Scan {
        // The events first: a claim after this load is found by the comparison at the scan's end,
        // one before it by the loads after it.
        let events = self.events();
        let opened_rows = self.head.opened_rows(slot).load(Ordering::SeqCst);
        Scan { events, opened_rows, height: self.head.height(), row: 0 }
    }

    fn events(&self) -> u64 {
        self.head.header().events.0.load(Ordering::SeqCst)
    }

    /// Returns whether a living process has the retired export of `slot` open. `false` is final:
    /// the scan is complete, and the slot can be reused. Releases rows whose owners have ended.
    pub(crate) fn is_leased(&self, slot: u32, scan: &mut Scan) -> bool {
        for _ in 0..SCANS {
            while scan.row < scan.height {
                let Some(row) = next_opened(scan) else { break };
                scan.row = row;
                match self.word(row, slot) {
                    Some(word) if word.load(Ordering::SeqCst) == 0 => {}
                    Some(_) if self.clear_dead_row(row) => {}
                    // Leased, or the row could not be mapped.
                    _ => return true,
                }
                scan.row += 1;
            }
            failpoint!("lease.rows_passed");
            if self.events() == scan.events {
                protocol::clear_opened_rows(self.head.opened_rows(slot));
                return false;
            }
            *scan = self.start_scan(slot);
        }
        // Tickets of other exports are sent or claimed all the time: the next check continues.
        true
    }

    /// Returns whether a device of an importer that has just ended may still write to the
    /// importer's mappings.
    pub(crate) fn is_in_device_grace(&self) -> bool {
        let count = self.head.header().cleared.0.load(Ordering::SeqCst);
        let now = umf_os::clock::boot();
        let (seen, since) = &self.cleared;
        // Measured with this process's clock: a time stamp of an importer is not trusted.
        if seen.swap(count, Ordering::SeqCst) != count {
            since.store(now, Ordering::SeqCst);
        }
        let since = since.load(Ordering::SeqCst);
        since != 0 && now.saturating_sub(since) < DEVICE_GRACE
    }

    /// Returns the counter of a slot in a row; `None` if the row cannot be mapped.
    fn word(&self, row: u32, slot: u32) -> Option<&AtomicU64> {
        let cell = self.rows.get_or_grow(row).ok()?;
        let mut base = cell.load(Ordering::Acquire);
        if base.is_null() {
            base = self.map_row(row, cell)?.as_ptr();
        }
        // SAFETY: `base` is the mapping of a row, which lasts as long as the table and has one
        // counter per slot. Callers have checked the slot.
        Some(unsafe { &*base.add(slot as usize) })
    }

    #[cold]
    fn map_row(&self, row: u32, cell: &AtomicPtr<AtomicU64>) -> Option<NonNull<AtomicU64>> {
        let mut mappings = self.mappings.lock();
        if let Some(known) = NonNull::new(cell.load(Ordering::Acquire)) {
            return Some(known);
        }
        let shape = self.head.shape();
        let size = usize::try_from(shape.words()).ok()?;
        let mapped = self
            .checked_fd()
            .and_then(|fd| SharedMapping::at(fd, shape.row(row) + ROW_HEADER, size, false))
            .and_then(|mut mapping| {
                mapping.exclude_from_fork()?;
                mapping.use_small_pages();
                Ok(mapping)
            });
        match mapped {
            Ok(mapping) => {
                let base = mapping.base().cast();
                mappings.push(mapping);
                cell.store(base.as_ptr(), Ordering::Release);
                failpoint!("lease.row_mapped");
                Some(base)
            }
            Err(errno) => {
                tracing::warn!(
                    %errno,
                    row,
                    "cannot map a row of the lease table: memory that its importer may have open is not reused"
                );
                None
            }
        }
    }

    /// Clears a row without a living owner, under its lock. Returns `false` if the row has an
    /// owner.
    #[cold]
    fn clear_dead_row(&self, row: u32) -> bool {
        let shape = self.head.shape();
        let _clearing = self.clearing.lock();
        let locked = self.checked_fd().and_then(|fd| {
            let locks = OfdLocks::of_file(fd);
            Ok((fd, locks, locks.try_write_lock(shape.row(row))?))
        });
        let (fd, locks) = match locked {
            Ok((fd, locks, true)) => (fd, locks),
            Ok(_) => return false,
            Err(errno) => {
                tracing::warn!(%errno, row, "cannot lock a row of the lease table: it counts as leased");
                return false;
            }
        };
        failpoint!("dead.row_locked");
        // Before the counters: a scan that finds them zero also finds the change.
        self.head.header().cleared.0.fetch_add(1, Ordering::SeqCst);
        // Tickets first: their sender's leases are counted until then.
        let cleared = super::tickets::clear_words(fd, shape, row);
        failpoint!("dead.tickets_cleared");
        let cleared =
            cleared.and_then(|()| umf_os::file::punch_hole(fd, shape.row(row) + ROW_HEADER, shape.words()));
        if cleared.is_ok() {
            self.head.owner(row).importer.store(0, Ordering::Relaxed);
        }
        failpoint!("dead.row_cleared");
        let unlocked = locks.unlock(shape.row(row));
        failpoint!("dead.row_unlocked");
        match cleared.and(unlocked) {
            Ok(()) => true,
            Err(errno) => {
                tracing::warn!(%errno, row, "cannot clear a row of an ended importer: it counts as leased");
                false
            }
        }
    }

    /// Returns the number of importers that have rows, as they declare it. Returns the number of
    /// their rows if there is no memory to tell them apart.
    pub(crate) fn importers(&self) -> usize {
        let numbers =
            (0..self.head.height()).map(|row| self.head.owner(row).importer.load(Ordering::Relaxed));
        let numbers = numbers.filter(|&number| number != 0);
        let mut distinct = HashSet::new();
        // Counted first: another process may add rows meanwhile.
        let rows = numbers.clone().count();
        if distinct.try_reserve(rows).is_err() {
            return rows;
        }
        distinct.extend(numbers.take(rows));
        distinct.len()
    }
}

/// Returns the first row from `scan.row` on whose bit is set, if it is below the height.
fn next_opened(scan: &Scan) -> Option<u32> {
    // Rotated, so that bit 0 belongs to `scan.row`.
    let bits = scan.opened_rows.rotate_right(scan.row % BITMAP_BITS);
    let row = scan.row.checked_add(bits.trailing_zeros())?;
    (bits != 0 && row < scan.height).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_visits_every_row_whose_bit_is_set() {
        for opened_rows in [1, 1 << 63, 0b1010, u64::MAX, 1 << 7 | 1 << 40] {
            for height in [0, 1, 5, 64, 65, 200] {
                let mut scan = Scan { events: 0, opened_rows, height, row: 0 };
                let mut visited = Vec::new();
                while let Some(row) = next_opened(&scan) {
                    visited.push(row);
                    scan.row = row + 1;
                }
                let expected: Vec<u32> =
                    (0..height).filter(|row| opened_rows >> (row % BITMAP_BITS) & 1 == 1).collect();
                assert_eq!(visited, expected, "{opened_rows:#x} {height}");
            }
        }
    }
}
