//! [`CudaProvider`]: allocation and properties. The export of handles is in `handles.rs`.

use core::mem::ManuallyDrop;
use std::borrow::Cow;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use cuda_sys::*;
use umf_core::statistics::Gauge;
use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, Properties, Property, PropertyValue, Provider,
    ProviderKind, Region, Result, Transfer, Visibility,
};

use crate::address_map::Copier;
use crate::builder::{CudaBuilder, CudaMemory};
use crate::context::Context;
use crate::driver::{Driver, driver_error};
use crate::event::EventPool;
use crate::handles::KIND;
use crate::heap::Heap;
use crate::import::CudaImport;
use crate::virtual_memory;
use crate::virtual_memory::VirtualRange;

/// A provider of memory of CUDA devices, and of host memory that they access.
///
/// Made with [`CudaProvider::builder`]. Thread-safe. Every call leaves the caller's current context
/// unchanged.
///
/// The driver waits for the device when it frees memory of kinds `device`, `host` and `managed`.
/// Allocate through a pool, and free blocks that a stream still uses with
/// [`CudaProvider::record_event`].
///
/// Dropping a provider frees no region. In a forked child, allocating fails with [`Error::Frozen`],
/// and freeing does nothing.
#[derive(Debug)]
pub struct CudaProvider {
    name: Cow<'static, str>,
    memory: CudaMemory,
    pub(crate) context: Arc<Context>,
    /// The retained contexts of peers with access to the memory.
    _peers: Vec<Context>,
    pub(crate) backend: ManuallyDrop<Backend>,
    import: CudaImport,
    pub(crate) events: Arc<EventPool>,
    gauge: Gauge,
}

/// The allocator of a memory kind.
#[derive(Debug)]
pub(crate) enum Backend {
    Heap(Box<Heap>),
    Virtual(Box<VirtualRange>),
}

impl CudaProvider {
    /// Returns a builder.
    pub const fn builder() -> CudaBuilder {
        CudaBuilder::new()
    }

    pub(crate) fn new(
        name: Cow<'static, str>,
        memory: CudaMemory,
        context: Arc<Context>,
        peers: Vec<Context>,
        backend: Backend,
        import: CudaImport,
    ) -> Self {
        let backend = ManuallyDrop::new(backend);
        let events = EventPool::new(Arc::clone(&context));
        Self { name, memory, context, _peers: peers, backend, import, events, gauge: Gauge::new() }
    }

    /// Returns the kind of its memory.
    pub const fn memory(&self) -> CudaMemory {
        self.memory
    }

    /// Returns the ordinal of its device among those that the process sees.
    pub fn device(&self) -> i32 {
        self.context.device()
    }

    /// Returns its driver.
    pub fn driver(&self) -> &'static Driver {
        self.context.driver()
    }

    /// Returns its context, a `CUcontext`.
    pub fn context(&self) -> *mut core::ffi::c_void {
        self.context.handle().0
    }

    /// Returns an importer that uses the provider's context for memory of its device. Providers of
    /// every memory kind have one.
    pub const fn importer(&self) -> &CudaImport {
        &self.import
    }

    /// Returns the gauge of allocated bytes and regions, with the peak of the bytes.
    pub const fn statistics(&self) -> &Gauge {
        &self.gauge
    }

    /// Exports a live region as a dma-buf, for another driver such as a network card's.
    ///
    /// # Errors
    /// - [`Error::NotSupported`] if the device or the system does not support it.
    /// - [`Error::ForeignAddress`] if the region is not a live one of this provider.
    /// - [`Error::Driver`].
    pub fn dma_buf(&self, region: &Region) -> Result<OwnedFd> {
        self.check(region)?;
        let mut number = -1_i32;
        let current = self.context.enter()?;
        // SAFETY: this handle type is an `int`, for which there is a valid pointer; the region is
        // live.
        unsafe {
            current.api().cuMemGetHandleForAddressRange(
                (&raw mut number).cast(),
                region.base().value(),
                region.size(),
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        }
        .map_err(driver_error)?;
        // SAFETY: the driver opened the fd for the caller.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        virtual_memory::close_on_exec(&fd);
        Ok(fd)
    }

    fn is_inherited(&self) -> bool {
        self.context.driver().is_inherited()
    }

    fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "CUDA memory" }) } else { Ok(()) }
    }

    /// Checks that a region is a live one of this provider.
    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.check_not_inherited()?;
        match &*self.backend {
            Backend::Heap(heap) => heap.allocation_of(region).map(drop),
            Backend::Virtual(range) => range.check(region),
        }
    }
}

// SAFETY: a region is a live allocation of the driver, or a range of the reservation with physical
// memory mapped. Only `free` frees it. Only pinned and managed memory is declared host-accessible.
unsafe impl Provider for CudaProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        self.memory.memory_kind()
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        match &*self.backend {
            Backend::Heap(heap) => heap.page_size(),
            Backend::Virtual(range) => range.page_size(),
        }
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.check_not_inherited()?;
        let region = match &*self.backend {
            Backend::Heap(heap) => heap.allocate(layout),
            Backend::Virtual(range) => range.allocate(layout),
        }?;
        self.gauge.add(region.size());
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        match &*self.backend {
            Backend::Heap(heap) => heap.free(&region),
            Backend::Virtual(range) => range.free(&region),
        }?;
        self.gauge.remove(region.size());
        Ok(())
    }

    fn export(&self) -> Option<&dyn Export> {
        matches!(self.memory, CudaMemory::Device | CudaMemory::Virtual).then_some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        matches!(self.memory, CudaMemory::Device | CudaMemory::Virtual).then_some(&self.import)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        Some(self)
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(&Copier::OF_ALL)
    }
}

impl Properties for CudaProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.check(region)?;
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(region.id().get())),
            Property::Node => Ok(PropertyValue::Number(u64::try_from(self.context.device()).unwrap_or(0))),
            Property::Context => Ok(PropertyValue::Handle(self.context.handle().0.addr())),
            Property::Device => {
                Ok(PropertyValue::Handle(usize::try_from(self.context.device()).unwrap_or(0)))
            }
            _ => Err(Error::NotSupported { what: "this property", owner: "the CUDA provider", native: 0 }),
        }
    }
}

impl Drop for CudaProvider {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: dropped once, here, and not used after. A forked child leaks it, since
            // another thread of the parent may have been changing its tables.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        }
    }
}

/// Converts an address to the driver's type.
pub(crate) fn pointer(address: Address) -> CUdeviceptr {
    address.value()
}
