//! A domain's table: which objects there are, and who is registered for them.
//!
//! It is a sealed memfd that every participant maps and anyone of them hands to a newcomer; it goes with the last of
//! them. Whoever changes it holds the domain's arbiter ([`Rules`]), and may be killed at any instruction: each change
//! takes effect by one store, the last one, and what a dead participant left is found and finished by
//! [`Rules::reclaim`].
//!
//! Participants are processes of one user, but not trusted: any word may be anything at any time. Words are read once,
//! indices checked against sizes that were checked when the table was mapped.

mod bits;
mod layout;
mod rules;
#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering;
use std::sync::Arc;

use layout::{HEADER_SIZE, Header, MAGIC, SLOT_SIZE, Slot, VERSION};
pub(crate) use layout::{MAX_SLOTS, PLACES};
pub(crate) use rules::{Entry, Listed, NoRoom, Refused, Rules};

use umf_ipc::fd_socket::SharedFd;
use umf_os::ReceivedFd;
use umf_sync::failpoint;

use crate::number::{Reuse, Tag};
use crate::sys::{self, CloseOnFork, File, SharedMapping};
use crate::{Error, Result};

/// The mapped table. Not there in forked children.
#[derive(Debug)]
pub(crate) struct Table {
    mapping: SharedMapping,
    file: Arc<CloseOnFork>,
    /// As it was when the table was mapped: whatever is written there later, the mapping has this many.
    capacity: u32,
    tag: Tag,
}

impl Table {
    /// An empty table for a domain that begins.
    pub(crate) fn new(name: &str, tag: Tag, capacity: u32) -> Result<Self> {
        // Past RLIMIT_FSIZE the process would get a signal.
        let room = sys::file_size_limit().saturating_sub(HEADER_SIZE as u64) / SLOT_SIZE as u64;
        let capacity = capacity.clamp(1, MAX_SLOTS).min(u32::try_from(room).unwrap_or(u32::MAX));
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
        header.incarnation.store(Reuse::from_bits(incarnation).bits(), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        failpoint!("domain.table_made");
        Ok(table)
    }

    /// The table that a participant sent; `None` if it is none of this domain.
    pub(crate) fn open(file: ReceivedFd, tag: Tag) -> Result<Option<Self>> {
        let Some(File { size, .. }) = sys::sealed_file(&file).map_err(Error::system("fstat of the table"))?
        else {
            return Ok(None);
        };
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
        let good = capacity > 0
            && slots.is_multiple_of(SLOT_SIZE)
            && header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION
            && header.slot_size.load(Ordering::Relaxed) == SLOT_SIZE as u32
            && header.capacity.load(Ordering::Relaxed) == capacity
            && header.tag.load(Ordering::Relaxed) == u32::from(tag.bits());
        Ok(good.then_some(table))
    }

    /// `size` is that of the file, and has room for the header and `capacity` slots.
    fn map(file: CloseOnFork, size: usize, capacity: u32, tag: Tag) -> Result<Self> {
        let mut mapping =
            SharedMapping::new(&file, size, true).map_err(Error::system("mmap of the domain's table"))?;
        mapping
            .keep_from_children()
            .map_err(Error::system("madvise(MADV_DONTFORK) of the domain's table"))?;
        failpoint!("domain.table_mapped");
        Ok(Self { mapping, file: Arc::new(file), capacity, tag })
    }

    pub(crate) fn shared_file(&self) -> SharedFd {
        Arc::clone(&self.file) as SharedFd
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) const fn tag(&self) -> Tag {
        self.tag
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a header long, page aligned, lives as long as `self`, and the fields are
        // atomics, so that others reading and writing them at the same time is fine.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    fn slot(&self, number: usize) -> Option<&Slot> {
        if number >= self.capacity as usize {
            return None;
        }
        // SAFETY: the mapping has the header and `capacity` slots, whose sizes are multiples of their alignment.
        Some(unsafe { self.mapping.base().add(HEADER_SIZE + number * SLOT_SIZE).cast().as_ref() })
    }

    /// Whether the place is still that of the participant with this nonce. Nobody gives it to another one while that is
    /// alive.
    pub(crate) fn is_in_place(&self, place: u16, nonce: [u64; 2]) -> bool {
        let header = self.header();
        let is_it = |here: &layout::Place| {
            here.nonce.iter().zip(nonce).all(|(word, wanted)| word.load(Ordering::Relaxed) == wanted)
        };
        header.places.get(usize::from(place)).is_some_and(is_it)
            && bits::has(&header.occupied, usize::from(place))
    }

    /// Which places are said to be occupied. Not under the arbiter, so only a hint whom to ask.
    pub(crate) fn occupied(&self) -> Vec<u16> {
        bits::members(&self.header().occupied).map(|place| place as u16).collect()
    }
}
