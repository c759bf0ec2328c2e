//! [`FreeRanges`]: the free ranges and live regions of an arena.

use std::collections::BTreeMap;

use umf_core::{Address, Error, Region, Result};

const OWNER: &str = "this arena";

/// Free ranges and live regions, by address. Allocation is first fit. Adjacent free ranges are
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
    pub(crate) fn allocate(&mut self, size: usize, align: usize) -> Result<Region> {
        let out_of_memory = Error::OutOfMemory { size, owner: OWNER, native: 0 };
        let length = size as u64;
        let found = self.free.iter().find_map(|(&start, &len)| {
            let base = start.checked_next_multiple_of(align as u64)?;
            (base.checked_add(length)? <= start + len).then_some((start, len, base))
        });
        let (start, len, base) = found.ok_or(out_of_memory)?;
        let region =
            Region::new(Address::in_space(umf_core::AddressSpace::PROCESS, base).ok_or(out_of_memory)?, size);
        self.free.remove(&start);
        let rest = [(start, base), (base + length, start + len)].into_iter();
        self.free.extend(rest.filter(|(part, end)| part < end).map(|(part, end)| (part, end - part)));
        self.live.insert(base, region);
        Ok(region)
    }

    /// Checks that exactly this region is live.
    pub(crate) fn check(&self, region: &Region) -> Result<()> {
        let address = region.base();
        match self.live.get(&address.to_bits()) {
            Some(live) if live == region => Ok(()),
            // The caller's region was freed before, and its address reused.
            Some(_) => Err(Error::NotAllocated { address }),
            None => Err(Error::ForeignAddress { address, owner: OWNER }),
        }
    }

    /// Frees the range of a live region.
    pub(crate) fn free(&mut self, region: &Region) -> Result<()> {
        self.check(region)?;
        let (mut start, mut len) = (region.base().to_bits(), region.size() as u64);
        self.live.remove(&start);
        if let Some(next) = self.free.remove(&(start + len)) {
            len += next;
        }
        let previous = self.free.range(..start).next_back().map(|(&previous, &size)| (previous, size));
        if let Some((previous, size)) = previous.filter(|(previous, size)| previous + size == start) {
            start = previous;
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
    fn adjacent_free_ranges_are_coalesced() {
        let mut ranges = FreeRanges::new(0x1000, 0x9000);
        let three: Vec<_> = (0..3).map(|_| ranges.allocate(0x3000, 0x1000).unwrap()).collect();
        assert!(ranges.allocate(1, 1).is_err());
        for index in [0, 2, 1] {
            ranges.free(&three[index]).unwrap();
            assert!(ranges.free(&three[index]).is_err());
        }
        assert_eq!(ranges.free, BTreeMap::from([(0x1000, 0x9000)]));
        assert_eq!(ranges.allocate(0x1000, 0x4000).unwrap().base(), Address::new(0x4000).unwrap());
    }
}
