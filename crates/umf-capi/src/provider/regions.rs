//! [`Regions`]: the memory that C allocated through a provider's functions, and its split parts.
//!
//! The providers of this library cannot split a region. A split region stays one region for its
//! provider, the tracker and other processes. This module records its live parts. A freed part is
//! purged at once, and the region is freed with its last part.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;

use umf_core::{Address, Error, Layout, Region, Result};
use umf_runtime::Upstream;
use umf_runtime::tracker::{self, OwnerId, TrackedRegion};
use umf_sync::Lock;

/// The regions that were allocated through one provider handle.
pub(crate) struct Regions {
    upstream: Upstream,
    /// Whether freed parts are purged. Only where a purge returns memory to the system.
    purges_parts: bool,
}

/// A split region.
struct Split {
    owner: OwnerId,
    /// Offset and size of each live part, in order of address.
    parts: Vec<(usize, usize)>,
}

/// Split regions by region id. Ids are never reused.
static SPLIT: Lock<BTreeMap<u64, Split>> = Lock::new(BTreeMap::new());
/// Number of split regions. While it is 0, no call takes the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Runs `body` on the table of split regions, if it is not empty.
fn with_split<T>(body: impl FnOnce(&mut BTreeMap<u64, Split>) -> Option<T>) -> Option<T> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut split = SPLIT.lock();
    let result = body(&mut split);
    COUNT.store(split.len(), Ordering::Release);
    result
}

pub(crate) fn address(memory: *const c_void) -> Address {
    Address::from_ptr(memory.cast::<u8>())
}

fn offset(region: &Region, address: Address) -> Option<usize> {
    address.offset_from(region.base()).and_then(|offset| usize::try_from(offset).ok())
}

/// Returns offset and size of the live part that holds an address. An unsplit region is one part.
/// Returns `None` for a freed part.
pub(crate) fn part_around(region: &Region, address: Address) -> Option<(usize, usize)> {
    let at = offset(region, address).filter(|&at| at < region.size())?;
    let part = with_split(|split| {
        let parts = &split.get(&region.id().get())?.parts;
        Some(parts.iter().copied().find(|&(start, size)| (start..start + size).contains(&at)))
    });
    part.unwrap_or(Some((0, region.size())))
}

impl Regions {
    pub(super) const fn new(upstream: Upstream, purges_parts: bool) -> Self {
        Self { upstream, purges_parts }
    }

    pub(super) const fn owner(&self) -> OwnerId {
        self.upstream.id()
    }

    fn page(&self) -> usize {
        self.upstream.provider().page_size().max(1)
    }

    /// Allocates `size` bytes at a multiple of `align`; 0 is any alignment.
    pub(super) fn allocate(&self, size: usize, align: usize) -> Result<*mut c_void> {
        // Memory that other processes had open at its free: the end of a lease sends no message.
        if !self.upstream.deferred().is_empty() {
            self.upstream.poll_some();
        }
        let (region, _) = self.upstream.allocate(Layout::new(size, align.max(1))?)?;
        let base = region.base();
        base.as_ptr()
            .map(<*mut u8>::cast)
            .ok_or(Error::Untrusted { why: "memory outside of this address space" })
    }

    /// Finds the live part that begins at an address. Returns its region, offset and size.
    fn part(&self, memory: *mut c_void) -> Result<(Region, usize, usize)> {
        let address = address(memory);
        let foreign = Error::ForeignAddress { address, owner: "this provider" };
        // A region that another provider or pool has in this one may be the innermost.
        let is_own = |found: &TrackedRegion| found.owner == self.owner();
        let TrackedRegion { region, .. } = tracker::find_where(address, is_own).ok_or(foreign)?;
        let (start, size) = part_around(&region, address).ok_or(Error::NotAllocated { address })?;
        if offset(&region, address) != Some(start) {
            return Err(Error::InteriorAddress { address });
        }
        Ok((region, start, size))
    }

    /// Checks the size that C passed: the requested size, or that size rounded up to pages.
    fn check_size(&self, size: usize, part: usize) -> Result<()> {
        if size == part || size.checked_next_multiple_of(self.page()) == Some(part) {
            return Ok(());
        }
        Err(Error::InvalidArgument { what: "size", why: "must be what was allocated there" })
    }

    /// Frees a region or a part of one. Size 0 skips the size check.
    ///
    /// UMF requires that C does not use the memory any more.
    pub(super) fn free(&self, memory: *mut c_void, size: usize) -> Result<()> {
        let (region, start, part) = self.part(memory)?;
        if size != 0 {
            self.check_size(size, part)?;
        }
        let id = region.id().get();
        let is_last = with_split(|split| Some(split.get(&id)?.parts.len() == 1));
        // Purges before the part is removed. Afterwards the addresses may belong to another region.
        if self.purges_parts && is_last == Some(false) {
            // SAFETY: C does not need the contents. Pages that cannot be purged are freed with the
            // region.
            let _ = unsafe { self.purge_range(address(memory), part, false) };
        }
        let left = with_split(|split| {
            let parts = &mut split.get_mut(&id)?.parts;
            parts.retain(|&(other, _)| other != start);
            Some(parts.len())
        });
        if left.is_some_and(|left| left > 0) {
            return Ok(());
        }
        // SAFETY: a live region of this upstream, which C does not use any more.
        let freed = unsafe { self.upstream.free(region) };
        if left.is_some() {
            with_split(|split| match freed {
                Ok(_) => split.remove(&id).map(|_| ()),
                // The region is still allocated, so its last part stays live.
                Err(_) => split.get_mut(&id).map(|split| split.parts.push((start, part))),
            });
        }
        freed.map(|_| ())
    }

    /// Splits a part in two, of which the lower one has `first` bytes.
    pub(super) fn split(&self, memory: *mut c_void, total: usize, first: usize) -> Result<()> {
        let (region, start, size) = self.part(memory)?;
        self.check_size(total, size)?;
        if first == 0 || first >= size || !first.is_multiple_of(self.page()) {
            let why = "must lie inside the memory, at a multiple of the page size";
            return Err(Error::InvalidArgument { what: "first size", why });
        }
        let mut split = SPLIT.lock();
        let whole = || Split { owner: self.owner(), parts: vec![(0, region.size())] };
        let parts = &mut split.entry(region.id().get()).or_insert_with(whole).parts;
        let place = parts.partition_point(|&(other, _)| other < start);
        if parts.get(place) != Some(&(start, size)) {
            return Err(Error::NotAllocated { address: address(memory) });
        }
        parts[place].1 = first;
        parts.insert(place + 1, (start + first, size - first));
        COUNT.store(split.len(), Ordering::Release);
        Ok(())
    }

    /// Merges two neighbouring parts.
    pub(super) fn merge(&self, low: *mut c_void, high: *mut c_void, total: usize) -> Result<()> {
        let ((region, low, first), (other, high, second)) = (self.part(low)?, self.part(high)?);
        let page = self.page();
        let size = total.checked_next_multiple_of(page);
        if region != other || low + first != high || size != (first + second).checked_next_multiple_of(page) {
            let why = "must be of two neighbours that were split, of that size together";
            return Err(Error::InvalidArgument { what: "merge", why });
        }
        with_split(|split| {
            let parts = &mut split.get_mut(&region.id().get())?.parts;
            parts.retain(|&(start, _)| start != high);
            let place = parts.iter().position(|&(start, _)| start == low)?;
            parts[place].1 = first + second;
            if parts[place] == (0, region.size()) {
                split.remove(&region.id().get());
            }
            Some(())
        });
        Ok(())
    }

    /// Purges pages. The range may begin and end anywhere in memory of this provider.
    pub(super) fn purge(&self, memory: *mut c_void, size: usize, lazily: bool) -> Result<()> {
        let (start, overflow) = (address(memory), Error::SizeOverflow { size, align: 1 });
        let end = start.checked_add(size as u64).ok_or(overflow)?;
        // Rounds up to whole pages, as the system calls do.
        let end = end.align_up(self.page()).ok_or(overflow)?;
        let size = end.offset_from(start).and_then(|size| usize::try_from(size).ok()).ok_or(overflow)?;
        // SAFETY: C does not need the contents.
        unsafe { self.purge_range(start, size, lazily) }
    }

    /// # Safety
    /// The contents of the range are not needed.
    unsafe fn purge_range(&self, start: Address, size: usize, lazily: bool) -> Result<()> {
        let unsupported = Error::NotSupported { what: "purging", owner: "this provider", native: 0 };
        let purge = self.upstream.provider().purge().ok_or(unsupported)?;
        // SAFETY: the caller does not need the contents.
        unsafe { if lazily { purge.purge_lazy(start, size) } else { purge.purge_forced(start, size) } }
    }
}

impl Drop for Regions {
    /// Removes what C did not free, as the tracker does.
    fn drop(&mut self) {
        with_split(|split| {
            split.retain(|_, split| split.owner != self.owner());
            Some(())
        });
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::null_mut;

    use umf_provider_host::HostProvider;

    use super::*;

    const PAGE: usize = 4096;

    fn regions() -> Regions {
        Regions::new(Upstream::new(HostProvider::builder().build().unwrap()).unwrap(), true)
    }

    fn further(memory: *mut c_void, pages: usize) -> *mut c_void {
        memory.wrapping_byte_add(pages * PAGE)
    }

    fn is_known(memory: *mut c_void) -> bool {
        let found = tracker::find(address(memory));
        found.is_some_and(|found| part_around(&found.region, address(memory)).is_some())
    }

    #[test]
    fn region_is_freed_with_its_last_part() {
        let regions = regions();
        for order in [[0, 1, 3], [3, 1, 0], [1, 3, 0]] {
            let memory = regions.allocate(4 * PAGE, 0).unwrap();
            regions.split(memory, 4 * PAGE, PAGE).unwrap();
            regions.split(further(memory, 1), 3 * PAGE, 2 * PAGE).unwrap();
            let sizes = |part| if part == 1 { 2 * PAGE } else { PAGE };
            for (done, part) in order.into_iter().enumerate() {
                assert!(regions.free(further(memory, part), sizes(part) + PAGE).is_err(), "another size");
                assert!(tracker::find(address(memory)).is_some(), "{done}");
                regions.free(further(memory, part), sizes(part)).unwrap();
                assert!(regions.free(further(memory, part), sizes(part)).is_err(), "{order:?}: freed twice");
                assert!(!is_known(further(memory, part)));
            }
            assert!(tracker::find(address(memory)).is_none(), "{order:?}");
        }
        assert!(SPLIT.lock().values().all(|split| split.owner != regions.owner()));
    }

    #[test]
    fn freed_part_is_purged_and_its_neighbours_stay() {
        let regions = regions();
        let memory = regions.allocate(3 * PAGE, 0).unwrap();
        // SAFETY: allocated above.
        let byte = |page: usize| unsafe { &*further(memory, page).cast::<core::sync::atomic::AtomicU8>() };
        (0..3).for_each(|page| byte(page).store(7, Ordering::Relaxed));
        regions.split(memory, 3 * PAGE, 2 * PAGE).unwrap();
        regions.split(memory, 2 * PAGE, PAGE).unwrap();
        regions.free(further(memory, 1), PAGE).unwrap();
        let bytes: Vec<_> = (0..3).map(|page| byte(page).load(Ordering::Relaxed)).collect();
        assert_eq!(bytes, [7, 0, 7]);
        let merged = regions.merge(memory, further(memory, 2), 2 * PAGE);
        assert!(merged.is_err(), "a freed part lies between them");
        regions.free(further(memory, 2), PAGE).unwrap();
        regions.free(memory, PAGE).unwrap();
        assert!(tracker::find(address(memory)).is_none());
    }

    #[test]
    fn merged_parts_are_one_again() {
        let regions = regions();
        let memory = regions.allocate(2 * PAGE, 0).unwrap();
        let other = regions.allocate(PAGE, 0).unwrap();
        for first in [0, 1, PAGE / 2, 2 * PAGE, 3 * PAGE] {
            assert!(regions.split(memory, 2 * PAGE, first).is_err(), "{first}");
        }
        assert!(regions.split(memory, PAGE, PAGE / 2).is_err(), "another size");
        assert!(regions.split(further(memory, 1), PAGE, 1).is_err(), "inside");
        assert!(regions.split(null_mut(), PAGE, 1).is_err());
        regions.split(memory, 2 * PAGE, PAGE).unwrap();
        assert!(regions.free(memory, 2 * PAGE).is_err(), "it was split");
        assert!(regions.merge(further(memory, 1), memory, 2 * PAGE).is_err(), "the wrong order");
        assert!(regions.merge(memory, memory, 2 * PAGE).is_err());
        assert!(regions.merge(memory, other, 2 * PAGE).is_err(), "two allocations");
        assert!(regions.merge(memory, further(memory, 1), 3 * PAGE).is_err(), "another size");
        regions.merge(memory, further(memory, 1), 2 * PAGE).unwrap();
        assert!(regions.free(further(memory, 1), PAGE).is_err(), "inside");
        regions.free(memory, 2 * PAGE).unwrap();
        regions.free(other, PAGE).unwrap();
    }
}
