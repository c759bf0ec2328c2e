//! [`HostBuilder`]: how a [`HostProvider`] is set up.

use std::borrow::Cow;
use std::sync::Arc;

use umf_core::{Error, Result, Visibility};

use crate::import::HostImport;
use crate::pages::PagePolicy;
use crate::private::PrivateMemory;
use crate::provider::{Backend, HostProvider};
use crate::shared::{FileLayout, SharedMemory};
use crate::{HugePages, Numa};

/// How a [`HostProvider`] is set up. Got from [`HostProvider::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HostBuilder {
    label: Cow<'static, str>,
    visibility: Visibility,
    huge: HugePages,
    numa: Numa,
    populate: bool,
    isolate: bool,
    read_only_export: bool,
    arena_size: u64,
    object: Option<String>,
    lowest_fd: i32,
    import: HostImport,
}

impl HostBuilder {
    /// 1 TiB: room for everything in one file on most machines, and far from what a file may be at most.
    pub const DEFAULT_ARENA_SIZE: u64 = 1 << 40;

    pub(crate) const fn new() -> Self {
        Self {
            label: Cow::Borrowed("host"),
            visibility: Visibility::Private,
            huge: HugePages::Normal,
            numa: Numa::Default,
            populate: false,
            isolate: false,
            read_only_export: false,
            arena_size: Self::DEFAULT_ARENA_SIZE,
            object: None,
            lowest_fd: 0,
            import: HostImport::new(),
        }
    }

    /// A name for people: logs, statistics, `umf ps`. Default: `host`.
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.label = name.into();
        self
    }

    /// Private memory (the default), or memory that other processes can map.
    pub fn visibility(mut self, visibility: Visibility) -> Self {
        self.visibility = visibility;
        self
    }

    /// Which pages memory is made of. Default: [`HugePages::Normal`].
    pub fn huge_pages(mut self, huge: HugePages) -> Self {
        self.huge = huge;
        self
    }

    /// On which NUMA nodes memory lies. Default: [`Numa::Default`].
    pub fn numa(mut self, numa: Numa) -> Self {
        self.numa = numa;
        self
    }

    /// Make all pages of a region when it is allocated, and fail with [`Error::OutOfMemory`] if they cannot
    /// be had (`fallocate(2)` for shared memory, `MADV_POPULATE_WRITE` for private).
    ///
    /// Off by default, as with `malloc`: pages come when they are touched, and a pool may take large regions
    /// of which it uses little. The price is the same as with `malloc`, too: where the pages do not come
    /// because memory is really out, touching one ends the process (SIGBUS where a tmpfs is full, which only
    /// named memory can be; the out-of-memory killer otherwise). Reserved huge pages are always made at once.
    pub fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Give each region a file of its own, so that exporting it shows nothing else. Costs a descriptor per
    /// region. For shared memory without a name.
    pub fn isolate(mut self, isolate: bool) -> Self {
        self.isolate = isolate;
        self
    }

    /// Let importers read only, enforced by the kernel (`F_SEAL_FUTURE_WRITE`, Linux 5.1). Implies
    /// [`HostBuilder::isolate`]. Such memory cannot be purged.
    pub fn read_only_export(mut self, read_only: bool) -> Self {
        self.read_only_export = read_only;
        self
    }

    /// Size in bytes of the files that regions are carved from. Default: [`HostBuilder::DEFAULT_ARENA_SIZE`],
    /// or what `RLIMIT_FSIZE` leaves. All of it is a hole that costs nothing; a file that is full is followed
    /// by another (but not with a name: then this is all there is).
    pub fn arena_size(mut self, bytes: u64) -> Self {
        self.arena_size = bytes;
        self
    }

    /// Use a named object in `/dev/shm` (`"/name"`, `shm_open(3)`), for programs that open memory by name.
    /// Implies [`Visibility::Shared`]. A name that exists is an error, whoever made it; it is taken away when
    /// the provider is dropped. A process that is killed leaves it behind, and it cannot be sealed, so that
    /// importers refuse it unless they [`HostImport::allow_unsealed`].
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.object = Some(name.into());
        self.visibility = Visibility::Shared;
        self
    }

    /// Have the descriptors of memory files at the first free numbers from `number` on, out of the way of a program that expects the low
    /// ones for itself; where there is none (`RLIMIT_NOFILE`) they are behind the standard streams. Default: 0, where they come.
    pub fn lowest_fd(mut self, number: i32) -> Self {
        self.lowest_fd = number;
        self
    }

    /// Whether imports through the provider accept unsealed files: [`HostImport::allow_unsealed`].
    pub fn allow_unsealed_imports(mut self, allow: bool) -> Self {
        self.import = HostImport::new().allow_unsealed(allow);
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for settings that contradict each other, NUMA nodes that do not exist and
    /// names that are none; [`Error::NotSupported`] for huge pages that this system does not have;
    /// [`Error::Native`] if the first file cannot be made, a name that is taken included.
    pub fn build(self) -> Result<Arc<HostProvider>> {
        let isolate = self.isolate || self.read_only_export;
        let shared = self.visibility == Visibility::Shared;
        let refuse = |what, why| Err(Error::InvalidArgument { what, why });
        if !shared && isolate {
            return refuse("isolate", "is for shared memory: set the visibility to shared");
        }
        if self.object.is_some() && isolate {
            return refuse("named", "named memory is one file and cannot be isolated");
        }
        if self.object.is_some() && self.huge.hugetlb().is_some() {
            return refuse("named", "named memory cannot have reserved huge pages");
        }
        let pages = PagePolicy::new(self.huge, self.numa, self.populate, shared)?;
        if self.arena_size < pages.granularity() as u64 {
            return refuse("arena size", "must be at least one page");
        }
        let source = if shared {
            let form = match (&self.object, isolate) {
                (Some(_), _) => FileLayout::Named,
                (None, true) => FileLayout::Isolated { read_only: self.read_only_export },
                (None, false) => FileLayout::Arenas(self.arena_size),
            };
            let object = self.object.as_deref();
            Backend::Shared(Box::new(SharedMemory::new(
                form,
                object,
                self.arena_size,
                &pages,
                self.lowest_fd,
            )?))
        } else {
            Backend::Private(PrivateMemory::new())
        };
        Ok(Arc::new(HostProvider::new(self.label, source, pages, self.import, self.read_only_export)))
    }
}
