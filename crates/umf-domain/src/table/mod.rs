//! The table of a domain: its objects, and the participants that are registered for them.
//!
//! The table is a sealed memfd that every participant maps, and that any participant sends to a
//! newcomer. The kernel frees it with the last of them. A process changes the table only while it
//! holds the domain's arbiter ([`LockedTable`]), and can be killed at any instruction. Each change
//! therefore takes effect by one store, the last one. [`LockedTable::reclaim`] removes what a dead
//! participant left.
//!
//! Participants are processes of one user, but not trusted: any word can change at any time. Each
//! word is read once. Indices are checked against the size of the mapping.

mod locked;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

pub(crate) use locked::{CreateError, Entry, ListedObject, LockedTable, LookupError};

use umf_ipc::fd_socket::SharedFd;
use umf_os::ReceivedFd;
use umf_sync::failpoint;

use crate::id::{DomainTag, Generation};
use crate::sys::{self, CloseOnFork, SealedFile, SharedMapping};
use crate::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"UMFDOMN1");
const VERSION: u32 = 1;

/// The most processes of a domain. Participant ids are below it.
pub(crate) const MAX_PARTICIPANTS: u16 = 1024;
/// The most objects of a domain.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;

const PARTICIPANT_WORDS: usize = MAX_PARTICIPANTS as usize / 64;
const SLOT_WORDS: usize = MAX_SLOTS as usize / 64;

const HEADER_SIZE: usize = size_of::<Header>();
const SLOT_SIZE: usize = size_of::<Slot>();

/// The beginning of the file. Slots follow. `docs/domain.md` has the layout.
#[derive(Debug)]
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slot_size: AtomicU32,
    capacity: AtomicU32,
    tag: AtomicU32,
    /// The first [`Generation`] of every slot.
    incarnation: AtomicU64,
    /// Slots below this index have their pages allocated.
    reserved_slots: AtomicU32,
    _reserved: [AtomicU32; 23],
    /// One bit for each participant id that is in use. A dead participant's id is, until it is
    /// reclaimed.
    active: [AtomicU64; PARTICIPANT_WORDS],
    _rest_of_page: [AtomicU64; 480],
    /// One bit for each slot that has an object.
    used: [AtomicU64; SLOT_WORDS],
    participants: [ParticipantEntry; MAX_PARTICIPANTS as usize],
}

const _: () = assert!(core::mem::offset_of!(Header, used) == 4096);
const _: () = assert!(core::mem::offset_of!(Header, participants) == 12288);
const _: () = assert!(HEADER_SIZE == 45056);
const _: () = assert!(SLOT_SIZE == 168);

/// One participant.
#[derive(Debug)]
#[repr(C)]
struct ParticipantEntry {
    /// Random bits, by which a process notices that another one took its id.
    nonce: [AtomicU64; 2],
    _reserved: [AtomicU64; 2],
}

/// One object.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    /// The generation in the object's id; 0 if the slot was never used.
    generation: AtomicU64,
    size: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    kind: AtomicU32,
    _reserved: AtomicU32,
    /// One bit for each participant that is registered.
    registrants: [AtomicU64; PARTICIPANT_WORDS],
}

/// The mapped table. Forked children do not inherit the mapping.
#[derive(Debug)]
pub(crate) struct Table {
    mapping: SharedMapping,
    file: Arc<CloseOnFork>,
    /// The number of slots in the mapping. The header's word can change.
    capacity: u32,
    tag: DomainTag,
}

impl Table {
    /// Creates an empty table, for a new domain.
    pub(crate) fn new(name: &str, tag: DomainTag, capacity: u32) -> Result<Self> {
        // A file beyond RLIMIT_FSIZE would end the process by SIGXFSZ.
        let most = sys::file_size_limit().saturating_sub(HEADER_SIZE as u64) / SLOT_SIZE as u64;
        let capacity = capacity.clamp(1, MAX_SLOTS).min(u32::try_from(most).unwrap_or(u32::MAX));
        if capacity == 0 {
            return Err(Error::system("ftruncate of the domain's table")(rustix::io::Errno::FBIG));
        }
        let size = HEADER_SIZE + capacity as usize * SLOT_SIZE;
        let file = CloseOnFork::make(|| sys::memfd(&format!("umf-domain-table/{name}"), size as u64))
            .map_err(Error::system("memfd_create of the domain's table"))?;
        failpoint!("domain.table_file_made");
        sys::reserve(&file, 0, HEADER_SIZE as u64)
            .map_err(Error::system("fallocate of the domain's table"))?;
        let [incarnation, _] = sys::random().map_err(Error::system("getrandom"))?;
        let table = Self::map(file, size, capacity, tag)?;
        let header = table.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.slot_size.store(SLOT_SIZE as u32, Ordering::Relaxed);
        header.capacity.store(capacity, Ordering::Relaxed);
        header.tag.store(u32::from(tag.bits()), Ordering::Relaxed);
        header.incarnation.store(Generation::from_bits(incarnation).bits(), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        failpoint!("domain.table_made");
        Ok(table)
    }

    /// Maps the table that a participant sent. Returns `None` if it is not a table of this domain.
    pub(crate) fn open(file: ReceivedFd, tag: DomainTag) -> Result<Option<Self>> {
        let sealed = sys::sealed_file(&file).map_err(Error::system("fstat of the table"))?;
        let Some(SealedFile { size, .. }) = sealed else { return Ok(None) };
        let largest = HEADER_SIZE + MAX_SLOTS as usize * SLOT_SIZE;
        let Some(size) = usize::try_from(size).ok().filter(|size| (HEADER_SIZE..=largest).contains(size))
        else {
            return Ok(None);
        };
        let slots = size - HEADER_SIZE;
        let capacity = (slots / SLOT_SIZE) as u32;
        let file = CloseOnFork::new(file.into_inner()).map_err(Error::system("fstat of the table"))?;
        let table = Self::map(file, size, capacity, tag)?;
        let header = table.header();
        let is_valid = capacity > 0
            && slots.is_multiple_of(SLOT_SIZE)
            && header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION
            && header.slot_size.load(Ordering::Relaxed) == SLOT_SIZE as u32
            && header.capacity.load(Ordering::Relaxed) == capacity
            && header.tag.load(Ordering::Relaxed) == u32::from(tag.bits());
        Ok(is_valid.then_some(table))
    }

    /// Maps a file of `size` bytes, which fits the header and `capacity` slots.
    fn map(file: CloseOnFork, size: usize, capacity: u32, tag: DomainTag) -> Result<Self> {
        let mut mapping =
            SharedMapping::new(&file, size, true).map_err(Error::system("mmap of the domain's table"))?;
        mapping.exclude_from_fork().map_err(Error::system("madvise(MADV_DONTFORK) of the domain's table"))?;
        failpoint!("domain.table_mapped");
        Ok(Self { mapping, file: Arc::new(file), capacity, tag })
    }

    pub(crate) fn shared_file(&self) -> SharedFd {
        Arc::clone(&self.file) as SharedFd
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) const fn tag(&self) -> DomainTag {
        self.tag
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page aligned, has at least the size of a header, and lives as long
        // as `self`. All fields are atomics, which other processes may access at the same time.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    fn slot(&self, index: usize) -> Option<&Slot> {
        if index >= self.capacity as usize {
            return None;
        }
        // SAFETY: the mapping has the header and `capacity` slots, and `index` is below `capacity`.
        // Both sizes are multiples of the alignment of a slot, whose fields are atomics.
        Some(unsafe { self.mapping.base().add(HEADER_SIZE + index * SLOT_SIZE).cast().as_ref() })
    }

    /// Whether the participant with this nonce still has the id. While its process is alive, no
    /// other process takes the id.
    pub(crate) fn is_participant(&self, id: u16, nonce: [u64; 2]) -> bool {
        let header = self.header();
        let has_nonce = |entry: &ParticipantEntry| {
            entry.nonce.iter().zip(nonce).all(|(word, wanted)| word.load(Ordering::Relaxed) == wanted)
        };
        header.participants.get(usize::from(id)).is_some_and(has_nonce)
            && bitmap::has(&header.active, usize::from(id))
    }

    /// Returns the participant ids in use. Without the arbiter the result is only a hint.
    pub(crate) fn active(&self) -> Vec<u16> {
        bitmap::members(&self.header().active).map(|id| id as u16).collect()
    }
}

/// Bitmaps of shared words: the participant ids in use, the used slots, the registrants of a slot.
///
/// A process that changes a bitmap holds the domain's arbiter, so only single words need to be
/// atomic. Stores keep program order, so that a process that dies between two of them leaves the
/// first one only.
mod bitmap {
    use core::sync::atomic::{AtomicU64, Ordering};

    const fn split(index: usize) -> (usize, u64) {
        (index / 64, 1 << (index % 64))
    }

    pub(super) fn has(words: &[AtomicU64], index: usize) -> bool {
        let (word, bit) = split(index);
        words.get(word).is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    pub(super) fn set(words: &[AtomicU64], index: usize) {
        let (word, bit) = split(index);
        if let Some(word) = words.get(word) {
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    pub(super) fn clear(words: &[AtomicU64], index: usize) {
        let (word, bit) = split(index);
        if let Some(word) = words.get(word) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    pub(super) fn is_empty(words: &[AtomicU64]) -> bool {
        words.iter().all(|word| word.load(Ordering::Acquire) == 0)
    }

    pub(super) fn count(words: &[AtomicU64]) -> u32 {
        words.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum()
    }

    /// Returns the lowest bit that is clear.
    pub(super) fn first_missing(words: &[AtomicU64]) -> Option<usize> {
        words.iter().enumerate().find_map(|(word_index, word)| {
            let word = word.load(Ordering::Acquire);
            (word != u64::MAX).then(|| word_index * 64 + word.trailing_ones() as usize)
        })
    }

    /// Returns the bits that are set, in order. Each word is read once.
    pub(super) fn members(words: &[AtomicU64]) -> impl Iterator<Item = usize> {
        words.iter().enumerate().flat_map(|(word_index, word)| {
            let mut left = word.load(Ordering::Acquire);
            core::iter::from_fn(move || {
                let lowest = left.trailing_zeros() as usize;
                left = left.checked_sub(1)? & left;
                Some(word_index * 64 + lowest)
            })
        })
    }
}
