//! The disjoint pool of the C library.

use super::allocator::Allocator;
use crate::bench::c_umf::{CUmf, Refused};

impl Allocator for CUmf {
    /// An address with its provenance exposed: pointers do not go from thread to thread.
    type Block = usize;
    type Error = Refused;

    #[inline]
    fn allocate(&self, size: usize) -> Result<usize, Refused> {
        CUmf::allocate(self, size).map(|pointer| pointer.expose_provenance())
    }

    #[inline]
    unsafe fn free(&self, block: usize, _size: usize) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe { self.free_in_pool(std::ptr::with_exposed_provenance_mut(block)) }
    }

    fn pointer(&self, block: usize) -> Option<*mut u8> {
        Some(std::ptr::with_exposed_provenance_mut(block))
    }

    fn reserved(&self) -> Option<u64> {
        self.provider_bytes()
    }
}

/// The same, by somebody who has forgotten from which pool a block is.
pub(in crate::bench) struct WithoutPool<'a>(pub &'a CUmf);

impl Allocator for WithoutPool<'_> {
    type Block = usize;
    type Error = Refused;

    #[inline]
    fn allocate(&self, size: usize) -> Result<usize, Refused> {
        Allocator::allocate(self.0, size)
    }

    #[inline]
    unsafe fn free(&self, block: usize, _size: usize) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe { CUmf::free(self.0, std::ptr::with_exposed_provenance_mut(block)) }
    }

    fn pointer(&self, block: usize) -> Option<*mut u8> {
        Allocator::pointer(self.0, block)
    }
}
