//! What the regions look like.

use std::collections::BTreeMap;

use umf_core::map::{ClassMap, Piece, PieceState, PoolMap, RegionMap};

use crate::SlabPool;
use crate::extents::{UNIT, extent_around};
use crate::span::{DEFERRED, Kind, LIVE};
use crate::statistics::DIRECT;

/// A slab or block and all that it takes of its region.
struct Taken {
    base: u64,
    end: u64,
    /// By state: how many blocks of which size.
    runs: Vec<(PieceState, u64)>,
    block: u64,
}

/// A region as its provider gave it, and the range of it that is cut up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Whole {
    base: u64,
    size: u64,
    begin: u64,
    end: u64,
}

/// Of one size of block: slabs, what is wasted in them, and bytes of live blocks by class.
#[derive(Default)]
struct Sizes {
    slabs: u64,
    waste: u64,
    live: BTreeMap<usize, u64>,
}

impl SlabPool {
    /// Reads every record, without a lock: what changes meanwhile is missing, or as it was.
    pub(crate) fn draw(&self) -> PoolMap {
        let (mut regions, mut taken) = (Vec::new(), Vec::new());
        let mut sizes = BTreeMap::<u64, Sizes>::new();
        for span in self.meta.spans().map(|(_, span)| span) {
            let look = span.snapshot(|states| {
                let mut runs: Vec<(PieceState, u64)> = Vec::new();
                for state in states.map(state_of) {
                    match runs.last_mut() {
                        Some((last, count)) if *last == state => *count += 1,
                        _ => runs.push((state, 1)),
                    }
                }
                runs
            });
            let Some((look, runs)) = look else { continue };
            let base = look.base.to_bits();
            let end = match look.kind {
                Kind::Free => continue,
                Kind::Region => {
                    let (front, end) = (u64::from(look.region), base + look.block);
                    regions.push(Whole { base: base - front, size: look.whole, begin: base, end });
                    continue;
                }
                Kind::Direct => {
                    let end = base + look.block;
                    regions.push(Whole { base, size: look.block, begin: base, end });
                    end
                }
                Kind::Slab | Kind::Block => {
                    let extent = self.extent(look.region, base).unwrap_or(look.bytes);
                    base + extent.max(look.bytes)
                }
            };
            let of_size = sizes.entry(look.block).or_default();
            if look.kind == Kind::Slab {
                of_size.slabs += 1;
                of_size.waste += end - base - look.bytes;
            }
            let is_live = |run: &&(PieceState, u64)| run.0 == PieceState::Live;
            let live: u64 = runs.iter().filter(is_live).map(|&(_, count)| count * look.block).sum();
            let class = if look.kind == Kind::Direct { DIRECT } else { look.class };
            *of_size.live.entry(class).or_default() += live;
            taken.push(Taken { base, end, runs, block: look.block });
        }
        regions.sort_unstable();
        taken.sort_unstable_by_key(|taken| taken.base);
        let mut rest = taken.as_slice();
        let regions = regions.into_iter().map(|whole| {
            rest = &rest[rest.partition_point(|taken| taken.base < whole.begin)..];
            let (inside, behind) = rest.split_at(rest.partition_point(|taken| taken.base < whole.end));
            rest = behind;
            let base = umf_core::Address::from_bits(whole.base);
            RegionMap { base, size: whole.size, pieces: pieces(inside, whole) }
        });
        let regions = regions.collect();
        let classes = sizes.into_iter().map(|(block_size, of_size)| {
            let asked = |(&class, &live): (&usize, &u64)| self.asked_of(class, live);
            let requested = of_size.live.iter().map(asked).sum();
            ClassMap { block_size, slabs: of_size.slabs, waste: of_size.waste, requested }
        });
        PoolMap {
            pool: self.settings.name.as_str().to_owned(),
            peak_reserved: self.reserve.peak(),
            regions,
            classes: classes.collect(),
        }
    }

    /// Bytes of its region that the slab or block at an address takes.
    fn extent(&self, region: u32, base: u64) -> Option<u64> {
        let region_base = self.meta.span(region)?.base().to_bits();
        let unit = u32::try_from(base.checked_sub(region_base)? / UNIT as u64).ok()?;
        let (first, units, _) = extent_around(&self.meta, region, unit)?;
        (first == unit).then_some(u64::from(units) * UNIT as u64)
    }
}

fn state_of(state: u8) -> PieceState {
    match state {
        state if state & LIVE != 0 => PieceState::Live,
        state if state & DEFERRED != 0 => PieceState::Held,
        _ => PieceState::Cached,
    }
}

/// What is taken of a region, and what is free between that.
fn pieces(taken: &[Taken], Whole { base, begin, end, .. }: Whole) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = begin;
    let free = |at: u64, until: u64| {
        let piece = Piece { offset: at - base, block_size: until - at, count: 1, state: PieceState::Free };
        (until > at).then_some(piece)
    };
    for one in taken {
        // (One that was there before another was, or one that reaches past its region: it has changed meanwhile.)
        if one.base < at || one.end > end {
            continue;
        }
        pieces.extend(free(at, one.base));
        let mut offset = one.base - base;
        for &(state, count) in &one.runs {
            pieces.push(Piece { offset, block_size: one.block, count, state });
            offset += one.block * count;
        }
        at = one.end;
    }
    pieces.extend(free(at, end));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use umf_core::{DeferredFree, Inspect, Layout, Pool};
    use umf_testkit::Borrower;
    use umf_testkit::pool::Pages;

    use crate::SlabSettings;

    #[test]
    fn a_map_shows_what_is_live_held_and_free() {
        let pool = SlabPool::new(Pages::shared(), SlabSettings::default()).unwrap();
        let allocate = |size| pool.allocate(Layout::new(size, 8).unwrap()).unwrap();
        // SAFETY: each is freed once, and nobody uses it.
        let free = |address| unsafe { pool.free(address) }.unwrap();
        assert_eq!(pool.map().unwrap().regions.len(), 0);
        let small: Vec<_> = (0..1000).map(|_| allocate(64)).collect();
        let large = allocate(300_000);
        let huge = allocate(100 << 20);
        let borrower = Borrower::new();
        pool.mark_exported(small[500]).unwrap();
        borrower.open(small[500], 64);
        (0..1000).step_by(2).for_each(|index| free(small[index]));
        let map = pool.map().unwrap();
        let (totals, statistics) = (map.totals(), pool.statistics());
        let size = |size| totals.sizes.iter().find(|totals| totals.block_size == size).copied().unwrap();
        assert_eq!((size(64).live, size(64).held), (500, 1));
        assert!(size(64).cached >= 499);
        assert_eq!((totals.live, totals.held), (statistics.live_bytes, statistics.held_bytes));
        assert_eq!(totals.reserved, statistics.reserved_bytes);
        assert_eq!(map.regions.len() as u64, statistics.regions);
        assert!(totals.free > 0 && totals.largest_free <= totals.free);
        for region in &map.regions {
            let mut end = 0;
            for piece in &region.pieces {
                assert!(piece.offset >= end && piece.count > 0 && piece.block_size > 0);
                end = piece.offset + piece.size();
            }
            assert!(end <= region.size);
        }
        borrower.close_all();
        pool.upstream.drain(core::time::Duration::from_secs(5));
        [large, huge].into_iter().for_each(free);
        (1..1000).step_by(2).for_each(|index| free(small[index]));
        let totals = pool.map().unwrap().totals();
        assert_eq!((totals.live, totals.held), (0, 0));
        pool.trim(0).unwrap();
        assert_eq!(pool.map().unwrap().totals().reserved, 0);
    }

    #[test]
    fn what_is_wasted_is_told_by_class() {
        let pool = SlabPool::new(Pages::shared(), SlabSettings::default()).unwrap();
        let allocate = |size| pool.allocate(Layout::new(size, 8).unwrap()).unwrap();
        let mut blocks: Vec<_> = (0..24).map(|_| allocate(5000)).collect();
        blocks.push(allocate((8 << 20) + 1));
        let (totals, statistics) = (pool.map().unwrap().totals(), pool.statistics());
        // Twelve blocks of 5120 bytes in each slab of 64 KiB, and a region of whole pages.
        let class = totals.sizes.iter().find(|size| size.block_size == 5120).unwrap();
        assert_eq!((class.live, class.slabs, class.waste), (24, 2, 2 * (65_536 - 12 * 5120)));
        assert_eq!(class.requested, 24 * 5000);
        let requested = 24 * 5000 + (8 << 20) + 1;
        assert_eq!((statistics.requested_bytes, totals.requested), (requested, requested));
        let part = 1.0 - requested as f64 / statistics.live_bytes as f64;
        assert!((statistics.internal_fragmentation() - part).abs() < 1e-12);
        // SAFETY: each is freed once, and nobody uses it.
        blocks.into_iter().for_each(|address| unsafe { pool.free(address) }.unwrap());
        assert_eq!(pool.statistics().requested_bytes, 0);
    }

    #[test]
    fn maps_are_whole_while_threads_go_on() {
        let pool = SlabPool::new(Pages::shared(), SlabSettings::default()).unwrap();
        let stop = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = umf_testkit::Ends(&stop);
            for seed in 0..2_usize {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut live = std::collections::VecDeque::new();
                    let mut size = 16 + seed;
                    while !stop.load(core::sync::atomic::Ordering::Relaxed) {
                        size = size * 13 % 200_003 + 1;
                        live.push_back(pool.allocate(Layout::new(size, 8).unwrap()).unwrap());
                        if live.len() > 200 {
                            // SAFETY: ours, once.
                            unsafe { pool.free(live.pop_front().unwrap()) }.unwrap();
                        }
                        if size % 501 == 0 {
                            pool.trim(0).unwrap();
                        }
                    }
                    // SAFETY: ours, once.
                    live.into_iter().for_each(|address| unsafe { pool.free(address) }.unwrap());
                });
            }
            for _ in 0..300 {
                for region in pool.map().unwrap().regions {
                    let mut end = 0;
                    for piece in &region.pieces {
                        assert!(piece.offset >= end && piece.count > 0 && piece.block_size > 0);
                        end = piece.offset + piece.size();
                    }
                    assert!(end <= region.size);
                }
            }
        });
    }
}
