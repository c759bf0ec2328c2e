//! [`FreeExtents`]: the free parts of the regions of one arena.
//!
//! jemalloc allocates extents of a few pages and frees them in other pieces. Providers hand out
//! regions of a few MiB and take them back whole. This allocator is between the two.
//!
//! A position identifies a byte: the high bits are the number of its region, the low bits come from
//! its address. So two regions are never adjacent, and a position has the alignment of its address.

use umf_core::Result;
use umf_suballoc::FreeRanges;

/// Bits of a position below the region's number.
const BITS: u32 = 44;
/// Half of the positions of a region. A region begins in the first half and is at most this long.
const HALF: u64 = 1 << (BITS - 1);

/// The largest size of a region.
pub(crate) const LARGEST: u64 = HALF;
/// The most regions of a pool.
pub(crate) const REGIONS: u32 = 1 << (64 - BITS);

/// Returns the position of an address in a region that begins at `begin`.
pub(crate) const fn position(number: u32, begin: u64, address: u64) -> u64 {
    ((number as u64) << BITS) + begin % HALF + (address - begin)
}

/// Returns the number of the region that a position lies in.
pub(crate) const fn region_of(position: u64) -> u32 {
    (position >> BITS) as u32
}

/// Returns the offset of a position in its region, which begins at address `begin`.
pub(crate) const fn offset_of(position: u64, begin: u64) -> u64 {
    position % (1 << BITS) - begin % HALF
}

/// The free extents of an arena.
pub(crate) struct FreeExtents {
    /// Free ranges. Dirty ranges count as taken here.
    ranges: FreeRanges,
    /// Free ranges that wait to be purged. An allocation may use them before.
    dirty: FreeRanges,
    /// Bytes in both.
    pub(crate) free_bytes: u64,
}

impl FreeExtents {
    pub(crate) fn new() -> Self {
        Self { ranges: FreeRanges::empty(), dirty: FreeRanges::empty(), free_bytes: 0 }
    }

    /// Adds a region, all of it free.
    pub(crate) fn add(&mut self, position: u64, size: u64) -> Result<()> {
        self.ranges.add_part(position, size)?;
        self.free_bytes += size;
        Ok(())
    }

    /// Removes a region that is wholly free; returns `false` if it is not.
    pub(crate) fn remove(&mut self, position: u64, size: u64) -> bool {
        let is_free = self.ranges.remove_part(position, size);
        self.free_bytes -= if is_free { size } else { 0 };
        is_free
    }

    /// Allocates a range: from the free ranges, or from dirty ones if these do not suffice.
    pub(crate) fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        self.reserve().ok()?;
        let position = match self.ranges.take(size, align).ok()? {
            Some(position) => position,
            None if self.free_bytes >= size => {
                while let Some((position, size)) = self.dirty.pop() {
                    self.ranges.give(position, size);
                }
                self.ranges.take(size, align).ok()??
            }
            None => return None,
        };
        self.free_bytes -= size;
        Some(position)
    }

    /// Records that jemalloc split an extent in two.
    pub(crate) fn split(&mut self) -> Result<()> {
        self.reserve()?;
        self.ranges.split_taken()
    }

    /// Records that jemalloc merged two adjacent extents.
    pub(crate) fn merge(&mut self) {
        self.ranges.merge_taken();
    }

    /// Reserves memory for one more dirty range, so that [`FreeExtents::free_dirty`] cannot fail.
    fn reserve(&mut self) -> Result<()> {
        self.dirty.reserve(self.ranges.taken().saturating_add(1))
    }

    /// Frees a range.
    pub(crate) fn free(&mut self, position: u64, size: u64) {
        self.ranges.give(position, size);
        self.free_bytes += size;
    }

    /// Frees a range that is to be purged. Allocates no memory.
    pub(crate) fn free_dirty(&mut self, position: u64, size: u64) {
        for _ in 0..self.dirty.put(position, size) {
            // The dirty range merged with another one, so both count as one taken range.
            self.ranges.merge_taken();
        }
        self.free_bytes += size;
    }

    /// Takes a dirty range, which the caller purges and then passes to [`FreeExtents::free`].
    pub(crate) fn take_dirty(&mut self) -> Option<(u64, u64)> {
        let (position, size) = self.dirty.pop()?;
        self.free_bytes -= size;
        Some((position, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_ranges_are_allocated_if_clean_ones_do_not_suffice() {
        let mut extents = FreeExtents::new();
        extents.add(position(1, 0, 0), 16 << 12).unwrap();
        let positions: Vec<_> = (0..16).map(|_| extents.allocate(1 << 12, 1 << 12).unwrap()).collect();
        assert_eq!(extents.allocate(1 << 12, 1 << 12), None);
        for &position in &positions[4..8] {
            extents.free_dirty(position, 1 << 12);
        }
        assert_eq!((extents.ranges.taken(), extents.free_bytes), (13, 4 << 12));
        // The dirty ranges merged, and the merged range is not free until the test frees it.
        assert_eq!(extents.take_dirty(), Some((positions[4], 4 << 12)));
        assert_eq!(
            (extents.take_dirty(), extents.free_bytes, extents.allocate(1 << 12, 1 << 12)),
            (None, 0, None)
        );
        extents.free(positions[4], 4 << 12);
        extents.free_dirty(positions[8], 1 << 12);
        assert_eq!(extents.allocate(5 << 12, 1 << 12), Some(positions[4]));
        extents.free_dirty(positions[4], 5 << 12);
        for &position in positions[..4].iter().chain(&positions[9..]) {
            extents.free(position, 1 << 12);
        }
        assert!(!extents.remove(positions[0], 16 << 12), "a part of it is dirty");
        let (dirty, size) = extents.take_dirty().unwrap();
        extents.free(dirty, size);
        assert!(extents.remove(positions[0], 16 << 12));
        assert_eq!((extents.ranges.taken(), extents.free_bytes), (0, 0));
    }

    #[test]
    fn places_and_addresses_are_aligned_alike() {
        for begin in [0x1000_u64, 0x7fff_ffff_f000, (1 << 46) + 0x20_0000, HALF - 4096] {
            for offset in [0_u64, 4096, 1 << 21, LARGEST - 1] {
                let position = position(7, begin, begin + offset);
                assert_eq!((region_of(position), offset_of(position, begin)), (7, offset));
                assert_eq!(position % (1 << 30), (begin + offset) % (1 << 30));
            }
        }
    }
}
