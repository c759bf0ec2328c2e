//! [`Carved`]: regions out of one buffer that is there already.

use core::mem::ManuallyDrop;

use umf_carve::Carver;
use umf_core::{Error, Layout, NativeExport, Region, Result};
use umf_memory::{Mapping, page_size};

use crate::buffer::DmaBuf;
use crate::live;

/// One buffer, mapped once, and which parts of it are taken.
#[derive(Debug)]
pub(crate) struct Carved {
    buffer: DmaBuf,
    mapping: ManuallyDrop<Mapping>,
    /// Places are addresses.
    carver: Carver,
}

impl Carved {
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
        let carver = Carver::new(start, start + size as u64, "the dma-buf that was given")?;
        live::add(mapping.address(), size, buffer.clone(), true);
        Ok(Self { buffer, mapping: ManuallyDrop::new(mapping), carver })
    }

    pub(crate) fn allocate(&self, layout: Layout) -> Result<Region> {
        self.carver.allocate_pages(layout, page_size())
    }

    pub(crate) fn free(&self, region: &Region) -> Result<()> {
        self.carver.free(region, |_| Ok(()))
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.carver.place_of(region).map(drop)
    }

    pub(crate) fn export(&self, region: &Region) -> Result<NativeExport> {
        let offset = self.carver.place_of(region)? - self.mapping.address().to_bits();
        let mut export = NativeExport::from_fd(self.buffer.checked_fd()?, offset);
        export.isolated = region.size() == self.mapping.size();
        Ok(export)
    }
}

impl Drop for Carved {
    fn drop(&mut self) {
        // With regions that were not freed it stays mapped: they may still be in use.
        if self.carver.live() == 0 {
            live::remove(self.mapping.address());
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
