//! [`CudaProvider`].

use core::mem::ManuallyDrop;
use std::borrow::Cow;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use cuda_sys::*;
use umf_core::statistics::Gauge;
use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, NativeBytes, NativeExport, Properties, Property,
    PropertyValue, Provider, ProviderKind, Region, Result, Transfer, Visibility,
};

use crate::allocated::Allocated;
use crate::builder::{CudaBuilder, CudaMemory};
use crate::context::Context;
use crate::copies::Copies;
use crate::driver::{Driver, error};
use crate::event::Events;
use crate::form::{self, ExportForm, KIND};
use crate::import::CudaImport;
use crate::space::Space;
use crate::{live, physical};

/// Memory of CUDA devices, and memory of the host that they reach.
///
/// Made with [`CudaProvider::builder`]. Thread-safe. No call leaves the caller's current context another than it was.
///
/// Freeing memory of kinds `device`, `host` and `managed` waits for the device, as the driver has it: let a pool keep it, and free
/// blocks with [`CudaProvider::after`].
///
/// Dropping a provider frees no region. In a forked child it is frozen: allocating is [`Error::Frozen`], and freeing does nothing.
#[derive(Debug)]
pub struct CudaProvider {
    name: Cow<'static, str>,
    memory: CudaMemory,
    pub(crate) context: Arc<Context>,
    /// Contexts of peers that were given access.
    _peers: Vec<Context>,
    form: ManuallyDrop<Form>,
    import: CudaImport,
    pub(crate) events: Arc<Events>,
    gauge: Gauge,
}

#[derive(Debug)]
pub(crate) enum Form {
    Allocated(Box<Allocated>),
    Virtual(Box<Space>),
}

impl CudaProvider {
    /// Sets a provider up.
    pub const fn builder() -> CudaBuilder {
        CudaBuilder::new()
    }

    pub(crate) fn new(
        name: Cow<'static, str>,
        memory: CudaMemory,
        context: Arc<Context>,
        peers: Vec<Context>,
        form: Form,
        import: CudaImport,
    ) -> Self {
        let form = ManuallyDrop::new(form);
        let events = Events::new(Arc::clone(&context));
        Self { name, memory, context, _peers: peers, form, import, events, gauge: Gauge::new() }
    }

    /// The kind of its memory.
    pub const fn memory(&self) -> CudaMemory {
        self.memory
    }

    /// The device, by its place among those that the process sees.
    pub fn device(&self) -> i32 {
        self.context.device()
    }

    /// The driver that it is of.
    pub fn driver(&self) -> &'static Driver {
        self.context.driver()
    }

    /// The context that it works in, a `CUcontext`.
    pub fn context(&self) -> *mut core::ffi::c_void {
        self.context.handle().0
    }

    /// What opens memory of other processes: memory of its device in its own context, whatever kind its own memory is.
    pub const fn importer(&self) -> &CudaImport {
        &self.import
    }

    /// Bytes and regions that are allocated now, and the most bytes there have been.
    pub const fn statistics(&self) -> &Gauge {
        &self.gauge
    }

    /// A dma-buf over a live region, for another driver: a network card's, for one.
    ///
    /// # Errors
    /// [`Error::NotSupported`] where the device or the system has none, [`Error::ForeignAddress`] if the region is not a live one
    /// of this provider, [`Error::Driver`].
    pub fn dma_buf(&self, region: &Region) -> Result<OwnedFd> {
        self.check(region)?;
        let mut number = -1_i32;
        let current = self.context.enter()?;
        // SAFETY: a place for a number, which is what this form is; the region is live.
        unsafe {
            current.api().cuMemGetHandleForAddressRange(
                (&raw mut number).cast(),
                region.base().value(),
                region.size(),
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        }
        .map_err(error)?;
        // SAFETY: the driver opened it for us.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        physical::close_on_exec(&fd);
        Ok(fd)
    }

    fn is_inherited(&self) -> bool {
        self.context.driver().is_inherited()
    }

    fn check_not_inherited(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::Frozen { what: "CUDA memory" }) } else { Ok(()) }
    }

    fn check(&self, region: &Region) -> Result<()> {
        self.check_not_inherited()?;
        match &*self.form {
            Form::Allocated(allocated) => allocated.raw_of(region).map(drop),
            Form::Virtual(space) => space.check(region),
        }
    }
}

// SAFETY: regions are what the driver allocated, or ranges of a reservation into which it mapped physical memory, and go by `free`
// only; pinned and managed memory may be touched by the CPU, and no other says that it may.
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
        match &*self.form {
            Form::Allocated(allocated) => allocated.page_size(),
            Form::Virtual(space) => space.page_size(),
        }
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.check_not_inherited()?;
        let region = match &*self.form {
            Form::Allocated(allocated) => allocated.allocate(layout),
            Form::Virtual(space) => space.allocate(layout),
        }?;
        self.gauge.add(region.size());
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        match &*self.form {
            Form::Allocated(allocated) => allocated.free(&region),
            Form::Virtual(space) => space.free(&region),
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
        Some(&Copies::OF_ALL)
    }
}

impl Export for CudaProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        self.check(region)?;
        let uuid = self.context.uuid();
        let current = self.context.enter()?;
        match &*self.form {
            Form::Virtual(space) if space.has_fds() => {
                let fd = space.physical_of(region)?.export_fd(&self.context)?;
                let mut export = NativeExport::from_fd(Arc::new(fd), 0);
                export.native = form::with_fd(uuid, region.size())?;
                export.allocation_id = form::tag(ExportForm::Fd, uuid);
                export.isolated = true;
                Ok(export)
            }
            Form::Virtual(space) => {
                let handle = space.physical_of(region)?.export_fabric(&self.context)?;
                let mut export = NativeExport::from_bytes(
                    NativeBytes::new(&handle.data)?,
                    form::tag(ExportForm::Fabric, uuid),
                );
                export.isolated = true;
                Ok(export)
            }
            Form::Allocated(allocated) => {
                let raw = allocated.raw_of(region)?;
                let mut handle = CUipcMemHandle { reserved: [0; 64] };
                // SAFETY: a place for the answer; the memory is live.
                unsafe { current.api().cuIpcGetMemHandle(&raw mut handle, raw.address) }.map_err(error)?;
                live::add_handle(handle.reserved, &raw);
                let tag = form::tag(ExportForm::Legacy, uuid);
                let mut export = NativeExport::from_bytes(NativeBytes::new(&handle.reserved)?, tag);
                // Where drivers do not align, the region is a part of what the handle opens.
                export.offset = region.base().value().saturating_sub(raw.address);
                export.isolated = true;
                Ok(export)
            }
        }
    }

    fn uses_fd_per_export(&self) -> bool {
        matches!(&*self.form, Form::Virtual(space) if space.has_fds())
    }

    fn fd_opens_through_procfs(&self) -> bool {
        // What would be opened is the driver's device once more, without the memory.
        false
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
            // SAFETY: dropped once, here, and not used after. (In a child its tables may have been in the middle of a change.)
            unsafe { ManuallyDrop::drop(&mut self.form) };
        }
    }
}

/// Where an address is for the driver.
pub(crate) fn pointer(address: Address) -> CUdeviceptr {
    address.value()
}
