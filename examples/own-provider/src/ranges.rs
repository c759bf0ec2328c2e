//! [`FreeRanges`]: the free ranges and live regions of an arena.

use std::collections::BTreeMap;

use umf_core::{Address, Error, Region, Result};

const OWNER: &str = "this arena";

/// Free ranges and live regions, by address. Allocation is first fit; free neighbours are
/// coalesced.
#[derive(Debug)]
pub(crate) struct FreeRanges {
    /// Start and size of each free range.
    free: BTreeMap<u64, u64>,
    live: BTreeMap<u64, Region>,
}

impl FreeRanges {
    pub(crate) fn new(start: u64, size: u64) -> Self {
        Self { free: BTreeMap::from([(start, size)]), live: BTreeMap::new() }
    }

    /// Allocates the first range of `size` bytes at a multiple of `align`, a power of two.
    pub(crate) fn take(&mut self, size: usize, align: usize) -> Result<Region> {
        let none = Error::OutOfMemory { size, owner: OWNER, native: 0 };
        let wanted = size as u64;
        let place = self.free.iter().find_map(|(&start, &len)| {
            let base = start.checked_next_multiple_of(align as u64)?;
            (base.checked_add(wanted)? <= start + len).then_some((start, len, base))
        });
        let (start, len, base) = place.ok_or(none)?;
        let region = Region::new(Address::in_space(umf_core::AddressSpace::PROCESS, base).ok_or(none)?, size);
        self.free.remove(&start);
        let rest = [(start, base), (base + wanted, start + len)].into_iter();
        self.free.extend(rest.filter(|(part, end)| part < end).map(|(part, end)| (part, end - part)));
        self.live.insert(base, region);
        Ok(region)
    }

    /// Checks that exactly this region is live.
    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        let address = region.base();
        match self.live.get(&address.to_bits()) {
            Some(live) if live == region => Ok(()),
            // The address was reused; the caller's region was freed before.
            Some(_) => Err(Error::NotAllocated { address }),
            None => Err(Error::ForeignAddress { address, owner: OWNER }),
        }
    }

    /// Frees the range of a live region.
    pub(crate) fn give_back(&mut self, region: &Region) -> Result<()> {
        self.check(region)?;
        let (mut start, mut len) = (region.base().to_bits(), region.size() as u64);
        self.live.remove(&start);
        if let Some(behind) = self.free.remove(&(start + len)) {
            len += behind;
        }
        let before = self.free.range(..start).next_back().map(|(&before, &size)| (before, size));
        if let Some((before, size)) = before.filter(|(before, size)| before + size == start) {
            start = before;
            len += size;
        }
        self.free.insert(start, len);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_neighbours_are_coalesced() {
        let mut ranges = FreeRanges::new(0x1000, 0x9000);
        let three: Vec<_> = (0..3).map(|_| ranges.take(0x3000, 0x1000).unwrap()).collect();
        assert!(ranges.take(1, 1).is_err());
        for place in [0, 2, 1] {
            ranges.give_back(&three[place]).unwrap();
            assert!(ranges.give_back(&three[place]).is_err());
        }
        assert_eq!(ranges.free, BTreeMap::from([(0x1000, 0x9000)]));
        assert_eq!(ranges.take(0x1000, 0x4000).unwrap().base(), Address::new(0x4000).unwrap());
    }
}
