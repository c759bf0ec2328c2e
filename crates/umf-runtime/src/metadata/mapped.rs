//! [`Mapped`]: collections whose memory is mappings of their own.

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};

use umf_os::metadata;

/// An allocator for collections that are metadata: each allocation is a mapping, so it takes whole
/// pages, and a system call. For collections that grow seldom; the global allocator, which a pool
/// may be, has no part in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapped;

const PAGE: usize = 4096;

// SAFETY: each allocation is a mapping of its own, and all values of this type are the same.
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
            // SAFETY: `allocate` mapped it, with this size rounded up, which is unused from here
            // on.
            unsafe { metadata::unmap(pointer, layout.size().next_multiple_of(PAGE)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_in_mappings_grows_and_shrinks() {
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
