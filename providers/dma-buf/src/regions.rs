//! Regions of a provider: [`BufferPerRegion`] has a buffer per region, [`Suballocated`] has one
//! existing buffer for all regions.

use core::mem::ManuallyDrop;

use umf_core::{Error, Layout, NativeExport, Region, Result};
use umf_os::{AvailableMemory, Mapping, page_size};
use umf_suballoc::{RegionTable, Suballocator};
use umf_sync::Lock;

use crate::buffer::DmaBuf;
use crate::mappings;
use crate::source::BufferSource;

/// Regions that each are a whole dma-buf.
pub(crate) struct BufferPerRegion {
    source: BufferSource,
    /// The available memory. Some exporters allocate pages until the OOM killer runs.
    available: AvailableMemory,
    /// The name of the buffers.
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
        let available =
            if source.is_charged_to_cgroup() { AvailableMemory::find() } else { AvailableMemory::default() };
        Self { source, available, name, regions: Lock::new(RegionTable::new("this dma-buf provider")) }
    }

    pub(crate) const fn source(&self) -> &BufferSource {
        &self.source
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        let page = self.source.page_size();
        let size = layout.pad_to(page)?.size();
        let align = layout.align().max(page);
        if let Some(owner) = self.source.page_owner() {
            self.available.check(size, owner)?;
        }
        let buffer = self.source.create(size)?;
        // Before Linux 5.3, buffers have no names.
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
        // Removed before it is unmapped: afterwards another thread may get the same address.
        let buffer = self.regions.lock().remove(region)?;
        mappings::remove(region.base());
        // SAFETY: `allocate` created the mapping, and by the caller's contract it is not in use.
        let mapping = unsafe { Mapping::of_region(region) };
        mapping.map_or(Ok(()), Mapping::unmap_or_leak).inspect_err(|_| {
            mappings::add(region.base(), region.size(), buffer.clone(), true);
            // The tree node of the region is most likely still free, so this does not allocate.
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

/// A buffer that is mapped once, and the suballocator of its regions.
#[derive(Debug)]
pub(crate) struct Suballocated {
    buffer: DmaBuf,
    mapping: ManuallyDrop<Mapping>,
    /// Its places are addresses.
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
        // Aligned to huge pages, if the buffer is that large.
        let align = if size >= 2 << 20 { 2 << 20 } else { page };
        let mapping = buffer.map(0, size, align, true)?;
        let start = mapping.address().to_bits();
        let suballocator = Suballocator::new(start, start + size as u64, "the existing dma-buf")?;
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
        self.suballocator.offset_of(region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        let offset = self.suballocator.offset_of(region)? - self.mapping.address().to_bits();
        let mut export = NativeExport::from_fd(self.buffer.checked_fd()?, offset);
        export.isolated = region.size() == self.mapping.size();
        Ok(export)
    }
}

impl Drop for Suballocated {
    fn drop(&mut self) {
        // With live regions it stays mapped, because they may still be in use.
        if self.suballocator.live() == 0 {
            mappings::remove(self.mapping.address());
            // SAFETY: the field is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
