//! What lies where in the ledger, and the only place that packs and parses it. `docs/ledger.md` has
//! the same tables with words.
//!
//! What is read was written by another process: [`ParsedHeader::parse`] checks what decides where
//! anything is; the rest are numbers that may be anything.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::statistics;
use crate::identity::{BootId, Nonce};

/// `"UMFLEDGR"`, little-endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"UMFLEDGR");
/// The version that this code reads and writes.
pub(crate) const VERSION: u32 = 3;
/// Name of the memfd, by which `umf ps` finds ledgers.
pub(crate) const MEMFD_NAME: &str = "umf-ledger";
/// A flag: the producer answers on its socket.
pub(crate) const FLAG_SERVED: u32 = 1;
/// A flag: the ledger is an importer's and has no slots.
pub(crate) const FLAG_IMPORTER: u32 = 2;
/// A flag: the producer holds the write lock of the ledger's first byte as long as it lives.
pub(crate) const FLAG_LOCKED: u32 = 4;
/// The byte whose lock that is.
pub(crate) const LIVENESS_BYTE: u64 = 0;
/// Where slots begin, in bytes.
pub(crate) const HEADER_SIZE: usize = 4096;
/// The most exports that a process can have at one time (512 MiB of sparse file).
pub(crate) const MAX_SLOTS: u32 = 1 << 22;

const PAGE: usize = 4096;
const WORD: usize = size_of::<u64>();
const SLOT: usize = size_of::<SlotWords>();

/// The first page. Written before the ledger's fd is known to anyone, but for `slots_used`.
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
    /// Slots below this number have been used; beyond, the file may have holes.
    pub slots_used: AtomicU32,
    /// [`FLAG_SERVED`], [`FLAG_IMPORTER`], [`FLAG_LOCKED`].
    pub flags: AtomicU32,
    /// Descriptor of the lease table (the file that importers may write) and how many rows it has;
    /// -1 and 0 while there is none.
    pub lease_table_fd: AtomicU32,
    pub lease_table_rows: AtomicU32,
    /// Where statistics begin, 0 while there are none.
    pub statistics_offset: AtomicU64,
}

/// One export: two cache lines.
///
/// The generation is odd while the export exists and even otherwise, and only ever grows. `nonce`,
/// `content` and `exported` are written before the generation becomes odd (release) and may be read
/// after it was seen odd (acquire), if it is still the same afterwards.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct SlotWords {
    pub generation: AtomicU64,
    /// The ledger's, beside the generation: one read of 24 bytes tells whether a handle is current.
    pub nonce: [AtomicU64; 2],
    /// What is exported: [`SlotContent::words`].
    pub content: [AtomicU64; CONTENT],
    /// When it was exported, in nanoseconds of `CLOCK_BOOTTIME`.
    pub exported: AtomicU64,
    /// The generation of the slot's last export that has ended, and when and why that ended:
    /// [`ExportEnd::word`]. They stay when the slot is used again, until the next export in it
    /// ends. Only the thread that retired that export writes them, before it gives the slot back.
    pub ended_generation: AtomicU64,
    pub ended: AtomicU64,
}

/// Words of a slot's content.
const CONTENT: usize = 10;

const _: () = assert!(SLOT == 128 && size_of::<LedgerHeader>() <= HEADER_SIZE);
const _: () = assert!(offset_of!(SlotWords, generation) == 0);

/// What a slot says of its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotContent {
    /// Generation of the slot of the region that the export lies in.
    pub region_generation: u64,
    /// That slot: its own number if the export is a whole region.
    pub region_slot: u32,
    /// The producer's number of the fd behind it, -1 if there is none.
    pub fd: i32,
    /// Where the block begins in its region, in bytes.
    pub offset: u64,
    /// Bytes that its pool set aside.
    pub length: u64,
    /// Bytes that were asked for, at most `length`.
    pub requested: u64,
    /// Device of the file behind it.
    pub device: u64,
    /// Inode of the file behind it.
    pub inode: u64,
    /// Where the region begins in the file.
    pub data_offset: u64,
    /// Id of the region.
    pub region_id: u64,
    /// Its size in bytes.
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

    /// Loads a slot's content. What was loaded is one export's if the generation is the same before
    /// and after.
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
    /// Its region was freed, as a whole.
    RegionFreed,
    /// Its region left the exporter's cache: it was idle, and a limit was reached or the cache was
    /// asked to evict what is idle.
    Evicted,
    /// The exporter was dropped.
    ExporterDropped,
    /// A reason that this version does not know.
    Other(u32),
}

/// When and why an export ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportEnd {
    /// The generation that the slot had while the export existed.
    pub generation: u64,
    /// When it ended, in nanoseconds of `CLOCK_BOOTTIME`, as its producer says.
    pub time: u64,
    /// Why.
    pub reason: RetireReason,
}

impl ExportEnd {
    /// Bits of the reason in [`SlotWords::ended`], below those of the time.
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

    /// From the two words of a slot; `None` if no export in it has ended.
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
    /// Which.
    pub number: u32,
    /// Odd while the export exists.
    pub generation: u64,
    /// What the export is, while it exists.
    pub content: Option<SlotContent>,
    /// When it was exported, in nanoseconds of `CLOCK_BOOTTIME`, while it exists.
    pub exported: Option<u64>,
    /// The last export in this slot that has ended.
    pub ended: Option<ExportEnd>,
}

impl Slot {
    pub(crate) const WORDS: usize = SLOT / WORD;

    /// A slot whose words were read three times, one after the other.
    pub(crate) fn parse(number: u32, before: &[u64], words: &[u64], after: &[u64]) -> Option<Self> {
        const CONTENT_AT: usize = offset_of!(SlotWords, content) / WORD;
        const EXPORTED_AT: usize = offset_of!(SlotWords, exported) / WORD;
        const ENDED_AT: usize = offset_of!(SlotWords, ended_generation) / WORD;
        let generation = *after.first()?;
        // While it is even, the next export may be half there.
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

/// The process that a ledger names as its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerIdentity {
    /// What handles of this ledger carry.
    pub nonce: Nonce,
    /// Its process id in its own pid namespace.
    pub pid: u32,
    /// Its effective user id when it made the ledger.
    pub uid: u32,
    /// Inode of its pid namespace, 0 if unknown.
    pub pid_namespace: u64,
    /// Its inode in pidfs, 0 before Linux 6.9.
    pub pidfs_inode: u64,
    /// When it was started, in clock ticks since boot; 0 if unknown.
    pub start_time: u64,
}

/// A header whose numbers fit together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParsedHeader {
    pub owner: OwnerIdentity,
    pub boot_id: BootId,
    /// At most [`MAX_SLOTS`], and no more than the file has.
    pub capacity: u32,
    pub flags: u32,
    /// Descriptor of the lease table, and its rows.
    pub lease_table: Option<(i32, u32)>,
    pub statistics: u64,
}

/// Why something is no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Magic,
    Version,
    Capacity,
}

impl ParsedHeader {
    /// Bytes of a header that are looked at.
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

/// Where the parts of a ledger with a number of slots are, in bytes.
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

    /// As many slots as fit into a file of `limit` bytes, `slots` at most.
    pub(crate) fn fit(slots: u32, limit: u64) -> Option<u32> {
        let room = limit.checked_sub(Self::new(0).size as u64)? / SLOT as u64;
        // Rounding up to pages takes less than one.
        let most = room.saturating_sub((PAGE / SLOT) as u64);
        Some(slots.min(MAX_SLOTS).min(u32::try_from(most).unwrap_or(u32::MAX)))
    }

    /// Bytes behind the slots.
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
    fn ends_are_read_as_they_were_written() {
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
    fn fields_are_where_the_documentation_says() {
        assert_eq!((offset_of!(LedgerHeader, nonce), offset_of!(LedgerHeader, boot_id)), (16, 32));
        assert_eq!((offset_of!(LedgerHeader, pid), offset_of!(LedgerHeader, slots_used)), (48, 88));
        assert_eq!(offset_of!(LedgerHeader, statistics_offset), 104);
        assert_eq!((offset_of!(SlotWords, content), offset_of!(SlotWords, exported)), (24, 104));
        assert_eq!((offset_of!(SlotWords, ended_generation), offset_of!(SlotWords, ended)), (112, 120));
    }
}
