//! Private anonymous memory.
//!
//! The live regions of all private providers of the process are in one static table, so that a provider
//! may be a `static` with nothing to set up.

use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::{Address, Error, Layout, Region, Result};
use umf_memory::{Mapping, map_error};
use umf_sync::Lock;

use crate::pages::Pages;
use crate::records::{Backing, Record, Records};
use crate::{advice, anonymous, huge};

static REGIONS: Lock<Records> = Lock::new(Records::new());

/// Where private memory comes from.
#[derive(Debug)]
pub(crate) struct Private {
    /// The provider's number, 0 until it is used.
    number: AtomicU32,
}

impl Private {
    pub(crate) const fn new() -> Self {
        Self { number: AtomicU32::new(0) }
    }

    /// A number that no other private provider has.
    fn number(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = self.number.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
        let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
        match self.number.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            Err(other) => other,
        }
    }

    pub(crate) fn allocate(&self, pages: &Pages, layout: Layout) -> Result<Region> {
        let (size, align) = pages.place(layout)?;
        REGIONS.lock().ensure(1)?;
        let mapping = Self::map(pages, size, align)?;
        pages.prepare(&mapping)?;
        pages.populate(&mapping)?;
        let region = Region::new(mapping.address(), size);
        let record = Record { region, owner: self.number(), backing: Backing::Anonymous };
        REGIONS.lock().insert(record)?;
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
        // The record goes first: once unmapped, another thread may get the same address.
        let record = REGIONS.lock().remove(self.number(), region)?;
        // SAFETY: the region was live until now, and the caller says that nobody uses it.
        let mapping = unsafe { Mapping::of_region(region) };
        let unmapped = mapping.map_or(Ok(()), |mapping| mapping.unmap_or_keep());
        if unmapped.is_err() {
            // The place that the record had is most likely still free.
            REGIONS.lock().insert(record)?;
        }
        unmapped
    }

    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        REGIONS.lock().get(self.number(), region).map(|_| ())
    }

    /// Whether the range is that of a live region.
    pub(crate) fn check_range(&self, base: Address, size: usize) -> Result<()> {
        REGIONS.lock().holding(self.number(), base, size).map(drop)
    }

    /// # Safety
    /// Nobody needs the content of the range.
    pub(crate) unsafe fn purge(&self, base: Address, size: usize, lazily: bool) -> Result<()> {
        let region = REGIONS.lock().holding(self.number(), base, size)?.region;
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
