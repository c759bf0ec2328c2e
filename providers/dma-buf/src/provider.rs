//! [`DmaBufProvider`]: the provider over dma-bufs.

use core::mem::ManuallyDrop;
use std::borrow::Cow;
use std::os::fd::OwnedFd;

use umf_core::statistics::Gauge;
use umf_core::{
    Error, Export, HostAccess, Import, Layout, MemoryKind, NativeExport, Properties, Property, PropertyValue,
    Provider, ProviderKind, Region, Result, Visibility,
};
use umf_os::page_size;
use umf_sync::fork;

use crate::builder::DmaBufBuilder;
use crate::mappings::{CpuSync, DmaBufImport, KIND};
use crate::regions::{BufferPerRegion, Suballocated};

/// A provider of memory in dma-bufs, which devices can import.
///
/// Built with [`DmaBufProvider::udmabuf`], [`DmaBufProvider::heap`] or [`DmaBufProvider::over`].
/// Thread-safe.
///
/// Each region is a buffer with an fd of its own, except with [`DmaBufProvider::over`], so use
/// large regions and a pool. The pages of a region are populated and pinned when it is allocated,
/// and are freed when the last process and device has released the buffer.
///
/// Dropping a provider does not unmap live regions, because they may still be in use. In a forked
/// child the provider is frozen: allocating fails with [`Error::Frozen`], and freeing does nothing,
/// because the memory belongs to the parent.
#[derive(Debug)]
pub struct DmaBufProvider {
    name: Cow<'static, str>,
    /// The fork generation of the creation. In a child the locks of the provider are never taken.
    generation: u32,
    regions: ManuallyDrop<Regions>,
    import: DmaBufImport,
    gauge: Gauge,
}

#[derive(Debug)]
pub(crate) enum Regions {
    PerBuffer(Box<BufferPerRegion>),
    Suballocated(Box<Suballocated>),
}

impl DmaBufProvider {
    /// Returns a builder of a provider of host memory, from `/dev/udmabuf`.
    ///
    /// # Errors
    /// As [`crate::Udmabuf::open`].
    pub fn udmabuf() -> Result<DmaBufBuilder> {
        DmaBufBuilder::udmabuf()
    }

    /// Returns a builder of a provider of memory from a heap, such as `system`.
    ///
    /// # Errors
    /// As [`crate::Heap::open`].
    pub fn heap(name: &str) -> Result<DmaBufBuilder> {
        DmaBufBuilder::heap(name)
    }

    /// Returns a builder of a provider over an existing buffer, such as the export of a driver.
    /// Regions are parts of the buffer, so an importer of one region has access to all.
    ///
    /// # Errors
    /// As [`crate::DmaBuf::from_fd`].
    pub fn over(fd: OwnedFd) -> Result<DmaBufBuilder> {
        DmaBufBuilder::over(fd)
    }

    pub(crate) fn new(name: Cow<'static, str>, regions: Regions) -> Self {
        Self {
            name,
            generation: fork::generation(),
            regions: ManuallyDrop::new(regions),
            import: DmaBufImport::new(),
            gauge: Gauge::new(),
        }
    }

    /// Returns the number of allocated bytes and regions, and the peak of the bytes.
    pub const fn statistics(&self) -> &Gauge {
        &self.gauge
    }

    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "dma-buf memory" }) } else { Ok(()) }
    }
}

// SAFETY: each region is a mapping of a buffer of its own, or a range of a mapping that no other
// live region has. The CPU can read and write it, and only `free` unmaps it.
unsafe impl Provider for DmaBufProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        match &*self.regions {
            Regions::PerBuffer(buffers) => buffers.source().page_size(),
            Regions::Suballocated(_) => page_size(),
        }
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.check_not_inherited()?;
        let region = match &*self.regions {
            Regions::PerBuffer(buffers) => buffers.allocate(layout),
            Regions::Suballocated(buffer) => buffer.allocate(layout),
        }?;
        self.gauge.add(region.size());
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        match &*self.regions {
            // SAFETY: the caller's contract.
            Regions::PerBuffer(buffers) => unsafe { buffers.free(&region) },
            Regions::Suballocated(buffer) => buffer.free(&region),
        }?;
        self.gauge.remove(region.size());
        Ok(())
    }

    fn zeroed(&self) -> bool {
        matches!(*self.regions, Regions::PerBuffer(_))
    }

    fn export(&self) -> Option<&dyn Export> {
        Some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&self.import)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        Some(self)
    }

    fn host_access(&self) -> Option<&dyn HostAccess> {
        Some(&CpuSync)
    }
}

impl Export for DmaBufProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        self.check_not_inherited()?;
        match &*self.regions {
            Regions::PerBuffer(buffers) => buffers.export(region),
            Regions::Suballocated(buffer) => buffer.export(region),
        }
    }

    fn uses_fd_per_export(&self) -> bool {
        // The buffers are open whether or not regions are exported.
        false
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // A dma-buf has no path, so `/proc/<pid>/fd` cannot reopen it.
        false
    }
}

impl Properties for DmaBufProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.check_not_inherited()?;
        match &*self.regions {
            Regions::PerBuffer(buffers) => buffers.check(region),
            Regions::Suballocated(buffer) => buffer.check(region),
        }?;
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(region.id().get())),
            _ => Err(Error::NotSupported { what: "this property", owner: "the dma-buf provider", native: 0 }),
        }
    }
}

impl Drop for DmaBufProvider {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // Not in a child, because another thread may have been changing the tables at the fork.
            // SAFETY: the field is dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.regions) };
        }
    }
}
