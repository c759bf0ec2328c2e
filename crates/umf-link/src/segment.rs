//! [`Segment`]: the memory that both sides of a link have.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use crate::layout::{MAGIC, MAGIC_WORD, NONCE_WORDS, SIZE, SIZE_WORD, Side};
use crate::sys::{self, Mapping};

/// The memory of a link. The other side may write any of it at any time: words are read once and then checked, and what is
/// copied out is data.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: Mapping,
    nonce: u128,
}

impl Segment {
    /// A new one, and the fd to send.
    pub(crate) fn create(nonce: u128) -> sys::Result<(Self, OwnedFd)> {
        let fd = sys::memfd("umf-link", SIZE)?;
        let segment = Self { mapping: Mapping::new(&fd, SIZE)?, nonce };
        segment.word(SIZE_WORD).store(SIZE as u64, Ordering::Relaxed);
        for (word, half) in NONCE_WORDS.into_iter().zip([nonce as u64, (nonce >> 64) as u64]) {
            segment.word(word).store(half, Ordering::Relaxed);
        }
        segment.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
        Ok((segment, fd))
    }

    /// The one that a peer has sent; `None` if that is none.
    pub(crate) fn adopt(fd: impl AsFd, nonce: u128) -> sys::Result<Option<Self>> {
        if !sys::is_sealed_memory(&fd, SIZE)? {
            return Ok(None);
        }
        let segment = Self { mapping: Mapping::new(fd, SIZE)?, nonce };
        let word = |offset| segment.word(offset).load(Ordering::Acquire);
        let is_it = word(MAGIC_WORD) == MAGIC
            && word(SIZE_WORD) == SIZE as u64
            && NONCE_WORDS.map(word) == [nonce as u64, (nonce >> 64) as u64];
        Ok(is_it.then_some(segment))
    }

    /// Whether this process has it mapped: a forked child has not.
    #[inline(always)]
    pub(crate) fn is_here(&self) -> bool {
        self.mapping.is_here()
    }

    /// What both agreed on when the link was made.
    pub(crate) const fn nonce(&self) -> u128 {
        self.nonce
    }

    /// Where it is in this process.
    pub(crate) fn base(&self) -> u64 {
        self.mapping.base().addr().get() as u64
    }

    /// The word at an offset, which [`crate::layout`] yields.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset <= SIZE - 8 && offset.is_multiple_of(8));
        // SAFETY: inside of the mapping by the line above, aligned as the mapping begins at a page, and there as long as
        // `self`; atomics may be written by others at the same time.
        unsafe { self.mapping.base().add(offset).cast().as_ref() }
    }

    /// Has the processor fetch the line of a word, and does not wait for it.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, offset: usize) {
        let word = self.word(offset);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: it reads nothing that this program sees, and the processors of this architecture all have it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(word).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = word;
    }

    /// The futex that a side sleeps on.
    pub(crate) fn bell(&self, side: Side) -> &AtomicU32 {
        let word: *const AtomicU64 = self.word(side.bell());
        // SAFETY: the first half of a word of the mapping; nobody uses it as a whole one.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// `length` bytes at an offset that [`crate::layout`] yields: to be copied into or out of, not to be referred to.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(offset <= self.mapping.size() && length <= self.mapping.size() - offset);
        // SAFETY: inside of the mapping by the line above.
        unsafe { self.mapping.base().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_segment_is_refused() {
        let (one, fd) = Segment::create(7).unwrap();
        let other = Segment::adopt(&fd, 7).unwrap().unwrap();
        one.word(Side::Acceptor.consumed()).store(9, Ordering::Relaxed);
        assert_eq!(other.word(Side::Acceptor.consumed()).load(Ordering::Relaxed), 9);
        assert!(Segment::adopt(&fd, 8).unwrap().is_none(), "another nonce");
        let small = sys::memfd("umf-link", 4096).unwrap();
        assert!(Segment::adopt(&small, 7).unwrap().is_none());
        let empty = sys::memfd("umf-link", SIZE).unwrap();
        assert!(Segment::adopt(&empty, 7).unwrap().is_none());
        assert!(Segment::adopt(std::fs::File::open("/proc/self/stat").unwrap(), 7).unwrap().is_none());
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn a_word_past_the_end() {
        let (segment, _fd) = Segment::create(7).unwrap();
        segment.word(SIZE);
    }
}
