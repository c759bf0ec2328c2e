//! [`Room`]: which parts of the regions jemalloc has, and which are free for it.
//!
//! jemalloc asks for extents of a few pages, and gives them back in other pieces; providers give a few MiB at a time, and want them
//! back whole. Room lies in between. It counts with places: a region's number, and below it where in the address space that
//! jemalloc sees. So regions never touch each other, and what is aligned as a place is aligned as an address.

use umf_core::Result;
use umf_suballoc::FreeRanges;

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
    /// Those of `dirty` are taken.
    ranges: FreeRanges,
    /// What is to be purged before it is free, unless it is needed.
    dirty: FreeRanges,
    /// Bytes in both.
    pub(crate) free: u64,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self { ranges: FreeRanges::empty(), dirty: FreeRanges::empty(), free: 0 }
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
        self.reserve().ok()?;
        let place = match self.ranges.take(size, align).ok()? {
            Some(place) => place,
            None if self.free >= size => {
                while let Some((place, size)) = self.dirty.pop() {
                    self.ranges.give(place, size);
                }
                self.ranges.take(size, align).ok()??
            }
            None => return None,
        };
        self.free -= size;
        Some(place)
    }

    /// Notes that a range that jemalloc has is now two.
    pub(crate) fn split(&mut self) -> Result<()> {
        self.reserve()?;
        self.ranges.split_taken()
    }

    /// Notes that two adjacent ranges that jemalloc has are now one.
    pub(crate) fn merge(&mut self) {
        self.ranges.merge_taken();
    }

    /// Memory for all ranges that can become dirty, when there is one more.
    fn reserve(&mut self) -> Result<()> {
        self.dirty.reserve(self.ranges.taken().saturating_add(1))
    }

    pub(crate) fn give(&mut self, place: u64, size: u64) {
        self.ranges.give(place, size);
        self.free += size;
    }

    /// As [`Room::give`]: to be purged. Needs no memory.
    pub(crate) fn give_dirty(&mut self, place: u64, size: u64) {
        for _ in 0..self.dirty.put(place, size) {
            // They come back as one.
            self.ranges.merge_taken();
        }
        self.free += size;
    }

    /// A range to purge, for the caller to [`Room::give`].
    pub(crate) fn take_dirty(&mut self) -> Option<(u64, u64)> {
        let (place, size) = self.dirty.pop()?;
        self.free -= size;
        Some((place, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_purged_is_used_if_it_is_needed() {
        let mut room = Room::new();
        room.add(place(1, 0, 0), 16 << 12).unwrap();
        let places: Vec<_> = (0..16).map(|_| room.take(1 << 12, 1 << 12).unwrap()).collect();
        assert_eq!(room.take(1 << 12, 1 << 12), None);
        for &place in &places[4..8] {
            room.give_dirty(place, 1 << 12);
        }
        assert_eq!((room.ranges.taken(), room.free), (13, 4 << 12));
        // Joined, and out of everybody's reach until it is given.
        assert_eq!(room.take_dirty(), Some((places[4], 4 << 12)));
        assert_eq!((room.take_dirty(), room.free, room.take(1 << 12, 1 << 12)), (None, 0, None));
        room.give(places[4], 4 << 12);
        room.give_dirty(places[8], 1 << 12);
        assert_eq!(room.take(5 << 12, 1 << 12), Some(places[4]));
        room.give_dirty(places[4], 5 << 12);
        for &place in places[..4].iter().chain(&places[9..]) {
            room.give(place, 1 << 12);
        }
        assert!(!room.remove(places[0], 16 << 12), "a part of it is dirty");
        let (dirty, size) = room.take_dirty().unwrap();
        room.give(dirty, size);
        assert!(room.remove(places[0], 16 << 12));
        assert_eq!((room.ranges.taken(), room.free), (0, 0));
    }

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
