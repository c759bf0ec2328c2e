//! The layout of the ledger. Only this file packs and parses it. `docs/ledger.md` has the tables.
//!
//! Another process wrote the file. [`ParsedHeader::parse`] checks the numbers that determine
//! offsets. All others may have any value.

use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::statistics;
use crate::identity::{BootId, Nonce};
use umf_os::OfdLocks;

/// `"UMFLEDGR"`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLEDGR");
/// The version that this code reads and writes.
pub(crate) const VERSION: u32 = 3;
/// The memfd's name, by which `umf ps` finds ledgers.
pub(crate) const MEMFD_NAME: &str = "umf-ledger";
/// A flag: the producer answers on its socket.
pub(crate) const FLAG_SERVED: u32 = 1;
/// A flag: the ledger is an importer's and has no slots.
pub(crate) const FLAG_IMPORTER: u32 = 2;
/// A flag: the producer holds the write lock of [`LIVENESS_BYTE`] until it ends.
pub(crate) const FLAG_LOCKED: u32 = 4;
/// A flag: the producer and its forked children hold the write lock of [`MEMORY_BYTE`] as long as
/// they have the producer's memory mapped.
pub(crate) const FLAG_MEMORY_LOCKED: u32 = 8;
/// A flag: the producer dropped its exporter, and may still use its memory.
pub(crate) const FLAG_DROPPED: u32 = 16;
/// A flag: the producer had another exporter at the same time, which may export the same memory.
pub(crate) const FLAG_NOT_ALONE: u32 = 32;
/// The byte whose write lock shows that the producer runs.
pub(crate) const LIVENESS_BYTE: u64 = 0;
/// The byte whose write lock shows that the producer or a forked child that has inherited its
/// memory runs.
pub(crate) const MEMORY_BYTE: u64 = 1;
/// Offset of the slots, in bytes.
pub(crate) const HEADER_SIZE: usize = 4096;
/// The most exports that a process can have at one time (512 MiB of sparse file).
pub(crate) const MAX_SLOTS: u32 = 1 << 22;

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();
const SLOT: usize = size_of::<SlotWords>();

/// The first page. It is written before another process can open the ledger, except for
/// `slots_used`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LedgerHeader {
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
    /// Slots below this number have been used. Above it, the file may have holes.
    pub slots_used: AtomicU32,
    /// [`FLAG_SERVED`], [`FLAG_IMPORTER`], [`FLAG_LOCKED`], [`FLAG_MEMORY_LOCKED`],
    /// [`FLAG_DROPPED`], [`FLAG_NOT_ALONE`]. The last two are added later.
    pub flags: AtomicU32,
    /// Descriptor number of the lease table, which importers may write, and its number of rows. -1
    /// and 0 if there is none.
    pub lease_table_fd: AtomicU32,
    pub lease_table_rows: AtomicU32,
    /// Offset of the statistics, 0 if there are none.
    pub statistics_offset: AtomicU64,
}

/// Which processes may use a producer's memory, apart from importers with leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Survivors {
    /// None: the producer has ended, and so have its forked children.
    None,
    /// The producer runs.
    Producer,
    /// The producer has ended. A forked child of it that has inherited its memory runs.
    Child,
    /// The producer dropped its exporter before it ended, or it may still run.
    DroppedExporter,
    /// The producer had several exporters at the same time, so that importers may have its memory
    /// open by another ledger.
    SeveralExporters,
    /// The producer could not take the locks that tell, or had forked before its first export.
    Unknown,
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "its producer and all children have ended",
            Self::Producer => "its producer runs",
            Self::Child => "a forked child of the producer has it; end that process",
            Self::DroppedExporter => {
                "the producer dropped its exporter, and may run; end the processes that have the memory mapped"
            }
            Self::SeveralExporters => {
                "the producer had several exporters, each with its own leases; end the processes that have the memory \
                 mapped"
            }
            Self::Unknown => {
                "the producer had forked before its first export, or could not lock its ledger (no /proc, or a sandbox); end the processes that have the \
                 memory mapped"
            }
        })
    }
}

impl Survivors {
    /// Queries the locks of a ledger, then the flags of its header.
    pub(crate) fn of(locks: OfdLocks<'_>, flags: impl FnOnce() -> u32) -> Self {
        match [LIVENESS_BYTE, MEMORY_BYTE].map(|byte| locks.is_write_locked(byte)) {
            [Ok(true), _] => return Self::Producer,
            [Ok(false), Ok(true)] => return Self::Child,
            [Ok(false), Ok(false)] => {}
            _ => return Self::Unknown,
        }
        // After the locks: a producer sets the flag before it drops them.
        let flags = flags();
        if flags & FLAG_DROPPED != 0 {
            Self::DroppedExporter
        } else if flags & FLAG_LOCKED == 0 || flags & FLAG_MEMORY_LOCKED == 0 {
            Self::Unknown
        } else if flags & FLAG_NOT_ALONE != 0 {
            Self::SeveralExporters
        } else {
            Self::None
        }
    }
}

/// One export: two cache lines.
///
/// The generation is odd while the export exists and even otherwise. It only grows. `nonce`,
/// `content` and `exported` are written before the generation becomes odd (release). A reader loads
/// an odd generation (acquire), then the fields. They are consistent if the generation is still the
/// same afterwards.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct SlotWords {
    pub generation: AtomicU64,
    /// The ledger's nonce, beside the generation: one read of 24 bytes shows whether a handle is
    /// current.
    pub nonce: [AtomicU64; 2],
    /// The description of the export: [`SlotContent::words`].
    pub content: [AtomicU64; CONTENT],
    /// Time of the export, in nanoseconds of `CLOCK_BOOTTIME`.
    pub exported: AtomicU64,
    /// The generation of the slot's last ended export, and the time and reason of its end:
    /// [`ExportEnd::word`]. They stay until the next export in the slot ends. Only the thread that
    /// retired the export writes them, before it frees the slot.
    pub ended_generation: AtomicU64,
    pub ended: AtomicU64,
}

/// Words of a slot's content.
const CONTENT: usize = 10;

const _: () = assert!(SLOT == 128 && size_of::<LedgerHeader>() <= HEADER_SIZE);
const _: () = assert!(offset_of!(SlotWords, generation) == 0 && offset_of!(SlotWords, nonce) == 8);

/// A slot's description of its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotContent {
    /// The generation of the slot of the export's region.
    pub region_generation: u64,
    /// The slot of the export's region: the export's own slot if it is a whole region.
    pub region_slot: u32,
    /// The producer's descriptor number of the memory's file, -1 if there is none.
    pub fd: i32,
    /// Offset of the block in its region, in bytes.
    pub offset: u64,
    /// Bytes of the block.
    pub length: u64,
    /// Bytes that were requested, at most `length`.
    pub requested: u64,
    /// Device of the memory's file.
    pub device: u64,
    /// Inode of the memory's file.
    pub inode: u64,
    /// Offset of the region in the file.
    pub data_offset: u64,
    /// Id of the region.
    pub region_id: u64,
    /// Size of the region in bytes.
    pub region_size: u64,
}

impl SlotContent {
    pub(super) const fn words(&self) -> [u64; CONTENT] {
        [
            self.region_generation,
            self.region_slot as u64 | (self.fd.cast_unsigned() as u64) << 32,
            self.offset,
            self.length,
            self.requested,
            self.device,
            self.inode,
            self.data_offset,
            self.region_id,
            self.region_size,
        ]
    }

    pub(super) const fn from_words(words: [u64; CONTENT]) -> Self {
        let [
            region_generation,
            slot_and_fd,
            offset,
            length,
            requested,
            device,
            inode,
            data_offset,
            region_id,
            region_size,
        ] = words;
        Self {
            region_generation,
            region_slot: slot_and_fd as u32,
            fd: ((slot_and_fd >> 32) as u32).cast_signed(),
            offset,
            length,
            requested,
            device,
            inode,
            data_offset,
            region_id,
            region_size,
        }
    }

    /// Loads a slot's content. It is consistent if the generation is the same before and
    /// afterwards.
    pub(super) fn load(slot: &SlotWords) -> Self {
        Self::from_words(core::array::from_fn(|word| slot.content[word].load(Ordering::Relaxed)))
    }
}

/// Why an export ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RetireReason {
    /// Its block was freed.
    BlockFreed,
    /// Its region was freed.
    RegionFreed,
    /// Its region was evicted from the exporter's cache, because a limit was reached or the program
    /// evicted idle exports.
    Evicted,
    /// The exporter was dropped.
    ExporterDropped,
    /// A reason that this version does not know.
    Other(u32),
}

/// The end of an export: time and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportEnd {
    /// The slot's generation while the export existed.
    pub generation: u64,
    /// Time of the end, in nanoseconds of `CLOCK_BOOTTIME`.
    pub time: u64,
    /// Reason of the end.
    pub reason: RetireReason,
}

impl ExportEnd {
    /// Number of bits of the reason in [`SlotWords::ended`], below those of the time.
    const REASON: u32 = 3;

    pub(super) const fn word(time: u64, reason: RetireReason) -> u64 {
        let code = match reason {
            RetireReason::BlockFreed => 1,
            RetireReason::RegionFreed => 2,
            RetireReason::Evicted => 3,
            RetireReason::ExporterDropped => 4,
            RetireReason::Other(code) => code as u64 & ((1 << Self::REASON) - 1),
        };
        time << Self::REASON | code
    }

    /// Parses the two words of a slot. Returns `None` if no export in it has ended.
    const fn parse(generation: u64, word: u64) -> Option<Self> {
        if generation == 0 {
            return None;
        }
        let reason = match word & ((1 << Self::REASON) - 1) {
            1 => RetireReason::BlockFreed,
            2 => RetireReason::RegionFreed,
            3 => RetireReason::Evicted,
            4 => RetireReason::ExporterDropped,
            code => RetireReason::Other(code as u32),
        };
        Some(Self { generation, time: word >> Self::REASON, reason })
    }
}

/// One slot of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Slot {
    /// Number of the slot.
    pub number: u32,
    /// Odd while the export exists.
    pub generation: u64,
    /// Description of the export, while it exists.
    pub content: Option<SlotContent>,
    /// Time of the export, in nanoseconds of `CLOCK_BOOTTIME`, while it exists.
    pub exported: Option<u64>,
    /// The last ended export in this slot.
    pub ended: Option<ExportEnd>,
}

impl Slot {
    pub(crate) const WORDS: usize = SLOT / WORD;

    /// Returns the description of the slot's last export, from its words.
    pub(crate) fn last_content(words: &[u64]) -> SlotContent {
        const CONTENT_AT: usize = offset_of!(SlotWords, content) / WORD;
        let content = words.get(CONTENT_AT..).and_then(<[u64]>::first_chunk).copied();
        SlotContent::from_words(content.unwrap_or_default())
    }

    /// Parses a slot from three successive reads of its words.
    pub(crate) fn parse(number: u32, before: &[u64], words: &[u64], after: &[u64]) -> Option<Self> {
        const CONTENT_AT: usize = offset_of!(SlotWords, content) / WORD;
        const EXPORTED_AT: usize = offset_of!(SlotWords, exported) / WORD;
        const ENDED_AT: usize = offset_of!(SlotWords, ended_generation) / WORD;
        let generation = *after.first()?;
        // While the generation is even, the producer may be writing the next export.
        let is_whole = before.first() == Some(&generation) && generation & 1 == 1;
        let content = words.get(CONTENT_AT..)?.first_chunk().copied()?;
        let end = [before, words, after].map(|read| read.get(ENDED_AT..).and_then(<[u64]>::first_chunk));
        let [Some([ended_generation, ended]), ..] = end else { return None };
        let is_settled = end.iter().all(|read| *read == end[0]);
        Some(Self {
            number,
            generation,
            content: is_whole.then(|| SlotContent::from_words(content)),
            exported: is_whole.then(|| words[EXPORTED_AT]),
            ended: is_settled.then(|| ExportEnd::parse(*ended_generation, *ended)).flatten(),
        })
    }
}

/// Identity of the process that owns a ledger, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerIdentity {
    /// The nonce in handles of this ledger.
    pub nonce: Nonce,
    /// Its process id in its own pid namespace.
    pub pid: u32,
    /// Its effective user id when it created the ledger.
    pub uid: u32,
    /// Inode of its pid namespace, 0 if unknown.
    pub pid_namespace: u64,
    /// Its inode in pidfs; 0 before Linux 6.9.
    pub pidfs_inode: u64,
    /// Its start time, in clock ticks since boot; 0 if unknown.
    pub start_time: u64,
}

/// A header that was parsed and whose offsets are inside of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParsedHeader {
    pub owner: OwnerIdentity,
    pub boot_id: BootId,
    /// Number of slots: at most [`MAX_SLOTS`], and all inside of the file.
    pub capacity: u32,
    pub flags: u32,
    /// Descriptor number of the lease table, and its number of rows.
    pub lease_table: Option<(i32, u32)>,
    pub statistics: u64,
}

/// Reason why a header is not that of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Magic,
    Version,
    Capacity,
}

impl ParsedHeader {
    /// Bytes of the header that are parsed.
    pub(crate) const SIZE: usize = size_of::<LedgerHeader>();

    /// Parses the header of a file of `size` bytes.
    pub(crate) fn parse(header: &[u8; Self::SIZE], size: u64) -> Result<Self, HeaderError> {
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let bytes = |at: usize| header[at..at + 16].try_into().unwrap_or([0; 16]);
        if word(offset_of!(LedgerHeader, magic)) != MAGIC {
            return Err(HeaderError::Magic);
        }
        if half(offset_of!(LedgerHeader, version)) != VERSION
            || half(offset_of!(LedgerHeader, header_size)) as usize != HEADER_SIZE
            || half(offset_of!(LedgerHeader, slot_size)) as usize != SLOT
        {
            return Err(HeaderError::Version);
        }
        let capacity = half(offset_of!(LedgerHeader, slot_capacity));
        if capacity > MAX_SLOTS || (HEADER_SIZE + capacity as usize * SLOT) as u64 > size {
            return Err(HeaderError::Capacity);
        }
        let table = half(offset_of!(LedgerHeader, lease_table_fd)).cast_signed();
        let owner = OwnerIdentity {
            nonce: Nonce::from_bytes(bytes(offset_of!(LedgerHeader, nonce))),
            pid: half(offset_of!(LedgerHeader, pid)),
            uid: half(offset_of!(LedgerHeader, uid)),
            pid_namespace: word(offset_of!(LedgerHeader, pid_namespace)),
            pidfs_inode: word(offset_of!(LedgerHeader, pidfs_inode)),
            start_time: word(offset_of!(LedgerHeader, start_time)),
        };
        Ok(Self {
            owner,
            boot_id: BootId::from_bytes(bytes(offset_of!(LedgerHeader, boot_id))),
            capacity,
            flags: half(offset_of!(LedgerHeader, flags)),
            lease_table: (table >= 0).then(|| (table, half(offset_of!(LedgerHeader, lease_table_rows)))),
            statistics: word(offset_of!(LedgerHeader, statistics_offset)),
        })
    }
}

/// Offset of the statistics and size of a ledger, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerLayout {
    pub statistics: usize,
    pub size: usize,
}

impl LedgerLayout {
    pub(crate) const fn new(slots: u32) -> Self {
        let statistics = (HEADER_SIZE + slots as usize * SLOT).next_multiple_of(PAGE);
        Self { statistics, size: (statistics + statistics::SIZE * WORD).next_multiple_of(PAGE) }
    }

    /// Returns the number of slots that fit into a file of `limit` bytes, `slots` at most. Returns
    /// `None` if not even the header fits.
    pub(crate) fn fit(slots: u32, limit: u64) -> Option<u32> {
        let available = limit.checked_sub(Self::new(0).size as u64)? / SLOT as u64;
        // Rounding up to pages takes less than a page.
        let fitting = available.saturating_sub((PAGE / SLOT) as u64);
        Some(slots.min(MAX_SLOTS).min(u32::try_from(fitting).unwrap_or(u32::MAX)))
    }

    /// Returns the number of bytes after the slots.
    pub(crate) const fn behind_slots(self) -> usize {
        self.size - self.statistics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_do_not_overlap_and_fit() {
        for limit in (0..2 << 20).step_by(1000).chain([u64::MAX]) {
            let Some(slots) = LedgerLayout::fit(MAX_SLOTS, limit) else {
                assert!(limit < 200_000);
                continue;
            };
            let areas = LedgerLayout::new(slots);
            assert!(slots <= MAX_SLOTS && areas.size as u64 <= limit, "{limit}");
            assert!(areas.statistics >= HEADER_SIZE + slots as usize * SLOT);
            assert!(areas.size >= areas.statistics + statistics::SIZE * WORD);
        }
        assert_eq!(LedgerLayout::fit(100, u64::MAX), Some(100));
        assert_eq!(LedgerLayout::fit(u32::MAX, u64::MAX), Some(MAX_SLOTS));
    }

    #[test]
    fn export_ends_round_trip() {
        let reasons = [
            RetireReason::BlockFreed,
            RetireReason::RegionFreed,
            RetireReason::Evicted,
            RetireReason::ExporterDropped,
            RetireReason::Other(7),
        ];
        let (generation, time) = (13, 1 << 60);
        for reason in reasons {
            assert_eq!(
                ExportEnd::parse(generation, ExportEnd::word(time, reason)),
                Some(ExportEnd { generation, time, reason })
            );
        }
        assert_eq!(ExportEnd::parse(0, u64::MAX), None);
    }

    #[test]
    fn field_offsets_match_the_documentation() {
        assert_eq!((offset_of!(LedgerHeader, nonce), offset_of!(LedgerHeader, boot_id)), (16, 32));
        assert_eq!((offset_of!(LedgerHeader, pid), offset_of!(LedgerHeader, slots_used)), (48, 88));
        assert_eq!(offset_of!(LedgerHeader, statistics_offset), 104);
        assert_eq!((offset_of!(SlotWords, content), offset_of!(SlotWords, exported)), (24, 104));
        assert_eq!((offset_of!(SlotWords, ended_generation), offset_of!(SlotWords, ended)), (112, 120));
    }
}
