//! [`OwnLane`] and [`PeerLane`]: the files that two sides of a link send through, each of which one process alone can write.
//!
//! The maker of a lane maps it and then seals it (`F_SEAL_FUTURE_WRITE`, Linux 5.1, `fcntl(2)`): no other mapping of it can be
//! written, and no process can make a hole in it. [`Bell`] is the one page that others may write: what it says is a hint.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use umf_os::memfd::{self, SharedMapping};

use crate::layout::{MAGIC, MAGIC_WORD, NONCE_WORDS, PAGE, Part, SIZE};
use crate::protocol::{self, ASLEEP, Load};
use crate::sys::{self, Result};

const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const PAGES: usize = SIZE / PAGE;

/// A mapping that forked children do not get.
fn map(fd: impl AsFd, size: usize, is_writable: bool) -> Result<SharedMapping> {
    let mut mapping = SharedMapping::new(fd, size, is_writable)?;
    mapping.keep_from_children()?;
    Ok(mapping)
}

fn make(name: &str, size: usize) -> Result<OwnedFd> {
    if size as u64 > umf_os::process::file_size_limit() {
        return Err(Errno::FBIG);
    }
    let fd = memfd::create(name, size as u64)?;
    umf_os::file::reserve(&fd, 0, PAGE as u64)?;
    Ok(fd)
}

/// A mapping of `SIZE` bytes, and where it begins: a call of another crate would cost as much as what is done with it.
#[derive(Debug)]
struct Mapped {
    base: NonNull<u8>,
    _mapping: SharedMapping,
    /// A bit for each page that is known to have its memory.
    populated: [AtomicU64; PAGES.div_ceil(64)],
}

// SAFETY: as of the mapping, to which the pointer belongs.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(fd: impl AsFd, is_writable: bool) -> Result<Self> {
        let mapping = map(fd, SIZE, is_writable)?;
        let populated = [const { AtomicU64::new(0) }; PAGES.div_ceil(64)];
        // The first page has it from the beginning.
        populated[0].store(1, Ordering::Relaxed);
        Ok(Self { base: mapping.base(), _mapping: mapping, populated })
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset <= SIZE - 8 && offset.is_multiple_of(8), "offset");
        // SAFETY: inside of the mapping, of `SIZE` bytes, by the line above, aligned as it begins at a page, and there as long as
        // `self`; atomics may be written by others at the same time.
        unsafe { self.base.add(offset).cast().as_ref() }
    }

    /// Has `give` give a part its memory, in whole pages, unless it is known to have it.
    #[inline]
    fn populate(
        &self,
        (offset, length): Part,
        give: impl FnOnce(NonNull<u8>, usize) -> Result<()>,
    ) -> Result<()> {
        let (first, last) = (offset / PAGE, (offset + length.max(1) - 1) / PAGE);
        let lacks = |page: &usize| self.populated[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 0;
        let Some(first) = (first..=last).find(lacks) else { return Ok(()) };
        let size = (last + 1 - first) * PAGE;
        give(self.bytes(first * PAGE, size), size)?;
        for page in first..=last {
            self.populated[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        Ok(())
    }

    #[inline(always)]
    fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(offset <= SIZE && length <= SIZE - offset, "offset");
        // SAFETY: inside of the mapping, of `SIZE` bytes, by the line above.
        unsafe { self.base.add(offset) }
    }
}

/// The lane that this process writes, and no other one.
#[derive(Debug)]
pub(crate) struct OwnLane {
    mapped: Mapped,
    nonce: u128,
    /// The process that has it, as [`umf_sync::fork::generation`] counts.
    process: u32,
}

impl OwnLane {
    /// A new one, and the fd to send.
    pub(crate) fn create(nonce: u128) -> Result<(Self, OwnedFd)> {
        let fd = make("umf-link", SIZE)?;
        let process = umf_sync::fork::generation();
        let lane = Self { mapped: Mapped::new(&fd, true)?, nonce, process };
        memfd::add_seals(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        for (at, half) in NONCE_WORDS.into_iter().zip([nonce as u64, (nonce >> 64) as u64]) {
            lane.word(at).store(half, Ordering::Relaxed);
        }
        lane.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
        Ok((lane, fd))
    }

    /// Whether this process has it mapped: a forked child has not.
    #[inline(always)]
    pub(crate) fn is_here(&self) -> bool {
        self.process == umf_sync::fork::generation()
    }

    /// What both agreed on when the link was made.
    pub(crate) const fn nonce(&self) -> u128 {
        self.nonce
    }

    /// Where it is in this process.
    pub(crate) fn base(&self) -> u64 {
        self.mapped.base.addr().get() as u64
    }

    /// The word at an offset, which [`crate::layout`] yields.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapped.word(offset)
    }

    /// `length` bytes at an offset that [`crate::layout`] yields: to be written by this process, not to be referred to.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        self.mapped.bytes(offset, length)
    }

    /// Gives a part its memory, unless it has it. What is written without this may have none, and end the process.
    ///
    /// # Errors
    /// `ENOMEM`, `EFAULT`: there is none.
    #[inline]
    pub(crate) fn populate(&self, part: Part) -> Result<()> {
        // SAFETY: whole pages of this mapping, which may be written.
        self.mapped.populate(part, |start, size| unsafe { memfd::populate(start, size) })
    }
}

/// The lane that the peer writes, at any time: words are read once and then checked, and what is copied out is data.
#[derive(Debug)]
pub(crate) struct PeerLane {
    mapped: Mapped,
}

/// A word that the peer writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerWord<'l>(&'l AtomicU64);

impl Load for PeerWord<'_> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
}

impl PeerLane {
    /// The one that a peer has sent; `None` if that is none.
    pub(crate) fn adopt(fd: impl AsFd, nonce: u128) -> Result<Option<Self>> {
        // First, because the kernel answers it: a file server (FUSE) is asked nothing.
        let is_it = memfd::is_sealed(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE)?
            && memfd::of_sealed_size(&fd)?.is_some_and(|(_, size)| size == SIZE as u64);
        if !is_it {
            return Ok(None);
        }
        let lane = Self { mapped: Mapped::new(fd, false)? };
        let word = |offset| lane.word(offset).load(Ordering::Acquire);
        let is_it =
            word(MAGIC_WORD) == MAGIC && NONCE_WORDS.map(word) == [nonce as u64, (nonce >> 64) as u64];
        Ok(is_it.then_some(lane))
    }

    /// The word at an offset, which [`crate::layout`] yields.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> PeerWord<'_> {
        PeerWord(self.mapped.word(offset))
    }

    /// `length` bytes at an offset that [`crate::layout`] yields: to be copied out of, not to be referred to.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> *const u8 {
        self.mapped.bytes(offset, length).as_ptr()
    }

    /// Gives a part its memory, unless it has it, for reading: its writer may have left it without.
    ///
    /// # Errors
    /// `ENOMEM`, `EFAULT`: there is none.
    #[inline]
    pub(crate) fn populate(&self, part: Part) -> Result<()> {
        // SAFETY: whole pages of this mapping, which may be read.
        self.mapped.populate(part, |start, size| unsafe { memfd::populate_for_reading(start, size) })
    }

    /// Has the processor fetch the line of a word, and does not wait for it.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, offset: usize) {
        let word = self.mapped.word(offset);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: it reads nothing that this program sees, and the processors of this architecture all have it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(word).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = word;
    }
}

/// What threads of a process sleep on, which all that send to it may ring.
#[derive(Debug)]
pub(crate) struct Bell {
    base: NonNull<AtomicU32>,
    _mapping: SharedMapping,
}

// SAFETY: as of the mapping, to which the pointer belongs.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// A new one, and the fd to send.
    pub(crate) fn create() -> Result<(Self, OwnedFd)> {
        let fd = make("umf-link-bell", PAGE)?;
        memfd::add_seals(&fd, SIZE_SEALS | SealFlags::SEAL)?;
        Ok((Self::map(&fd)?, fd))
    }

    fn map(fd: impl AsFd) -> Result<Self> {
        let mapping = map(fd, PAGE, true)?;
        Ok(Self { base: mapping.base().cast(), _mapping: mapping })
    }

    /// Wakes all that sleep on it, after something was changed in this process that they wait for.
    pub(crate) fn ring(&self) {
        if protocol::rings(self.word()) & ASLEEP != 0 {
            sys::wake(self.word());
        }
    }

    /// The one that a peer has sent; `None` if that is none.
    pub(crate) fn adopt(fd: impl AsFd) -> Result<Option<Self>> {
        if memfd::of_sealed_size(&fd)?.is_none_or(|(_, size)| size != PAGE as u64) {
            return Ok(None);
        }
        let bell = Self::map(fd)?;
        // SAFETY: the page of the mapping, which may be written.
        unsafe { memfd::populate(bell.base.cast(), PAGE) }?;
        Ok(Some(bell))
    }

    /// The futex.
    #[inline(always)]
    pub(crate) fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is a page, and there as long as `self`; atomics may be written by others at the same time.
        unsafe { self.base.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{CONSUMED, LARGE_RING, OFFERS};

    #[test]
    fn what_is_no_lane_is_refused() {
        let (own, fd) = OwnLane::create(7).unwrap();
        let theirs = PeerLane::adopt(&fd, 7).unwrap().unwrap();
        own.word(CONSUMED).store(9, Ordering::Relaxed);
        assert_eq!(theirs.word(CONSUMED).load(Ordering::Relaxed), 9);
        assert!(PeerLane::adopt(&fd, 8).unwrap().is_none(), "another nonce");
        for size in [PAGE, SIZE] {
            let other = memfd::create("umf-link", size as u64).unwrap();
            assert!(PeerLane::adopt(&other, 7).unwrap().is_none(), "no seals");
            memfd::add_seals(&other, SIZE_SEALS | SealFlags::FUTURE_WRITE).unwrap();
            assert!(PeerLane::adopt(&other, 7).unwrap().is_none(), "empty, or too small");
        }
        assert!(PeerLane::adopt(std::fs::File::open("/proc/self/stat").unwrap(), 7).unwrap().is_none());
        let (_bell, fd) = Bell::create().unwrap();
        assert!(Bell::adopt(&fd).unwrap().is_some());
        let small = memfd::create("umf-link", 64).unwrap();
        memfd::add_seals(&small, SIZE_SEALS).unwrap();
        assert!(Bell::adopt(&small).unwrap().is_none());
    }

    /// Only its maker writes a lane, and no process makes holes in it, its maker included.
    #[test]
    fn a_lane_has_one_writer() {
        let (own, fd) = OwnLane::create(7).unwrap();
        assert!(SharedMapping::new(&fd, SIZE, true).is_err());
        assert_eq!(umf_os::file::punch(&fd, 0, PAGE as u64), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
        assert!(rustix::io::write(&fd, b"x").is_err());
        own.mapped._mapping.punch(0);
        assert_eq!(own.word(MAGIC_WORD).load(Ordering::Relaxed), MAGIC);
    }

    #[test]
    fn parts_get_their_memory_when_they_are_used() {
        let (own, fd) = OwnLane::create(7).unwrap();
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks * 512 / PAGE as i64;
        assert_eq!(blocks(), 1);
        own.populate(LARGE_RING).unwrap();
        assert_eq!(blocks(), 17);
        own.populate(LARGE_RING).unwrap();
        assert_eq!(blocks(), 17);
        let theirs = PeerLane::adopt(&fd, 7).unwrap().unwrap();
        theirs.populate(OFFERS).unwrap();
        assert_eq!(blocks(), 17 + 5);
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn a_word_past_the_end() {
        let (own, _fd) = OwnLane::create(7).unwrap();
        own.word(SIZE);
    }
}
