//! [`HostBuilder`]: the configuration of a [`HostProvider`].

use std::borrow::Cow;
use std::sync::Arc;

use umf_core::{Error, Result, Visibility};

use crate::import::HostImport;
use crate::pages::PagePolicy;
use crate::private::PrivateMemory;
use crate::provider::{Backend, HostProvider};
use crate::shared::{FileLayout, SharedMemory};
use crate::{HugePages, Numa};

/// A builder of [`HostProvider`]s, from [`HostProvider::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HostBuilder {
    name: Cow<'static, str>,
    visibility: Visibility,
    huge: HugePages,
    numa: Numa,
    populate: bool,
    isolate: bool,
    read_only_export: bool,
    arena_size: u64,
    shm_name: Option<String>,
    lowest_fd: i32,
    import: HostImport,
}

impl HostBuilder {
    /// 1 TiB: more than the memory of most machines, and far below the limit of a file's size.
    pub const DEFAULT_ARENA_SIZE: u64 = 1 << 40;

    pub(crate) const fn new() -> Self {
        Self {
            name: Cow::Borrowed("host"),
            visibility: Visibility::Private,
            huge: HugePages::Normal,
            numa: Numa::Default,
            populate: false,
            isolate: false,
            read_only_export: false,
            arena_size: Self::DEFAULT_ARENA_SIZE,
            shm_name: None,
            lowest_fd: 0,
            import: HostImport::new(),
        }
    }

    /// Sets the name, for logs, statistics and `umf ps`. Default: `host`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets whether other processes can map the memory. Default: [`Visibility::Private`].
    pub fn visibility(mut self, visibility: Visibility) -> Self {
        self.visibility = visibility;
        self
    }

    /// Sets the kind of pages. Default: [`HugePages::Normal`].
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.huge = huge;
        self
    }

    /// Sets the NUMA placement. Default: [`Numa::Default`].
    pub fn numa(mut self, numa: Numa) -> Self {
        self.numa = numa;
        self
    }

    /// Sets whether all pages of a region are populated when it is allocated (`fallocate(2)` for
    /// shared memory, `MADV_POPULATE_WRITE` for private). If there are not enough, allocating fails
    /// with [`Error::OutOfMemory`]. Default: off.
    ///
    /// Without it, pages are populated on first touch, as with `malloc`. If the machine is out of
    /// memory then, the OOM killer ends a process. Named memory is always populated, because the
    /// access raises SIGBUS if `/dev/shm` is full; and so are reserved huge pages.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Sets whether each region has a file of its own, so that an importer of one has no access to
    /// others. Each region costs an fd. For shared memory without a name. Default: off.
    pub fn isolate(mut self, isolate: bool) -> Self {
        self.isolate = isolate;
        self
    }

    /// Sets whether importers can only read, which the kernel enforces (`F_SEAL_FUTURE_WRITE`,
    /// Linux 5.1). Implies [`HostBuilder::isolate`]. Such memory cannot be purged. Default: off.
    pub fn read_only_export(mut self, read_only: bool) -> Self {
        self.read_only_export = read_only;
        self
    }

    /// Sets the size in bytes of the files from which regions are suballocated. Unused ranges take
    /// no memory. If a file is full, the provider creates another. Named memory is one file, so
    /// there this is the limit of the provider. Default: [`HostBuilder::DEFAULT_ARENA_SIZE`], or
    /// less by `RLIMIT_FSIZE`.
    pub fn arena_size(mut self, bytes: u64) -> Self {
        self.arena_size = bytes;
        self
    }

    /// Sets the name of an object in `/dev/shm` (`"/name"`, `shm_open(3)`), for programs that
    /// open memory by name. Implies [`Visibility::Shared`]. A name that exists is an error.
    /// Dropping the provider unlinks the name; a killed process leaves it behind. Named memory
    /// cannot be sealed, so importers need [`HostImport::allow_unsealed`].
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.shm_name = Some(name.into());
        self.visibility = Visibility::Shared;
        self
    }

    /// Sets the lowest number of fds of memory files, for programs that expect low numbers for
    /// themselves. If no such number is free (`RLIMIT_NOFILE`), any number above the standard
    /// streams is used. Default: 0, the lowest free number.
    pub fn lowest_fd(mut self, number: i32) -> Self {
        self.lowest_fd = number;
        self
    }

    /// Sets whether imports through the provider accept unsealed files; see
    /// [`HostImport::allow_unsealed`]. Default: off.
    pub fn allow_unsealed_imports(mut self, allow: bool) -> Self {
        self.import = HostImport::new().allow_unsealed(allow);
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: settings that contradict each other, NUMA nodes that do not
    ///   exist, an invalid name.
    /// - [`Error::NotSupported`]: a huge page size that this system does not have.
    /// - [`Error::Native`]: the first file cannot be created, for example because its name exists.
    pub fn build(self) -> Result<Arc<HostProvider>> {
        let isolate = self.isolate || self.read_only_export;
        let shared = self.visibility == Visibility::Shared;
        let invalid = |what, why| Err(Error::InvalidArgument { what, why });
        if !shared && isolate {
            return invalid("isolate", "needs shared memory: set the visibility to shared");
        }
        if self.shm_name.is_some() && isolate {
            return invalid("named", "named memory is one file and cannot be isolated");
        }
        if self.shm_name.is_some() && self.huge.hugetlb().is_some() {
            return invalid("named", "named memory cannot have reserved huge pages");
        }
        let pages = PagePolicy::new(self.huge, self.numa, self.populate || self.shm_name.is_some(), shared)?;
        if self.arena_size < pages.granularity() as u64 {
            return invalid("arena size", "must be at least one page");
        }
        let source = if shared {
            let form = match (&self.shm_name, isolate) {
                (Some(_), _) => FileLayout::Named,
                (None, true) => FileLayout::Isolated { read_only: self.read_only_export },
                (None, false) => FileLayout::Arenas(self.arena_size),
            };
            let shm_name = self.shm_name.as_deref();
            Backend::Shared(Box::new(SharedMemory::new(
                form,
                shm_name,
                self.arena_size,
                &pages,
                self.lowest_fd,
            )?))
        } else {
            Backend::Private(PrivateMemory::new())
        };
        Ok(Arc::new(HostProvider::new(self.name, source, pages, self.import, self.read_only_export)))
    }
}
