//! [`PluginProvider`]: the provider over an [`Instance`].

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::Arc;

use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, Properties, Property, PropertyValue, Provider,
    ProviderKind, Purge, Region, Result, Visibility,
};
use umf_suballoc::RegionTable;
use umf_sync::{Lock, fork};

use super::instance::Instance;
use super::ipc::{Format, PluginImport};

/// A provider behind UMF's table of C functions. Thread-safe.
///
/// It supports the operations of the table. Results of the functions are validated. An address that
/// is not a live region of this provider is an error, and is not passed to the functions.
///
/// A provider of a shared object ([`super::PluginLoader`]) finalises and unloads the plugin after
/// the provider and its importer are dropped. With live regions it does neither, so that they stay
/// valid.
///
/// In a forked child, a private provider keeps working, if the plugin's code supports forks. A
/// shared one is frozen: allocating fails with [`Error::Frozen`], and freeing does nothing, because
/// the memory belongs to the parent.
///
/// It uses the global allocator, so a pool over it must not be the global allocator.
pub struct PluginProvider {
    pub(crate) instance: ManuallyDrop<Arc<Instance>>,
    /// No foreign code runs under the lock, because a fork waits for it.
    pub(crate) regions: Lock<RegionTable<()>>,
    info: ProviderInfo,
    generation: u32,
    import: Option<Arc<PluginImport>>,
}

/// The properties of a provider: those that the table lacks, and those that were queried.
#[derive(Clone, Debug)]
pub struct ProviderInfo {
    /// The name of the instance.
    pub name: String,
    /// The kind of provider, which is part of handles.
    pub kind: ProviderKind,
    /// The kind of memory.
    pub memory_kind: MemoryKind,
    /// Whether a forked child shares the memory.
    pub visibility: Visibility,
    /// The granularity of allocation in bytes.
    pub page: usize,
    /// The size of an IPC handle in bytes, if the provider has handles.
    pub handle_size: Option<usize>,
    /// Whether requested sizes are passed unchanged, as UMF's own pools do, and not rounded up to
    /// pages.
    pub exact_sizes: bool,
    /// Whether each failure to allocate is [`Error::OutOfMemory`], whatever the provider returns,
    /// so that a pool returns free memory and tries again. Drivers' providers report a lack of
    /// device memory by results of their own.
    pub failure_is_out_of_memory: bool,
}

impl PluginProvider {
    /// Makes a provider over an instance.
    #[must_use]
    pub fn new(instance: Instance, info: ProviderInfo) -> Arc<Self> {
        let format = info.handle_size.map(Format::Handles);
        Self::with_format(instance, info, format)
    }

    /// Makes a provider whose exports have the given format.
    pub(crate) fn with_format(instance: Instance, info: ProviderInfo, format: Option<Format>) -> Arc<Self> {
        let instance = Arc::new(instance);
        let import =
            |format| Arc::new(PluginImport::new(Arc::clone(&instance), info.kind, info.memory_kind, format));
        Arc::new(Self {
            regions: Lock::new(RegionTable::new(instance.owner())),
            import: format.map(import),
            instance: ManuallyDrop::new(instance),
            info,
            generation: fork::generation(),
        })
    }

    /// Returns the importer of this provider's exports, or `None` if it has neither IPC handles nor
    /// descriptors. The importer does not need the provider, and keeps the plugin loaded.
    #[must_use]
    pub fn importer(&self) -> Option<Arc<PluginImport>> {
        self.import.clone()
    }

    /// Notes that the caller finalises the provider of a borrowed instance. From then on, freeing
    /// memory, releasing handles and closing them do nothing: leases may have deferred them.
    pub fn set_finalized(&self) {
        self.instance.set_finalized();
    }

    /// Returns whether this is a forked child and the memory belongs to the parent.
    pub(crate) fn is_frozen(&self) -> bool {
        self.info.visibility == Visibility::Shared && self.generation != fork::generation()
    }

    pub(crate) fn check_not_frozen(&self) -> Result<()> {
        if self.is_frozen() { Err(Error::Frozen { what: "memory of a plugin" }) } else { Ok(()) }
    }
}

// SAFETY: regions are allocations of the plugin, which follows UMF's contract. Address, alignment
// and overlap are validated. Only `free` frees them.
unsafe impl Provider for PluginProvider {
    fn kind(&self) -> ProviderKind {
        self.info.kind
    }

    fn name(&self) -> &str {
        &self.info.name
    }

    fn memory_kind(&self) -> MemoryKind {
        self.info.memory_kind
    }

    fn visibility(&self) -> Visibility {
        self.info.visibility
    }

    fn page_size(&self) -> usize {
        self.info.page
    }

    fn recommended_page_size(&self, size: usize) -> usize {
        let page = self.info.page;
        self.instance.recommended_page_size(size).unwrap_or(page).max(page)
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.check_not_frozen()?;
        let page = self.info.page;
        let exact = self.info.exact_sizes;
        let layout = if exact { layout } else { layout.pad_to(page)?.align_to(page)? };
        let base = self.instance.allocate(layout.size(), layout.align(), exact && layout.align() == 1);
        let base = base.map_err(|error| match self.info.failure_is_out_of_memory {
            true => self.failure_to_allocate(layout, error),
            false => error,
        })?;
        let region = Region::new(base, layout.size());
        let mut regions = self.regions.lock();
        if base.checked_add(region.size() as u64).is_none() || regions.overlap(&region) {
            drop(regions);
            // Not freed, because that could free the region that it overlaps.
            return Err(self
                .instance
                .contract_violation("returned memory that overlaps memory it returned before"));
        }
        let inserted = regions.insert(region, ());
        drop(regions);
        if inserted.is_err() {
            // SAFETY: the region was allocated above, and is not in use.
            let _ = unsafe { self.instance.free(base, region.size()) };
        }
        inserted.map(|()| region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        // Removed before it is freed: afterwards another thread may get the same address.
        self.regions.lock().remove(&region)?;
        // SAFETY: the region was live until now, and by the caller's contract it is not in use.
        let freed = unsafe { self.instance.free(region.base(), region.size()) };
        if freed.is_err() {
            // The tree node of the region is most likely still free, so this does not allocate.
            self.regions.lock().insert(region, ())?;
        }
        freed
    }

    fn export(&self) -> Option<&dyn Export> {
        self.import.is_some().then_some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        self.import.as_deref().map(|import| -> &dyn Import { import })
    }

    fn purge(&self) -> Option<&dyn Purge> {
        let functions = &self.instance.table().functions;
        (functions.ext_purge_lazy.is_some() || functions.ext_purge_force.is_some()).then_some(self)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        let functions = &self.instance.table().functions;
        let any =
            functions.ext_get_allocation_properties.is_some() || functions.get_cache_line_size.is_some();
        any.then_some(self)
    }
}

impl PluginProvider {
    /// Converts the error of an allocation under `failure_is_out_of_memory`. If the alignment is more
    /// than a page, it may be the reason: pools then ask for more memory at any address.
    fn failure_to_allocate(&self, layout: Layout, error: Error) -> Error {
        tracing::debug!(provider = self.info.name, %error, "an allocation failed");
        let is_misaligned = matches!(error, Error::Untrusted { .. });
        if layout.align() > self.info.page || is_misaligned {
            return Error::BadAlignment { align: layout.align() };
        }
        let native = if let Error::Native { native, .. } = error { native } else { 0 };
        Error::OutOfMemory { size: layout.size(), owner: self.instance.owner(), native }
    }

    /// Releases the pages of a range.
    ///
    /// # Safety
    /// The content of the range is not needed.
    unsafe fn purge_range(&self, base: Address, size: usize, lazily: bool) -> Result<()> {
        self.check_not_frozen()?;
        self.regions.lock().holding(base, size, self.info.page)?;
        // SAFETY: the range lies in a live region, and by the caller's contract its content is not
        // needed.
        unsafe { self.instance.purge(base, size, lazily) }
    }
}

impl Purge for PluginProvider {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.purge_range(base, size, true) }
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.purge_range(base, size, false) }
    }
}

/// `UMF_MEMORY_PROPERTY_CONTEXT`.
const CONTEXT: i32 = 21;
/// `UMF_MEMORY_PROPERTY_DEVICE`.
const DEVICE: i32 = 22;

impl Properties for PluginProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.regions.lock().get(region)?;
        let handle = |property| {
            let value = self.instance.property(region.base(), property)?;
            let value = usize::try_from(value)
                .map_err(|_| self.instance.contract_violation("has no such property"))?;
            Ok(PropertyValue::Handle(value))
        };
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(region.id().get())),
            Property::CacheLine => self.instance.cache_line_size().map(PropertyValue::Number),
            Property::Context => handle(CONTEXT),
            Property::Device => handle(DEVICE),
            _ => Err(self.instance.unsupported("this property")),
        }
    }
}

impl fmt::Debug for PluginProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} provider {:?} behind C functions", self.info.kind, self.info.name)
    }
}

impl Drop for PluginProvider {
    fn drop(&mut self) {
        let live = self.regions.lock().count();
        if live > 0 {
            // Live regions must stay valid, and finalising could unmap them. The leaked reference
            // keeps the plugin loaded.
            tracing::warn!(
                provider = self.info.name,
                live,
                "provider dropped with live regions: the plugin stays loaded"
            );
            return;
        }
        // SAFETY: the field is dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.instance) };
    }
}
