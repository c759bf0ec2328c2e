//! [`Room`]: which parts of the regions jemalloc has, and which are free for it.
//!
//! jemalloc asks for extents of a few pages, and gives them back in other pieces; providers give a few MiB at a time, and want them
//! back whole. Room lies in between. It counts with places: a region's number, and below it where in the address space that
//! jemalloc sees. So regions never touch each other, and what is aligned as a place is aligned as an address.

use umf_carve::Ranges;
use umf_core::Result;

/// Bits of a place below the region's number.
const BITS: u32 = 44;
/// A region ends below twice this.
const HALF: u64 = 1 << (BITS - 1);

/// The largest region.
pub(crate) const LARGEST: u64 = HALF;
/// How many regions there can be.
pub(crate) const REGIONS: u32 = 1 << (64 - BITS);

/// A region's number, and a visible address in it, as a place.
pub(crate) const fn place(number: u32, begin: u64, address: u64) -> u64 {
    ((number as u64) << BITS) + begin % HALF + (address - begin)
}

/// The region's number of a place, and how far from the region's begin it is.
pub(crate) const fn number_of(place: u64) -> u32 {
    (place >> BITS) as u32
}

/// How far a place lies behind `begin`, where its region begins.
pub(crate) const fn offset_of(place: u64, begin: u64) -> u64 {
    place % (1 << BITS) - begin % HALF
}

/// What is free.
pub(crate) struct Room {
    pub(crate) ranges: Ranges,
    /// Bytes in it.
    pub(crate) free: u64,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self { ranges: Ranges::empty(), free: 0 }
    }

    pub(crate) fn add(&mut self, place: u64, size: u64) -> Result<()> {
        self.ranges.add_part(place, size)?;
        self.free += size;
        Ok(())
    }

    /// Takes a region out of which jemalloc has nothing; `false` if it has something.
    pub(crate) fn remove(&mut self, place: u64, size: u64) -> bool {
        let is_free = self.ranges.remove_part(place, size);
        self.free -= if is_free { size } else { 0 };
        is_free
    }

    pub(crate) fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let place = self.ranges.take(size, align).ok()??;
        self.free -= size;
        Some(place)
    }

    pub(crate) fn give(&mut self, place: u64, size: u64) {
        self.ranges.give(place, size);
        self.free += size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_addresses_are_aligned_alike() {
        for begin in [0x1000_u64, 0x7fff_ffff_f000, (1 << 46) + 0x20_0000, HALF - 4096] {
            for offset in [0_u64, 4096, 1 << 21, LARGEST - 1] {
                let place = place(7, begin, begin + offset);
                assert_eq!((number_of(place), offset_of(place, begin)), (7, offset));
                assert_eq!(place % (1 << 30), (begin + offset) % (1 << 30));
            }
        }
    }
}
