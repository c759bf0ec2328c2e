//! [`Shadow`]: addresses that stand for memory which jemalloc cannot know by its own.
//!
//! jemalloc knows blocks by addresses of the process, of 47 bits. Memory in an address space of its own, or beyond those bits, is
//! therefore known to it by a range of addresses that are reserved and can never be touched.

use core::cell::Cell;
use core::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use umf_core::{Address, Error, Layout, MemoryKind, Provider, ProviderKind, Region, Result, Visibility};

use crate::je::PAGE;

/// Addresses up to here are jemalloc's to know.
pub(crate) const VISIBLE: u64 = 1 << 47;

/// The distance between memory and its shadow is a multiple of this.
pub(crate) const ALIKE: usize = 1 << 30;

thread_local! {
    /// What the next range of this thread is to have as a remainder by [`ALIKE`].
    pub(crate) static REMAINDER: Cell<usize> = const { Cell::new(0) };
}

/// A source of addresses without memory.
pub(crate) struct Shadow;

fn overflow(layout: Layout) -> Error {
    Error::SizeOverflow { size: layout.size(), align: layout.align() }
}

// SAFETY: regions are mappings of their own, which nobody can touch, as the kind of memory says.
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
        let all = size.checked_add(ALIKE - PAGE).ok_or(overflow(layout))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, where there is none.
        let mapped = unsafe { mmap_anonymous(null_mut(), all, ProtFlags::empty(), flags) };
        let first = mapped.map_err(|error| Error::OutOfMemory {
            size,
            owner: "the address space",
            native: error.raw_os_error(),
        })?;
        let before = REMAINDER.get().wrapping_sub(first.addr()) % ALIKE;
        let begin = first.wrapping_byte_add(before);
        let after = all - before - size;
        // SAFETY: parts of the mapping above, which nobody has seen.
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
        // SAFETY: `allocate` mapped it, and the caller has done with it.
        unsafe { munmap(begin.cast(), region.size()) }
            .map_err(|error| Error::native("munmap", error.raw_os_error()))
    }
}
