//! [`HostProvider`]: the provider of host memory, over private or shared regions.

use std::borrow::Cow;
use std::ptr::NonNull;

use rustix::io::Errno;

use umf_core::statistics::Gauge;
use umf_core::{
    Address, Error, Export, Import, Layout, MemoryKind, NativeExport, Populate, Properties, Property,
    PropertyValue, Provider, ProviderKind, Purge, Region, Result, Visibility,
};

use umf_os::Mapping;

use crate::builder::HostBuilder;
use crate::import::HostImport;
use crate::pages::PagePolicy;
use crate::private::PrivateMemory;
use crate::shared::SharedMemory;
use crate::sys::{self, MemAdvice};

/// Host memory: private, or shared on memory files.
///
/// Built with [`HostProvider::builder`], or as a `static` with [`HostProvider::private_static`].
/// Thread-safe.
///
/// Dropping a provider does not unmap live regions, because they may still be in use.
///
/// The program must not close the fds of a shared provider's memory files. If it does, for example
/// a daemon that closes all fds, live regions stay usable and can be freed and purged. Allocating
/// and exporting fail with [`Error::Native`]. A file that the program opens under such a number is
/// neither changed nor closed nor exported.
///
/// In a forked child, a private provider keeps working. A shared one is frozen: allocating fails
/// with [`Error::Frozen`], and freeing does nothing, because the memory belongs to the parent.
#[derive(Debug)]
pub struct HostProvider {
    name: Cow<'static, str>,
    source: Backend,
    pages: PagePolicy,
    import: HostImport,
    read_only_export: bool,
    gauge: Gauge,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a static provider cannot allocate a box")]
pub(crate) enum Backend {
    Private(PrivateMemory),
    Shared(Box<SharedMemory>),
}

impl HostProvider {
    /// Returns a builder of a provider.
    pub const fn builder() -> HostBuilder {
        HostBuilder::new()
    }

    /// Returns a provider of private memory in normal pages, as a `static` for a pool that is the
    /// global allocator. Neither allocating nor freeing uses the global allocator.
    ///
    /// ```
    /// use umf_provider_host::HostProvider;
    /// static HOST: HostProvider = HostProvider::private_static();
    /// ```
    #[must_use]
    pub const fn private_static() -> Self {
        Self {
            name: Cow::Borrowed("host"),
            source: Backend::Private(PrivateMemory::new()),
            pages: PagePolicy::normal(),
            import: HostImport::new(),
            read_only_export: false,
            gauge: Gauge::new(),
        }
    }

    pub(crate) fn new(
        name: Cow<'static, str>,
        source: Backend,
        pages: PagePolicy,
        import: HostImport,
        read_only_export: bool,
    ) -> Self {
        Self { name, source, pages, import, read_only_export, gauge: Gauge::new() }
    }

    /// Returns the number of allocated bytes and regions, and the peak of the bytes.
    pub const fn statistics(&self) -> &Gauge {
        &self.gauge
    }

    fn check(&self, region: &Region) -> Result<()> {
        match &self.source {
            Backend::Private(private) => private.check(region),
            Backend::Shared(shared) => shared.check(region),
        }
    }
}

// SAFETY: each region is a mapping of its own of readable and writable host memory. No other live
// region has its range of a file. Only `free` unmaps it.
unsafe impl Provider for HostProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::HOST
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn visibility(&self) -> Visibility {
        match self.source {
            Backend::Private(_) => Visibility::Private,
            Backend::Shared(_) => Visibility::Shared,
        }
    }

    fn page_size(&self) -> usize {
        self.pages.granularity()
    }

    fn recommended_page_size(&self, size: usize) -> usize {
        self.pages.recommended(size)
    }

    fn allocate(&self, layout: Layout) -> Result<Region> {
        let region = match &self.source {
            Backend::Private(private) => private.allocate(&self.pages, layout),
            Backend::Shared(shared) => shared.allocate(&self.pages, layout),
        }?;
        self.gauge.add(region.size());
        Ok(region)
    }

    unsafe fn free(&self, region: Region) -> Result<()> {
        // SAFETY: the caller's contract.
        let is_freed = unsafe {
            match &self.source {
                Backend::Private(private) => private.free(&region).map(|()| true),
                Backend::Shared(shared) => shared.free(&region),
            }
        }?;
        if is_freed {
            self.gauge.remove(region.size());
        }
        Ok(())
    }

    fn zeroed(&self) -> bool {
        // New mappings read as zero, and reused ranges were punched.
        true
    }

    fn export(&self) -> Option<&dyn Export> {
        matches!(self.source, Backend::Shared(_)).then_some(self)
    }

    fn import(&self) -> Option<&dyn Import> {
        Some(&self.import)
    }

    fn purge(&self) -> Option<&dyn Purge> {
        // After a purge of a reserved huge page, an access raises SIGBUS if no page is free.
        // A file that is sealed against writing cannot be punched.
        let possible = self.pages.huge.hugetlb().is_none() && !self.read_only_export;
        possible.then_some(self)
    }

    fn populate(&self) -> Option<&dyn Populate> {
        Some(self)
    }

    fn properties(&self) -> Option<&dyn Properties> {
        Some(self)
    }
}

impl Export for HostProvider {
    fn export(&self, region: &Region) -> Result<NativeExport> {
        match &self.source {
            Backend::Shared(shared) => shared.export(region),
            Backend::Private(_) => Err(Error::NotSupported {
                what: "exporting private memory",
                owner: "the host provider; set the visibility to shared",
                native: 0,
            }),
        }
    }

    fn uses_fd_per_export(&self) -> bool {
        // The files are open whether or not regions are exported.
        false
    }
}

impl Purge for HostProvider {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        match &self.source {
            // SAFETY: the caller's contract.
            Backend::Private(private) => unsafe { private.purge(&self.pages, base, size, true) },
            Backend::Shared(_) => Err(Error::NotSupported {
                what: "lazy purging",
                owner: "shared host memory; use purge_forced",
                native: 0,
            }),
        }
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        match &self.source {
            // SAFETY: the caller's contract.
            Backend::Private(private) => unsafe { private.purge(&self.pages, base, size, false) },
            Backend::Shared(shared) => shared.purge(&self.pages, base, size),
        }
    }
}

impl Populate for HostProvider {
    fn populate(&self, base: Address, size: usize) -> Result<()> {
        match &self.source {
            Backend::Private(private) => private.check_range(&self.pages, base, size),
            Backend::Shared(shared) => shared.check_range(&self.pages, base, size),
        }?;
        self.check_available(size)?;
        let foreign = Error::ForeignAddress { address: base, owner: "this host provider" };
        let pointer = base.as_ptr().and_then(NonNull::new).ok_or(foreign)?;
        // SAFETY: the range lies in a live region, as checked above, and populating does not change
        // its content.
        unsafe { sys::advise(pointer, size, MemAdvice::Populate) }.map_err(|errno| match errno {
            // The file system is full; a write would raise SIGBUS.
            Errno::NOMEM | Errno::FAULT => {
                Error::OutOfMemory { size, owner: "host", native: errno.raw_os_error() }
            }
            Errno::INVAL => Error::NotSupported {
                what: "populating",
                owner: "this kernel (needs Linux 5.14)",
                native: errno.raw_os_error(),
            },
            _ => Error::native("madvise(MADV_POPULATE_WRITE)", errno.raw_os_error()),
        })
    }

    /// Checks the machine and the process's control groups. Pages of the range that are present
    /// already count as well.
    fn check_available(&self, size: usize) -> Result<()> {
        self.pages.check_populating(size)
    }
}

impl Properties for HostProvider {
    fn property(&self, region: &Region, property: Property) -> Result<PropertyValue> {
        self.check(region)?;
        match property {
            Property::AllocationId => Ok(PropertyValue::Number(region.id().get())),
            Property::CacheLine => Ok(PropertyValue::Number(sys::cache_line())),
            Property::Node => {
                let foreign = Error::ForeignAddress { address: region.base(), owner: "this host provider" };
                // SAFETY: the region is live. `leak` below prevents unmapping.
                let mapping = unsafe { Mapping::of_region(region) }.ok_or(foreign)?;
                let node = self.pages.node(&mapping);
                mapping.leak();
                Ok(PropertyValue::Number(node))
            }
            _ => Err(Error::NotSupported { what: "this property", owner: "the host provider", native: 0 }),
        }
    }
}
