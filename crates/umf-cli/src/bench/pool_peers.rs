//! Allocators that umf's pools are measured beside.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

use super::c_umf::{CUmf, Refused};
use super::workload::Allocator;

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

fn layout(size: usize) -> Result<Layout, &'static str> {
    Layout::from_size_align(size, ALIGN).map_err(|_| "too large")
}

impl<A: GlobalAlloc + Sync> Allocator for Host<A> {
    type Block = *mut u8;
    type Error = &'static str;

    #[inline]
    fn allocate(&self, size: usize) -> Result<*mut u8, &'static str> {
        // SAFETY: no size of a workload is 0.
        let pointer = unsafe { self.0.alloc(layout(size)?) };
        if pointer.is_null() { Err("out of memory") } else { Ok(pointer) }
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) -> Result<(), &'static str> {
        // SAFETY: the caller's contract.
        unsafe { self.0.dealloc(block, layout(size)?) };
        Ok(())
    }
}

impl Allocator for CUmf {
    type Block = *mut c_void;
    type Error = Refused;

    #[inline]
    fn allocate(&self, size: usize) -> Result<*mut c_void, Refused> {
        CUmf::allocate(self, size)
    }

    #[inline]
    unsafe fn free(&self, block: *mut c_void, _size: usize) -> Result<(), Refused> {
        // SAFETY: the caller's contract.
        unsafe { CUmf::free(self, block) }
    }
}
