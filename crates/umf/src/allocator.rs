//! Pools as allocators of collections.

use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};
use umf_core::{Address, Layout};

use crate::Pool;

// SAFETY: blocks of a pool stay where they are until freed, a pool is kept by the reference, and its clones (copies of
// the reference) are the same pool. Memory that the CPU cannot touch is refused.
unsafe impl Allocator for &Pool {
    fn allocate(&self, layout: std::alloc::Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let dangling =
                NonNull::new(std::ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(dangling, 0));
        }
        if !self.provider().memory_kind().is_host_accessible() {
            return Err(AllocError);
        }
        let checked = Layout::try_from(layout).map_err(|_| AllocError)?;
        let address = umf_core::pool::allocate(self.as_core(), checked).map_err(|_| AllocError)?;
        let pointer = address.as_ptr().and_then(NonNull::new).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(pointer, layout.size()))
    }

    unsafe fn deallocate(&self, pointer: NonNull<u8>, layout: std::alloc::Layout) {
        if layout.size() == 0 {
            return;
        }
        // SAFETY: the caller's contract: `pointer` came from `allocate` and is not used any more.
        let freed = unsafe { umf_core::pool::free(self.as_core(), Address::from_ptr(pointer.as_ptr())) };
        debug_assert!(freed.is_ok(), "{freed:?}");
    }
}
