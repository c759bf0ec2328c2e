//! Layout of the lease table, and the mapping of the part that both sides map. `docs/leases.md` has
//! the same tables.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::AsFd;

use crate::{Error, Result};
use umf_os::SharedMapping;

/// `"UMFLEASE"`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLEASE");
/// The version that this code reads and writes.
pub(crate) const VERSION: u32 = 2;
/// Alignment of all parts: the largest base page size that Linux has.
const ALIGN: u64 = 1 << 16;
/// Size of a row header in bytes. It has the row's ticket words.
pub(crate) const ROW_HEADER: u64 = ALIGN;
/// Upper bound of the size of a row's counters, in bytes.
#[cfg(test)]
const MAX_WORDS: u64 = crate::ledger::MAX_SLOTS as u64 * 8;
/// Ticket words of a row.
pub(crate) const TICKET_WORDS: u16 = (ROW_HEADER / 8) as u16;
/// Maximum number of rows.
pub(crate) const MAX_ROWS: u32 = 4096;
/// Bits of a slot's opened bitmap. Row `n` has bit `n % BITMAP_BITS`.
pub(crate) const BITMAP_BITS: u32 = 64;

/// The header of the table. Fields that are written often have a cache line of their own.
///
/// The producer writes the fields before `height` before any other process knows the descriptor,
/// and again at each export.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TableHeader {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub rows: AtomicU32,
    pub nonce: [AtomicU64; 2],
    pub slots: AtomicU32,
    pub height: CacheAligned<AtomicU32>,
    pub search: CacheAligned<AtomicU32>,
    /// Number of tickets that were sent, and of attempts to claim one.
    pub events: CacheAligned<AtomicU64>,
    /// Not 0: a collector found that the producer has ended, and releases what is not leased. It
    /// counts only while the producer's ledger is not locked. Importers read it at each open, and
    /// no process writes it while the producer runs.
    pub dead: CacheAligned<AtomicU32>,
    /// Number of times that a row of an ended importer was cleared.
    pub cleared: CacheAligned<AtomicU64>,
}

/// A value in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheAligned<T>(pub T);

/// The importer that owns a row, for diagnosis. All zeros if the row was released: importers try
/// such rows first.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RowOwner {
    /// Random number that all rows of one importer have in common.
    pub importer: AtomicU64,
    /// Process id in the importer's pid namespace.
    pub pid: AtomicU32,
    /// Effective user id.
    pub uid: AtomicU32,
    /// Inode of the pid namespace, 0 if unknown.
    pub pid_namespace: AtomicU64,
    /// Time at which the importer took the row, in nanoseconds of `CLOCK_BOOTTIME`.
    pub since: AtomicU64,
    /// 1 if the row has tickets and no opens.
    pub is_of_tickets: AtomicU32,
}

const _: () = assert!(size_of::<RowOwner>() == 64 && size_of::<TableHeader>() <= ALIGN as usize);

/// Number of slots and rows of a table. All offsets follow from these two numbers, so that no
/// offset is read from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableShape {
    pub slots: u32,
    pub rows: u32,
}

impl TableShape {
    /// Returns the shape of the largest table for `slots` slots in a file of at most `limit` bytes.
    /// Returns `None` if it would have fewer than four rows.
    pub(crate) fn within(slots: u32, limit: u64) -> Option<Self> {
        let mut shape = Self { slots, rows: MAX_ROWS };
        while shape.size() > limit {
            shape.rows /= 2;
            if shape.rows < 4 {
                return None;
            }
        }
        Some(shape)
    }

    pub(crate) const fn owners(self) -> u64 {
        ALIGN
    }

    pub(crate) const fn bitmaps(self) -> u64 {
        (self.owners() + self.rows as u64 * size_of::<RowOwner>() as u64).next_multiple_of(ALIGN)
    }

    /// Returns the size of a row's counters in bytes. The opened bitmaps have the same size.
    pub(crate) const fn words(self) -> u64 {
        (self.slots as u64 * 8).next_multiple_of(ALIGN)
    }

    /// Returns the offset of row 0: the size of the part that both sides map.
    pub(crate) const fn head(self) -> u64 {
        self.bitmaps() + self.words()
    }

    /// Returns the size of a row in bytes, including its header.
    pub(crate) const fn row_size(self) -> u64 {
        ROW_HEADER + self.words()
    }

    /// Returns the offset of a row. The row's lock is on this byte.
    pub(crate) const fn row(self, number: u32) -> u64 {
        self.head() + number as u64 * self.row_size()
    }

    pub(crate) const fn size(self) -> u64 {
        self.row(self.rows)
    }
}

/// Returns the bit of a row in the opened bitmaps.
pub(crate) const fn row_bit(row: u32) -> u64 {
    1 << (row % BITMAP_BITS)
}

/// Mapping of header, owners and opened bitmaps. Any process that can open the table writes there,
/// so that each word is read once.
#[derive(Debug)]
pub(crate) struct HeaderMapping {
    mapping: SharedMapping,
    shape: TableShape,
}

impl HeaderMapping {
    /// Maps the head of a table. The caller has compared the size of the file with `shape`. Forked
    /// children do not inherit the mapping.
    pub(crate) fn new(fd: impl AsFd, shape: TableShape) -> Result<Self> {
        let size = usize::try_from(shape.head()).unwrap_or(usize::MAX);
        let mut mapping = SharedMapping::new(fd, size, true)
            .map_err(|errno| Error::system("mmap of the lease table", errno))?;
        mapping
            .exclude_from_fork()
            .map_err(|errno| Error::system("madvise(MADV_DONTFORK) of the lease table", errno))?;
        // With huge pages, reading a hole of the file would allocate 2 MiB of zeros.
        mapping.use_small_pages();
        Ok(Self { mapping, shape })
    }

    pub(crate) const fn shape(&self) -> TableShape {
        self.shape
    }

    pub(crate) fn header(&self) -> &TableHeader {
        // SAFETY: the mapping begins with a header, and all of its fields are atomics.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Returns the owner of a row, as the importer described itself.
    pub(crate) fn owner(&self, row: u32) -> &RowOwner {
        assert!(row < self.shape.rows, "a row of this table");
        let offset = self.shape.owners() as usize + row as usize * size_of::<RowOwner>();
        // SAFETY: `row < rows`, the mapping has `rows` owners at that offset, and all fields are
        // atomics.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// Returns the opened bitmap of a slot.
    #[inline]
    pub(crate) fn opened_rows(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.shape.slots, "a slot of this table");
        let offset = self.shape.bitmaps() as usize + slot as usize * 8;
        // SAFETY: `slot < slots`, and the mapping has one word per slot at that offset.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// Returns the height: rows from this number on were never used.
    pub(crate) fn height(&self) -> u32 {
        self.header().height.0.load(Ordering::SeqCst).min(self.shape.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_fit_the_limit() {
        assert_eq!(TableShape { slots: crate::ledger::MAX_SLOTS, rows: 4 }.words(), MAX_WORDS);
        for slots in [1, 1024, crate::ledger::MAX_SLOTS] {
            let mut before = 0;
            for bits in 12..48 {
                let limit = 1 << bits;
                let Some(shape) = TableShape::within(slots, limit) else {
                    assert_eq!(before, 0);
                    continue;
                };
                assert!(
                    shape.size() <= limit && (4..=MAX_ROWS).contains(&shape.rows) && shape.rows >= before
                );
                assert!(shape.head() > shape.bitmaps() && shape.bitmaps() > shape.owners());
                assert!(
                    shape.owners() + u64::from(shape.rows) * size_of::<RowOwner>() as u64 <= shape.bitmaps()
                );
                assert!(shape.bitmaps() + u64::from(shape.slots) * 8 <= shape.row(0));
                assert_eq!(shape.row(shape.rows), shape.size());
                before = shape.rows;
            }
            assert_eq!(before, MAX_ROWS);
        }
    }
}
