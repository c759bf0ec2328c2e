//! RegionTable of a provider: [`BufferPerRegion`] has a buffer for each, [`Suballocated`] has one buffer for all, which is there already.

use core::mem::ManuallyDrop;

use umf_core::{Error, Layout, NativeExport, Region, Result};
use umf_os::{AvailableMemory, Mapping, page_size};
use umf_suballoc::{RegionTable, Suballocator};
use umf_sync::Lock;

use crate::buffer::DmaBuf;
use crate::mappings;
use crate::source::BufferSource;

/// RegionTable that are each a dma-buf of their own.
pub(crate) struct BufferPerRegion {
    source: BufferSource,
    /// Some exporters take pages until none is left, and ask the out-of-memory killer for more.
    room: AvailableMemory,
    /// What buffers are called.
    name: String,
    regions: Lock<RegionTable<DmaBuf>>,
}

impl core::fmt::Debug for BufferPerRegion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}, {:?}", self.source, self.name)
    }
}

impl BufferPerRegion {
    pub(crate) fn new(source: BufferSource, name: String) -> Self {
        let room =
            if source.is_charged_to_cgroup() { AvailableMemory::find() } else { AvailableMemory::default() };
        Self { source, room, name, regions: Lock::new(RegionTable::new("this dma-buf provider")) }
    }

    pub(crate) const fn source(&self) -> &BufferSource {
        &self.source
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let page = self.source.page_size();
        let size = layout.pad_to(page)?.size();
        let align = layout.align().max(page);
        if let Some(owner) = self.source.page_owner() {
            self.room.check(size, owner)?;
        }
        let buffer = self.source.make(size)?;
        // A kernel that takes no names shows none.
        match buffer.set_name(&self.name) {
            Ok(()) | Err(Error::NotSupported { .. }) => {}
            Err(error) => return Err(error),
        }
        let mapping = buffer.map(0, size, align, true)?;
        let region = Region::new(mapping.address(), size);
        self.regions.lock().insert(region, buffer.clone())?;
        mappings::add(mapping.leak(), size, buffer, true);
        Ok(region)
    }

    /// # Safety
    /// As `Provider::free`.
    pub(crate) unsafe fn free(&self, region: &Region) -> Result<()> {
        // Forgotten first: once unmapped, another thread may get the same address.
        let buffer = self.regions.lock().remove(region)?;
        mappings::remove(region.base());
        // SAFETY: mapped by `allocate`, and nothing uses it, says the caller.
        let mapping = unsafe { Mapping::of_region(region) };
        mapping.map_or(Ok(()), Mapping::unmap_or_leak).inspect_err(|_| {
            mappings::add(region.base(), region.size(), buffer.clone(), true);
            // The node that the region had is most likely still free.
            let _ = self.regions.lock().insert(*region, buffer);
        })
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.regions.lock().get(region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        let mut export = NativeExport::from_fd(self.regions.lock().get(region)?.checked_fd()?, 0);
        export.isolated = true;
        Ok(export)
    }
}

/// One buffer, mapped once, and which parts of it are taken.
#[derive(Debug)]
pub(crate) struct Suballocated {
    buffer: DmaBuf,
    mapping: ManuallyDrop<Mapping>,
    /// Places are addresses.
    suballocator: Suballocator,
}

impl Suballocated {
    /// Maps the whole pages of a buffer.
    pub(crate) fn new(buffer: DmaBuf) -> Result<Self> {
        let page = page_size();
        let size = usize::try_from(buffer.size()).unwrap_or(usize::MAX) / page * page;
        if size == 0 {
            return Err(Error::InvalidArgument { what: "dma-buf", why: "must have at least one page" });
        }
        // A start that has the alignment of huge pages, where buffer and addresses have room for it.
        let align = if size >= 2 << 20 { 2 << 20 } else { page };
        let mapping = buffer.map(0, size, align, true)?;
        let start = mapping.address().to_bits();
        let suballocator = Suballocator::new(start, start + size as u64, "the dma-buf that was given")?;
        mappings::add(mapping.address(), size, buffer.clone(), true);
        Ok(Self { buffer, mapping: ManuallyDrop::new(mapping), suballocator })
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        self.suballocator.allocate_pages(layout, page_size())
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        self.suballocator.free(region, |_| Ok(()))
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.suballocator.place_of(region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        let offset = self.suballocator.place_of(region)? - self.mapping.address().to_bits();
        let mut export = NativeExport::from_fd(self.buffer.checked_fd()?, offset);
        export.isolated = region.size() == self.mapping.size();
        Ok(export)
    }
}

impl Drop for Suballocated {
    fn drop(&mut self) {
        // With regions that were not freed it stays mapped: they may still be in use.
        if self.suballocator.live() == 0 {
            mappings::remove(self.mapping.address());
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
