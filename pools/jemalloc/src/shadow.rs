//! The addresses that jemalloc uses, and [`Shadow`]: reserved address ranges for memory whose own
//! addresses jemalloc cannot use.
//!
//! jemalloc identifies blocks by process addresses of 47 bits. For memory in another address space,
//! or beyond these bits, the pool reserves a range of addresses without access: the shadow.
//! jemalloc allocates from this range. The pool translates between an address in it (`je_address`)
//! and the address in memory (`real_address`).

use core::cell::Cell;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use umf_core::{
    Address, AddressSpace, Error, Layout, MemoryKind, Provider, ProviderKind, Region, Result, Visibility,
};
use umf_runtime::Upstream;
use umf_runtime::tracker::{self, RegionNumber};

use crate::JemallocPool;
use crate::je::{self, PAGE};
use crate::pool::FILLS_BLOCKS;

/// The end of the addresses that jemalloc can use.
const JEMALLOC_ADDRESSES: u64 = 1 << 47;

/// The distance between memory and its shadow is a multiple of this, so that both are aligned
/// alike.
const SHADOW_ALIGNMENT: usize = 1 << 30;

thread_local! {
    /// The remainder by [`SHADOW_ALIGNMENT`] that the next range of this thread gets.
    static REMAINDER: Cell<usize> = const { Cell::new(0) };
}

/// A provider of address ranges without memory.
struct Shadow;

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

/// Returns whether jemalloc can use the addresses of these pages.
pub(crate) fn is_known_to_jemalloc(begin: Address, size: usize) -> bool {
    begin.space() == AddressSpace::PROCESS && begin.value() + size as u64 <= JEMALLOC_ADDRESSES
}

impl JemallocPool {
    /// Returns the number of the region that an address of jemalloc lies in.
    pub(crate) fn region_at(&self, je_address: Address) -> Option<u32> {
        if let Some((_, granule)) = self.blocks.granule_at(self.upstream.id(), je_address) {
            return Some(granule.region().0);
        }
        let shadow = self.shadow.get()?.id();
        tracker::find(je_address).filter(|found| found.owner == shadow).map(|found| found.span)
    }

    /// Translates an address of jemalloc to the address in memory.
    pub(crate) fn real_address(&self, je_address: Address) -> Option<Address> {
        let record = self.regions.get(self.region_at(je_address)?)?;
        let offset = je_address.to_bits().checked_sub(record.je_base.load(Ordering::Relaxed))?;
        Some(Address::from_bits(record.real_base.load(Ordering::Relaxed) + offset))
    }

    /// Translates an address in memory of a region to that of jemalloc.
    pub(crate) fn je_address(&self, number: u32, real: Address) -> Option<Address> {
        let record = self.regions.get(number)?;
        let offset = real.to_bits().checked_sub(record.real_base.load(Ordering::Relaxed))?;
        Some(Address::from_bits(record.je_base.load(Ordering::Relaxed) + offset))
    }

    /// Reserves a shadow for memory whose own addresses jemalloc cannot use.
    pub(crate) fn reserve_shadow(&self, real: Address, size: usize) -> Result<(Region, RegionNumber)> {
        if je::fills_blocks() {
            return Err(FILLS_BLOCKS);
        }
        let shadow = match self.shadow.get() {
            Some(shadow) => shadow,
            None => {
                let made = Upstream::new(Arc::new(Shadow))?;
                self.shadow.get_or_init(|| made)
            }
        };
        REMAINDER.set((real.value() % SHADOW_ALIGNMENT as u64) as usize);
        shadow.allocate(Layout::new(size, PAGE)?)
    }

    /// Unmaps the shadow of a region, if there is one.
    pub(crate) fn free_shadow(&self, region: Option<Region>) {
        if let (Some(shadow), Some(region)) = (self.shadow.get(), region) {
            // SAFETY: the range is never accessed, and jemalloc has freed all its extents.
            let _ = unsafe { shadow.free(region) };
        }
    }
}
