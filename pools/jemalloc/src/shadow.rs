//! [`Shadow`]: reserved address ranges that stand for memory whose own addresses jemalloc cannot
//! use.
//!
//! jemalloc knows blocks by process addresses of 47 bits. For memory in another address space, or
//! beyond these bits, the pool reserves a range of addresses without access. jemalloc allocates
//! from this range, and the pool translates between its addresses (`je_address`) and those of the
//! memory (`real_address`).

use core::cell::Cell;
use core::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use umf_core::{Address, Error, Layout, MemoryKind, Provider, ProviderKind, Region, Result, Visibility};

use crate::je::PAGE;

/// The end of the addresses that jemalloc can use.
pub(crate) const JEMALLOC_ADDRESSES: u64 = 1 << 47;

/// The distance between memory and its shadow is a multiple of this, so that both are aligned
/// alike.
pub(crate) const SHADOW_ALIGNMENT: usize = 1 << 30;

thread_local! {
    /// The remainder by [`SHADOW_ALIGNMENT`] that the next range of this thread gets.
    pub(crate) static REMAINDER: Cell<usize> = const { Cell::new(0) };
}

/// A provider of address ranges without memory.
pub(crate) struct Shadow;

fn overflow(layout: Layout) -> Error {
    Error::SizeOverflow { size: layout.size(), align: layout.align() }
}

// SAFETY: each region is a mapping of its own, without access, as the memory kind says.
unsafe impl Provider for Shadow {
    fn kind(&self) -> ProviderKind {
        ProviderKind::new("shadow").unwrap_or(ProviderKind::HOST)
    }

    fn name(&self) -> &str {
        "shadow"
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn visibility(&self) -> Visibility {
        Visibility::Private
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let layout = layout.pad_to(PAGE)?;
        let size = layout.size();
        let all = size.checked_add(SHADOW_ALIGNMENT - PAGE).ok_or(overflow(layout))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing
        // memory.
        let mapped = unsafe { mmap_anonymous(null_mut(), all, ProtFlags::empty(), flags) };
        let first = mapped.map_err(|error| Error::OutOfMemory {
            size,
            owner: "the address space",
            native: error.raw_os_error(),
        })?;
        let before = REMAINDER.get().wrapping_sub(first.addr()) % SHADOW_ALIGNMENT;
        let begin = first.wrapping_byte_add(before);
        let after = all - before - size;
        // SAFETY: both ranges are parts of the mapping above, which no other code knows.
        unsafe {
            if before > 0 {
                let _ = munmap(first, before);
            }
            if after > 0 {
                let _ = munmap(begin.wrapping_byte_add(size), after);
            }
        }
        Ok(Region::new(Address::from_ptr(begin), size))
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let address = region.base();
        let begin = address.as_ptr().ok_or(Error::ForeignAddress { address, owner: "the shadow" })?;
        // SAFETY: `allocate` mapped the range, and the caller does not use it any more.
        unsafe { munmap(begin.cast(), region.size()) }
            .map_err(|error| Error::native("munmap", error.raw_os_error()))
    }
}
