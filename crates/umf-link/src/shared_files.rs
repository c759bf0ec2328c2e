//! The files of shared memory between two processes: [`OwnFile`], [`PeerFile`], [`Bell`].
//!
//! The process that makes a file maps it and then seals it (`F_SEAL_FUTURE_WRITE`, Linux 5.1,
//! `fcntl(2)`). No other mapping of it can be written, and no process can punch a hole into it.
//! [`Bell`] is the one page that peers may write; its value is a hint.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use umf_os::memfd::{self, SharedMapping};

use crate::layout::{
    CATALOG, CATALOG_MAGIC, Extent, HAS_MARKS, LANE, LANE_MAGIC, MAGIC, MARK_WORDS, MARKS, NONCE, PAGE,
};
use crate::protocol::{self, ASLEEP, Load};
use crate::sys::{self, Result};

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Records of this process to one peer.
pub(crate) type OwnLane = OwnFile<LANE>;
/// Records of one peer to this process.
pub(crate) type PeerLane = PeerFile<LANE>;
/// The handle table and the registered ranges of this process.
pub(crate) type OwnCatalog = OwnFile<CATALOG>;
/// Those of a peer.
pub(crate) type PeerCatalog = PeerFile<CATALOG>;

const fn magic(size: usize) -> u64 {
    if size == LANE { LANE_MAGIC } else { CATALOG_MAGIC }
}

/// Maps a file. Forked children do not inherit the mapping.
fn map(fd: impl AsFd, size: usize, is_writable: bool) -> Result<SharedMapping> {
    let mut mapping = SharedMapping::new(fd, size, is_writable)?;
    mapping.exclude_from_fork()?;
    Ok(mapping)
}

/// Creates a sparse file whose first page is reserved.
fn create_file(name: &str, size: usize) -> Result<OwnedFd> {
    if size as u64 > umf_os::process::file_size_limit() {
        return Err(Errno::FBIG);
    }
    let fd = memfd::create(name, size as u64)?;
    umf_os::file::reserve(&fd, 0, PAGE as u64)?;
    Ok(fd)
}

/// A mapping of `SIZE` bytes. The base is cached, because a call into another crate costs as much
/// as the access.
#[derive(Debug)]
struct Mapped<const SIZE: usize> {
    base: NonNull<u8>,
    _mapping: SharedMapping,
    /// One bit for each page that is known to be populated.
    populated: Box<[AtomicU64]>,
}

// SAFETY: the pointer is that of the mapping, which is `Send` and `Sync`.
unsafe impl<const SIZE: usize> Send for Mapped<SIZE> {}
// SAFETY: as above.
unsafe impl<const SIZE: usize> Sync for Mapped<SIZE> {}

impl<const SIZE: usize> Mapped<SIZE> {
    fn new(fd: impl AsFd, is_writable: bool) -> Result<Self> {
        let mapping = map(fd, SIZE, is_writable)?;
        let populated: Box<[AtomicU64]> = (0..SIZE.div_ceil(64 * PAGE)).map(|_| AtomicU64::new(0)).collect();
        // `create_file` has reserved the first page; a peer may not have.
        populated[0].store(u64::from(is_writable), Ordering::Relaxed);
        Ok(Self { base: mapping.base(), _mapping: mapping, populated })
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset <= SIZE - 8 && offset.is_multiple_of(8), "offset");
        // SAFETY: the word lies in the mapping of `SIZE` bytes by the line above; it is aligned,
        // since the mapping starts at a page; the mapping lives as long as `self`. Others may write
        // atomics.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    #[inline(always)]
    fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(offset <= SIZE && length <= SIZE - offset, "offset");
        // SAFETY: the bytes lie in the mapping of `SIZE` bytes by the line above.
        unsafe { self.base.add(offset) }
    }

    /// Calls `populate` for the pages of an extent, unless they are known to be populated.
    #[inline]
    fn populate(
        &self,
        (offset, length): Extent,
        populate: impl FnOnce(NonNull<u8>, usize) -> Result<()>,
    ) -> Result<()> {
        let (first, last) = (offset / PAGE, (offset + length.max(1) - 1) / PAGE);
        let lacks = |page: &usize| self.populated[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 0;
        let Some(first) = (first..=last).find(lacks) else { return Ok(()) };
        let size = (last + 1 - first) * PAGE;
        populate(self.bytes(first * PAGE, size), size)?;
        for page in first..=last {
            self.populated[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A file that only this process writes.
#[derive(Debug)]
pub(crate) struct OwnFile<const SIZE: usize> {
    mapped: Mapped<SIZE>,
    nonce: u128,
    /// The process that made it, as [`umf_sync::fork::generation`] counts.
    process: u32,
}

impl<const SIZE: usize> OwnFile<SIZE> {
    /// Makes a file. Returns the descriptor to send, too.
    pub(crate) fn create(nonce: u128) -> Result<(Self, OwnedFd)> {
        let fd = create_file(if SIZE == LANE { "umf-link" } else { "umf-link-catalog" }, SIZE)?;
        let process = umf_sync::fork::generation();
        let file = Self { mapped: Mapped::new(&fd, true)?, nonce, process };
        memfd::add_seals(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        for (at, half) in NONCE.into_iter().zip([nonce as u64, (nonce >> 64) as u64]) {
            file.word(at).store(half, Ordering::Relaxed);
        }
        file.word(MAGIC).store(magic(SIZE), Ordering::Release);
        Ok((file, fd))
    }

    /// Returns whether this process created the file, and not its parent.
    #[inline(always)]
    pub(crate) fn is_own_process(&self) -> bool {
        self.process == umf_sync::fork::generation()
    }

    /// Returns the number that tells this file from others.
    pub(crate) const fn nonce(&self) -> u128 {
        self.nonce
    }

    /// Returns the address of the mapping.
    pub(crate) fn base(&self) -> u64 {
        self.mapped.base.addr().get() as u64
    }

    /// Returns the word at an offset of [`crate::layout`].
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapped.word(offset)
    }

    /// Returns `length` bytes at an offset of [`crate::layout`]: to be written, not to be referred
    /// to.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        self.mapped.bytes(offset, length)
    }

    /// Populates an extent, unless that was done. A write to a page that is not populated may end
    /// the process.
    ///
    /// # Errors
    /// `ENOMEM`, `EFAULT`: no memory is left.
    #[inline]
    pub(crate) fn populate(&self, extent: Extent) -> Result<()> {
        // SAFETY: whole pages of this mapping, which may be written.
        self.mapped.populate(extent, |start, size| unsafe { memfd::populate(start, size) })
    }
}

/// A file that a peer writes at any time: words are read once and then checked; bytes are only
/// copied.
#[derive(Debug)]
pub(crate) struct PeerFile<const SIZE: usize> {
    mapped: Mapped<SIZE>,
}

/// A word that a peer writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerWord<'f>(&'f AtomicU64);

impl Load for PeerWord<'_> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

impl<const SIZE: usize> PeerFile<SIZE> {
    /// Maps a file that a peer has sent; `None` if it is not a sealed file of this kind and nonce.
    pub(crate) fn adopt(fd: impl AsFd, nonce: u128) -> Result<Option<Self>> {
        // First, because the kernel answers it: a file server (FUSE) is asked nothing.
        let is_valid = memfd::is_sealed(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE)?
            && memfd::of_sealed_size(&fd)?.is_some_and(|(_, size)| size == SIZE as u64);
        if !is_valid {
            return Ok(None);
        }
        let file = Self { mapped: Mapped::new(fd, false)? };
        file.populate((0, PAGE))?;
        let word = |offset| file.word(offset).load(Ordering::Acquire);
        let is_valid = word(MAGIC) == magic(SIZE) && NONCE.map(word) == [nonce as u64, (nonce >> 64) as u64];
        Ok(is_valid.then_some(file))
    }

    /// Returns the word at an offset of [`crate::layout`].
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> PeerWord<'_> {
        PeerWord(self.mapped.word(offset))
    }

    /// Returns `length` bytes at an offset of [`crate::layout`]: to be copied, not to be referred
    /// to.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> *const u8 {
        self.mapped.bytes(offset, length).as_ptr()
    }

    /// Populates an extent for reading, unless that was done: its writer may have left it empty.
    ///
    /// # Errors
    /// `ENOMEM`, `EFAULT`: no memory is left.
    #[inline]
    pub(crate) fn populate(&self, extent: Extent) -> Result<()> {
        // SAFETY: whole pages of this mapping, which may be read.
        self.mapped.populate(extent, |start, size| unsafe { memfd::populate_for_reading(start, size) })
    }
}

/// The page with the futex on which threads of one process sleep, and with marks of the lanes that
/// have news. Every peer may write it.
#[derive(Debug)]
pub(crate) struct Bell {
    base: NonNull<AtomicU32>,
    _mapping: SharedMapping,
}

// SAFETY: the pointer is that of the mapping, which is `Send` and `Sync`.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// Makes a bell. `has_marks`: peers are to mark their lanes. Returns the descriptor to send,
    /// too.
    pub(crate) fn create(has_marks: bool) -> Result<(Self, OwnedFd)> {
        let fd = create_file("umf-link-bell", PAGE)?;
        memfd::add_seals(&fd, SIZE_SEALS | SealFlags::SEAL)?;
        let bell = Self::map(&fd)?;
        bell.at(HAS_MARKS).store(u32::from(has_marks), Ordering::Relaxed);
        Ok((bell, fd))
    }

    fn map(fd: impl AsFd) -> Result<Self> {
        let mapping = map(fd, PAGE, true)?;
        Ok(Self { base: mapping.base().cast(), _mapping: mapping })
    }

    /// Maps a bell that a peer has sent; `None` if it is none.
    pub(crate) fn adopt(fd: impl AsFd) -> Result<Option<Self>> {
        if memfd::of_sealed_size(&fd)?.is_none_or(|(_, size)| size != PAGE as u64) {
            return Ok(None);
        }
        let bell = Self::map(fd)?;
        // SAFETY: the page of the mapping, which may be written.
        unsafe { memfd::populate(bell.base.cast(), PAGE) }?;
        Ok(Some(bell))
    }

    /// Wakes all threads that sleep on it, after a change in this process for which they wait.
    pub(crate) fn ring(&self) {
        if protocol::take_requests(self.word()) & ASLEEP != 0 {
            sys::wake(self.word());
        }
    }

    /// Returns whether peers have to mark their lanes.
    pub(crate) fn has_marks(&self) -> bool {
        self.at(HAS_MARKS).load(Ordering::Relaxed) != 0
    }

    /// Marks the lane of a rank.
    pub(crate) fn mark(&self, rank: usize) {
        protocol::mark(self.at(MARKS + rank / 32 % MARK_WORDS), (rank % 32) as u32);
    }

    /// Takes the marks of the 32 ranks from `32 * word` on.
    pub(crate) fn take_marks(&self, word: usize) -> u32 {
        protocol::take_marks(self.at(MARKS + word % MARK_WORDS))
    }

    /// Returns the futex.
    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU32 {
        self.at(0)
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicU32 {
        assert!(index < PAGE / 4, "index");
        // SAFETY: the word lies in the page of the mapping, which lives as long as `self`. Others
        // may write atomics.
        unsafe { self.base.add(index).as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{CONSUMED, LARGE_RING, offer_line};

    #[test]
    fn only_sealed_file_of_right_kind_is_mapped() {
        let (own, fd) = OwnLane::create(7).unwrap();
        let peer = PeerLane::adopt(&fd, 7).unwrap().unwrap();
        own.word(CONSUMED).store(9, Ordering::Relaxed);
        assert_eq!(peer.word(CONSUMED).load(Ordering::Relaxed), 9);
        assert!(PeerLane::adopt(&fd, 8).unwrap().is_none(), "another nonce");
        assert!(PeerCatalog::adopt(&fd, 7).unwrap().is_none(), "another kind");
        for size in [PAGE, LANE] {
            let other = memfd::create("umf-link", size as u64).unwrap();
            assert!(PeerLane::adopt(&other, 7).unwrap().is_none(), "no seals");
            memfd::add_seals(&other, SIZE_SEALS | SealFlags::FUTURE_WRITE).unwrap();
            assert!(PeerLane::adopt(&other, 7).unwrap().is_none(), "empty, or too small");
        }
        assert!(PeerLane::adopt(std::fs::File::open("/proc/self/stat").unwrap(), 7).unwrap().is_none());
        let (_bell, fd) = Bell::create(false).unwrap();
        assert!(Bell::adopt(&fd).unwrap().is_some());
        let small = memfd::create("umf-link", 64).unwrap();
        memfd::add_seals(&small, SIZE_SEALS).unwrap();
        assert!(Bell::adopt(&small).unwrap().is_none());
    }

    #[test]
    fn lane_is_read_only_for_peer_and_cannot_be_punched() {
        let (own, fd) = OwnLane::create(7).unwrap();
        assert!(SharedMapping::new(&fd, LANE, true).is_err());
        assert_eq!(umf_os::file::punch_hole(&fd, 0, PAGE as u64), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
        assert!(rustix::io::write(&fd, b"x").is_err());
        own.mapped._mapping.punch_hole(0);
        assert_eq!(own.word(MAGIC).load(Ordering::Relaxed), LANE_MAGIC);
    }

    #[test]
    fn parts_are_populated_at_first_use() {
        let (own, fd) = OwnLane::create(7).unwrap();
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks * 512 / PAGE as i64;
        assert_eq!(blocks(), 1);
        own.populate(LARGE_RING).unwrap();
        own.populate(LARGE_RING).unwrap();
        assert_eq!(blocks(), 17);
        let peer = PeerLane::adopt(&fd, 7).unwrap().unwrap();
        peer.populate(offer_line(0)).unwrap();
        peer.populate(offer_line(31)).unwrap();
        assert_eq!(blocks(), 18);
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn a_word_past_the_end_panics() {
        let (own, _fd) = OwnLane::create(7).unwrap();
        own.word(LANE);
    }
}
