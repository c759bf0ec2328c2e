//! [`HugePages`]: which pages memory is made of.

use umf_core::{Error, Result};
use umf_os::page_size;

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
pub(crate) const fn none_left(size: usize, native: i32) -> Error {
    Error::OutOfMemory {
        size,
        owner: "the reserved huge pages; reserve more in /proc/sys/vm/nr_hugepages",
        native,
    }
}
