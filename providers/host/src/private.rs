//! Private anonymous memory.

use rustix::io::Errno;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_os::{Mapping, Placement, map_error, page_size};
use umf_suballoc::RegionTable;
use umf_sync::Lock;

use crate::pages::{PagePolicy, discard, huge_pages_exhausted};
use crate::sys;

/// Where private memory comes from.
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
                Some(huge_page) => huge(size, align, huge_page)
                    .map_err(|errno| huge_pages_exhausted(size, errno.raw_os_error())),
                None => normal(size, align).map_err(|errno| map_error(size, "host", errno)),
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
        // Forgotten first: once unmapped, another thread may get the same address.
        self.regions.lock().remove(region)?;
        // SAFETY: the region was live until now, and the caller says that nobody uses it.
        let mapping = unsafe { Mapping::of_region(region) };
        let unmapped = mapping.map_or(Ok(()), |mapping| mapping.unmap_or_leak());
        if unmapped.is_err() {
            // The node that the region had is most likely still free.
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

    /// # Safety
    /// Nobody needs the content of the range.
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
        // SAFETY: a live region, whose owner is in this call; the mapping is kept again below.
        let mapping = unsafe { Mapping::of_region(&region) }.ok_or(foreign)?;
        // SAFETY: passed on to the caller.
        let purged = unsafe { discard(&mapping, start, size, lazily) };
        mapping.leak();
        purged
    }
}

/// Zeroed private memory at a multiple of `align`.
pub(crate) fn normal(size: usize, align: usize) -> Result<Mapping, Errno> {
    // What surely holds an aligned part, trimmed.
    let room = size.checked_add(align.saturating_sub(page_size())).ok_or(Errno::NOMEM)?;
    let base = sys::map_private(Placement::Anywhere, room, None)?;
    // SAFETY: it was just mapped, for this.
    Ok(unsafe { Mapping::from_parts(base, room) }.trimmed(size, align))
}

/// Zeroed private memory on huge pages of `huge_page` bytes, of which `size` is a multiple.
pub(crate) fn huge(size: usize, align: usize, huge_page: usize) -> Result<Mapping, Errno> {
    // Not trimmed: every page that is mapped is taken from those that are reserved.
    // SAFETY: the function maps that much, for this provider alone.
    unsafe { Mapping::placed(size, align, |place| sys::map_private(place, size, Some(huge_page))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_beyond_the_page() {
        for align in [1, 4096, 1 << 16, 1 << 21, 1 << 30] {
            for size in [4096, 12288, 1 << 21] {
                let mapping = normal(size, align).unwrap();
                assert_eq!((mapping.base().addr().get() % align, mapping.size()), (0, size));
                // SAFETY: both bytes lie in the mapping.
                unsafe {
                    mapping.base().write(1);
                    mapping.base().add(size - 1).write(1);
                }
            }
        }
        assert!(normal(1 << 60, 1 << 21).is_err());
        assert!(normal(usize::MAX & !4095, 1 << 21).is_err());
    }
}
