//! [`LevelZeroProvider`].

use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use level_zero_sys::{
    Api, ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_HOST, ZE_MEMORY_TYPE_SHARED, ze_context_handle_t,
    ze_device_handle_t, ze_driver_memory_free_policy_ext_flags_t, ze_external_memory_type_flags_t,
    ze_memory_type_t,
};
use umf_core::statistics::Gauge;
use umf_core::{
    Error, Export, Import, Layout, MemoryKind, Properties, Property, PropertyValue, Provider, ProviderKind,
    Region, Result, Transfer, Visibility,
};
use umf_suballoc::RegionTable;
use umf_sync::{Lock, LockGuard};

use crate::builder::LevelZeroBuilder;
use crate::context::{Choice, Context, Relaxed};
use crate::engine::Engine;
use crate::failure::{error, of_allocation};
use crate::handles::{self, Given, Handles, Probed};
use crate::import::{KIND, LevelZeroImport};
use crate::native;
use crate::native::memory::Wish;
use crate::resident;

/// Level Zero memory: of a device, of the host for devices, or shared between both.
///
/// Made with [`LevelZeroProvider::device`], [`LevelZeroProvider::host`],
/// [`LevelZeroProvider::managed`] or [`LevelZeroProvider::over`]. Thread-safe.
///
/// Each region is an allocation of the driver's; let a pool make large ones. The CPU must not touch device memory, and nothing
/// here does: it is copied by the device's command lists ([`Transfer`]). Device memory can be exported to other processes.
///
/// In a forked child it is frozen: allocating is [`Error::Frozen`], and freeing does nothing, since drivers do not come through
/// forks.
#[derive(Debug)]
pub struct LevelZeroProvider {
    pub(crate) parts: Parts,
    records: Lock<Records>,
    probed: Probed,
    import: LevelZeroImport,
    gauge: Gauge,
}

/// The live regions, and where they are resident.
#[derive(Debug)]
pub(crate) struct Records {
    pub live: RegionTable<Record>,
    pub residents: Vec<ze_device_handle_t>,
}

/// What is kept of a live region.
#[derive(Debug)]
pub(crate) struct Record {
    /// The driver's own number of the allocation, which no other has, at the same address either.
    pub id: u64,
    /// Handles that are out.
    pub given: Vec<Given>,
}

/// What a builder decides.
#[derive(Debug)]
pub(crate) struct Parts {
    pub name: Cow<'static, str>,
    pub engine: Arc<Engine>,
    pub kind: ze_memory_type_t,
    pub ordinal: u32,
    pub page: usize,
    pub free_policy: Option<ze_driver_memory_free_policy_ext_flags_t>,
    pub exportable: ze_external_memory_type_flags_t,
    pub handles: Handles,
}

impl LevelZeroProvider {
    /// Memory of a device.
    pub fn device(device: Choice) -> LevelZeroBuilder {
        LevelZeroBuilder::chosen(device, ZE_MEMORY_TYPE_DEVICE)
    }

    /// Memory of the host that the devices of a driver reach.
    pub fn host(device: Choice) -> LevelZeroBuilder {
        LevelZeroBuilder::chosen(device, ZE_MEMORY_TYPE_HOST)
    }

    /// Memory that moves between the host and a device.
    pub fn managed(device: Choice) -> LevelZeroBuilder {
        LevelZeroBuilder::chosen(device, ZE_MEMORY_TYPE_SHARED)
    }

    /// Memory in a context that the application has: of `kind` (`ZE_MEMORY_TYPE_DEVICE`, `_HOST` or `_SHARED`), on `device`,
    /// which copies, and on which device and shared memory lies. For memory of the host it may be null: of one driver the first
    /// device copies then, of several none, and the provider has no [`Transfer`].
    ///
    /// # Safety
    /// Context and device are live handles that came from `api`, the device (if not null) is one of the context's, and both stay until the
    /// provider is dropped and all of its regions and what it opened are gone.
    pub unsafe fn over(
        api: Api,
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        kind: ze_memory_type_t,
    ) -> LevelZeroBuilder {
        LevelZeroBuilder::over(api, context, device, kind)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        let import = LevelZeroImport::of(Arc::clone(&parts.engine));
        let probed = Probed::new(parts.handles);
        let records = Records { live: RegionTable::new("the Level Zero provider"), residents: Vec::new() };
        Self { parts, records: Lock::new(records), probed, import, gauge: Gauge::new() }
    }

    /// What opens device memory of other processes, for its device and in its context, whatever kind its own memory is.
    pub const fn importer(&self) -> &LevelZeroImport {
        &self.import
    }

    /// Bytes and regions that are allocated now, and the most bytes there have been.
    pub const fn statistics(&self) -> &Gauge {
        &self.gauge
    }

    /// What travels to other processes: what was asked for, and after the first export what was found to work.
    #[must_use]
    pub fn handles(&self) -> Handles {
        self.probed.get()
    }

    /// A cache line of its device in bytes, if the device says.
    pub fn cache_line(&self) -> Option<usize> {
        self.parts.engine.device().cache_line
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.parts.engine.context()
    }

    pub(crate) const fn native_kind(&self) -> ze_memory_type_t {
        self.parts.kind
    }

    pub(crate) const fn probed(&self) -> &Probed {
        &self.probed
    }

    /// (Never in a forked child, where it may be taken for ever.)
    pub(crate) fn records(&self) -> LockGuard<'_, Records> {
        self.records.lock()
    }

    /// The device that memory lies on; host memory lies on none.
    pub(crate) fn device_or_refusal(&self) -> Result<ze_device_handle_t> {
        if self.parts.kind == ZE_MEMORY_TYPE_HOST {
            return Err(Error::NotSupported {
                what: "an fd of memory of the host",
                owner: "the Level Zero provider; use device memory",
                native: 0,
            });
        }
        Ok(self.parts.engine.device().handle)
    }

    /// Allocates, of memory that is there already if there is an fd of it.
    pub(crate) fn allocate_of(
        &self,
        layout: Layout,
        import: Option<(BorrowedFd<'_>, ze_external_memory_type_flags_t)>,
    ) -> Result<Region> {
        let context = self.context();
        context.check()?;
        let layout = layout.pad_to(self.parts.page)?.align_to(self.parts.page)?;
        let device = self.parts.engine.device();
        let relaxed = match device.is_absent() {
            // Nobody says what there is; a driver that does not know it does not look.
            true => Some(Relaxed::Experiment),
            false => context.relaxed.filter(|_| layout.size() as u64 > device.largest),
        };
        let wish = Wish {
            relaxed,
            exportable: if import.is_some() { 0 } else { self.parts.exportable },
            import,
            ..self.parts.wish()
        };
        let made = native::memory::allocate(context, layout, &wish);
        let base = made.map_err(|failure| of_allocation(failure, layout))?;
        let base = base.ok_or(Error::OutOfMemory {
            size: layout.size(),
            owner: "the Level Zero driver, which answered with no address",
            native: 0,
        })?;
        let region = Region::new(base, layout.size());
        self.keep(region, layout).inspect_err(|_| {
            // What it says of that is of no more use.
            let _ = native::memory::free(context, base, None);
        })?;
        self.gauge.add(region.size());
        Ok(region)
    }

    /// Notes what was allocated, if it is what was asked for.
    fn keep(&self, region: Region, layout: Layout) -> Result<()> {
        let context = self.context();
        if !region.base().is_aligned_to(layout.align()) {
            return Err(Error::BadAlignment { align: layout.align() });
        }
        let id = native::memory::facts(context, region.base()).map_err(error)?.id;
        let mut records = self.records();
        records.live.ensure(1)?;
        resident::make(context, &region, &records.residents)?;
        records.live.insert(region, Record { id, given: Vec::new() })?;
        context.ranges.lock().add(region.base(), region.size());
        Ok(())
    }
}

impl Parts {
    pub(crate) fn wish(&self) -> Wish<'static> {
        Wish {
            kind: self.kind,
            device: self.engine.device().handle,
            ordinal: self.ordinal,
            relaxed: None,
            exportable: 0,
            import: None,
        }
    }
}

// SAFETY: regions are allocations of the driver's, of the kind that was asked for, and are freed by `free` only.
unsafe impl Provider for LevelZeroProvider {
    fn kind(&self) -> ProviderKind {
        KIND
    }

    fn name(&self) -> &str {
        &self.parts.name
    }

    fn memory_kind(&self) -> MemoryKind {
        match self.parts.kind {
            ZE_MEMORY_TYPE_HOST => MemoryKind::Host,
            ZE_MEMORY_TYPE_SHARED => MemoryKind::Managed,
            _ => MemoryKind::Device,
        }
    }

    fn visibility(&self) -> Visibility {
        Visibility::Shared
    }

    fn page_size(&self) -> usize {
        self.parts.page
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.allocate_of(layout, None)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        let context = self.context();
        if !context.belongs_here() {
            return Ok(());
        }
        // Forgotten first: once freed, another thread may get the same address.
        let (record, residents) = {
            let mut records = self.records();
            let record = records.live.remove(&region)?;
            context.ranges.lock().remove(region.base());
            (record, records.residents.clone())
        };
        for given in &record.given {
            let _ = handles::put(context, given);
        }
        resident::evict(context, &region, &residents);
        if let Err(failure) = native::memory::free(context, region.base(), self.parts.free_policy) {
            let failed = error(failure);
            let mut records = self.records();
            let _ = resident::make(context, &region, &records.residents);
            context.ranges.lock().add(region.base(), region.size());
            // The node that the region had is most likely still free.
            let _ = records.live.insert(region, Record { given: Vec::new(), ..record });
            return Err(failed);
        }
        self.gauge.remove(region.size());
        Ok(())
    }

    fn export(&self) -> Option<&dyn Export> {
        (self.parts.kind == ZE_MEMORY_TYPE_DEVICE).then_some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        (self.parts.kind == ZE_MEMORY_TYPE_DEVICE).then_some(&self.import)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        Some(self)
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        let engine = &*self.parts.engine;
        (!engine.device().is_absent()).then_some(engine)
    }
}

impl Properties for LevelZeroProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.context().check()?;
        let id = self.records().live.get(region)?.id;
        let none = Error::NotSupported { what: "this property", owner: "this Level Zero memory", native: 0 };
        let is_host = self.parts.kind == ZE_MEMORY_TYPE_HOST;
        let device = self.parts.engine.device();
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(id)),
            Property::Node if !is_host => Ok(PropertyValue::Number(self.parts.ordinal.into())),
            Property::Context => Ok(PropertyValue::Handle(self.context().handle().0.addr())),
            Property::Device if !is_host => Ok(PropertyValue::Handle(device.handle.0.addr())),
            Property::CacheLine => {
                device.cache_line.map(|line| PropertyValue::Number(line as u64)).ok_or(none)
            }
            _ => Err(none),
        }
    }
}
