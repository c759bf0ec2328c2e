//! [`Ledger`]: the content of somebody's ledger.

use core::mem::offset_of;
use core::sync::atomic::fence;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::identity::Nonce;
use crate::ledger::event::{IMPORTER_EVENTS, Recorded};
use crate::ledger::layout::{
    FLAG_IMPORTER, FLAG_SERVED, HEADER_SIZE, Header, MAGIC, MAX_SLOTS, Slot as SlotWords, VERSION,
};
use crate::ledger::ring::RingContent;
use crate::ledger::statistics::{self, CACHES, FACTS, POOLS, Statistics};
use crate::{Handle, protocol};

const WORD: usize = size_of::<u64>();
const SLOT: usize = size_of::<SlotWords>();
/// Slots that are read at a time.
const CHUNK: u32 = 1024;

/// Who a ledger says that its owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
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

impl Identity {
    /// Who a handle says that its producer is; it does not tell the user.
    pub(super) fn of(handle: &Handle) -> Self {
        Self {
            nonce: handle.nonce(),
            pid: handle.pid(),
            uid: u32::MAX,
            pid_namespace: handle.pid_namespace(),
            pidfs_inode: handle.pidfs_inode(),
            start_time: 0,
        }
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
}

/// What a slot says of its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotContent {
    /// Id of the region.
    pub region_id: u64,
    /// Its size in bytes.
    pub region_size: u64,
    /// The slot of the region as a whole: its own number if the export is that.
    pub region_slot: u32,
    /// The producer's number of the fd behind it, -1 if there is none.
    pub fd: i32,
    /// Where the region begins in the file.
    pub data_offset: u64,
    /// Where the block begins in the region.
    pub offset: u64,
    /// Bytes that its pool set aside.
    pub length: u64,
}

/// What a flight recorder holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// The events, the oldest first.
    pub recorded: Vec<Recorded>,
    /// How many there were in the life of the recorder.
    pub written: u64,
    /// How many of them were not kept because two threads met in one place.
    pub lost: u64,
    /// How many were just being written.
    pub torn: usize,
}

/// A ledger of another process, read and not mapped. Its content may change from one call to the next.
#[derive(Clone, Debug)]
pub struct Ledger {
    source: Source,
    size: u64,
    identity: Identity,
    flags: u32,
    capacity: u32,
    lease_table: Option<(u32, u32)>,
    statistics: u64,
    events: u64,
}

#[derive(Clone)]
enum Source {
    File(Arc<OwnedFd>),
    Bytes(Arc<[u8]>),
}

impl core::fmt::Debug for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::File(fd) => f.debug_tuple("File").field(fd).finish(),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl Source {
    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, offset as u64).then_some(bytes)
    }

    fn words(&self, offset: u64, count: usize) -> Option<Vec<u64>> {
        // Whoever calls has bounded the number.
        let mut bytes = vec![0; count.checked_mul(WORD)?];
        self.fill(&mut bytes, offset).then_some(())?;
        Some(
            bytes
                .chunks_exact(WORD)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                .collect(),
        )
    }

    fn fill(&self, into: &mut [u8], offset: u64) -> bool {
        match self {
            Self::File(fd) => umf_os::file::read_at(fd, into, offset).unwrap_or(false),
            Self::Bytes(bytes) => {
                let begin = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = begin.checked_add(into.len()).and_then(|end| bytes.get(begin..end));
                part.map(|part| into.copy_from_slice(part)).is_some()
            }
        }
    }
}

impl Ledger {
    /// What should be a ledger of this version. The file is known to be a sealed memfd.
    pub(super) fn from_file(fd: OwnedFd) -> Option<Self> {
        let size = umf_os::file::size(&fd).ok()?;
        Self::new(Source::File(Arc::new(fd)), size)
    }

    /// A ledger from a copy of its bytes (for tests and fuzzing); `None` if it is none of this version.
    #[doc(hidden)]
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::new(Source::Bytes(bytes.into()), bytes.len() as u64)
    }

    fn new(source: Source, size: u64) -> Option<Self> {
        let header: [u8; HEADER_SIZE] = source.read(0)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let bytes = |at: usize| header[at..at + 16].try_into().unwrap_or([0; 16]);
        let fits = word(offset_of!(Header, magic)) == MAGIC
            && half(offset_of!(Header, version)) == VERSION
            && half(offset_of!(Header, header_size)) as usize == HEADER_SIZE
            && half(offset_of!(Header, slot_size)) as usize == SLOT;
        let capacity = half(offset_of!(Header, slot_capacity));
        if !fits || capacity > MAX_SLOTS || (HEADER_SIZE + capacity as usize * SLOT) as u64 > size {
            return None;
        }
        let identity = Identity {
            nonce: Nonce::from_bytes(bytes(offset_of!(Header, nonce))),
            pid: half(offset_of!(Header, pid)),
            uid: half(offset_of!(Header, uid)),
            pid_namespace: word(offset_of!(Header, pid_namespace)),
            pidfs_inode: word(offset_of!(Header, pidfs_inode)),
            start_time: word(offset_of!(Header, start_time)),
        };
        Some(Self {
            source,
            size,
            identity,
            flags: half(offset_of!(Header, flags)),
            capacity,
            lease_table: Some((
                half(offset_of!(Header, lease_table_fd)),
                half(offset_of!(Header, lease_table_rows)),
            ))
            .filter(|&(number, _)| number != u32::MAX),
            statistics: word(offset_of!(Header, statistics_offset)),
            events: word(offset_of!(Header, events_offset)),
        })
    }

    /// Whose it says that it is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether it is that of an importer, which has no slots.
    #[must_use]
    pub const fn is_importers(&self) -> bool {
        self.flags & FLAG_IMPORTER != 0
    }

    /// Whether its owner answers on a socket.
    #[must_use]
    pub const fn is_served(&self) -> bool {
        self.flags & FLAG_SERVED != 0
    }

    /// The owner's descriptor number of its lease table, and how many rows that has; `None` while there is none.
    pub(super) const fn lease_table(&self) -> Option<(u32, u32)> {
        self.lease_table
    }

    /// How many slots it can have.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many slots have been used so far.
    #[must_use]
    pub fn used(&self) -> u32 {
        let used: Option<[u8; 4]> = self.source.read(offset_of!(Header, slots_used));
        used.map_or(0, u32::from_le_bytes).min(self.capacity)
    }

    /// A slot that has been used.
    #[must_use]
    pub fn slot(&self, number: u32) -> Option<Slot> {
        (number < self.used()).then(|| self.read_slots(number, 1)?.into_iter().next())?
    }

    /// All slots that have been used.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let used = self.used();
        (0..used)
            .step_by(CHUNK as usize)
            .flat_map(move |first| self.read_slots(first, CHUNK.min(used - first)).unwrap_or_default())
    }

    fn read_slots(&self, first: u32, count: u32) -> Option<Vec<Slot>> {
        let offset = HEADER_SIZE as u64 + u64::from(first) * SLOT as u64;
        let all = || self.source.words(offset, count as usize * SLOT / WORD);
        let (before, content, after) = protocol::settled(all, all, fence);
        let (before, content, after) = (before?, content?, after?);
        let per = SLOT / WORD;
        let slots = content.chunks_exact(per).zip(before.chunks_exact(per).zip(after.chunks_exact(per)));
        let slots = slots.zip(first..).map(|((words, (before, after)), number)| {
            let generation = after[0];
            // While it is even, the next export may be half there.
            let whole = before[0] == generation && generation & 1 == 1;
            let half = |at: usize, high: bool| (words[at] >> if high { 32 } else { 0 }) as u32;
            let content = whole.then(|| SlotContent {
                fd: half(offset_of!(SlotWords, fd) / WORD, true).cast_signed(),
                region_slot: half(offset_of!(SlotWords, region_slot) / WORD, false),
                region_id: words[offset_of!(SlotWords, region_id) / WORD],
                region_size: words[offset_of!(SlotWords, region_size) / WORD],
                data_offset: words[offset_of!(SlotWords, data_offset) / WORD],
                offset: words[offset_of!(SlotWords, offset) / WORD],
                length: words[offset_of!(SlotWords, length) / WORD],
            });
            Slot { number, generation, content }
        });
        Some(slots.collect())
    }

    /// What its owner published about itself; `None` if the ledger has nothing of that in a form known here.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        if self.statistics == 0 {
            return None;
        }
        let facts = self.source.words(self.statistics, FACTS)?;
        let ring = |from: usize, words: usize| self.ring(self.statistics, from, words)?.last();
        let (caches, pools) = (ring(FACTS, CACHES.words), ring(FACTS + CACHES.size(), POOLS.words));
        Statistics::decode(&facts, caches.as_deref(), pools.as_deref())
    }

    /// What its flight recorder holds; `None` if the ledger has none in a form known here.
    #[must_use]
    pub fn events(&self) -> Option<Events> {
        if self.events == 0 {
            return None;
        }
        let ring = self.ring(self.events, 0, IMPORTER_EVENTS.words)?;
        let decode = |(ticket, fields): (u64, Vec<u64>)| Recorded::decode(ticket, &fields);
        let recorded = ring.records.into_iter().filter_map(decode).collect();
        Some(Events { recorded, written: ring.written, lost: ring.lost, torn: ring.torn })
    }

    /// The ring that begins at word `from` of the area at byte `area`.
    fn ring(&self, area: u64, from: usize, words: usize) -> Option<RingContent> {
        RingContent::read(words, |at, count| {
            let offset = area.checked_add((from + at) as u64 * WORD as u64)?;
            let end = offset.checked_add(count as u64 * WORD as u64)?;
            // Before memory is allocated for it.
            (end <= self.size).then(|| self.source.words(offset, count))?
        })
    }
}

const _: () = assert!(statistics::SIZE > FACTS && offset_of!(SlotWords, generation) == 0);
const _: () = assert!(offset_of!(SlotWords, fd) == offset_of!(SlotWords, region_slot) + 4);
