//! Allocators that umf's pools are measured beside.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

use super::c_umf::CUmf;
use super::measure::told;
use super::workload::Allocator;
use crate::failure::Failure;

const ALIGN: usize = 8;

/// A host allocator.
pub(super) struct Host<A>(pub A);

impl Host<System> {
    /// That of the C library of the system.
    pub(super) const SYSTEM: Self = Host(System);
}

#[cfg(feature = "peers")]
impl Host<mimalloc::MiMalloc> {
    pub(super) const MIMALLOC: Self = Host(mimalloc::MiMalloc);
}

#[cfg(feature = "peers")]
impl Host<tikv_jemallocator::Jemalloc> {
    pub(super) const JEMALLOC: Self = Host(tikv_jemallocator::Jemalloc);
}

fn layout(size: usize) -> Result<Layout, Failure> {
    Layout::from_size_align(size, ALIGN).map_err(told)
}

impl<A: GlobalAlloc + Sync> Allocator for Host<A> {
    type Block = *mut u8;

    #[inline]
    fn allocate(&self, size: usize) -> Result<*mut u8, Failure> {
        // SAFETY: no size of a workload is 0.
        let pointer = unsafe { self.0.alloc(layout(size)?) };
        if pointer.is_null() { Err(Failure::Told("out of memory".to_owned())) } else { Ok(pointer) }
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) -> Result<(), Failure> {
        // SAFETY: the caller's contract.
        unsafe { self.0.dealloc(block, layout(size)?) };
        Ok(())
    }
}

impl Allocator for CUmf {
    type Block = *mut c_void;

    #[inline]
    fn allocate(&self, size: usize) -> Result<*mut c_void, Failure> {
        CUmf::allocate(self, size)
    }

    #[inline]
    unsafe fn free(&self, block: *mut c_void, _size: usize) -> Result<(), Failure> {
        // SAFETY: the caller's contract.
        unsafe { CUmf::free(self, block) }
    }
}
