//! Inspection of a pool: statistics, live blocks, the map of its regions, traces, and the block
//! that contains an address.
//!
//! Nothing here is on a fast path, and fast paths count nothing for it.
//!
//! **Requested sizes.** A pool does not store the size of each request. [`Requested`] samples the
//! requests on slow paths, such as those that fill a bin, and estimates the requested part of all
//! live blocks of a class.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

use allocator_api2::vec::Vec as MappedVec;
use umf_core::leaks::{LeakReport, LeakSize, LeakTime};
use umf_core::map::{ClassMap, Piece, PieceState, PoolMap, RegionMap};
use umf_core::statistics::PoolStatistics;
use umf_core::{Address, BlockSpan, Error, Pool as _, Region, Result};
use umf_os::output;
use umf_runtime::metadata::Mapped;
use umf_runtime::tracker;

use crate::classes::MAX_CLASSES;
use crate::extents::{UNIT, extent_around};
use crate::metadata::Metadata;
use crate::regions::OWNER;
use crate::settings::Name;
use crate::span::BlockRef;
use crate::types::{DEFERRED, Kind, LIVE};
use crate::{SlabPool, SlabSettings, registry};

/// The class under which blocks that are regions are counted.
const DIRECT: usize = MAX_CLASSES;

/// Emits `tracing` events about a pool.
pub(crate) struct Trace {
    pool: Name,
    level: u32,
    /// Whether misuse is reported.
    reports: bool,
}

impl Trace {
    pub(crate) const fn new(settings: &SlabSettings) -> Self {
        Self { pool: settings.name, level: settings.trace, reports: settings.reports }
    }

    /// Emits an event about a block. The caller has checked the level: see
    /// [`crate::section::TRACED`].
    #[cold]
    pub(crate) fn block(&self, what: &str, size: usize, address: Option<&Address>) {
        output::event(|| match address {
            Some(address) => tracing::trace!(pool = self.pool.as_str(), what, size, %address),
            None => tracing::trace!(pool = self.pool.as_str(), what, size, "failed"),
        });
    }

    /// Emits an event about a slab of `size` bytes.
    pub(crate) fn slab(&self, what: &str, size: usize, block: usize) {
        if self.level >= 2 && !registry::is_thread_ending() {
            output::event(|| tracing::debug!(pool = self.pool.as_str(), slab = what, size, block));
        }
    }

    /// Emits an event about a region.
    pub(crate) fn region(&self, what: &str, region: Region) {
        if self.level >= 2 && !registry::is_thread_ending() {
            let (address, size) = (region.base(), region.size());
            output::event(|| tracing::debug!(pool = self.pool.as_str(), region = what, %address, size));
        }
    }

    /// Reports that two threads freed a block at the same time; `count` frees were dropped so far.
    pub(crate) fn late_double_free(&self, address: Address, count: u64) {
        if self.reports {
            output::event(|| {
                tracing::warn!(
                    pool = self.pool.as_str(),
                    %address,
                    count,
                    "two threads freed a block at the same time; the later free was dropped"
                );
            });
        }
    }

    /// Emits an event about the end of the pool.
    pub(crate) fn end(&self, statistics: impl FnOnce() -> PoolStatistics) {
        if self.level >= 1 {
            let statistics = statistics();
            output::event(|| {
                tracing::info!(
                    pool = self.pool.as_str(),
                    allocations = statistics.allocations,
                    never_freed = statistics.live_blocks,
                    never_freed_bytes = statistics.live_bytes,
                    peak_reserved_bytes = statistics.peak_reserved_bytes,
                    "dropped"
                );
            });
        }
    }
}

/// A sample of requests of each class: requested bytes, and bytes of the blocks.
pub(crate) struct Requested([Sample; MAX_CLASSES + 1]);

/// Bytes of the sampled requests of one class, and bytes of their blocks.
#[derive(Default)]
struct Sample {
    requested: AtomicU64,
    allocated: AtomicU64,
}

impl Requested {
    pub(crate) const fn new() -> Self {
        Self(
            [const { Sample { requested: AtomicU64::new(0), allocated: AtomicU64::new(0) } };
                MAX_CLASSES + 1],
        )
    }

    /// Adds a request of `requested` bytes and its block at `address` to the sample. Called on slow
    /// paths.
    pub(crate) fn note(&self, meta: &Metadata, requested: usize, address: Address) {
        let Some(place) = meta.locate(address) else { return };
        let class = place.class().unwrap_or(DIRECT);
        self.0[class % self.0.len()].note(requested, place.span.block() as usize);
    }

    /// Estimates how much of `live` bytes of a class was requested.
    fn estimate(&self, class: usize, live: u64) -> u64 {
        self.0.get(class).map_or(live, |sample| sample.estimate(live))
    }
}

impl Sample {
    /// After this many blocks, the older ones count half.
    const WINDOW: u64 = 4096;

    fn note(&self, requested: usize, allocated: usize) {
        let (requested, allocated) = (requested.min(allocated) as u64, allocated as u64);
        // Two threads that halve the sample at the same time lose a few of thousands of blocks.
        let before = self.allocated.load(Ordering::Relaxed);
        if before / Self::WINDOW > allocated || before.checked_add(allocated).is_none() {
            self.requested.store(self.requested.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            self.allocated.store(before / 2, Ordering::Relaxed);
        }
        self.requested.fetch_add(requested, Ordering::Relaxed);
        self.allocated.fetch_add(allocated, Ordering::Relaxed);
    }

    /// Estimates how much of `live` bytes was requested, as if all requests were like the sampled
    /// ones.
    fn estimate(&self, live: u64) -> u64 {
        let requested = self.requested.load(Ordering::Relaxed);
        let allocated = self.allocated.load(Ordering::Relaxed);
        let part = (u128::from(live) * u128::from(requested)).checked_div(u128::from(allocated));
        part.map_or(live, |part| u64::try_from(part).unwrap_or(live).min(live))
    }
}

impl SlabPool {
    // Statistics.

    /// Returns the number of live blocks of each class. A thread may free blocks that another one
    /// allocated, so the difference of one thread may be negative; the sum over all threads is not.
    fn live_blocks(&self) -> [u64; MAX_CLASSES] {
        let mut blocks = [0_i64; MAX_CLASSES];
        self.heaps.counts(|class, allocations, frees| {
            blocks[class] = blocks[class].wrapping_add(allocations.wrapping_sub(frees).cast_signed());
        });
        blocks.map(|blocks| u64::try_from(blocks).unwrap_or(0))
    }

    /// Returns the bytes in live blocks, and an estimate of the requested bytes among them.
    fn live_and_requested(&self) -> (u64, u64) {
        let direct = self.back.direct.bytes();
        let (mut live, mut requested) = (direct, self.requested.estimate(DIRECT, direct));
        for (class, &blocks) in self.live_blocks().iter().enumerate().filter(|&(_, &blocks)| blocks > 0) {
            let bytes = blocks * self.heaps.classes.size(class) as u64;
            live += bytes;
            requested += self.requested.estimate(class, bytes);
        }
        (live, requested)
    }

    /// Returns the bytes in live blocks.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_and_requested().0
    }

    pub(crate) fn compute_statistics(&self) -> PoolStatistics {
        let mut statistics = PoolStatistics::default();
        self.heaps.counts(|_, allocations, frees| {
            statistics.allocations += allocations;
            statistics.frees = statistics.frees.wrapping_add(frees);
        });
        let back = &self.back;
        let direct = back.direct_allocations.load(Ordering::Relaxed);
        statistics.allocations += direct;
        statistics.frees += direct.saturating_sub(back.direct.count());
        statistics.live_blocks = statistics.allocations.saturating_sub(statistics.frees);
        (statistics.live_bytes, statistics.requested_bytes) = self.live_and_requested();
        statistics.reserved_bytes = back.limits.bytes();
        statistics.peak_reserved_bytes = back.limits.peak();
        statistics.regions = back.limits.regions();
        statistics.late_double_frees = self.heaps.late();
        statistics.held_bytes = back.upstream.deferred().bytes;
        let used = statistics.live_bytes + statistics.held_bytes;
        statistics.cached_bytes = statistics.reserved_bytes.saturating_sub(used);
        let (free, longest) = {
            let extents = back.extents.lock();
            (extents.free_units(), extents.longest(&back.meta))
        };
        statistics.free_bytes = free * UNIT as u64;
        statistics.largest_free_bytes = u64::from(longest) * UNIT as u64;
        statistics
    }

    // Live blocks.

    /// Passes a report of the live blocks to `visit`. Does not call the global allocator.
    pub(crate) fn report_leaks(&self, visit: &mut dyn FnMut(&LeakReport<'_>)) {
        let sizes = self.live_sizes();
        visit(&LeakReport {
            pool: self.name(),
            time: LeakTime::Requested,
            blocks: sizes.iter().map(|size| size.blocks).sum(),
            bytes: sizes.iter().map(|size| size.blocks * size.block_size).sum(),
            sizes: &sizes,
            sampled: 0,
            sites: &[],
            is_global: false,
        });
    }

    /// Returns the numbers of live blocks by size. Omits the sizes for which there is no memory.
    fn live_sizes(&self) -> MappedVec<LeakSize, Mapped> {
        let mut sizes = MappedVec::new_in(Mapped);
        let mut add = |block_size: u64, blocks: u64| {
            if sizes.try_reserve(1).is_ok() {
                sizes.push(LeakSize { block_size, blocks });
            }
        };
        for (class, &blocks) in self.live_blocks().iter().enumerate().filter(|&(_, &blocks)| blocks > 0) {
            add(self.heaps.classes.size(class) as u64, blocks);
        }
        for (_, span) in self.back.meta.spans() {
            let snapshot = span.snapshot(|states| states.next().is_some_and(|state| state & LIVE != 0));
            if let Some((snapshot, true)) = snapshot
                && snapshot.kind == Kind::Direct
            {
                add(snapshot.block, 1);
            }
        }
        sizes.sort_unstable_by_key(|size| size.block_size);
        sizes.dedup_by(|next, first| {
            let is_same = next.block_size == first.block_size;
            first.blocks += if is_same { next.blocks } else { 0 };
            is_same
        });
        sizes
    }

    // From an address to a block.

    /// Returns why an address is not the start of a live block.
    #[cold]
    pub(crate) fn why_not_live(&self, address: Address) -> Error {
        match self.find_block(address) {
            Ok((block, _)) if block.address != address => Error::InteriorAddress { address },
            Ok(_) => Error::NotAllocated { address },
            Err(error) => error,
        }
    }

    /// Returns the live block that contains `address`, and its record.
    pub(crate) fn find_block(&self, address: Address) -> Result<(BlockSpan, BlockRef<'_>)> {
        if let Some(place) = self.back.meta.locate(address).or_else(|| self.locate_around(address)) {
            let size = place.span.block() as usize;
            let live = place.state.load(Ordering::Acquire) & LIVE != 0 && place.is_current();
            return live
                .then(|| (BlockSpan { address: place.start(), size }, place))
                .ok_or(Error::NotAllocated { address });
        }
        // Not a block. It may be other memory of this pool: free units, or the tail of a slab.
        match tracker::find(address) {
            Some(found) if found.owner == self.back.upstream.id() => Err(Error::NotAllocated { address }),
            _ => Err(Error::ForeignAddress { address, owner: OWNER }),
        }
    }

    /// Returns the large block that contains `address` and begins in another granule.
    fn locate_around(&self, address: Address) -> Option<BlockRef<'_>> {
        let meta = &self.back.meta;
        let number = meta.span_number(address)?;
        let span = meta.span(number)?;
        let region = if span.kind() == Kind::Region { number } else { span.region() };
        let around = meta.span(region).filter(|span| span.kind() == Kind::Region)?;
        let offset = address.offset_from(around.base()).filter(|&offset| offset < around.block())?;
        let (_, _, holder) = extent_around(meta, region, u32::try_from(offset / UNIT as u64).ok()?)?;
        meta.span(holder).filter(|_| holder != 0)?.locate(holder, address)
    }

    // The map.

    /// Reads every record without a lock. A record that changes meanwhile is missing or stale.
    pub(crate) fn read_map(&self) -> PoolMap {
        let (mut regions, mut extents) = (Vec::new(), Vec::new());
        let mut sizes = BTreeMap::<u64, SizeTotals>::new();
        for (_, span) in self.back.meta.spans() {
            let Some((span, runs)) = span.snapshot(|states| runs_of(states)) else { continue };
            let base = span.base.to_bits();
            let end = match span.kind {
                Kind::Free => continue,
                Kind::Region => {
                    let (front, end) = (u64::from(span.region), base + span.block);
                    regions.push(RegionBounds { base: base - front, size: span.whole, begin: base, end });
                    continue;
                }
                Kind::Direct => {
                    let end = base + span.block;
                    regions.push(RegionBounds { base, size: span.block, begin: base, end });
                    end
                }
                Kind::Slab | Kind::Block => {
                    let extent = self.extent_bytes(span.region, base).unwrap_or(span.bytes);
                    base + extent.max(span.bytes)
                }
            };
            let of_size = sizes.entry(span.block).or_default();
            if span.kind == Kind::Slab {
                of_size.slabs += 1;
                of_size.waste += end - base - span.bytes;
            }
            let is_live = |run: &&(PieceState, u64)| run.0 == PieceState::Live;
            let live: u64 = runs.iter().filter(is_live).map(|&(_, count)| count * span.block).sum();
            let class = if span.kind == Kind::Direct { DIRECT } else { span.class };
            *of_size.live.entry(class).or_default() += live;
            extents.push(UsedExtent { base, end, runs, block: span.block });
        }
        regions.sort_unstable();
        extents.sort_unstable_by_key(|extent| extent.base);
        let mut rest = extents.as_slice();
        let regions = regions.into_iter().map(|region| {
            rest = &rest[rest.partition_point(|extent| extent.base < region.begin)..];
            let (within, after) = rest.split_at(rest.partition_point(|extent| extent.base < region.end));
            rest = after;
            let base = Address::from_bits(region.base);
            RegionMap { base, size: region.size, pieces: pieces(within, region) }
        });
        let regions = regions.collect();
        let classes = sizes.into_iter().map(|(block_size, of_size)| {
            let requested = |(&class, &live): (&usize, &u64)| self.requested.estimate(class, live);
            let requested = of_size.live.iter().map(requested).sum();
            ClassMap { block_size, slabs: of_size.slabs, waste: of_size.waste, requested }
        });
        PoolMap {
            pool: self.settings.name.as_str().to_owned(),
            peak_reserved: self.back.limits.peak(),
            regions,
            classes: classes.collect(),
        }
    }

    /// Returns the bytes of the extent of the slab or block that begins at `base`.
    fn extent_bytes(&self, region: u32, base: u64) -> Option<u64> {
        let region_base = self.back.meta.span(region)?.base().to_bits();
        let unit = u32::try_from(base.checked_sub(region_base)? / UNIT as u64).ok()?;
        let (first, units, _) = extent_around(&self.back.meta, region, unit)?;
        (first == unit).then_some(u64::from(units) * UNIT as u64)
    }
}

/// The extent of a slab or block.
struct UsedExtent {
    base: u64,
    end: u64,
    /// Numbers of consecutive blocks with one state.
    runs: Vec<(PieceState, u64)>,
    block: u64,
}

/// A region of the provider (`base`, `size`), and the part of it that is divided into extents
/// (`begin`, `end`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RegionBounds {
    base: u64,
    size: u64,
    begin: u64,
    end: u64,
}

/// Totals of one block size: slabs, bytes wasted in them, and bytes of live blocks by class.
#[derive(Default)]
struct SizeTotals {
    slabs: u64,
    waste: u64,
    live: BTreeMap<usize, u64>,
}

/// Returns the runs of consecutive blocks of one state, with their lengths.
fn runs_of(states: &mut dyn Iterator<Item = u8>) -> Vec<(PieceState, u64)> {
    let mut runs: Vec<(PieceState, u64)> = Vec::new();
    for state in states {
        let state = match state {
            state if state & LIVE != 0 => PieceState::Live,
            state if state & DEFERRED != 0 => PieceState::Held,
            _ => PieceState::Cached,
        };
        match runs.last_mut() {
            Some((last, count)) if *last == state => *count += 1,
            _ => runs.push((state, 1)),
        }
    }
    runs
}

/// Returns the blocks in the used extents of a region, and the free ranges between the extents.
fn pieces(extents: &[UsedExtent], RegionBounds { base, begin, end, .. }: RegionBounds) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = begin;
    let free = |at: u64, until: u64| {
        let piece = Piece { offset: at - base, block_size: until - at, count: 1, state: PieceState::Free };
        (until > at).then_some(piece)
    };
    for extent in extents {
        // An extent that overlaps the one before it, or extends beyond its region, was changed
        // meanwhile.
        if extent.base < at || extent.end > end {
            continue;
        }
        pieces.extend(free(at, extent.base));
        let mut offset = extent.base - base;
        for &(state, count) in &extent.runs {
            pieces.push(Piece { offset, block_size: extent.block, count, state });
            offset += extent.block * count;
        }
        at = extent.end;
    }
    pieces.extend(free(at, end));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use umf_core::{DeferredFree, Inspect, Layout, Pool};
    use umf_testkit::LeaseHolder;
    use umf_testkit::pool::MmapProvider;

    use crate::SlabSettings;

    #[test]
    fn map_shows_live_held_and_free_pieces() {
        let pool = SlabPool::new(MmapProvider::shared(), SlabSettings::default()).unwrap();
        let allocate = |size| pool.allocate(Layout::new(size, 8).unwrap()).unwrap();
        // SAFETY: each is freed once, and no thread uses it.
        let free = |address| unsafe { pool.free(address) }.unwrap();
        assert_eq!(pool.map().unwrap().regions.len(), 0);
        let small: Vec<_> = (0..1000).map(|_| allocate(64)).collect();
        let large = allocate(300_000);
        let huge = allocate(100 << 20);
        let borrower = LeaseHolder::new();
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
        pool.back.upstream.drain(core::time::Duration::from_secs(5));
        [large, huge].into_iter().for_each(free);
        (1..1000).step_by(2).for_each(|index| free(small[index]));
        let totals = pool.map().unwrap().totals();
        assert_eq!((totals.live, totals.held), (0, 0));
        pool.trim(0).unwrap();
        assert_eq!(pool.map().unwrap().totals().reserved, 0);
    }

    #[test]
    fn waste_is_reported_by_class() {
        let pool = SlabPool::new(MmapProvider::shared(), SlabSettings::default()).unwrap();
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
        // SAFETY: each is freed once, and no thread uses it.
        blocks.into_iter().for_each(|address| unsafe { pool.free(address) }.unwrap());
        assert_eq!(pool.statistics().requested_bytes, 0);
    }

    #[test]
    fn map_is_consistent_while_threads_allocate() {
        let pool = SlabPool::new(MmapProvider::shared(), SlabSettings::default()).unwrap();
        let stop = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = umf_testkit::SetOnDrop(&stop);
            for seed in 0..2_usize {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut live = std::collections::VecDeque::new();
                    let mut size = 16 + seed;
                    while !stop.load(Ordering::Relaxed) {
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

    #[test]
    fn requested_bytes_follow_recent_requests() {
        let sample = Sample::default();
        assert_eq!(sample.estimate(1000), 1000);
        (0..100).for_each(|_| sample.note(50, 100));
        assert_eq!(sample.estimate(1000), 500);
        (0..20 * Sample::WINDOW).for_each(|_| sample.note(90, 100));
        assert!((890..=900).contains(&sample.estimate(1000)), "{}", sample.estimate(1000));
        // Sizes whose sum overflows.
        (0..1000).for_each(|_| sample.note(usize::MAX / 4, usize::MAX / 2));
        assert!(sample.estimate(u64::MAX) <= u64::MAX / 2 + u64::MAX / 8);
    }
}
