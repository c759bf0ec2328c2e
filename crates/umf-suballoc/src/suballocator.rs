//! [`Suballocator`]: free ranges and live regions behind one lock, which survives forks.

use umf_core::{Address, Error, Layout, Region, Result};
use umf_sync::Lock;

use crate::{FreeRanges, RegionTable};

struct State {
    ranges: FreeRanges,
    /// The live regions, each with its offset.
    live: RegionTable<u64>,
}

/// Suballocates regions from the offsets `start..end`: addresses, or offsets in a file.
/// Thread-safe.
///
/// The provider maps an offset to an address of this process when it allocates. Live regions never
/// overlap in offsets. If the mapping is injective, they do not overlap in addresses either.
pub struct Suballocator {
    state: Lock<State>,
    owner: &'static str,
}

impl Suballocator {
    /// Makes a suballocator of `start..end`. Errors name `owner`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is empty; [`Error::OutOfMemory`].
    pub fn new(start: u64, end: u64, owner: &'static str) -> Result<Self> {
        if start >= end {
            return Err(Error::InvalidArgument {
                what: "range to suballocate",
                why: "must have at least one page",
            });
        }
        let mut ranges = FreeRanges::new(end)?;
        if start > 0 {
            // The offsets before `start` stay taken.
            ranges.take(start, 1)?;
        }
        Ok(Self { state: Lock::new(State { ranges, live: RegionTable::new(owner) }), owner })
    }

    /// Allocates a region of `size` bytes at an offset that is a multiple of `align`, a power of
    /// two. `map` returns the address of the offset. If it fails, nothing is allocated.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no free range is long enough; those of `map`.
    pub fn allocate(
        &self,
        size: usize,
        align: u64,
        map: impl FnOnce(u64) -> Result<Address>,
    ) -> Result<Region> {
        let offset = {
            let mut state = self.state.lock();
            let taken = state.ranges.take(size as u64, align)?;
            let offset = taken.ok_or(Error::OutOfMemory { size, owner: self.owner, native: 0 })?;
            // Reserves a node for each taken range, so that no insertion below fails.
            let missing = state.ranges.taken().saturating_sub(state.live.count());
            if let Err(error) = state.live.ensure(missing) {
                state.ranges.give(offset, size as u64);
                return Err(error);
            }
            offset
        };
        // Without the lock: mapping is slow.
        match map(offset) {
            Ok(base) => {
                let region = Region::new(base, size);
                self.state.lock().live.insert(region, offset)?;
                Ok(region)
            }
            Err(error) => {
                self.state.lock().ranges.give(offset, size as u64);
                Err(error)
            }
        }
    }

    /// Allocates a region of whole pages of `page` bytes, for a suballocator whose offsets are
    /// addresses.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if no free range is long enough; those of [`Layout`].
    pub fn allocate_pages(&self, layout: Layout, page: usize) -> Result<Region> {
        let layout = layout.pad_to(page)?.align_to(page)?;
        let size = layout.size();
        self.allocate(size, layout.align() as u64, |offset| {
            let address = usize::try_from(offset).ok().and_then(Address::new);
            address.ok_or(Error::OutOfMemory { size, owner: self.owner, native: 0 })
        })
    }

    /// Returns the offset of a live region.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`], [`Error::NotAllocated`].
    pub fn offset_of(&self, region: &Region) -> Result<u64> {
        self.state.lock().live.get(region).copied()
    }

    /// Returns the live region that contains these bytes, whole pages of `page` bytes, and its
    /// offset.
    ///
    /// # Errors
    /// As [`RegionTable::holding`].
    pub fn holding(&self, address: Address, size: usize, page: usize) -> Result<(Region, u64)> {
        self.state.lock().live.holding(address, size, page).map(|(region, offset)| (region, *offset))
    }

    /// Frees a region. `unmap` runs before the offset can be allocated again. If it fails, the
    /// region stays live.
    ///
    /// # Errors
    /// As [`Suballocator::offset_of`]; those of `unmap`.
    pub fn free(&self, region: &Region, unmap: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        // Removed first: once unmapped, another thread may get the same address.
        let offset = self.state.lock().live.remove(region)?;
        let unmapped = unmap(offset);
        let mut state = self.state.lock();
        match unmapped {
            Ok(()) => state.ranges.give(offset, region.size() as u64),
            Err(_) => state.live.insert(*region, offset)?,
        }
        unmapped
    }

    /// Returns the number of live regions.
    #[must_use]
    pub fn live(&self) -> usize {
        self.state.lock().live.count() as usize
    }
}

impl core::fmt::Debug for Suballocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} regions of {}", self.live(), self.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn at(offset: u64) -> Result<Address> {
        Ok(Address::from_bits(offset))
    }

    #[test]
    fn freed_regions_coalesce_and_are_not_found() {
        let suballocator = Suballocator::new(1 << 20, 2 << 20, "the test").unwrap();
        let first = suballocator.allocate(PAGE, 4096, at).unwrap();
        let second = suballocator.allocate(PAGE, 1 << 16, at).unwrap();
        assert!(first.base().value() >= 1 << 20 && second.base().is_aligned_to(1 << 16));
        assert!(matches!(suballocator.allocate(1 << 20, 1, at), Err(Error::OutOfMemory { .. })));
        assert_eq!(suballocator.holding(second.base(), PAGE, PAGE).unwrap().0, second);
        assert!(suballocator.holding(second.base(), 2 * PAGE, PAGE).is_err());
        suballocator.free(&first, |_| Ok(())).unwrap();
        assert!(matches!(suballocator.free(&first, |_| Ok(())), Err(Error::ForeignAddress { .. })));
        suballocator.free(&second, |_| Ok(())).unwrap();
        // The whole range is free again.
        let whole = suballocator.allocate(1 << 20, 1, at).unwrap();
        assert_eq!(whole.base().value(), 1 << 20);
    }

    #[test]
    fn failed_map_or_unmap_changes_nothing() {
        let suballocator = Suballocator::new(0, 1 << 20, "the test").unwrap();
        let failed = Error::native("mmap", 12);
        assert_eq!(suballocator.allocate(1 << 20, 1, |_| Err(failed)).unwrap_err(), failed);
        let whole = suballocator.allocate(1 << 20, 1, at).unwrap();
        assert_eq!(suballocator.free(&whole, |_| Err(failed)), Err(failed));
        assert_eq!(suballocator.offset_of(&whole), Ok(0));
    }
}
