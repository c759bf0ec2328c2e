//! [`PluginProvider`].

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::Arc;

use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, Properties, Provider, ProviderKind, Purge, Region,
    Result, SplitMerge, Visibility,
};
use umf_sync::fork;

use super::import::PluginImport;
use super::instance::Instance;
use super::regions::{Record, Regions};

/// A provider from a shared object. Made with [`super::load`] or [`super::PluginLoader`]. Thread-safe.
///
/// What the plugin does not have it does not offer. What the plugin returns is checked, and an address that is no
/// live region of this provider is an error here and never reaches the plugin.
///
/// Dropping it has the plugin finalise, once, as soon as no import that it opened is left, and then unloads it. If
/// regions were not freed, neither happens: whoever has one may still use it.
///
/// In a forked child, a private one works on, as far as the plugin's own code does. A shared one is frozen there:
/// allocating is [`Error::Frozen`], and freeing does nothing, since the memory is still the parent's.
///
/// It uses the global allocator for its records, so that a pool over it is not to be the global allocator.
pub struct PluginProvider {
    pub(super) instance: ManuallyDrop<Arc<Instance>>,
    pub(super) regions: Regions,
    name: String,
    kind: ProviderKind,
    memory_kind: MemoryKind,
    visibility: Visibility,
    pub(super) page: usize,
    generation: u32,
    import: Option<Arc<PluginImport>>,
}

impl PluginProvider {
    pub(super) fn new(
        instance: Instance,
        name: String,
        kind: ProviderKind,
        memory_kind: MemoryKind,
        visibility: Visibility,
        page: usize,
        handle_size: Option<usize>,
    ) -> Result<Self> {
        let regions = Regions::new(instance.owner());
        let instance = Arc::new(instance);
        let import = handle_size
            .map(|size| Arc::new(PluginImport::new(Arc::clone(&instance), kind, memory_kind, size)));
        Ok(Self {
            instance: ManuallyDrop::new(instance),
            regions,
            name,
            kind,
            memory_kind,
            visibility,
            page,
            generation: fork::generation(),
            import,
        })
    }

    /// What opens handles of this plugin's memory, without the provider; `None` if it has no IPC handles. The plugin
    /// stays loaded as long as this exists.
    #[must_use]
    pub fn importer(&self) -> Option<Arc<PluginImport>> {
        self.import.clone()
    }

    /// Whether this is a forked child, to which the memory does not belong.
    pub(super) fn is_frozen(&self) -> bool {
        self.visibility == Visibility::Shared && self.generation != fork::generation()
    }

    pub(super) fn check_not_frozen(&self) -> Result<()> {
        if self.is_frozen() { Err(Error::Frozen { what: "memory of a plugin" }) } else { Ok(()) }
    }

    /// Ends a record that was taken out: an export that it still has is put back first.
    pub(super) fn put_export_of(&self, record: &Record) {
        if let Some(native) = record.take_export() {
            // The memory goes whatever the plugin says to this.
            let _ = self.instance.put_handle(&native);
        }
    }

    /// Makes a region known. It is not freed if it overlaps another: that would free the other.
    pub(super) fn enter(&self, base: Address, size: usize) -> Result<Region> {
        let region = Region::new(base, size);
        let outside = base.checked_add(size as u64).is_none();
        if outside || self.regions.insert(Record::new(region)).is_err() {
            return Err(self.instance.nonsense("returned memory that overlaps memory it returned before"));
        }
        Ok(region)
    }
}

// SAFETY: regions are what the plugin allocated, which is trusted in that as UMF trusts it; they are checked for address,
// alignment and overlap, and go back by `free` only.
unsafe impl Provider for PluginProvider {
    fn kind(&self) -> ProviderKind {
        self.kind
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        self.memory_kind
    }

    fn visibility(&self) -> Visibility {
        self.visibility
    }

    fn page_size(&self) -> usize {
        self.page
    }

    fn recommended_page_size(&self, size: usize) -> usize {
        self.instance.recommended_page_size(size).unwrap_or(self.page).max(self.page)
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.check_not_frozen()?;
        let layout = layout.pad_to(self.page)?.align_to(self.page)?;
        let base = self.instance.allocate(layout.size(), layout.align())?;
        self.enter(base, layout.size())
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        // The record goes first: once freed, another thread may get the same address.
        let record = self.regions.remove(&region)?;
        self.put_export_of(&record);
        // SAFETY: the region was live until now, and the caller says that nobody uses it.
        let freed = unsafe { self.instance.free(region.base(), region.size()) };
        if freed.is_err() {
            // Its place is still free, as far as the plugin tells the truth.
            let _ = self.regions.insert(record);
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
        let operations = self.instance.operations();
        (operations.purge_lazy.is_some() || operations.purge_force.is_some()).then_some(self)
    }

    fn split_merge(&self) -> Option<&dyn SplitMerge> {
        self.instance.operations().split_merge.is_some().then_some(self)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        let operations = self.instance.operations();
        (operations.properties.is_some() || operations.get_cache_line_size.is_some()).then_some(self)
    }
}

impl fmt::Debug for PluginProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} provider {:?} of a plugin", self.kind, self.name)
    }
}

impl Drop for PluginProvider {
    fn drop(&mut self) {
        let live = self.regions.count();
        if live > 0 {
            // Its regions are promised to stay until freed, and finalising may take them away. The reference that
            // is not given back keeps the plugin as it is.
            tracing::warn!(
                plugin = self.name,
                live,
                "dropped with live regions: not finalised, so that they stay"
            );
            return;
        }
        // SAFETY: dropped here alone.
        unsafe { ManuallyDrop::drop(&mut self.instance) };
    }
}
