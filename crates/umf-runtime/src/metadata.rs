//! Memory for metadata, which never comes from the global allocator: a pool may be the global
//! allocator.
//!
//! | type | use |
//! |---|---|
//! | [`Mapped`] | the allocator of ordinary collections |
//! | [`RingSlot`] | the slots of a ring of events |
//! | [`umf_sync::table::Table`], [`umf_sync::chunks::Chunks`] | records that lock-free readers find by an index |
//!
//! Tables never unmap their memory. A lock-free reader can follow a stale index: it then finds a
//! record of a newer object, and detects that by a generation.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use allocator_api2::alloc::{AllocError, Allocator};
use umf_os::metadata;
use umf_sync::SequenceLock;
use umf_sync::chunks::Zeroable;

/// An allocator of mappings, for metadata collections that grow seldom. Each allocation is a system
/// call and takes whole pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapped;

const PAGE: usize = 4096;

// SAFETY: each allocation is a mapping of its own, and all values of this type are equivalent.
unsafe impl Allocator for Mapped {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() > PAGE {
            return Err(AllocError);
        }
        if layout.size() == 0 {
            let dangling =
                NonNull::new(core::ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        let size = layout.size().checked_next_multiple_of(PAGE).ok_or(AllocError)?;
        let mapped = metadata::map(size).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(mapped, layout.size()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.allocate(layout)
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: Layout) {
        if layout.size() != 0 {
            // SAFETY: `allocate` mapped this size, rounded up to pages. The caller does not use it
            // any more.
            unsafe { metadata::unmap(pointer, layout.size().next_multiple_of(PAGE)) };
        }
    }
}

/// Words in a [`RingSlot`].
pub const SLOT_WORDS: usize = 5;

/// A slot of a ring. Threads may overwrite it and read it at the same time.
#[derive(Debug)]
pub struct RingSlot {
    lock: SequenceLock,
    words: [AtomicU64; SLOT_WORDS],
}

// SAFETY: zeros are valid atomics: a slot that was never written.
unsafe impl Zeroable for RingSlot {}

impl RingSlot {
    /// Writes the values for `position` of the ring, which is below 2^63. Returns `false`, and
    /// drops the values, if another thread is writing the slot or the slot has a later position.
    pub fn write(&self, position: u64, values: [u64; SLOT_WORDS]) -> bool {
        self.lock.record(position, || {
            self.words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        })
    }

    /// Returns the last position that was written here, and its values. `None` if there is none, or
    /// another thread is writing the slot.
    #[must_use]
    pub fn read(&self) -> Option<(u64, [u64; SLOT_WORDS])> {
        self.lock.read_record(|| self.words.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_collection_grows_and_shrinks() {
        let mut numbers = allocator_api2::vec::Vec::new_in(Mapped);
        (0..100_000_u64).for_each(|n| numbers.push(n));
        assert!(numbers.iter().copied().eq(0..100_000));
        numbers.truncate(10);
        numbers.shrink_to_fit();
        assert_eq!(numbers.as_slice(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let too_aligned = Layout::from_size_align(1, 2 * PAGE).unwrap();
        assert!(Mapped.allocate(too_aligned).is_err());
        assert!(Mapped.allocate(Layout::from_size_align(isize::MAX as usize - 4095, 1).unwrap()).is_err());
    }
}
