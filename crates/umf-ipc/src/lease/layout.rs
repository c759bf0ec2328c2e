//! What lies where in a lease table, and the part of it that both sides map. `docs/leases.md` has
//! the same tables.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::AsFd;

use crate::{Error, Result};
use umf_os::SharedMapping;

/// `"UMFLEASE"`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLEASE");
/// The version that this code reads and writes.
pub(crate) const VERSION: u32 = 2;
/// Parts begin at multiples of this, the largest base page size that Linux has.
const ALIGN: u64 = 1 << 16;
/// Bytes of a row before its words: room for ticket words.
pub(crate) const ROW_HEADER: u64 = ALIGN;
/// The most bytes that the words of a row take.
#[cfg(test)]
const MAX_WORDS: u64 = crate::ledger::MAX_SLOTS as u64 * 8;
/// The most rows.
pub(crate) const MAX_ROWS: u32 = 4096;
/// Bits of a slot's marks. Row `n` has bit `n % BITMAP_BITS`.
pub(crate) const BITMAP_BITS: u32 = 64;

/// The first part, a field that is written often to a cache line. The fields before `height` are
/// written before the table's descriptor is known to any other process, and again with each export.
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
    pub events: CacheAligned<AtomicU64>,
    pub dead: CacheAligned<AtomicU32>,
    /// How often a row was cleared whose importer had ended.
    pub cleared: CacheAligned<AtomicU64>,
}

/// A cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheAligned<T>(pub T);

/// The importer that owns a row, for people. Zeros if the row was given back: importers try such
/// rows first.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RowOwner {
    /// A random number that all rows of one importer have in common.
    pub importer: AtomicU64,
    /// Its process id in its own pid namespace.
    pub pid: AtomicU32,
    /// Its effective user id.
    pub uid: AtomicU32,
    /// Inode of its pid namespace, 0 if unknown.
    pub pid_namespace: AtomicU64,
    /// When it took the row, in nanoseconds since the machine was booted.
    pub since: AtomicU64,
}

const _: () = assert!(size_of::<RowOwner>() == 64 && size_of::<TableHeader>() <= ALIGN as usize);

/// Where the parts of a table are. This follows from the numbers of slots and rows alone, so that
/// nothing in the table has to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableShape {
    pub slots: u32,
    pub rows: u32,
}

impl TableShape {
    /// The table of a ledger with so many slots, as large as a file of `limit` bytes can be. `None`
    /// if it would have fewer than four rows.
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

    /// Bytes of a row's words, and of the marks.
    pub(crate) const fn words(self) -> u64 {
        (self.slots as u64 * 8).next_multiple_of(ALIGN)
    }

    /// Where the rows begin: the size of the part that both sides map.
    pub(crate) const fn head(self) -> u64 {
        self.bitmaps() + self.words()
    }

    /// Bytes of a row, its header included.
    pub(crate) const fn row_size(self) -> u64 {
        ROW_HEADER + self.words()
    }

    /// Where a row begins. The lock of the row is that of this byte.
    pub(crate) const fn row(self, number: u32) -> u64 {
        self.head() + number as u64 * self.row_size()
    }

    pub(crate) const fn size(self) -> u64 {
        self.row(self.rows)
    }
}

/// The bit of a row in a slot's marks.
pub(crate) const fn row_bit(row: u32) -> u64 {
    1 << (row % BITMAP_BITS)
}

/// Header, owners and marks of a table, mapped. Any process that can open the table writes there:
/// each word is read once.
#[derive(Debug)]
pub(crate) struct HeaderMapping {
    mapping: SharedMapping,
    shape: TableShape,
}

impl HeaderMapping {
    /// Maps the head of a table of this shape, which the file is known to have. Forked children do
    /// not get it.
    pub(crate) fn new(fd: impl AsFd, shape: TableShape) -> Result<Self> {
        let size = usize::try_from(shape.head()).unwrap_or(usize::MAX);
        let mut mapping = SharedMapping::new(fd, size, true)
            .map_err(|errno| Error::system("mmap of the lease table", errno))?;
        mapping
            .exclude_from_fork()
            .map_err(|errno| Error::system("madvise(MADV_DONTFORK) of the lease table", errno))?;
        // Reading a hole must not allocate a huge page of zeros.
        mapping.use_small_pages();
        Ok(Self { mapping, shape })
    }

    pub(crate) const fn shape(&self) -> TableShape {
        self.shape
    }

    pub(crate) fn header(&self) -> &TableHeader {
        // SAFETY: the head of a table begins with a header; fields are atomics.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// The owner of a row, as it describes itself.
    pub(crate) fn owner(&self, row: u32) -> &RowOwner {
        assert!(row < self.shape.rows, "a row of this table");
        let offset = self.shape.owners() as usize + row as usize * size_of::<RowOwner>();
        // SAFETY: the head has `rows` owners there; fields are atomics.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// The marks of a slot: the rows in which it was opened.
    #[inline]
    pub(crate) fn opened_rows(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.shape.slots, "a slot of this table");
        let offset = self.shape.bitmaps() as usize + slot as usize * 8;
        // SAFETY: the head has `slots` words there.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// The height: rows from this number on have never counted anything.
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
