//! [`PluginProvider`].

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
use super::ipc::PluginImport;

/// A provider behind UMF's table of C functions. Thread-safe.
///
/// It offers what the table has. What the functions return is checked, and an address that is no
/// live region of this provider is an error here and never reaches them.
///
/// One from a shared object ([`super::PluginLoader`]) finalises the plugin once it and its importer
/// are dropped, and then unloads it. If regions were not freed, neither happens, so that they stay.
///
/// In a forked child, a private one works on, as far as the plugin's own code does. A shared one is
/// frozen there: allocating is [`Error::Frozen`], and freeing does nothing, since the memory is
/// still the parent's.
///
/// It uses the global allocator for its records, so that a pool over it is not to be the global
/// allocator.
pub struct PluginProvider {
    pub(crate) instance: ManuallyDrop<Arc<Instance>>,
    /// No foreign code runs under the lock, so that a fork can wait for it.
    pub(crate) regions: Lock<RegionTable<()>>,
    info: ProviderInfo,
    generation: u32,
    import: Option<Arc<PluginImport>>,
}

/// What the table of a provider does not say, or said when it was asked.
#[derive(Clone, Debug)]
pub struct ProviderInfo {
    /// The name of this instance.
    pub name: String,
    /// What stands in handles.
    pub kind: ProviderKind,
    /// What the memory is.
    pub memory_kind: MemoryKind,
    /// Whether a forked child shares the memory.
    pub visibility: Visibility,
    /// The granularity of allocation in bytes.
    pub page: usize,
    /// The bytes of an IPC handle, if it has any.
    pub handle_size: Option<usize>,
    /// Whether the provider is asked for sizes as they are, as UMF's own pools ask it, and not for
    /// whole pages.
    pub exact_sizes: bool,
}

impl PluginProvider {
    /// A provider over an instance.
    #[must_use]
    pub fn new(instance: Instance, info: ProviderInfo) -> Arc<Self> {
        let instance = Arc::new(instance);
        let import =
            |size| Arc::new(PluginImport::new(Arc::clone(&instance), info.kind, info.memory_kind, size));
        Arc::new(Self {
            regions: Lock::new(RegionTable::new(instance.owner())),
            import: info.handle_size.map(import),
            instance: ManuallyDrop::new(instance),
            info,
            generation: fork::generation(),
        })
    }

    /// What opens handles of this provider's memory, without the provider; `None` if it has no IPC
    /// handles. A plugin stays loaded as long as this exists.
    #[must_use]
    pub fn importer(&self) -> Option<Arc<PluginImport>> {
        self.import.clone()
    }

    /// Whether this is a forked child, to which the memory does not belong.
    pub(crate) fn is_frozen(&self) -> bool {
        self.info.visibility == Visibility::Shared && self.generation != fork::generation()
    }

    pub(crate) fn check_not_frozen(&self) -> Result<()> {
        if self.is_frozen() { Err(Error::Frozen { what: "memory of a plugin" }) } else { Ok(()) }
    }
}

// SAFETY: regions are what the provider allocated, which is trusted in that as UMF trusts it. They
// are checked for address, alignment and overlap, and are freed by `free` only.
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
        let base = self.instance.allocate(layout.size(), layout.align(), exact && layout.align() <= page)?;
        let region = Region::new(base, layout.size());
        let mut regions = self.regions.lock();
        if base.checked_add(region.size() as u64).is_none() || regions.overlap(&region) {
            drop(regions);
            // It is not freed: that would free the other region.
            return Err(self
                .instance
                .contract_violation("returned memory that overlaps memory it returned before"));
        }
        let inserted = regions.insert(region, ());
        drop(regions);
        if inserted.is_err() {
            // SAFETY: allocated above, and not in use.
            let _ = unsafe { self.instance.free(base, region.size()) };
        }
        inserted.map(|()| region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        // The record goes first: once freed, another thread may get the same address.
        self.regions.lock().remove(&region)?;
        // SAFETY: the region was live until now, and the caller says that it is not in use.
        let freed = unsafe { self.instance.free(region.base(), region.size()) };
        if freed.is_err() {
            // The node that the region had is most likely still free.
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
    /// # Safety
    /// The content of the range is not needed.
    unsafe fn purge_range(&self, base: Address, size: usize, lazily: bool) -> Result<()> {
        self.check_not_frozen()?;
        self.regions.lock().holding(base, size, self.info.page)?;
        // SAFETY: the range lies in a live region; the rest is passed on to the caller.
        unsafe { self.instance.purge(base, size, lazily) }
    }
}

impl Purge for PluginProvider {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.purge_range(base, size, true) }
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
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
            // Its regions are promised to stay until freed, and finalising may take them away. The
            // reference that is not dropped keeps a plugin loaded.
            tracing::warn!(
                provider = self.info.name,
                live,
                "dropped with live regions: not finalised, so that they stay"
            );
            return;
        }
        // SAFETY: dropped here alone.
        unsafe { ManuallyDrop::drop(&mut self.instance) };
    }
}
