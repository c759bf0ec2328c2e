//! What lies where in the door. `docs/leases.md` has the same tables with words.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// `"UMFDOOR1"`, little-endian.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"UMFDOOR1");
/// The version that this code reads and writes.
pub(super) const VERSION: u32 = 1;
/// Parts begin at multiples of this, the largest page size that Linux has for small pages.
pub(super) const ROW_ALIGN: u64 = 1 << 16;
/// The largest row.
pub(super) const MAX_STRIDE: u64 = crate::ledger::MAX_SLOTS as u64 * 8;
/// The most rows: threads of importing processes.
pub(super) const MAX_ROWS: u32 = 4096;
/// A row is marked by its number modulo this.
pub(super) const MARKS: u32 = 64;

/// The first part. Written before the door's fd is known to anyone, but for `rows_used`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub rows: AtomicU32,
    pub nonce: [AtomicU64; 2],
    pub slots: AtomicU32,
    /// Rows below this number have been used.
    pub rows_used: AtomicU32,
}

/// Whose a row is.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    /// Phase and pid: [`State`].
    pub state: AtomicU64,
    /// Valid while the phase is used or announced.
    pub start_time: AtomicU64,
    pub pidfs_inode: AtomicU64,
}

/// What an entry's first word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State(pub u64);

impl State {
    /// Nobody's; whatever its last owner left in the row.
    pub(super) const FREE: Self = Self(0);
    const CLAIMED: u64 = 1;
    const USED: u64 = 2;
    const ANNOUNCED: u64 = 3;

    const fn new(phase: u64, pid: u32) -> Self {
        Self(phase << 32 | pid as u64)
    }

    /// A process with this pid is about to make it its own; 0 if the pid means nothing to the producer.
    pub(super) const fn claimed(pid: u32) -> Self {
        Self::new(Self::CLAIMED, pid)
    }

    /// It belongs to the process with this pid.
    pub(super) const fn used(pid: u32) -> Self {
        Self::new(Self::USED, pid)
    }

    /// It belongs to a process that the producer cannot find by pid; the number is made up.
    pub(super) const fn announced(number: u32) -> Self {
        Self::new(Self::ANNOUNCED, number)
    }

    pub(super) const fn is_free(self) -> bool {
        self.0 == Self::FREE.0
    }

    /// Its words count.
    pub(super) const fn is_used(self) -> bool {
        matches!(self.0 >> 32, Self::USED | Self::ANNOUNCED)
    }

    pub(super) const fn is_announced(self) -> bool {
        self.0 >> 32 == Self::ANNOUNCED
    }

    /// The pid, where there is one.
    pub(super) const fn pid(self) -> Option<u32> {
        let pid = self.0 as u32;
        if matches!(self.0 >> 32, Self::CLAIMED | Self::USED) && pid != 0 { Some(pid) } else { None }
    }
}

const _: () = assert!(size_of::<Entry>() == 64 && size_of::<Header>() <= ROW_ALIGN as usize);

/// Where the parts of a door are. It follows from the numbers of slots and rows alone, so that nobody has to believe
/// what others may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub slots: u32,
    pub rows: u32,
}

impl Shape {
    /// The door of a ledger with so many slots, as large as a file of `limit` bytes can be. `None` if not even two
    /// importers fit.
    pub(super) fn within(slots: u32, limit: u64) -> Option<Self> {
        let mut shape = Self { slots, rows: MAX_ROWS };
        while shape.size() > limit {
            shape.rows /= 2;
            if shape.rows < 4 {
                return None;
            }
        }
        Some(shape)
    }

    pub(super) const fn entries(self) -> u64 {
        ROW_ALIGN
    }

    pub(super) const fn marks(self) -> u64 {
        (self.entries() + self.rows as u64 * size_of::<Entry>() as u64).next_multiple_of(ROW_ALIGN)
    }

    /// Size of a row, and of the marks.
    pub(super) const fn stride(self) -> u64 {
        (self.slots as u64 * 8).next_multiple_of(ROW_ALIGN)
    }

    /// Where the rows begin: the size of what everybody maps.
    pub(super) const fn front(self) -> u64 {
        self.marks() + self.stride()
    }

    pub(super) const fn row(self, number: u32) -> u64 {
        self.front() + number as u64 * self.stride()
    }

    pub(super) const fn size(self) -> u64 {
        self.row(self.rows)
    }
}

/// The bit of a row in a slot's mark.
pub(super) const fn mark(row: u32) -> u64 {
    1 << (row % MARKS)
}
