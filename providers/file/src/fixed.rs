//! [`FixedProvider`]: regions of memory that the program already owns, such as a buffer or a mapping.

use core::fmt;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use umf_core::settings::ByteSize;
use umf_core::{
    Address, Error, FactoryError, Layout, MemoryKind, Provider, ProviderFactory, ProviderKind, Purge, Region,
    Result, Visibility,
};
use umf_os::page_size;
use umf_suballoc::Suballocator;

const OWNER: &str = "this fixed provider";

const KIND: ProviderKind = match ProviderKind::new("fixed") {
    Some(kind) => kind,
    None => panic!("a valid name"),
};

/// A provider of regions of memory that the program already owns. It writes nothing into the
/// memory. Thread-safe.
///
/// Regions are whole pages; partial pages at both ends are unused. Regions cannot be exported,
/// because the backing of the memory is unknown. Allocating and freeing do not use the global
/// allocator.
///
/// ```
/// use umf_core::{Layout, Provider};
/// use umf_provider_file::FixedProvider;
///
/// # fn main() -> Result<(), umf_core::Error> {
/// let mut buffer = vec![0_u8; 1 << 20];
/// // SAFETY: the buffer outlives the provider, and is used only through it.
/// let provider = unsafe { FixedProvider::new(buffer.as_mut_ptr(), buffer.len(), "mine")? };
/// let region = provider.allocate(Layout::new(1 << 16, 4096)?)?;
/// // SAFETY: nothing uses the region.
/// unsafe { provider.free(region)? };
/// # Ok(())
/// # }
/// ```
pub struct FixedProvider {
    suballocator: Suballocator,
    name: String,
    page: usize,
}

impl FixedProvider {
    /// Makes a provider of `size` bytes at `memory`. If they contain no whole page, every
    /// allocation is [`Error::OutOfMemory`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the memory is not in the address space.
    ///
    /// # Safety
    /// The memory is readable, writable, private and anonymous: after a purge, a mapping of a file
    /// would show the file's content. The memory is used only through the provider, and outlives
    /// the provider and its regions.
    pub unsafe fn new(memory: *mut u8, size: usize, name: impl Into<String>) -> Result<Arc<Self>> {
        let page = page_size();
        let outside = Error::InvalidArgument { what: "memory", why: "must lie in the address space" };
        let start = Address::new(memory.expose_provenance()).ok_or(outside)?;
        let end = start.checked_add(size as u64).ok_or(outside)?;
        let first = start.align_up(page).ok_or(outside)?;
        // Without a whole page: a range that is too short for a region.
        let last = (end.value() & !(page as u64 - 1)).max(first.value() + 1);
        let suballocator = Suballocator::new(first.value(), last, OWNER)?;
        Ok(Arc::new(Self { suballocator, name: name.into(), page }))
    }

    /// Returns the number of live regions.
    #[must_use]
    pub fn live(&self) -> usize {
        self.suballocator.live()
    }
}

// SAFETY: regions are parts of the memory passed to `new`, and the suballocator keeps them
// disjoint.
unsafe impl Provider for FixedProvider {
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
        Visibility::Private
    }

    fn page_size(&self) -> usize {
        self.page
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.suballocator.allocate_pages(layout, self.page)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        self.suballocator.free(&region, |_| Ok(()))
    }

    fn purge(&self) -> Option<&dyn Purge> {
        Some(self)
    }
}

impl Purge for FixedProvider {
    unsafe fn purge_lazy(&self, _base: Address, _size: usize) -> Result<()> {
        Err(Error::NotSupported { what: "lazy purging", owner: OWNER, native: 0 })
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        self.suballocator.holding(base, size, self.page)?;
        let Some(start) = base.as_ptr() else {
            return Err(Error::ForeignAddress { address: base, owner: OWNER });
        };
        // SAFETY: the range lies in a live region, and by the caller's contract its content is not
        // needed.
        unsafe { rustix::mm::madvise(start.cast(), size, rustix::mm::Advice::LinuxDontNeed) }
            .map_err(|errno| Error::native("madvise", errno.raw_os_error()))
    }
}

impl fmt::Debug for FixedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fixed provider {:?}: {:?}", self.name, self.suballocator)
    }
}

// Settings.

umf_core::settings! {
    /// The keys of the kind `fixed`.
    pub struct FixedSettings {
        /// How many bytes of private host memory are mapped when the provider is built. This is the
        /// limit of the provider. The memory stays mapped until the process exits.
        pub size: usize as ByteSize = 0;
    }
}

impl ProviderFactory for FixedProvider {
    const KIND: &'static str = "fixed";
    type Settings = FixedSettings;

    fn build(name: &str, settings: FixedSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        if settings.size < page_size() {
            let why = "must be set for this kind, to one page at least";
            return Err(Error::InvalidArgument { what: "size", why }.into());
        }
        let none = core::ptr::null_mut();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(none, settings.size, access, MapFlags::PRIVATE) };
        let memory = memory.map_err(|errno| Error::native("mmap", errno.raw_os_error()))?;
        // Regions may outlive the provider, so the memory is never unmapped.
        // SAFETY: the memory is anonymous, private, used only by this provider, and never unmapped.
        Ok(unsafe { Self::new(memory.cast(), settings.size, name) }?)
    }
}
