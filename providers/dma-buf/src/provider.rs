//! [`DmaBufProvider`].

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
use crate::import::{DmaBufImport, KIND};
use crate::mappings::CpuSync;
use crate::regions::{BufferPerRegion, Suballocated};

/// Memory in dma-bufs, which devices can import.
///
/// Made with [`DmaBufProvider::udmabuf`], [`DmaBufProvider::heap`] or [`DmaBufProvider::over`]. Thread-safe.
///
/// BufferPerRegion region is a buffer of its own, and so a descriptor (but for [`DmaBufProvider::over`]); let a pool make large ones. Its pages
/// are there from the beginning, cannot be swapped, and stay until the last process and device has let go of it.
///
/// Dropping a provider does not unmap regions that were not freed: whoever has one may still use it. In a forked child it is
/// frozen: allocating is [`Error::Frozen`], and freeing does nothing, since the memory is still the parent's.
#[derive(Debug)]
pub struct DmaBufProvider {
    name: Cow<'static, str>,
    /// The fork generation in which it was made: in a child none of its locks are taken.
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
    /// Memory of the host that devices can import, from `/dev/udmabuf`.
    ///
    /// # Errors
    /// As [`crate::Udmabuf::open`].
    pub fn udmabuf() -> Result<DmaBufBuilder> {
        DmaBufBuilder::udmabuf()
    }

    /// Memory from the heap of this name, `system` for one.
    ///
    /// # Errors
    /// As [`crate::Heap::open`].
    pub fn heap(name: &str) -> Result<DmaBufBuilder> {
        DmaBufBuilder::heap(name)
    }

    /// Memory of a buffer that is there already: the export of a driver. Regions are parts of it, so that an importer that is
    /// handed one could look at the others.
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

    /// Bytes and regions that are allocated now, and the most bytes there have been.
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

// SAFETY: regions are mappings of buffers of their own (or of ranges of one that no other live region has), of memory that the
// CPU can read and write, and are unmapped by `free` only.
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
            Regions::PerBuffer(each) => each.source().page_size(),
            Regions::Suballocated(_) => page_size(),
        }
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.check_not_inherited()?;
        let region = match &*self.regions {
            Regions::PerBuffer(each) => each.allocate(layout),
            Regions::Suballocated(carved) => carved.allocate(layout),
        }?;
        self.gauge.add(region.size());
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        match &*self.regions {
            // SAFETY: passed on to the caller.
            Regions::PerBuffer(each) => unsafe { each.free(&region) },
            Regions::Suballocated(carved) => carved.free(&region),
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
            Regions::PerBuffer(each) => each.export(region),
            Regions::Suballocated(carved) => carved.export(region),
        }
    }

    fn uses_fd_per_export(&self) -> bool {
        // The buffers are open anyway, exported or not.
        false
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // A dma-buf has no file that could be opened again.
        false
    }
}

impl Properties for DmaBufProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.check_not_inherited()?;
        match &*self.regions {
            Regions::PerBuffer(each) => each.check(region),
            Regions::Suballocated(carved) => carved.check(region),
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
            // SAFETY: dropped once, here, and not used after. (In a child its tables may have been in the middle of a change.)
            unsafe { ManuallyDrop::drop(&mut self.regions) };
        }
    }
}
