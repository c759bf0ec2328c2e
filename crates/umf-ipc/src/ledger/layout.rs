//! What lies where in the ledger. `docs/ledger.md` has the same tables with words.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// `"UMFLEDGR"`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLEDGR");
/// The version that this code reads and writes.
pub(crate) const VERSION: u32 = 2;
/// What the memfd is called, so that those who look for ledgers find it.
pub(crate) const MEMFD_NAME: &str = "umf-ledger";
/// A flag: the producer answers on its socket.
pub(crate) const FLAG_SERVED: u32 = 1;
/// A flag: the ledger is an importer's and has no slots.
pub(crate) const FLAG_IMPORTER: u32 = 2;
/// A flag: the producer holds the write lock of the ledger's first byte as long as it lives.
pub(crate) const FLAG_LOCKED: u32 = 4;
/// The byte whose lock that is.
pub(crate) const LIFE_BYTE: u64 = 0;
/// Where slots begin, in bytes.
pub(crate) const HEADER_SIZE: usize = 4096;
/// The most exports that a process can have at one time (512 MiB of sparse file).
pub(crate) const MAX_SLOTS: u32 = 1 << 22;

/// The first page. Written before the ledger's fd is known to anyone, but for `slots_used`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub header_size: AtomicU32,
    pub nonce: [AtomicU64; 2],
    pub boot_id: [AtomicU64; 2],
    pub pid: AtomicU32,
    pub uid: AtomicU32,
    pub start_time: AtomicU64,
    pub pid_namespace: AtomicU64,
    pub pidfs_inode: AtomicU64,
    pub slot_size: AtomicU32,
    pub slot_capacity: AtomicU32,
    /// Slots below this number have been used; beyond, the file may have holes.
    pub slots_used: AtomicU32,
    /// [`FLAG_SERVED`], [`FLAG_IMPORTER`], [`FLAG_LOCKED`].
    pub flags: AtomicU32,
    /// Descriptor of the lease table (the file that importers may write) and how many rows it has; -1 and 0 while there is none.
    pub lease_table_fd: AtomicU32,
    pub lease_table_rows: AtomicU32,
    /// Where statistics and the flight recorder begin, 0 while there are none.
    pub statistics_offset: AtomicU64,
    pub events_offset: AtomicU64,
}

/// One export: two cache lines.
///
/// The generation is odd while the export exists and even otherwise, and only ever grows. Everything
/// else is written before the generation becomes odd (release) and may be read after it was seen odd
/// (acquire), if it is still the same afterwards.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Slot {
    pub generation: AtomicU64,
    /// The ledger's, beside the generation: one read of 24 bytes tells whether a handle is current.
    pub nonce: [AtomicU64; 2],
    pub region_generation: AtomicU64,
    /// Slot of the region that the block lies in; its own number for a region.
    pub region_slot: AtomicU32,
    pub fd: AtomicU32,
    /// The block in its region, in bytes: where it begins, what its pool set aside, what was asked for.
    pub offset: AtomicU64,
    pub length: AtomicU64,
    pub requested: AtomicU64,
    pub device: AtomicU64,
    pub inode: AtomicU64,
    /// Where the region begins in the file.
    pub data_offset: AtomicU64,
    pub region_id: AtomicU64,
    pub region_size: AtomicU64,
    pub reserved: [AtomicU64; 3],
}

const _: () = assert!(size_of::<Slot>() == 128 && size_of::<Header>() <= HEADER_SIZE);

/// What a slot says of its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotContent {
    /// Where the block begins in its region, in bytes.
    pub offset: u64,
    /// Bytes that its pool set aside.
    pub length: u64,
    /// Bytes that were asked for, at most `length`.
    pub requested: u64,
    pub device: u64,
    pub inode: u64,
    /// The producer's number of the data fd, -1 if there is none.
    pub fd: i32,
    pub region_slot: u32,
    pub region_generation: u64,
    pub region_id: u64,
    pub region_size: u64,
    /// Where the region begins in the file.
    pub data_offset: u64,
}
