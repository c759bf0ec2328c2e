//! [`PoolMap`]: a snapshot of a pool's regions and blocks.

use crate::Address;
use crate::statistics::fraction_outside;

/// The state of the blocks of a [`Piece`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PieceState {
    /// Live blocks.
    Live,
    /// Blocks that were freed and that other processes still have open.
    Held,
    /// Blocks that were freed and wait in quarantine, to detect writes after the free.
    Quarantined,
    /// Free blocks that serve requests of their own size only: of a slab, or in a thread's cache.
    Cached,
    /// Memory that serves requests of any size.
    Free,
}

/// Equal blocks, side by side and in the same state. [`PieceState::Free`] is one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of the first block in its region, in bytes.
    pub offset: u64,
    /// Size of each block in bytes.
    pub block_size: u64,
    /// The number of blocks.
    pub count: u64,
    /// The state of the blocks.
    pub state: PieceState,
}

impl Piece {
    /// Returns the size of all blocks in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.block_size.saturating_mul(self.count)
    }
}

/// A region and its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionMap {
    /// The base address.
    pub base: Address,
    /// Its size in bytes.
    pub size: u64,
    /// The pieces by offset, without overlap. Bytes in no piece are unusable: the tail of a slab or
    /// region that is too small for a block.
    pub pieces: Vec<Piece>,
}

/// Statistics of a size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassMap {
    /// Size of the blocks in bytes.
    pub block_size: u64,
    /// The number of slabs; 0 for blocks without a slab.
    pub slabs: u64,
    /// Bytes of these slabs, and of the ranges of blocks without a slab, that belong to no block.
    pub waste: u64,
    /// The requested bytes of the live blocks: an estimate, like
    /// [`crate::statistics::PoolStatistics::requested_bytes`].
    pub requested: u64,
}

/// The regions of a pool: see [`crate::Inspect::map`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolMap {
    /// The pool's name.
    pub pool: String,
    /// The peak of the bytes reserved from the provider.
    pub peak_reserved: u64,
    /// The regions, by address.
    pub regions: Vec<RegionMap>,
    /// The size classes, by size; empty if the pool has no such statistics.
    pub classes: Vec<ClassMap>,
}

/// The numbers of blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeTotals {
    /// Size of the blocks in bytes.
    pub block_size: u64,
    /// Live blocks.
    pub live: u64,
    /// Freed blocks that other processes have open, or that wait for a completion.
    pub held: u64,
    /// Freed blocks in quarantine.
    pub quarantined: u64,
    /// Free blocks that serve requests of this size only.
    pub cached: u64,
    /// The number of slabs.
    pub slabs: u64,
    /// See [`ClassMap::waste`].
    pub waste: u64,
    /// The requested bytes of the live blocks, at most their size. Equals their size if the map has
    /// no [`ClassMap`].
    pub requested: u64,
}

/// The totals of a [`PoolMap`], in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MapTotals {
    /// All regions.
    pub reserved: u64,
    /// Live blocks.
    pub live: u64,
    /// Freed blocks that other processes have open, or that wait for a completion.
    pub held: u64,
    /// Freed blocks in quarantine.
    pub quarantined: u64,
    /// The requested bytes of the live blocks, see [`SizeTotals::requested`].
    pub requested: u64,
    /// Free for requests of one size.
    pub cached: u64,
    /// Free for requests of any size.
    pub free: u64,
    /// Bytes in no piece.
    pub unusable: u64,
    /// The largest range that serves requests of any size.
    pub largest_free: u64,
    /// The blocks by size, smallest first.
    pub sizes: Vec<SizeTotals>,
}

impl MapTotals {
    /// Returns the external fragmentation: the fraction of the free bytes that lies outside of the
    /// largest free range, from 0 to 1.
    #[must_use]
    pub fn external_fragmentation(&self) -> f64 {
        fraction_outside(self.largest_free, self.free)
    }

    /// Returns the internal fragmentation: the fraction of live bytes that was not requested, from
    /// 0 to 1. An estimate, as [`ClassMap::requested`] is.
    #[must_use]
    pub fn internal_fragmentation(&self) -> f64 {
        fraction_outside(self.requested, self.live)
    }
}

impl PoolMap {
    /// Computes the totals. Sums saturate at `u64::MAX`.
    #[must_use]
    pub fn totals(&self) -> MapTotals {
        let mut totals = MapTotals::default();
        let mut sizes = std::collections::BTreeMap::<u64, SizeTotals>::new();
        for region in &self.regions {
            totals.reserved = totals.reserved.saturating_add(region.size);
            // Begin and end of the current free range: adjacent free pieces are one range.
            let mut range = (0, 0);
            for piece in &region.pieces {
                let size = piece.size();
                let entry = sizes.entry(piece.block_size).or_default();
                let (sum, count) = match piece.state {
                    PieceState::Live => (&mut totals.live, Some(&mut entry.live)),
                    PieceState::Held => (&mut totals.held, Some(&mut entry.held)),
                    PieceState::Quarantined => (&mut totals.quarantined, Some(&mut entry.quarantined)),
                    PieceState::Cached => (&mut totals.cached, Some(&mut entry.cached)),
                    PieceState::Free => (&mut totals.free, None),
                };
                *sum = sum.saturating_add(size);
                if let Some(count) = count {
                    *count = count.saturating_add(piece.count);
                } else {
                    range = if range.1 == piece.offset { range } else { (piece.offset, piece.offset) };
                    range.1 = piece.offset.saturating_add(size);
                    totals.largest_free = totals.largest_free.max(range.1.saturating_sub(range.0));
                }
            }
        }
        let used = [totals.live, totals.held, totals.quarantined, totals.cached, totals.free];
        let used = used.into_iter().fold(0, u64::saturating_add);
        totals.unusable = totals.reserved.saturating_sub(used);
        for class in &self.classes {
            let entry = sizes.entry(class.block_size).or_default();
            entry.slabs = entry.slabs.saturating_add(class.slabs);
            entry.waste = entry.waste.saturating_add(class.waste);
            entry.requested = entry.requested.saturating_add(class.requested);
        }
        for (&size, entry) in &mut sizes {
            let live = size.saturating_mul(entry.live);
            entry.block_size = size;
            entry.requested = if self.classes.is_empty() { live } else { entry.requested.min(live) };
            totals.requested = totals.requested.saturating_add(entry.requested);
        }
        let has_any = |size: &SizeTotals| {
            [size.live, size.held, size.quarantined, size.cached, size.slabs].iter().any(|&count| count != 0)
        };
        totals.sizes = sizes.into_values().filter(has_any).collect();
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up() {
        use PieceState::{Cached, Free, Held, Live, Quarantined};
        let piece = |offset, block_size, count, state| Piece { offset, block_size, count, state };
        let map = PoolMap {
            pool: "p".to_owned(),
            peak_reserved: 2000,
            classes: vec![ClassMap { block_size: 30, slabs: 2, waste: 7, requested: 80 }],
            regions: vec![
                RegionMap {
                    base: Address::from_bits(1 << 20),
                    size: 1000,
                    pieces: vec![
                        piece(0, 30, 3, Live),
                        piece(90, 30, 1, Held),
                        piece(200, 100, 1, Free),
                        piece(300, 50, 1, Free),
                        piece(400, 30, 2, Cached),
                        piece(460, 30, 1, Quarantined),
                    ],
                },
                RegionMap {
                    base: Address::from_bits(1 << 21),
                    size: 500,
                    pieces: vec![piece(0, 50, 1, Free)],
                },
            ],
        };
        let totals = map.totals();
        assert_eq!((totals.reserved, totals.live, totals.held, totals.cached), (1500, 90, 30, 60));
        assert_eq!((totals.free, totals.largest_free, totals.unusable), (200, 150, 1090));
        let size = SizeTotals {
            block_size: 30,
            live: 3,
            held: 1,
            quarantined: 1,
            cached: 2,
            slabs: 2,
            waste: 7,
            requested: 80,
        };
        assert_eq!((totals.sizes.as_slice(), totals.requested), (&[size][..], 80));
        assert!((map.totals().internal_fragmentation() - 1.0 / 9.0).abs() < 1e-9);
        assert!((totals.external_fragmentation() - 0.25).abs() < 1e-9);
        assert_eq!(PoolMap::default().totals().external_fragmentation(), 0.0);
    }

    #[test]
    fn totals_saturate() {
        let piece =
            Piece { offset: u64::MAX, block_size: u64::MAX, count: u64::MAX, state: PieceState::Free };
        let region = RegionMap { base: Address::from_bits(0), size: u64::MAX, pieces: vec![piece, piece] };
        let map = PoolMap { regions: vec![region.clone(), region], ..PoolMap::default() };
        assert_eq!(map.totals().free, u64::MAX);
    }
}
