//! [`PagePolicy`]: what the memory of a provider is made of, whether private or shared: [`HugePages`], and what the kernel
//! is told about mappings (`madvise(2)`).

use core::sync::atomic::AtomicU64;

use rustix::io::Errno;
use umf_core::{Error, Layout, Result};
use umf_os::{AvailableMemory, Mapping, page_size};

use crate::numa::Numa;
use crate::sys::{self, MemAdvice};

/// Which pages memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Whatever the system does by itself.
    #[default]
    Normal,
    /// Transparent huge pages for regions that can hold one (`madvise(MADV_HUGEPAGE)`). Where the system has
    /// them switched off for shared memory (`/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `never` or
    /// `deny`), the whole huge pages of a shared region are collapsed when it is allocated (`MADV_COLLAPSE`,
    /// Linux 6.1), which commits them at once. Best effort: no error where none are to be had.
    Transparent,
    /// Pages of `size` bytes from those that the operator reserved (`/proc/sys/vm/nr_hugepages`,
    /// `/sys/kernel/mm/hugepages/`). They are the provider's granularity and are committed when a region is
    /// allocated; none left is [`Error::OutOfMemory`], never a signal later. Such memory cannot be purged,
    /// and a region that others have imported is to be held until they let go of it (or isolated): see
    /// [`crate::HostImport`].
    Hugetlb {
        /// Size of a page in bytes: a power of two that the system has pages of, 2 MiB for one.
        size: usize,
        /// Take normal pages when no huge ones are left, region by region. Granularity stays the same.
        or_normal: bool,
    },
}

impl HugePages {
    /// The page size that regions are multiples of, in bytes.
    pub(crate) fn granularity(self) -> usize {
        match self {
            Self::Hugetlb { size, .. } => size,
            Self::Normal | Self::Transparent => page_size(),
        }
    }

    /// Size of reserved huge pages, if those are to be used.
    pub(crate) const fn hugetlb(self) -> Option<usize> {
        match self {
            Self::Hugetlb { size, .. } => Some(size),
            Self::Normal | Self::Transparent => None,
        }
    }

    /// Whether normal pages will do where there are no reserved huge ones.
    pub(crate) const fn falls_back(self) -> bool {
        matches!(self, Self::Hugetlb { or_normal: true, .. })
    }

    /// Refuses sizes that the system has no pages of.
    pub(crate) fn check(self) -> Result<()> {
        let Self::Hugetlb { size, or_normal } = self else { return Ok(()) };
        if !size.is_power_of_two() || size <= page_size() {
            return Err(Error::InvalidArgument {
                what: "huge page size",
                why: "must be a power of two above the normal page size, 2 MiB for one",
            });
        }
        let root = std::path::Path::new("/sys/kernel/mm/hugepages");
        // Where /sys is not there to be asked, the first allocation tells.
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

/// Size of a transparent huge page in bytes.
pub(crate) fn transparent_size() -> usize {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.filter(|size: &usize| size.is_power_of_two() && *size > page_size()).unwrap_or(2 << 20)
}

/// Whether shared memory gets transparent huge pages only by being collapsed.
pub(crate) fn shared_needs_collapse() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|text| text.contains("[never]") || text.contains("[deny]"))
}

/// The error for want of reserved huge pages.
pub(crate) const fn huge_pages_exhausted(size: usize, native: i32) -> Error {
    Error::OutOfMemory {
        size,
        owner: "the reserved huge pages; reserve more in /proc/sys/vm/nr_hugepages",
        native,
    }
}

/// What the memory of a provider is made of.
#[derive(Debug)]
pub(crate) struct PagePolicy {
    pub(crate) huge: HugePages,
    pub(crate) numa: Numa,
    /// Make all pages when a region is allocated, if there is room for them.
    populate: Option<AvailableMemory>,
    /// Size of a transparent huge page.
    transparent_size: usize,
    /// Collapse into transparent huge pages, as asking for them does nothing here.
    collapse: bool,
    /// Parts given to nodes so far.
    turn: AtomicU64,
}

impl PagePolicy {
    /// Normal pages, wherever the system puts them.
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

    /// As asked for, if this system can do that.
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

    /// The granularity of allocation, in bytes.
    pub(crate) fn granularity(&self) -> usize {
        self.huge.granularity()
    }

    /// The page size that a region of `size` bytes will have if all goes well.
    pub(crate) fn recommended(&self, size: usize) -> usize {
        match self.huge {
            HugePages::Transparent if size >= self.transparent_size => self.transparent_size,
            _ => self.granularity(),
        }
    }

    /// Size and alignment of the region for a layout.
    pub(crate) fn region_layout(&self, layout: Layout) -> Result<(usize, usize)> {
        /// More than any huge page has, and so little that it always fits into an address space.
        const MAX_ALIGN: usize = 1 << 40;
        if layout.align() > MAX_ALIGN {
            return Err(Error::BadAlignment { align: layout.align() });
        }
        let size = layout.pad_to(self.granularity())?.size();
        Ok((size, layout.align().max(self.recommended(size))))
    }

    /// Says where the pages of a fresh mapping shall lie and how large they shall be, before there are any.
    pub(crate) fn prepare(&self, mapping: &Mapping) -> Result<()> {
        self.numa.apply(mapping, self.granularity(), &self.turn)?;
        if self.huge == HugePages::Transparent && mapping.size() >= self.transparent_size {
            // Best effort: a kernel without them says EINVAL.
            let _ = advise_huge_pages(mapping);
        }
        Ok(())
    }

    /// Whether all normal pages are made when a region is allocated.
    pub(crate) const fn populates(&self) -> bool {
        self.populate.is_some()
    }

    /// Refuses a region whose pages are to be made now and cannot be had: to make them would wake the out-of-memory killer. (Huge
    /// pages were set aside before.)
    pub(crate) fn check_available(&self, size: usize, huge_page: Option<usize>) -> Result<()> {
        match &self.populate {
            Some(room) if huge_page.is_none() => room.check(size, "this machine, to be had at once"),
            _ => Ok(()),
        }
    }

    /// Makes the pages of a private mapping, if that is to be done now.
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

    /// Puts a shared mapping onto transparent huge pages where only collapsing does it.
    pub(crate) fn collapse(&self, mapping: &Mapping) {
        let whole = mapping.size() / self.transparent_size * self.transparent_size;
        if self.collapse && whole > 0 {
            // Best effort: before Linux 6.1, or for want of a huge page, it stays as it is.
            let _ = collapse(mapping, whole, self.transparent_size);
        }
    }

    /// The page sizes to try, in this order; `None` is normal pages.
    pub(crate) fn page_size_choices(&self) -> impl Iterator<Item = Option<usize>> {
        let first = self.huge.hugetlb();
        let second = self.huge.falls_back().then_some(None);
        core::iter::once(first).chain(second)
    }

    /// NUMA node of the first page of a mapping: where it lies, or will lie if it is not there yet.
    pub(crate) fn node(&self, mapping: &Mapping) -> u64 {
        let there = sys::node_of_page(mapping.base()).ok().flatten();
        u64::from(there.or_else(|| self.numa.first_node()).unwrap_or_else(sys::current_node))
    }
}

/// Keeps it out of core dumps, if the kernel will.
pub(crate) fn exclude_from_dumps(mapping: &Mapping) {
    // SAFETY: our own mapping; the advice changes no content.
    let _ = unsafe { sys::advise(mapping.base(), mapping.size(), MemAdvice::DontDump) };
}

/// Asks for huge pages.
pub(crate) fn advise_huge_pages(mapping: &Mapping) -> Result<(), Errno> {
    // SAFETY: our own mapping; the advice changes no content.
    unsafe { sys::advise(mapping.base(), mapping.size(), MemAdvice::HugePages) }
}

/// Puts the first `size` bytes, a multiple of `huge_page`, of a fresh mapping onto huge pages now.
pub(crate) fn collapse(mapping: &Mapping, size: usize, huge_page: usize) -> Result<(), Errno> {
    let size = size.min(mapping.size());
    // A stretch without a single page counts as truncated and is left alone.
    for start in (0..size).step_by(huge_page) {
        // SAFETY: inside of our own fresh mapping, which no other code knows.
        unsafe { mapping.base().add(start).write_volatile(0) };
    }
    // SAFETY: our own mapping; collapsing changes no content.
    unsafe { sys::advise(mapping.base(), size, MemAdvice::Collapse) }
}

/// Makes all pages now.
pub(crate) fn populate(mapping: &Mapping) -> Result<(), Errno> {
    // SAFETY: our own mapping; populating changes no content.
    match unsafe { sys::advise(mapping.base(), mapping.size(), MemAdvice::Populate) } {
        // Before Linux 5.14: pages come when touched.
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Gives pages back: at once, after which they read as zero, or when the kernel needs them. For private memory.
///
/// # Safety
/// The content is not needed.
pub(crate) unsafe fn discard(mapping: &Mapping, start: usize, size: usize, lazily: bool) -> Result<()> {
    let (advice, call) = if lazily {
        (MemAdvice::Free, "madvise(MADV_FREE)")
    } else {
        (MemAdvice::DontNeed, "madvise(MADV_DONTNEED)")
    };
    if start.checked_add(size).is_none_or(|end| end > mapping.size()) {
        return Err(Error::InvalidArgument { what: "range", why: "must lie inside of its region" });
    }
    // SAFETY: inside of our own mapping, as was just checked; content is the caller's business.
    unsafe { sys::advise(mapping.base().add(start), size, advice) }
        .map_err(|errno| Error::native(call, errno.raw_os_error()))
}
