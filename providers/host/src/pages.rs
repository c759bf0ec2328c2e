//! [`PagePolicy`]: page size, NUMA placement and population of the mappings of a provider (`madvise(2)`).

use core::sync::atomic::AtomicU64;

use rustix::io::Errno;
use umf_core::{Error, Layout, Result};
use umf_os::{AvailableMemory, Mapping, page_size};

use crate::numa::Numa;
use crate::sys::{self, MemAdvice};

/// The kind of pages of a provider's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// The system's default.
    #[default]
    Normal,
    /// Transparent huge pages for regions of at least that size (`madvise(MADV_HUGEPAGE)`). Best
    /// effort: there is no error if none is free.
    ///
    /// If the system disables them for shared memory
    /// (`/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `never` or `deny`), shared regions
    /// are collapsed when allocated (`MADV_COLLAPSE`, Linux 6.1), which populates them.
    Transparent,
    /// Reserved huge pages of `size` bytes (`/proc/sys/vm/nr_hugepages`,
    /// `/sys/kernel/mm/hugepages/`). They are the provider's granularity, and are populated when a
    /// region is allocated. If none is free, allocating fails with [`Error::OutOfMemory`]; a later
    /// access never raises SIGBUS. Such memory cannot be purged. A freed region must be isolated,
    /// or held until importers have closed it: see [`crate::HostImport`].
    Hugetlb {
        /// Size of a page in bytes: a power of two that the system supports, such as 2 MiB.
        size: usize,
        /// Whether a region has normal pages if no huge page is free. The granularity stays the
        /// same.
        or_normal: bool,
    },
}

impl HugePages {
    /// Returns the granularity of regions in bytes.
    pub(crate) fn granularity(self) -> usize {
        match self {
            Self::Hugetlb { size, .. } => size,
            Self::Normal | Self::Transparent => page_size(),
        }
    }

    /// Returns the size of reserved huge pages, if they are used.
    pub(crate) const fn hugetlb(self) -> Option<usize> {
        match self {
            Self::Hugetlb { size, .. } => Some(size),
            Self::Normal | Self::Transparent => None,
        }
    }

    /// Returns whether a region may have normal pages in place of reserved huge pages.
    pub(crate) const fn falls_back(self) -> bool {
        matches!(self, Self::Hugetlb { or_normal: true, .. })
    }

    /// Checks that the system supports the page size.
    pub(crate) fn check(self) -> Result<()> {
        let Self::Hugetlb { size, or_normal } = self else { return Ok(()) };
        if !size.is_power_of_two() || size <= page_size() {
            return Err(Error::InvalidArgument {
                what: "huge page size",
                why: "must be a power of two above the normal page size, such as 2 MiB",
            });
        }
        let root = std::path::Path::new("/sys/kernel/mm/hugepages");
        // Without /sys the first allocation reports the error.
        if or_normal || !root.is_dir() || root.join(format!("hugepages-{}kB", size / 1024)).is_dir() {
            return Ok(());
        }
        Err(Error::NotSupported {
            what: "this huge page size",
            owner: "this system (see /sys/kernel/mm/hugepages)",
            native: 0,
        })
    }
}

/// Returns the size of a transparent huge page in bytes.
pub(crate) fn transparent_size() -> usize {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.filter(|size: &usize| size.is_power_of_two() && *size > page_size()).unwrap_or(2 << 20)
}

/// Returns whether shared memory has transparent huge pages only after `MADV_COLLAPSE`.
pub(crate) fn shared_needs_collapse() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|text| text.contains("[never]") || text.contains("[deny]"))
}

/// Returns the error for a lack of reserved huge pages.
pub(crate) const fn huge_pages_exhausted(size: usize, native: i32) -> Error {
    Error::OutOfMemory {
        size,
        owner: "the reserved huge pages; reserve more in /proc/sys/vm/nr_hugepages",
        native,
    }
}

/// What lacks memory if pages cannot be populated.
const POPULATED: &str = "this machine, to populate at once";

/// Page size, NUMA placement and population of a provider's memory.
#[derive(Debug)]
pub(crate) struct PagePolicy {
    pub(crate) huge: HugePages,
    pub(crate) numa: Numa,
    /// Set if regions are populated when allocated: the memory that is available for that.
    populate: Option<AvailableMemory>,
    /// Size of a transparent huge page.
    transparent_size: usize,
    /// Whether mappings are collapsed, because `MADV_HUGEPAGE` has no effect.
    collapse: bool,
    /// Number of interleaved parts so far.
    turn: AtomicU64,
}

impl PagePolicy {
    /// Returns the policy of normal pages with the system's placement.
    pub(crate) const fn normal() -> Self {
        Self {
            huge: HugePages::Normal,
            numa: Numa::Default,
            populate: None,
            transparent_size: 2 << 20,
            collapse: false,
            turn: AtomicU64::new(0),
        }
    }

    /// Returns the requested policy, if this system supports it.
    pub(crate) fn new(huge: HugePages, numa: Numa, populate: bool, shared: bool) -> Result<Self> {
        huge.check()?;
        numa.check()?;
        let transparent = huge == HugePages::Transparent;
        Ok(Self {
            huge,
            numa,
            populate: populate.then(AvailableMemory::find),
            transparent_size: if transparent { transparent_size() } else { 2 << 20 },
            collapse: transparent && shared && shared_needs_collapse(),
            turn: AtomicU64::new(0),
        })
    }

    /// Returns the granularity of allocation in bytes.
    pub(crate) fn granularity(&self) -> usize {
        self.huge.granularity()
    }

    /// Returns the page size that a region of `size` bytes has in the best case.
    pub(crate) fn recommended(&self, size: usize) -> usize {
        match self.huge {
            HugePages::Transparent if size >= self.transparent_size => self.transparent_size,
            _ => self.granularity(),
        }
    }

    /// Returns size and alignment of the region for a layout.
    pub(crate) fn region_layout(&self, layout: Layout) -> Result<(usize, usize)> {
        /// Above the size of all huge pages, and far below that of an address space.
        const MAX_ALIGN: usize = 1 << 40;
        if layout.align() > MAX_ALIGN {
            return Err(Error::BadAlignment { align: layout.align() });
        }
        let size = layout.pad_to(self.granularity())?.size();
        Ok((size, layout.align().max(self.recommended(size))))
    }

    /// Sets placement and page size of a new mapping, before it has pages.
    pub(crate) fn prepare(&self, mapping: &Mapping) -> Result<()> {
        self.numa.apply(mapping, self.granularity(), &self.turn)?;
        if self.huge == HugePages::Transparent && mapping.size() >= self.transparent_size {
            // Best effort: a kernel without transparent huge pages returns EINVAL.
            let _ = advise_huge_pages(mapping);
        }
        Ok(())
    }

    /// Returns whether normal pages are populated when a region is allocated.
    pub(crate) const fn populates(&self) -> bool {
        self.populate.is_some()
    }

    /// Checks that there is enough memory to populate a region now. Populating more triggers the
    /// OOM killer. Huge pages are reserved, so they are not checked.
    pub(crate) fn check_available(&self, size: usize, huge_page: Option<usize>) -> Result<()> {
        match &self.populate {
            Some(room) if huge_page.is_none() => room.check(size, POPULATED),
            _ => Ok(()),
        }
    }

    /// Checks that there is enough memory to populate a range of a region. Huge pages are populated
    /// when they are allocated.
    pub(crate) fn check_populating(&self, size: usize) -> Result<()> {
        match self.huge.hugetlb() {
            Some(_) => Ok(()),
            None => AvailableMemory::find().check(size, POPULATED),
        }
    }

    /// Populates a private mapping, if regions are populated when allocated.
    pub(crate) fn populate(&self, mapping: &Mapping) -> Result<()> {
        if self.populate.is_none() {
            return Ok(());
        }
        populate(mapping).map_err(|errno| match errno {
            Errno::NOMEM | Errno::FAULT | Errno::AGAIN => {
                Error::OutOfMemory { size: mapping.size(), owner: "host", native: errno.raw_os_error() }
            }
            _ => Error::native("madvise(MADV_POPULATE_WRITE)", errno.raw_os_error()),
        })
    }

    /// Collapses a shared mapping into transparent huge pages, where that is necessary.
    pub(crate) fn collapse(&self, mapping: &Mapping) {
        let whole = mapping.size() / self.transparent_size * self.transparent_size;
        if self.collapse && whole > 0 {
            // Best effort: before Linux 6.1, or without a free huge page, normal pages stay.
            let _ = collapse(mapping, whole, self.transparent_size);
        }
    }

    /// Returns the page sizes to try, in order; `None` is normal pages.
    pub(crate) fn page_size_choices(&self) -> impl Iterator<Item = Option<usize>> {
        let first = self.huge.hugetlb();
        let second = self.huge.falls_back().then_some(None);
        core::iter::once(first).chain(second)
    }

    /// Returns the NUMA node of the first page of a mapping, or the node that it will have.
    pub(crate) fn node(&self, mapping: &Mapping) -> u64 {
        let current = sys::node_of_page(mapping.base()).ok().flatten();
        u64::from(current.or_else(|| self.numa.first_node()).unwrap_or_else(sys::current_node))
    }
}

/// Excludes a mapping from core dumps. Best effort.
pub(crate) fn exclude_from_dumps(mapping: &Mapping) {
    // SAFETY: the range is a live mapping, and the advice does not change its content.
    let _ = unsafe { sys::advise(mapping.base(), mapping.size(), MemAdvice::DontDump) };
}

/// Advises the kernel to use transparent huge pages.
pub(crate) fn advise_huge_pages(mapping: &Mapping) -> Result<(), Errno> {
    // SAFETY: the range is a live mapping, and the advice does not change its content.
    unsafe { sys::advise(mapping.base(), mapping.size(), MemAdvice::HugePages) }
}

/// Collapses the first `size` bytes of a new mapping into huge pages; `size` is a multiple of
/// `huge_page`.
pub(crate) fn collapse(mapping: &Mapping, size: usize, huge_page: usize) -> Result<(), Errno> {
    let size = size.min(mapping.size());
    // The kernel does not collapse a huge page range in which no page is populated.
    for start in (0..size).step_by(huge_page) {
        // SAFETY: the address lies in a new mapping, to which no other code has a reference.
        unsafe { mapping.base().add(start).write_volatile(0) };
    }
    // SAFETY: the range is a live mapping, and collapsing does not change its content.
    unsafe { sys::advise(mapping.base(), size, MemAdvice::Collapse) }
}

/// Populates a mapping.
pub(crate) fn populate(mapping: &Mapping) -> Result<(), Errno> {
    // SAFETY: the range is a live mapping, and populating does not change its content.
    match unsafe { sys::advise(mapping.base(), mapping.size(), MemAdvice::Populate) } {
        // Before Linux 5.14: pages are populated when touched.
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Releases pages of private memory: at once, after which they read as zero, or lazily, when the
/// kernel needs memory.
///
/// # Safety
/// The content of the range is not needed.
pub(crate) unsafe fn discard(mapping: &Mapping, start: usize, size: usize, lazily: bool) -> Result<()> {
    let (advice, call) = if lazily {
        (MemAdvice::Free, "madvise(MADV_FREE)")
    } else {
        (MemAdvice::DontNeed, "madvise(MADV_DONTNEED)")
    };
    if start.checked_add(size).is_none_or(|end| end > mapping.size()) {
        return Err(Error::InvalidArgument { what: "range", why: "must lie in its region" });
    }
    // SAFETY: the range lies in the mapping, as checked above. By the caller's contract the content
    // is not needed.
    unsafe { sys::advise(mapping.base().add(start), size, advice) }
        .map_err(|errno| Error::native(call, errno.raw_os_error()))
}
