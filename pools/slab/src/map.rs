//! What the regions look like.

use umf_core::map::{Piece, PieceState, PoolMap, RegionMap};

use crate::SlabPool;
use crate::large::UNIT;
use crate::span::Kind;
use crate::state::{HELD, LIVE};

/// A slab or block and all that it takes of its region.
struct Taken {
    base: u64,
    end: u64,
    /// By state: how many blocks of which size.
    runs: Vec<(PieceState, u64)>,
    block: u64,
}

impl SlabPool {
    /// Reads every record, without a lock: what changes meanwhile is missing, or as it was.
    pub(crate) fn draw(&self) -> PoolMap {
        let (mut regions, mut taken) = (Vec::new(), Vec::new());
        for span in (1..self.spans.end()).filter_map(|number| self.spans.get(number)) {
            let look = span.look(|states| {
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
            match look.kind {
                Kind::Region => regions.push((base, look.block)),
                Kind::Direct => {
                    regions.push((base, look.block));
                    taken.push(Taken { base, end: base + look.block, runs, block: look.block });
                }
                Kind::Slab | Kind::Block => {
                    let end = base + self.extent(look.region, base).unwrap_or(look.bytes);
                    taken.push(Taken { base, end: end.max(base + look.bytes), runs, block: look.block });
                }
                Kind::Free => {}
            }
        }
        regions.sort_unstable();
        taken.sort_unstable_by_key(|taken| taken.base);
        let mut rest = taken.as_slice();
        let regions = regions.into_iter().map(|(base, size)| {
            let end = base + size;
            rest = &rest[rest.partition_point(|taken| taken.base < base)..];
            let (inside, behind) = rest.split_at(rest.partition_point(|taken| taken.base < end));
            rest = behind;
            RegionMap { base: umf_core::Address::from_bits(base), size, pieces: pieces(inside, base, end) }
        });
        PoolMap { pool: self.settings.name.as_str().to_owned(), regions: regions.collect() }
    }

    /// Bytes of its region that the slab or block at an address takes.
    fn extent(&self, region: u32, base: u64) -> Option<u64> {
        let region_base = self.spans.get(region)?.base().to_bits();
        let unit = u32::try_from(base.checked_sub(region_base)? / UNIT as u64).ok()?;
        let (first, units, _) = self.tables().block_around(region, unit)?;
        (first == unit).then_some(u64::from(units) * UNIT as u64)
    }
}

fn state_of(state: u8) -> PieceState {
    match state {
        state if state & LIVE != 0 => PieceState::Live,
        state if state & HELD != 0 => PieceState::Held,
        _ => PieceState::Cached,
    }
}

/// What is taken of a region from `base` to `end`, and what is free between that.
fn pieces(taken: &[Taken], base: u64, end: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = base;
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
    use umf_core::conformance::Borrower;
    use umf_core::conformance::pool::Pages;
    use umf_core::{Layout, Pool};

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
        pool.drain(core::time::Duration::from_secs(5));
        [large, huge].into_iter().for_each(free);
        (1..1000).step_by(2).for_each(|index| free(small[index]));
        let totals = pool.map().unwrap().totals();
        assert_eq!((totals.live, totals.held), (0, 0));
        pool.trim(0).unwrap();
        assert_eq!(pool.map().unwrap().totals().reserved, 0);
    }

    #[test]
    fn maps_are_whole_while_threads_go_on() {
        let pool = SlabPool::new(Pages::shared(), SlabSettings::default()).unwrap();
        let stop = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
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
            stop.store(true, core::sync::atomic::Ordering::Relaxed);
        });
    }
}
