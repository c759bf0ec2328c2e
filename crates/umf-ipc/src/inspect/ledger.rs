//! [`Ledger`]: a copy of another process's ledger. [`LeaseRow`]: the leases of one importer on a
//! slot.

use core::mem::offset_of;
use core::sync::atomic::fence;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;

use super::{FoundLedger, OwnerStatus};
use crate::lease::layout as lease;
use crate::ledger::layout::{
    FLAG_IMPORTER, FLAG_SERVED, HEADER_SIZE, LedgerHeader, OwnerIdentity, ParsedHeader, Slot, SlotContent,
    Survivors,
};
use crate::ledger::ring::{RingShape, read_last};
use crate::ledger::statistics::{CACHES, FIXED_WORDS, POOLS, Statistics};
use crate::{Handle, protocol};
use umf_os::OfdLocks;

const WORD: usize = size_of::<u64>();
/// Slots that are read at a time.
const CHUNK: u32 = 1024;

impl OwnerIdentity {
    /// Returns the owner that a handle names. A handle does not contain the user id.
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

/// A ledger of another process, which is read and not mapped. Its content may change between two
/// calls.
#[derive(Clone, Debug)]
pub struct Ledger {
    source: Source,
    size: u64,
    header: ParsedHeader,
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
        // Callers have bounded `count`.
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
    /// Reads a ledger from a file, which the caller has checked to be a sealed memfd. Returns
    /// `None` if it is not a ledger of this version.
    pub(super) fn from_file(fd: OwnedFd) -> Option<Self> {
        let size = umf_os::file::size(&fd).ok()?;
        Self::new(Source::File(Arc::new(fd)), size)
    }

    /// Reads a ledger from a copy of its bytes. Returns `None` if they are not a ledger of this
    /// version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::new(Source::Bytes(bytes.into()), bytes.len() as u64)
    }

    fn new(source: Source, size: u64) -> Option<Self> {
        let header = ParsedHeader::parse(&source.read(0)?, size).ok()?;
        Some(Self { source, size, header })
    }

    /// Returns the identity of its owner, as the header has it.
    #[must_use]
    pub const fn identity(&self) -> &OwnerIdentity {
        &self.header.owner
    }

    /// Returns whether it is the ledger of an importer, which has no slots.
    #[must_use]
    pub const fn is_importers(&self) -> bool {
        self.header.flags & FLAG_IMPORTER != 0
    }

    /// Returns whether its owner answers on a socket.
    #[must_use]
    pub const fn is_served(&self) -> bool {
        self.header.flags & FLAG_SERVED != 0
    }

    /// Returns the owner's descriptor number of its lease table, and the table's number of rows;
    /// `None` if there is none.
    pub(super) const fn lease_table(&self) -> Option<(i32, u32)> {
        self.header.lease_table
    }

    /// Returns the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.header.capacity
    }

    /// Returns the number of slots that have been used.
    #[must_use]
    pub fn used(&self) -> u32 {
        let used: Option<[u8; 4]> = self.source.read(offset_of!(LedgerHeader, slots_used));
        used.map_or(0, u32::from_le_bytes).min(self.capacity())
    }

    /// Returns a slot that has been used.
    #[must_use]
    pub fn slot(&self, number: u32) -> Option<Slot> {
        (number < self.used()).then(|| self.read_slots(number, 1)?.into_iter().next())?
    }

    /// Returns all slots that have been used.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let used = self.used();
        (0..used)
            .step_by(CHUNK as usize)
            .flat_map(move |first| self.read_slots(first, CHUNK.min(used - first)).unwrap_or_default())
    }

    fn read_slots(&self, first: u32, count: u32) -> Option<Vec<Slot>> {
        let offset = HEADER_SIZE as u64 + u64::from(first) * (Slot::WORDS * WORD) as u64;
        let all = || self.source.words(offset, count as usize * Slot::WORDS);
        let (before, content, after) = protocol::read_stable(all, all, fence);
        let [before, content, after] = [before?, content?, after?];
        let [before, content, after] = [&before, &content, &after].map(|read| read.chunks_exact(Slot::WORDS));
        let slots = before.zip(content).zip(after).zip(first..);
        Some(slots.filter_map(|(((a, b), c), number)| Slot::parse(number, a, b, c)).collect())
    }

    /// Returns the description of the last export of each slot that has been used. It is consistent
    /// if the owner has ended.
    pub(super) fn last_contents(&self) -> impl Iterator<Item = (u32, SlotContent)> + '_ {
        let used = self.used();
        (0..used).step_by(CHUNK as usize).flat_map(move |first| {
            let offset = HEADER_SIZE as u64 + u64::from(first) * (Slot::WORDS * WORD) as u64;
            let words = self.source.words(offset, CHUNK.min(used - first) as usize * Slot::WORDS);
            let words = words.unwrap_or_default();
            let contents: Vec<_> = words.chunks_exact(Slot::WORDS).map(Slot::last_content).collect();
            (first..).zip(contents)
        })
    }

    /// Returns which processes may use the owner's memory, apart from importers.
    #[must_use]
    pub fn survivors(&self) -> Survivors {
        let flags = || self.source.read(offset_of!(LedgerHeader, flags)).map_or(0, u32::from_le_bytes);
        match &self.source {
            Source::File(fd) => Survivors::of(OfdLocks::of_file(fd), flags),
            Source::Bytes(_) => Survivors::Unknown,
        }
    }

    /// Returns the statistics that its owner has published; `None` if there are none that this
    /// version can read.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        let area = self.header.statistics;
        if area == 0 {
            return None;
        }
        let facts = self.source.words(area, FIXED_WORDS)?;
        let caches = self.last_record(area, FIXED_WORDS, CACHES);
        let pools = self.last_record(area, FIXED_WORDS + CACHES.size(), POOLS);
        Statistics::decode(&facts, caches.as_deref(), pools.as_deref())
    }

    /// Returns the last record of the ring at word `from` of the area at byte `area`.
    fn last_record(&self, area: u64, from: usize, shape: RingShape) -> Option<Vec<u64>> {
        let (_, fields) = read_last(shape, |at, count| {
            let offset = area.checked_add((from + at) as u64 * WORD as u64)?;
            let end = offset.checked_add(count as u64 * WORD as u64)?;
            // Checked before memory is allocated for it.
            (end <= self.size).then(|| self.source.words(offset, count))?
        })?;
        Some(fields)
    }
}

/// A row of a lease table that has an importer or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRow {
    /// Its number in the table.
    pub number: u32,
    /// The importer's number, the same in all of its rows; 0 if the row was released.
    pub importer: u64,
    /// The importer's process id in its own pid namespace, as it declares it.
    pub pid: u32,
    /// The importer's effective user id, as it declares it.
    pub uid: u32,
    /// Whether a process holds the lock of the row. Leases in a row without an owner do not count.
    pub is_owned: bool,
    /// Number of times that the importer has the slot's export open, or is opening it. In a row of
    /// tickets: number of handles that it has sent, and whose claims it has not noticed yet.
    pub count: u64,
    /// Whether the row is one of tickets.
    pub is_of_tickets: bool,
}

impl FoundLedger {
    /// Returns the rows of the owner's lease table, with their leases on a slot. Empty if there is
    /// no table, or the owner has ended or may not be inspected. The contents are copied and not
    /// verified.
    #[must_use]
    pub fn lease_rows(&self, slot: u32) -> Vec<LeaseRow> {
        self.read_lease_rows(slot).unwrap_or_default()
    }

    /// Returns how many readers have not opened a handle with a ticket yet. `None` if it has no
    /// ticket, all readers have opened it, it was cancelled, or it cannot be found out.
    #[must_use]
    pub fn readers_of(&self, handle: &Handle) -> Option<u16> {
        let ticket = handle.ticket()?;
        let (table, shape) = self.open_lease_table()?;
        let is_in_table = u32::from(ticket.row) < shape.rows && ticket.word < lease::TICKET_WORDS;
        let offset = shape.row(u32::from(ticket.row)) + u64::from(ticket.word) * 8;
        let row = shape.row(u32::from(ticket.row));
        let is_sent = is_in_table && OfdLocks::of_file(&table).is_write_locked(row).ok()?;
        let word = read_word(&table, offset).filter(|_| is_sent)?;
        protocol::ticket::readers(word, ticket.number)
    }

    /// Opens the owner's lease table, and checks its size and header.
    fn open_lease_table(&self) -> Option<(OwnedFd, lease::TableShape)> {
        let OwnerStatus::Alive { pid } = self.owner else { return None };
        let (number, _) = self.ledger.lease_table()?;
        self.ledger.lease_table_at(&format!("/proc/{pid}/fd/{number}"))
    }

    fn read_lease_rows(&self, slot: u32) -> Option<Vec<LeaseRow>> {
        let (table, shape) = self.open_lease_table().filter(|(_, shape)| slot < shape.slots)?;
        let locks = OfdLocks::of_file(&table);
        // Reading a hole of the file allocates nothing, but accessing it through a mapping would.
        let word = |offset: u64| read_word(&table, offset);
        let half = |offset: u64| word(offset).map(|word| word as u32);
        let height = half(offset_of!(lease::TableHeader, height) as u64)?.min(shape.rows);
        let rows = (0..height).filter_map(|number| {
            let owner = shape.owners() + u64::from(number) * size_of::<lease::RowOwner>() as u64;
            let row = LeaseRow {
                number,
                importer: word(owner + offset_of!(lease::RowOwner, importer) as u64)?,
                pid: half(owner + offset_of!(lease::RowOwner, pid) as u64)?,
                uid: half(owner + offset_of!(lease::RowOwner, uid) as u64)?,
                is_owned: locks.is_write_locked(shape.row(number)).ok()?,
                count: word(shape.row(number) + lease::ROW_HEADER + u64::from(slot) * 8)?,
                is_of_tickets: half(owner + offset_of!(lease::RowOwner, is_of_tickets) as u64)? != 0,
            };
            (row.importer != 0 || row.count != 0).then_some(row)
        });
        Some(rows.collect())
    }
}

impl Ledger {
    /// Opens the file at a path in `/proc` for writing, if it is the ledger's lease table.
    pub(super) fn lease_table_at(&self, path: &str) -> Option<(OwnedFd, lease::TableShape)> {
        let (_, rows) = self.lease_table()?;
        let shape = lease::TableShape { slots: self.capacity(), rows: rows.min(lease::MAX_ROWS) };
        let found = umf_os::file::open_path(path).ok()?;
        let identity = umf_os::file::identity(&found).ok()?;
        let is_memory =
            umf_os::file::is_regular(&found).ok()? && umf_os::memfd::device().ok()? == Some(identity.device);
        if !is_memory {
            return None;
        }
        let table = umf_os::file::reopen(found.as_fd(), true).ok()?;
        let is_sealed = umf_os::memfd::is_sealed(&table, SealFlags::SHRINK | SealFlags::GROW).ok()?;
        if !is_sealed
            || umf_os::file::size(&table).ok()? != shape.size()
            || umf_os::file::identity(&table).ok()? != identity
        {
            return None;
        }
        let version = read_word(&table, offset_of!(lease::TableHeader, version) as u64)? as u32;
        let nonce = [0, 8].map(|half| read_word(&table, offset_of!(lease::TableHeader, nonce) as u64 + half));
        let is_of_ledger = nonce == self.identity().nonce.halves().map(Some);
        let is_table = read_word(&table, 0)? == lease::MAGIC && version == lease::VERSION && is_of_ledger;
        is_table.then_some((table, shape))
    }
}

/// Reads a word of a file; `None` past its end.
fn read_word(file: &OwnedFd, offset: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    umf_os::file::read_at(file, &mut bytes, offset).ok()?.then_some(u64::from_le_bytes(bytes))
}
