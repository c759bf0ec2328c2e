//! Private anonymous memory.

use umf_carve::Regions;
use umf_core::{Address, Error, Layout, Region, Result};
use umf_memory::{Mapping, map_error};
use umf_sync::Lock;

use crate::pages::Pages;
use crate::{advice, anonymous, huge};

/// Where private memory comes from.
#[derive(Debug)]
pub(crate) struct Private {
    regions: Lock<Regions<()>>,
}

impl Private {
    pub(crate) const fn new() -> Self {
        Self { regions: Lock::new(Regions::new("this host provider")) }
    }

    pub(crate) fn allocate(&self, pages: &Pages, layout: Layout) -> Result<Region> {
        let (size, align) = pages.place(layout)?;
        self.regions.lock().ensure(1)?;
        let mapping = Self::map(pages, size, align)?;
        pages.prepare(&mapping)?;
        pages.populate(&mapping)?;
        let region = Region::new(mapping.address(), size);
        self.regions.lock().insert(region, ())?;
        mapping.keep();
        Ok(region)
    }

    fn map(pages: &Pages, size: usize, align: usize) -> Result<Mapping> {
        let mut failed = Error::OutOfMemory { size, owner: "host", native: 0 };
        for choice in pages.choices() {
            let mapped = pages.check_room(size, choice).and_then(|()| match choice {
                Some(huge_page) => anonymous::huge(size, align, huge_page)
                    .map_err(|errno| huge::none_left(size, errno.raw_os_error())),
                None => anonymous::normal(size, align).map_err(|errno| map_error(size, "host", errno)),
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
        let unmapped = mapping.map_or(Ok(()), |mapping| mapping.unmap_or_keep());
        if unmapped.is_err() {
            // The node that the region had is most likely still free.
            self.regions.lock().insert(*region, ())?;
        }
        unmapped
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        self.regions.lock().get(region).map(|()| ())
    }

    /// Whether the range is that of a live region.
    pub(crate) fn check_range(&self, base: Address, size: usize) -> Result<()> {
        self.regions.lock().holding(base, size).map(drop)
    }

    /// # Safety
    /// Nobody needs the content of the range.
    pub(crate) unsafe fn purge(&self, base: Address, size: usize, lazily: bool) -> Result<()> {
        let (region, ()) = self.regions.lock().holding(base, size)?;
        let foreign = Error::ForeignAddress { address: base, owner: "this host provider" };
        let start = base.offset_from(region.base()).and_then(|start| usize::try_from(start).ok());
        let start = start.ok_or(foreign)?;
        // SAFETY: a live region, whose owner is in this call; the mapping is kept again below.
        let mapping = unsafe { Mapping::of_region(&region) }.ok_or(foreign)?;
        // SAFETY: passed on to the caller.
        let purged = unsafe { advice::discard(&mapping, start, size, lazily) };
        mapping.keep();
        purged
    }
}
