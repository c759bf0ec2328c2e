//! [`Regions`]: memory that C got through a provider's functions. The tracker remembers it.

use core::ffi::c_void;

use umf_core::tracker::{self, OwnerId};
use umf_core::{Address, Error, Layout, Region, Result, Upstream};

/// What was allocated through one table of functions.
pub(super) struct Regions {
    upstream: Upstream,
}

pub(super) fn address(memory: *const c_void) -> Address {
    Address::from_ptr(memory.cast::<u8>())
}

impl Regions {
    pub(super) const fn new(upstream: Upstream) -> Self {
        Self { upstream }
    }

    pub(super) const fn owner(&self) -> OwnerId {
        self.upstream.id()
    }

    /// `size` bytes at a multiple of `align`, where 0 is any.
    pub(super) fn allocate(&self, size: usize, align: usize) -> Result<*mut c_void> {
        let (region, _) = self.upstream.allocate(Layout::new(size, align.max(1))?)?;
        let base = region.base();
        base.as_ptr()
            .map(<*mut u8>::cast)
            .ok_or(Error::Untrusted { why: "memory outside of this address space" })
    }

    /// The region that begins there, of `size` bytes: what was asked for, or what was given.
    fn exact(&self, memory: *mut c_void, size: usize) -> Result<Region> {
        let address = address(memory);
        let found = tracker::find(address).filter(|found| found.owner == self.owner());
        let found = found.ok_or(Error::ForeignAddress { address, owner: "this provider" })?;
        if found.region.base() != address {
            return Err(Error::InteriorAddress { address });
        }
        let page = self.upstream.provider().page_size().max(1);
        let whole = size.checked_next_multiple_of(page);
        if size == 0 || size == found.region.size() || whole == Some(found.region.size()) {
            return Ok(found.region);
        }
        Err(Error::InvalidArgument { what: "size", why: "must be what was allocated there" })
    }

    /// The caller says that nobody uses the memory any more, as UMF's header asks of it. A size of 0 is whatever was allocated.
    pub(super) fn free(&self, memory: *mut c_void, size: usize) -> Result<()> {
        let region = self.exact(memory, size)?;
        // SAFETY: a live region of this upstream, that C gives up.
        unsafe { self.upstream.free(region) }.map(|_| ())
    }

    fn check_split_merge(&self) -> Result<()> {
        let unsupported =
            Error::NotSupported { what: "splitting and merging", owner: "this provider", native: 0 };
        self.upstream.provider().split_merge().map(|_| ()).ok_or(unsupported)
    }

    pub(super) fn split(&self, memory: *mut c_void, total: usize, first: usize) -> Result<()> {
        self.check_split_merge()?;
        let region = self.exact(memory, total)?;
        if first == 0 || first >= region.size() {
            return Err(Error::InvalidArgument { what: "first size", why: "must lie inside the memory" });
        }
        // SAFETY: a live region of this upstream, that C owns.
        unsafe { self.upstream.split(region, first) }.map(|_| ())
    }

    pub(super) fn merge(&self, low: *mut c_void, high: *mut c_void, total: usize) -> Result<()> {
        self.check_split_merge()?;
        let (low, high) = (self.exact(low, 0)?, self.exact(high, 0)?);
        let adjacent = low.base().checked_add(low.size() as u64) == Some(high.base());
        let page = self.upstream.provider().page_size().max(1);
        if !adjacent
            || total.checked_next_multiple_of(page)
                != (low.size() + high.size()).checked_next_multiple_of(page)
        {
            return Err(Error::InvalidArgument {
                what: "merge",
                why: "must be of two neighbours of that size together",
            });
        }
        // SAFETY: live regions of this upstream, that C owns.
        unsafe { self.upstream.merge(low, high) }.map(|_| ())
    }

    /// Discards pages. The range may lie anywhere in memory of this provider.
    pub(super) fn purge(&self, memory: *mut c_void, size: usize, lazily: bool) -> Result<()> {
        let unsupported = Error::NotSupported { what: "purging", owner: "this provider", native: 0 };
        let purge = self.upstream.provider().purge().ok_or(unsupported)?;
        let page = self.upstream.provider().page_size().max(1) as u64;
        let (start, overflow) = (address(memory), Error::SizeOverflow { size, align: 1 });
        let end = start.checked_add(size as u64).ok_or(overflow)?;
        // Whole pages, as the system's own calls take them.
        let end = end.align_up(usize::try_from(page).unwrap_or(1)).ok_or(overflow)?;
        let size = end.offset_from(start).and_then(|size| usize::try_from(size).ok()).ok_or(overflow)?;
        // SAFETY: C says that nobody needs the content.
        unsafe { if lazily { purge.purge_lazy(start, size) } else { purge.purge_forced(start, size) } }
    }
}
