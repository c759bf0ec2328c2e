//! [`LeaseTable`]: the producer's side.

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

/// How long after the end of an importer a device may still write to what it had open, in
/// nanoseconds. The kernel unmaps a process's memory, and so drops its locks, before it closes the
/// descriptors of its devices.
const DEVICE_GRACE: u64 = 100_000_000;

/// The producer's side of its lease table.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    fd: CheckedFile,
    nonce: Nonce,
    head: HeaderMapping,
    /// By row: where its words are mapped, once they were read.
    rows: Chunks<AtomicPtr<AtomicU64>>,
    mappings: Lock<Vec<SharedMapping>>,
    /// Held by the thread that clears a row. All threads share one description, so that the
    /// kernel's lock of the row does not keep them apart.
    clearing: Lock<()>,
    /// The table's count of cleared rows when it was last seen to change, and when that was, in
    /// nanoseconds of `CLOCK_BOOTTIME`.
    cleared: (AtomicU64, AtomicU64),
}

/// What remains to be looked at before the memory of a retired export can be used again.
///
/// A row that was seen at zero or without an owner after the export was retired cannot hold a valid
/// lease of it any more, so a scan goes on where it stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    opened_rows: u64,
    height: u32,
    row: u32,
}

impl LeaseTable {
    /// The table of a ledger with this nonce and so many slots.
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
        // No child is forked that has the file open.
        let _no_fork = ForkGuard::<Outer>::new();
        let fd = umf_os::memfd::create("umf-leases", shape.size())
            .map_err(|errno| Error::system("memfd_create", errno))?;
        failpoint!("lease.table_file_made");
        umf_os::file::reserve(&fd, 0, shape.bitmaps())
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        // That the kernel has such locks is found out here, and not at the first free.
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

    /// Writes what importers compare when they open the table. Any of them can overwrite it, so it
    /// is written again with each export.
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

    /// Returns the table's descriptor, which importers must not lock through, if its number still
    /// is the table's.
    pub(crate) fn checked_fd(&self) -> umf_os::SystemResult<&Arc<OwnedFd>> {
        self.fd.get()
    }

    /// A description of the table for one importer, to which it is sent.
    pub(crate) fn reopen(&self) -> umf_os::SystemResult<ReopenedFile> {
        ReopenedFile::of(self.checked_fd()?.as_fd(), self.fd.identity())
    }

    /// How many rows there are, which the ledger says.
    pub(crate) const fn rows(&self) -> u32 {
        self.head.shape().rows
    }

    /// Gives the marks of some slots their memory, before these slots are used.
    pub(crate) fn reserve(&self, first: u32, count: u32) -> Result<()> {
        let marks = self.head.shape().bitmaps() + u64::from(first) * 8;
        self.checked_fd()
            .and_then(|fd| umf_os::file::reserve(fd, marks, u64::from(count) * 8))
            .map_err(|errno| Error::system("fallocate of the lease table", errno))?;
        failpoint!("lease.table_grown");
        Ok(())
    }

    /// Starts a scan for leases of a retired slot. Returns `None` if the slot was never opened.
    #[inline]
    pub(crate) fn scan(&self, slot: u32) -> Option<Scan> {
        match self.head.opened_rows(slot).load(Ordering::SeqCst) {
            0 => None,
            opened_rows => Some(Scan { opened_rows, height: self.head.height(), row: 0 }),
        }
    }

    /// Whether a living process has the retired export of `slot` open. `false` is final: the scan
    /// is complete, and the slot can be used again.
    pub(crate) fn is_leased(&self, slot: u32, scan: &mut Scan) -> bool {
        while scan.row < scan.height {
            let Some(row) = next_opened(scan) else { break };
            scan.row = row;
            match self.word(row, slot) {
                Some(word) if word.load(Ordering::SeqCst) == 0 => {}
                Some(_) if self.clear_dead_row(row) => {}
                // Leased, or not to be read now.
                _ => return true,
            }
            scan.row += 1;
        }
        protocol::clear_opened_rows(self.head.opened_rows(slot));
        false
    }

    /// Whether a device of an importer that ended a moment ago may still write to what the importer
    /// had open.
    pub(crate) fn is_in_device_grace(&self) -> bool {
        let count = self.head.header().cleared.0.load(Ordering::SeqCst);
        let now = umf_os::clock::boot();
        let (seen, since) = &self.cleared;
        // By this process's own clock: an importer's may be another, or lie.
        if seen.swap(count, Ordering::SeqCst) != count {
            since.store(now, Ordering::SeqCst);
        }
        let since = since.load(Ordering::SeqCst);
        since != 0 && now.saturating_sub(since) < DEVICE_GRACE
    }

    /// The words of a row begin with the first slot's.
    fn word(&self, row: u32, slot: u32) -> Option<&AtomicU64> {
        let place = self.rows.get_or_grow(row).ok()?;
        let mut base = place.load(Ordering::Acquire);
        if base.is_null() {
            base = self.map_row(row, place)?.as_ptr();
        }
        // SAFETY: `base` is the mapping of a row's words, which has one for each slot and stays as long as the table; callers
        // have checked the slot.
        Some(unsafe { &*base.add(slot as usize) })
    }

    #[cold]
    fn map_row(&self, row: u32, place: &AtomicPtr<AtomicU64>) -> Option<NonNull<AtomicU64>> {
        let mut mappings = self.mappings.lock();
        if let Some(known) = NonNull::new(place.load(Ordering::Acquire)) {
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
                place.store(base.as_ptr(), Ordering::Release);
                failpoint!("lease.row_mapped");
                Some(base)
            }
            Err(errno) => {
                tracing::warn!(
                    %errno,
                    row,
                    "cannot map a row of the lease table: memory that its importer may have open is not used again"
                );
                None
            }
        }
    }

    /// Clears a row that no living importer owns, under its lock. `false` if it has an owner, or
    /// got one meanwhile.
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
        // Before the words: a scan that finds them zero finds the change as well.
        self.head.header().cleared.0.fetch_add(1, Ordering::SeqCst);
        let cleared = umf_os::file::punch_hole(fd, shape.row(row) + ROW_HEADER, shape.words());
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

    /// How many importers have rows, as far as these say.
    pub(crate) fn importers(&self) -> usize {
        let numbers =
            (0..self.head.height()).map(|row| self.head.owner(row).importer.load(Ordering::Relaxed));
        numbers.filter(|&number| number != 0).collect::<HashSet<_>>().len()
    }
}

/// The first row from `scan.row` on whose bit is set, if it is below the height.
fn next_opened(scan: &Scan) -> Option<u32> {
    // Rotated, so that bit 0 is that of `scan.row`.
    let bits = scan.opened_rows.rotate_right(scan.row % BITMAP_BITS);
    let row = scan.row.checked_add(bits.trailing_zeros())?;
    (bits != 0 && row < scan.height).then_some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_visits_every_row_whose_bit_is_set() {
        for marks in [1, 1 << 63, 0b1010, u64::MAX, 1 << 7 | 1 << 40] {
            for height in [0, 1, 5, 64, 65, 200] {
                let mut scan = Scan { opened_rows: marks, height, row: 0 };
                let mut visited = Vec::new();
                while let Some(row) = next_opened(&scan) {
                    visited.push(row);
                    scan.row = row + 1;
                }
                let expected: Vec<u32> =
                    (0..height).filter(|row| marks >> (row % BITMAP_BITS) & 1 == 1).collect();
                assert_eq!(visited, expected, "{marks:#x} {height}");
            }
        }
    }
}
