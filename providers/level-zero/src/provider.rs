//! [`LevelZeroProvider`]: allocation, residency, and exchange of memory with other interfaces as
//! fds. The export of handles to other processes is in `handles.rs`.

use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use level_zero_sys::{
    Api, ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD, ZE_MEMORY_TYPE_DEVICE,
    ZE_MEMORY_TYPE_HOST, ZE_MEMORY_TYPE_SHARED, ze_context_handle_t, ze_device_handle_t,
    ze_driver_memory_free_policy_ext_flags_t, ze_external_memory_type_flags_t, ze_memory_type_t,
};
use umf_core::statistics::Gauge;
use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, Properties, Property, PropertyValue, Provider,
    ProviderKind, Region, Result, Transfer, Visibility,
};
use umf_os::is_dma_buf;
use umf_suballoc::RegionTable;
use umf_sync::{Lock, LockGuard};

use crate::builder::LevelZeroBuilder;
use crate::context::{Context, DeviceSelector, RelaxedLimits};
use crate::copy_engine::CopyEngine;
use crate::handles::{self, HandleFormat, IssuedHandle, ProbedFormat};
use crate::import::{KIND, LevelZeroImport};
use crate::native::{self, AllocationDesc, allocation_error, driver_error};

/// A provider of Level Zero memory: of a device, of the host for devices, or shared between both.
///
/// Made with [`LevelZeroProvider::device`], [`LevelZeroProvider::host`],
/// [`LevelZeroProvider::managed`] or [`LevelZeroProvider::from_context`]. Thread-safe.
///
/// Each region is one allocation of the driver: allocate through a pool. The CPU must not access
/// device memory; command lists of the device copy it ([`Transfer`]). Device memory can be
/// exported to other processes.
///
/// Drivers do not survive a fork. In a forked child, allocating fails with [`Error::Frozen`], and
/// freeing does nothing.
#[derive(Debug)]
pub struct LevelZeroProvider {
    pub(crate) config: Config,
    regions: Lock<LiveRegions>,
    format: ProbedFormat,
    import: LevelZeroImport,
    gauge: Gauge,
}

/// The live regions of a provider, and the devices on which they are resident.
#[derive(Debug)]
pub(crate) struct LiveRegions {
    pub live: RegionTable<RegionRecord>,
    pub residents: Vec<ze_device_handle_t>,
}

/// A live region.
#[derive(Debug)]
pub(crate) struct RegionRecord {
    /// The driver's id of the allocation. A later allocation at the same address has another id.
    pub allocation_id: u64,
    /// The handles of its live exports.
    pub issued: Vec<IssuedHandle>,
}

/// The options of a provider, as its builder checked them.
#[derive(Debug)]
pub(crate) struct Config {
    pub name: Cow<'static, str>,
    pub engine: Arc<CopyEngine>,
    pub kind: ze_memory_type_t,
    pub ordinal: u32,
    /// Page size in bytes.
    pub page: usize,
    pub free_policy: Option<ze_driver_memory_free_policy_ext_flags_t>,
    pub exportable: ze_external_memory_type_flags_t,
    pub handles: HandleFormat,
}

impl LevelZeroProvider {
    /// Returns a builder for device memory.
    pub fn device(device: DeviceSelector) -> LevelZeroBuilder {
        LevelZeroBuilder::selected(device, ZE_MEMORY_TYPE_DEVICE)
    }

    /// Returns a builder for host memory that the devices of a driver can access.
    pub fn host(device: DeviceSelector) -> LevelZeroBuilder {
        LevelZeroBuilder::selected(device, ZE_MEMORY_TYPE_HOST)
    }

    /// Returns a builder for memory that migrates between the host and a device.
    pub fn managed(device: DeviceSelector) -> LevelZeroBuilder {
        LevelZeroBuilder::selected(device, ZE_MEMORY_TYPE_SHARED)
    }

    /// Returns a builder for memory in a context of the application.
    ///
    /// `kind` is `ZE_MEMORY_TYPE_DEVICE`, `_HOST` or `_SHARED`. Device and shared memory is
    /// allocated on `device`, which also copies. For host memory `device` may be null: with one
    /// driver its first device copies, with several drivers the provider has no [`Transfer`].
    ///
    /// # Safety
    /// - `context` and `device` are live handles from `api`; `device` (unless null) belongs to
    ///   `context`.
    /// - Both stay alive until the provider is dropped, all of its regions are freed, and all of
    ///   its imports are released.
    pub unsafe fn from_context(
        api: Api,
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        kind: ze_memory_type_t,
    ) -> LevelZeroBuilder {
        LevelZeroBuilder::from_context(api, context, device, kind)
    }

    pub(crate) fn new(config: Config) -> Self {
        let import = LevelZeroImport::for_provider(Arc::clone(&config.engine));
        let format = ProbedFormat::new(config.handles);
        let regions =
            LiveRegions { live: RegionTable::new("the Level Zero provider"), residents: Vec::new() };
        Self { config, regions: Lock::new(regions), format, import, gauge: Gauge::new() }
    }

    /// Returns an importer of device memory, for this provider's device and context. Providers of
    /// host and managed memory have one too.
    pub const fn importer(&self) -> &LevelZeroImport {
        &self.import
    }

    /// Returns the gauge of allocated bytes and regions, with the peak of the bytes.
    pub const fn statistics(&self) -> &Gauge {
        &self.gauge
    }

    /// Returns the format of exported handles: the configured one, or after the first export with
    /// [`HandleFormat::Auto`] the one that the driver supports.
    #[must_use]
    pub fn handles(&self) -> HandleFormat {
        self.format.get()
    }

    /// Returns the size of the device's cache line in bytes, if the driver reports it.
    pub fn cache_line(&self) -> Option<usize> {
        self.config.engine.device().cache_line
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.config.engine.context()
    }

    pub(crate) const fn native_kind(&self) -> ze_memory_type_t {
        self.config.kind
    }

    pub(crate) const fn handle_format(&self) -> &ProbedFormat {
        &self.format
    }

    /// Locks the region table. Call [`Context::check`] first: in a forked child the lock may never
    /// be released.
    pub(crate) fn regions(&self) -> LockGuard<'_, LiveRegions> {
        self.regions.lock()
    }

    /// Returns the device whose memory can be exchanged as fds.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for host memory.
    pub(crate) fn exportable_device(&self) -> Result<ze_device_handle_t> {
        if self.config.kind == ZE_MEMORY_TYPE_HOST {
            return Err(Error::NotSupported {
                what: "an fd of host memory",
                owner: "the Level Zero provider; use device memory",
                native: 0,
            });
        }
        Ok(self.config.engine.device().handle)
    }

    /// Allocates a region, or imports the memory of an fd as one.
    fn allocate_or_import(
        &self,
        layout: Layout,
        import: Option<(BorrowedFd<'_>, ze_external_memory_type_flags_t)>,
    ) -> Result<Region> {
        let context = self.context();
        context.check()?;
        let layout = layout.pad_to(self.config.page)?.align_to(self.config.page)?;
        let device = self.config.engine.device();
        let relaxed = match device.is_none() {
            // The limit is unknown. Drivers ignore the structure of an extension that they lack.
            true => Some(RelaxedLimits::Experimental),
            false => context.relaxed.filter(|_| layout.size() as u64 > device.max_allocation),
        };
        let desc = AllocationDesc {
            relaxed,
            exportable: if import.is_some() { 0 } else { self.config.exportable },
            import,
            ..self.config.allocation_desc()
        };
        let allocated = native::allocate(context, layout, &desc);
        let base = allocated.map_err(|failure| allocation_error(failure, layout))?;
        let base = base.ok_or(Error::OutOfMemory {
            size: layout.size(),
            owner: "the Level Zero driver, which returned an invalid address",
            native: 0,
        })?;
        let region = Region::new(base, layout.size());
        self.register(region, layout).inspect_err(|_| {
            // The first error is the one to report.
            let _ = native::free(context, base, None);
        })?;
        self.gauge.add(region.size());
        Ok(region)
    }

    /// Checks the alignment of an allocation, makes it resident, and adds it to the tables.
    fn register(&self, region: Region, layout: Layout) -> Result<()> {
        let context = self.context();
        if !region.base().is_aligned_to(layout.align()) {
            return Err(Error::BadAlignment { align: layout.align() });
        }
        let id = native::allocation_info(context, region.base()).map_err(driver_error)?.id;
        let mut regions = self.regions();
        regions.live.ensure(1)?;
        make_resident(context, &region, &regions.residents)?;
        regions.live.insert(region, RegionRecord { allocation_id: id, issued: Vec::new() })?;
        context.address_map.lock().add(region.base(), region.size());
        Ok(())
    }
}

impl Config {
    pub(crate) fn allocation_desc(&self) -> AllocationDesc<'static> {
        AllocationDesc {
            kind: self.kind,
            device: self.engine.device().handle,
            ordinal: self.ordinal,
            relaxed: None,
            exportable: 0,
            import: None,
        }
    }
}

// SAFETY: regions are live, disjoint allocations of the driver, of the configured kind. Only `free`
// frees them.
unsafe impl Provider for LevelZeroProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.config.name
    }

    fn memory_kind(&self) -> MemoryKind {
        match self.config.kind {
            ZE_MEMORY_TYPE_HOST => MemoryKind::Host,
            ZE_MEMORY_TYPE_SHARED => MemoryKind::Managed,
            _ => MemoryKind::Device,
        }
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        self.config.page
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.allocate_or_import(layout, None)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let context = self.context();
        if !context.is_usable() {
            return Ok(());
        }
        // Removed before the driver frees it: another thread may then get the same address.
        let (record, residents) = {
            let mut regions = self.regions();
            let record = regions.live.remove(&region)?;
            context.address_map.lock().remove(region.base());
            (record, regions.residents.clone())
        };
        for issued in &record.issued {
            let _ = handles::release_handle(context, issued);
        }
        evict(context, &region, &residents);
        if let Err(failure) = native::free(context, region.base(), self.config.free_policy) {
            let error = driver_error(failure);
            let mut regions = self.regions();
            let _ = make_resident(context, &region, &regions.residents);
            context.address_map.lock().add(region.base(), region.size());
            // Uses the node that `remove` released, unless another thread took it.
            let _ = regions.live.insert(region, RegionRecord { issued: Vec::new(), ..record });
            return Err(error);
        }
        self.gauge.remove(region.size());
        Ok(())
    }

    fn export(&self) -> Option<&dyn Export> {
        (self.config.kind == ZE_MEMORY_TYPE_DEVICE).then_some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        (self.config.kind == ZE_MEMORY_TYPE_DEVICE).then_some(&self.import)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        Some(self)
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        let engine = &*self.config.engine;
        (!engine.device().is_none()).then_some(engine)
    }
}

impl Properties for LevelZeroProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.context().check()?;
        let id = self.regions().live.get(region)?.allocation_id;
        let unsupported =
            Error::NotSupported { what: "this property", owner: "this Level Zero memory", native: 0 };
        let is_host = self.config.kind == ZE_MEMORY_TYPE_HOST;
        let device = self.config.engine.device();
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(id)),
            Property::Node if !is_host => Ok(PropertyValue::Number(self.config.ordinal.into())),
            Property::Context => Ok(PropertyValue::Handle(self.context().handle().0.addr())),
            Property::Device if !is_host => Ok(PropertyValue::Handle(device.handle.0.addr())),
            Property::CacheLine => {
                device.cache_line.map(|line| PropertyValue::Number(line as u64)).ok_or(unsupported)
            }
            _ => Err(unsupported),
        }
    }
}

/// The format of an fd of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FdFormat {
    /// A dma-buf, which other drivers and the dma-buf provider can import.
    DmaBuf,
    /// An fd that only this driver can import.
    Opaque,
}

impl FdFormat {
    pub(crate) const fn flag(self) -> ze_external_memory_type_flags_t {
        match self {
            Self::DmaBuf => ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF,
            Self::Opaque => ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
        }
    }

    const fn unsupported(self, is_export: bool) -> Error {
        let what = match (self, is_export) {
            (Self::DmaBuf, true) => "exporting memory as a dma-buf",
            (Self::DmaBuf, false) => "importing memory from a dma-buf",
            (Self::Opaque, true) => "exporting memory as an fd",
            (Self::Opaque, false) => "importing memory from an fd",
        };
        Error::NotSupported {
            what,
            owner: "this device's driver (zeDeviceGetExternalMemoryProperties)",
            native: 0,
        }
    }
}

impl LevelZeroProvider {
    /// Returns whether the device's driver exports memory as fds of this format.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn exports(&self, format: FdFormat) -> Result<bool> {
        let properties = self.external_memory_properties()?;
        Ok(properties.memoryAllocationExportTypes & format.flag() != 0)
    }

    fn external_memory_properties(&self) -> Result<level_zero_sys::ze_device_external_memory_properties_t> {
        self.context().check()?;
        let device = self.exportable_device()?;
        native::external_memory_properties(self.context().api(), device).map_err(driver_error)
    }

    /// Checks that the driver exports this format.
    ///
    /// # Errors
    /// [`Error::NotSupported`] if it does not.
    pub(crate) fn check_exportable(&self, format: FdFormat) -> Result<()> {
        if self.exports(format)? { Ok(()) } else { Err(format.unsupported(true)) }
    }

    /// Exports a region as an fd. The fd keeps the memory after the region is freed. The provider
    /// was built with [`LevelZeroBuilder::exportable`].
    ///
    /// # Errors
    /// - [`Error::NotSupported`] if the driver does not export this format.
    /// - [`Error::Driver`] if the region was not allocated as exportable.
    /// - [`Error::ForeignAddress`] if the region is not a live one of this provider.
    pub fn export_fd(&self, region: &Region, format: FdFormat) -> Result<OwnedFd> {
        self.check_exportable(format)?;
        self.regions().live.get(region)?;
        let fd = native::export_fd(self.context(), region.base(), format.flag()).map_err(driver_error)?;
        let fd = fd.ok_or(format.unsupported(true))?;
        if format == FdFormat::DmaBuf && !is_dma_buf(fd.as_fd())? {
            return Err(Error::Native {
                call: "zeMemGetAllocProperties",
                native: 0,
                hint: "the fd that the driver exported as a dma-buf is not one: use FdFormat::Opaque",
            });
        }
        Ok(fd)
    }

    /// Imports the first `size` bytes of memory behind an fd as a region: a dma-buf of another
    /// provider, or an fd that this driver exported in another process. The region is freed like
    /// any other; the memory lives until its last holder releases it.
    ///
    /// # Errors
    /// - [`Error::NotSupported`] if the driver does not import this format.
    /// - [`Error::Untrusted`] if the fd is not of this format or smaller than `size`.
    /// - [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn import_fd(&self, fd: &OwnedFd, size: usize, format: FdFormat) -> Result<Region> {
        if self.external_memory_properties()?.memoryAllocationImportTypes & format.flag() == 0 {
            return Err(format.unsupported(false));
        }
        if is_dma_buf(fd.as_fd())? != (format == FdFormat::DmaBuf) {
            return Err(Error::Untrusted {
                why: match format {
                    FdFormat::DmaBuf => "the descriptor is not a dma-buf",
                    FdFormat::Opaque => "the descriptor is a dma-buf: pass FdFormat::DmaBuf",
                },
            });
        }
        self.allocate_or_import(Layout::new(size, 1)?, Some((fd.as_fd(), format.flag())))
    }
}

fn range_of(region: &Region) -> (Address, usize) {
    (region.base(), region.size())
}

/// Makes a region resident on all devices. After an error it is resident on none of them.
fn make_resident(context: &Context, region: &Region, devices: &[ze_device_handle_t]) -> Result<()> {
    for (number, device) in devices.iter().enumerate() {
        if let Err(failure) = native::set_resident(context, *device, range_of(region), true) {
            let error = driver_error(failure);
            evict(context, region, &devices[..number]);
            return Err(error);
        }
    }
    Ok(())
}

/// Evicts a region from all devices. Errors are ignored: freeing the memory evicts it too.
fn evict(context: &Context, region: &Region, devices: &[ze_device_handle_t]) {
    for device in devices {
        let _ = native::set_resident(context, *device, range_of(region), false).map_err(driver_error);
    }
}

impl LevelZeroProvider {
    /// Makes live and future regions resident on a device of the driver, or evicts them from it.
    /// Returns whether anything changed.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if the driver has no device of this number.
    /// - [`Error::Driver`] if the driver fails for a region. Nothing has changed then.
    pub fn set_resident(&self, device: u32, is_resident: bool) -> Result<bool> {
        let device = self.peer(device)?;
        self.set_resident_on(device, is_resident)
    }

    /// Does the same as [`LevelZeroProvider::set_resident`] for a device handle of the driver.
    ///
    /// # Errors
    /// [`Error::Driver`] if the handle is invalid, or the driver fails for a region.
    pub fn set_resident_on(&self, device: ze_device_handle_t, is_resident: bool) -> Result<bool> {
        let context = self.context();
        context.check()?;
        let mut regions = self.regions();
        if regions.residents.contains(&device) == is_resident {
            return Ok(false);
        }
        let mut changed: Vec<Region> = Vec::new();
        for (region, _) in regions.live.iter() {
            if let Err(failure) = native::set_resident(context, device, range_of(&region), is_resident) {
                let error = driver_error(failure);
                for region in &changed {
                    let _ = native::set_resident(context, device, range_of(region), !is_resident)
                        .map_err(driver_error);
                }
                return Err(error);
            }
            changed.push(region);
        }
        regions.residents.retain(|resident| *resident != device);
        if is_resident {
            regions.residents.push(device);
        }
        Ok(true)
    }

    /// Returns the handle of a device of the same driver.
    fn peer(&self, number: u32) -> Result<ze_device_handle_t> {
        self.context().check()?;
        let devices = native::devices(self.context().api(), self.context().driver()).map_err(driver_error)?;
        devices.get(number as usize).copied().ok_or(Error::InvalidArgument {
            what: "device",
            why: "must be below the number of devices of the Level Zero driver (umf info lists them)",
        })
    }
}
