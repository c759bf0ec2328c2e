//! [`PrivateMemory`]: regions of private anonymous memory.

use rustix::io::Errno;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_os::{Mapping, Placement, map_error, page_size};
use umf_suballoc::RegionTable;
use umf_sync::Lock;

use crate::pages::{PagePolicy, discard, huge_pages_exhausted};
use crate::sys;

/// The regions of a private provider, each an anonymous mapping.
#[derive(Debug)]
pub(crate) struct PrivateMemory {
    regions: Lock<RegionTable<()>>,
}

impl PrivateMemory {
    pub(crate) const fn new() -> Self {
        Self { regions: Lock::new(RegionTable::new("this host provider")) }
    }

    pub(crate) fn allocate(&self, pages: &PagePolicy, layout: Layout) -> Result<Region> {
        let (size, align) = pages.region_layout(layout)?;
        self.regions.lock().ensure(1)?;
        let mapping = Self::map(pages, size, align)?;
        pages.prepare(&mapping)?;
        pages.populate(&mapping)?;
        let region = Region::new(mapping.address(), size);
        self.regions.lock().insert(region, ())?;
        mapping.leak();
        Ok(region)
    }

    fn map(pages: &PagePolicy, size: usize, align: usize) -> Result<Mapping> {
        let mut failed = Error::OutOfMemory { size, owner: "host", native: 0 };
        for choice in pages.page_size_choices() {
            let mapped = pages.check_available(size, choice).and_then(|()| match choice {
                Some(huge_page) => map_huge(size, align, huge_page)
                    .map_err(|errno| huge_pages_exhausted(size, errno.raw_os_error())),
                None => map_normal(size, align).map_err(|errno| map_error(size, "host", errno)),
            });
            match mapped {
                Ok(mapping) => return Ok(mapping),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// # Safety
    /// As `Provider::free`.
    pub(crate) unsafe fn free(&self, region: &Region) -> Result<()> {
        // Removed before it is unmapped: afterwards another thread may get the same address.
        self.regions.lock().remove(region)?;
        // SAFETY: the region was live until now, and by the caller's contract it is not in use.
        let mapping = unsafe { Mapping::of_region(region) };
        let unmapped = mapping.map_or(Ok(()), |mapping| mapping.unmap_or_leak());
        if unmapped.is_err() {
            // The tree node of the region is most likely still free, so this does not allocate.
            self.regions.lock().insert(*region, ())?;
        }
        unmapped
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.regions.lock().get(region).copied()
    }

    /// Checks that the range is whole pages of a live region.
    pub(crate) fn check_range(&self, pages: &PagePolicy, base: Address, size: usize) -> Result<()> {
        self.regions.lock().holding(base, size, pages.granularity()).map(drop)
    }

    /// Releases the pages of a range.
    ///
    /// # Safety
    /// The content of the range is not needed.
    pub(crate) unsafe fn purge(
        &self,
        pages: &PagePolicy,
        base: Address,
        size: usize,
        lazily: bool,
    ) -> Result<()> {
        let (region, ()) = self.regions.lock().holding(base, size, pages.granularity())?;
        let foreign = Error::ForeignAddress { address: base, owner: "this host provider" };
        let start = base.offset_from(region.base()).and_then(|start| usize::try_from(start).ok());
        let start = start.ok_or(foreign)?;
        // SAFETY: the region is live, and its owner makes this call. `leak` below prevents
        // unmapping.
        let mapping = unsafe { Mapping::of_region(&region) }.ok_or(foreign)?;
        // SAFETY: by the caller's contract the content is not needed.
        let purged = unsafe { discard(&mapping, start, size, lazily) };
        mapping.leak();
        purged
    }
}

/// Maps zeroed private memory at a multiple of `align`.
pub(crate) fn map_normal(size: usize, align: usize) -> Result<Mapping, Errno> {
    // Large enough to contain an aligned part; the rest is trimmed.
    let padded = size.checked_add(align.saturating_sub(page_size())).ok_or(Errno::NOMEM)?;
    let base = sys::map_private(Placement::Anywhere, padded, None)?;
    // SAFETY: the mapping was created above, and no other code owns it.
    Ok(unsafe { Mapping::from_parts(base, padded) }.trimmed(size, align))
}

/// Maps zeroed private memory on huge pages of `huge_page` bytes, of which `size` is a multiple.
pub(crate) fn map_huge(size: usize, align: usize, huge_page: usize) -> Result<Mapping, Errno> {
    // Not trimmed, because each mapped page reduces the reserved ones.
    // SAFETY: the closure creates a mapping of `size` bytes that no other code owns.
    unsafe { Mapping::placed(size, align, |place| sys::map_private(place, size, Some(huge_page))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_can_be_aligned_beyond_the_page() {
        for align in [1, 4096, 1 << 16, 1 << 21, 1 << 30] {
            for size in [4096, 12288, 1 << 21] {
                let mapping = map_normal(size, align).unwrap();
                assert_eq!((mapping.base().addr().get() % align, mapping.size()), (0, size));
                // SAFETY: both bytes lie in the mapping.
                unsafe {
                    mapping.base().write(1);
                    mapping.base().add(size - 1).write(1);
                }
            }
        }
        assert!(map_normal(1 << 60, 1 << 21).is_err());
        assert!(map_normal(usize::MAX & !4095, 1 << 21).is_err());
    }
}
