//! Regions: the pool allocates a few MiB from the provider at a time, and returns a region when
//! jemalloc has freed all its extents. Purging, trimming, and the supply of missing extents.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use umf_core::{Address, Error, Layout, Region, Result};
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::tracker::{self, GRANULE, RegionNumber};
use umf_sync::{LockGuard, chunks::Zeroable, fork::Leaf};

use crate::JemallocPool;
use crate::extents::{FreeExtents, LARGEST as LARGEST_REGION, offset_of, position, region_of};
use crate::hooks::{Arena, MissingExtent, keeping_pages};
use crate::je::PAGE;
use crate::pool::OWNER;
use crate::shadow::is_known_to_jemalloc;

/// The sizes of regions. The size grows with the bytes of the pool.
const SMALLEST: usize = 1 << 20;
const LARGEST: usize = 64 << 20;
/// A new region has at least the bytes of the pool divided by this.
const GROWTH: u64 = 16;
/// If an extent of at most this size fills a large part of a region, the region gets room for
/// [`SHARERS`] of them.
const SHARED: usize = 4 << 20;
const SHARERS: usize = 4;

/// The record of a region.
#[derive(Debug)]
pub(crate) struct RegionRecord {
    /// The base for jemalloc: that of the shadow, if there is one. A multiple of a page.
    pub(crate) je_base: AtomicU64,
    /// The base in memory.
    pub(crate) real_base: AtomicU64,
    size: AtomicU64,
    /// Bytes in extents of jemalloc. Written under the lock of the free extents.
    pub(crate) used: AtomicU64,
    /// The index of the arena.
    arena: AtomicU32,
    /// The record of the last granule, which links to the others.
    granules: AtomicU32,
    /// Whether the free extents include the region. Written under their lock.
    is_entered: AtomicU32,
    /// The region of the provider, and that of the shadow.
    regions: UnsafeCell<MaybeUninit<(Region, Option<Region>)>>,
}

// SAFETY: a zeroed record is not in use.
unsafe impl Zeroable for RegionRecord {}
// SAFETY: the cell is written before the record is entered, and read by the thread that removed it.
unsafe impl Sync for RegionRecord {}

impl RegionRecord {
    pub(crate) fn is_entered(&self) -> bool {
        self.is_entered.load(Ordering::Acquire) != 0
    }

    /// Returns the position and the size of the region.
    fn position(&self, number: u32) -> (u64, u64) {
        let je_address = self.je_base.load(Ordering::Relaxed);
        (position(number, je_address, je_address), self.size.load(Ordering::Relaxed))
    }

    /// Returns the address that jemalloc uses for a position in the region.
    pub(crate) fn je_address_at(&self, position: u64) -> u64 {
        let begin = self.je_base.load(Ordering::Relaxed);
        begin + offset_of(position, begin)
    }

    /// Returns whether the region has a shadow.
    pub(crate) fn is_shadowed(&self) -> bool {
        self.je_base.load(Ordering::Relaxed) != self.real_base.load(Ordering::Relaxed)
    }

    /// Returns the region of the provider, and that of the shadow.
    ///
    /// # Safety
    /// The record was entered, and the caller has removed it, or no other thread uses the pool.
    unsafe fn regions(&self) -> (Region, Option<Region>) {
        // SAFETY: the cell was written before the record was entered.
        unsafe { (*self.regions.get()).assume_init() }
    }
}

/// Returns the whole pages of a region.
fn pages(region: Region) -> Option<(Address, usize)> {
    let begin = region.base().align_up(PAGE)?;
    let front = usize::try_from(begin.offset_from(region.base())?).ok()?;
    let size = region.size().checked_sub(front)? / PAGE * PAGE;
    (size > 0).then_some((begin, size))
}

/// The kinds of providers whose regions are never blocks of an allocator.
const MAPPING_PROVIDERS: [&str; 6] = ["cuda", "devdax", "dma-buf", "file", "host", "level-zero"];

impl JemallocPool {
    /// Purges the whole pages of the provider in a range, if the provider can.
    ///
    /// # Safety
    /// The contents of the range are not needed any more.
    unsafe fn purge(&self, je_address: Address, size: usize) {
        let Some(purge) = self.upstream.provider().purge().filter(|_| !self.upstream.is_frozen()) else {
            return;
        };
        let page = self.upstream.provider().page_size().max(PAGE);
        let whole = || {
            let begin = self.real_address(je_address)?;
            let first = begin.align_up(page)?;
            let before = usize::try_from(first.offset_from(begin)?).ok()?;
            Some((first, size.checked_sub(before)? / page * page))
        };
        if let Some((first, pages)) = whole().filter(|&(_, pages)| pages > 0) {
            // SAFETY: passed on to the caller. Pages that are not purged stay usable.
            let _ = unsafe { purge.purge_forced(first, pages) };
        }
    }

    /// Purges the dirty extents in regions that jemalloc still uses.
    ///
    /// If the process forks meanwhile, the child loses the extent that another thread purges.
    pub(crate) fn purge_dirty(&self) {
        for arena in self.arenas() {
            loop {
                // Not in the condition of the loop, which would hold the lock.
                let dirty = arena.free_extents.lock().take_dirty();
                let Some((position, size)) = dirty else { break };
                let Some(record) = self.regions.get(region_of(position)) else { break };
                if record.used.load(Ordering::Relaxed) != 0 {
                    // SAFETY: jemalloc has freed the extent, and no thread allocates it until it is
                    // freed below.
                    unsafe { self.purge(Address::from_bits(record.je_address_at(position)), size as usize) };
                }
                let mut extents = arena.free_extents.lock();
                extents.free(position, size);
                // Until now, other threads saw that the region is not wholly free.
                if record.used.load(Ordering::Relaxed) == 0 {
                    self.note_idle();
                }
            }
        }
    }

    /// Notes that jemalloc has freed all extents of some region.
    pub(crate) fn note_idle(&self) {
        self.has_idle.store(true, Ordering::Release);
        self.has_pending_work.store(true, Ordering::Release);
    }

    /// Supplies an extent that jemalloc lacked, for the next attempt: from extents that jemalloc
    /// caches, or from a new region. If the provider has no memory for a region, reclaims all free
    /// memory of the pool, once per allocation (`was_reclaimed`).
    pub(crate) fn supply_extent(
        &self,
        arena: &Arena,
        missing: MissingExtent,
        is_first: bool,
        was_reclaimed: &mut bool,
    ) -> Result<()> {
        let was_at_limit = self.is_held_limit_reached();
        // Without a lock: blocks whose deferral ends meanwhile are freed to jemalloc.
        self.upstream.admit()?;
        if was_at_limit || (is_first && (self.upstream.poll_many_pending() || self.recover_cached())) {
            return Ok(());
        }
        match self.grow(arena, missing) {
            // The memory that is missing may be deferred, free in pieces, or free in pools that
            // share the limit.
            Err(Error::OutOfMemory { .. } | Error::LimitReached { .. })
                if !core::mem::replace(was_reclaimed, true) && self.reclaim_all() =>
            {
                Ok(())
            }
            Err(error) if self.reserved.reclaim(&error) => self.grow(arena, missing),
            grown => grown,
        }
    }

    /// Makes jemalloc free its cached extents if it has many, so that neighbours merge. Returns
    /// whether at least half of them were freed.
    fn recover_cached(&self) -> bool {
        let reserved = self.reserved.bytes();
        let free = self.free_in_extents();
        let unused = reserved.saturating_sub(self.caches.counts().live_bytes()).saturating_sub(free);
        if unused < (reserved / 8).max(SMALLEST as u64) {
            return false;
        }
        keeping_pages(|| self.purge_arenas());
        self.free_in_extents().saturating_sub(free) >= unused / 2
    }

    fn free_in_extents(&self) -> u64 {
        self.arenas().iter().map(|arena| arena.free_extents.lock().free_bytes).sum()
    }

    /// Reclaims all free memory of the pool without allocating from the provider. Returns whether
    /// there was any.
    fn reclaim_all(&self) -> bool {
        let polled = self.upstream.poll();
        let free = self.free_in_extents();
        self.caches.flush();
        keeping_pages(|| self.purge_arenas());
        // The provider may need the memory of these regions for the next one.
        let has_released = self.release_idle(0).is_ok_and(|released| released > 0);
        polled > 0 || has_released || self.free_in_extents() > free
    }

    /// Returns whether the pool excludes the first and the last page of a region from jemalloc's
    /// extents.
    ///
    /// jemalloc has one map of extents for all arenas, with entries for the first and the last page
    /// of a large extent. If the region is itself a block of jemalloc, these pages have entries
    /// already: the provider is a jemalloc pool, or uses a global allocator that is jemalloc.
    fn excludes_edge_pages(&self) -> bool {
        self.excludes_edge_pages.load(Ordering::Relaxed)
            || !MAPPING_PROVIDERS.contains(&self.upstream.provider().kind().as_str())
    }

    /// Adds a region in which the missing extent fits.
    fn grow(&self, arena: &Arena, missing: MissingExtent) -> Result<()> {
        let excluded_edges = self.excludes_edge_pages();
        let result = self.grow_by(arena, missing, excluded_edges);
        if result.is_err() && self.excludes_edge_pages() != excluded_edges {
            // The first attempt found that the region lies within another one.
            return self.grow_by(arena, missing, true);
        }
        result
    }

    /// Adds a region in which the missing extent fits: one of the preferred size, or else a smaller
    /// one.
    fn grow_by(&self, arena: &Arena, missing: MissingExtent, excludes_edge_pages: bool) -> Result<()> {
        let MissingExtent { size, align } = missing;
        // Excluded pages, and those before a multiple of the alignment.
        let edges = match excludes_edge_pages {
            true if align > PAGE => align.saturating_add(2 * PAGE),
            true => 2 * PAGE,
            false => 0,
        };
        let page = self.upstream.provider().page_size().max(PAGE);
        let overflow = Error::SizeOverflow { size, align };
        let needed = size.checked_add(edges).ok_or(overflow)?;
        let least = needed.checked_next_multiple_of(page).ok_or(overflow)?;
        let preferred = self.preferred_size(size, edges, least - size);
        let rounded = preferred.and_then(|bytes| bytes.checked_next_multiple_of(page.max(GRANULE)));
        let mut request = rounded.ok_or(overflow)?.max(least);
        loop {
            match self.enter_region(arena, request, size, align) {
                Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) if request > least => {
                    request =
                        (request / 2).checked_next_multiple_of(page).map_or(least, |half| half.max(least));
                }
                result => return result,
            }
        }
    }

    /// Returns the preferred size of a region for an extent of `size` bytes, or `None` on overflow.
    /// `edges` bytes of the region cannot be used. The smallest region for the extent has `rest`
    /// bytes more than it.
    fn preferred_size(&self, size: usize, edges: usize, rest: usize) -> Option<usize> {
        let share = usize::try_from(self.reserved.bytes() / GROWTH).unwrap_or(LARGEST);
        // The largest power of two up to it.
        let growth = (share.clamp(SMALLEST, LARGEST) + 1).next_power_of_two() / 2;
        if size.checked_add(edges)? <= growth / SHARERS {
            Some(growth)
        } else if size <= SHARED || rest > size / 8 {
            size.checked_mul(SHARERS)?.checked_add(edges)
        } else {
            size.checked_add(edges)
        }
    }

    /// Allocates a region of `request` bytes and enters it. `need` bytes at `align` fit in it.
    fn enter_region(&self, arena: &Arena, request: usize, need: usize, align: usize) -> Result<()> {
        let (least, align) = (align, align.max(GRANULE));
        let allocated = match self.reserved.allocate_region(&self.upstream, Layout::new(request, align)?) {
            Err(Error::BadAlignment { .. }) => {
                // The provider cannot align that much: allocate more, and align within.
                let padded =
                    request.checked_add(align).ok_or(Error::SizeOverflow { size: request, align })?;
                let page = self.upstream.provider().page_size();
                self.reserved.allocate_region(&self.upstream, Layout::new(padded, page.min(GRANULE))?)
            }
            result => result,
        };
        let (region, number) = allocated?;
        self.make_region(arena, (region, number), need, least).inspect_err(|_| {
            if self.return_region(region).is_err()
                && let Some(found) = tracker::find(region.base()).filter(|found| found.region == region)
            {
                // The provider refuses the region, so the pool uses it for smaller extents. Without
                // memory for its record it can be neither used nor returned.
                let _ = self.make_region(arena, (region, found.number), 0, PAGE);
            }
        })
    }

    fn make_region(
        &self,
        arena: &Arena,
        (region, tracked): (Region, RegionNumber),
        need: usize,
        align: usize,
    ) -> Result<()> {
        let too_small = Error::OutOfMemory { size: need, owner: OWNER, native: 0 };
        let (mut real, mut size) = pages(region).ok_or(too_small)?;
        // The region lies within another one, or shares a granule with one.
        if tracker::span_below(real, 1) != Some(0) {
            self.excludes_edge_pages.store(true, Ordering::Relaxed);
        }
        if self.excludes_edge_pages() && is_known_to_jemalloc(real, size) {
            real = real.checked_add(PAGE as u64).ok_or(too_small)?;
            size = size.checked_sub(2 * PAGE).ok_or(too_small)?;
        }
        let aligned =
            real.align_up(align).and_then(|position| position.offset_from(real)).ok_or(too_small)?;
        if need as u64 > (size as u64).saturating_sub(aligned) || size as u64 > LARGEST_REGION {
            return Err(too_small);
        }
        let shadow =
            if is_known_to_jemalloc(real, size) { None } else { Some(self.reserve_shadow(real, size)?) };
        let undo_shadow = |error| {
            self.free_shadow(shadow.map(|(region, _)| region));
            Err(error)
        };
        let (number, record) = match self.regions.allocate() {
            Ok(record) => record,
            Err(error) => return undo_shadow(error),
        };
        let je_address = shadow.map_or(real, |(region, _)| region.base());
        record.je_base.store(je_address.to_bits(), Ordering::Relaxed);
        record.real_base.store(real.to_bits(), Ordering::Relaxed);
        record.size.store(size as u64, Ordering::Relaxed);
        record.used.store(0, Ordering::Relaxed);
        record.arena.store(arena.index(), Ordering::Relaxed);
        record.granules.store(0, Ordering::Relaxed);
        // SAFETY: no other thread knows the number yet.
        unsafe { *record.regions.get() = MaybeUninit::new((region, shadow.map(|(region, _)| region))) };
        let entered = self
            .add_granules(region, tracked, number, record, shadow.is_some())
            .and_then(|()| {
                shadow.map_or(Ok(()), |(region, tracked)| {
                    tracker::set_span(tracked, region.base(), region.size(), number)
                })
            })
            .and_then(|()| self.add_to_free_extents(number, record));
        if let Err(error) = entered {
            self.remove_granules(record);
            self.regions.release(number);
            return undo_shadow(error);
        }
        Ok(())
    }

    fn add_to_free_extents(&self, number: u32, record: &RegionRecord) -> Result<()> {
        let (position, size) = record.position(number);
        let none = Error::OutOfMemory { size: size as usize, owner: OWNER, native: 0 };
        let mut extents = self.free_extents_of(record).ok_or(none)?;
        extents.add(position, size)?;
        record.is_entered.store(1, Ordering::Release);
        Ok(())
    }

    fn free_extents_of(&self, record: &RegionRecord) -> Option<LockGuard<'_, FreeExtents, Leaf>> {
        let arena = self.arenas().get(record.arena.load(Ordering::Relaxed) as usize)?;
        Some(arena.free_extents.lock())
    }

    /// Adds records for the granules of a region, and sets them in the tracker.
    fn add_granules(
        &self,
        region: Region,
        tracked: RegionNumber,
        number: u32,
        record: &RegionRecord,
        is_shadowed: bool,
    ) -> Result<()> {
        let mut address = region.base();
        while region.contains(address) {
            let granule_number = self.blocks.add(address, number, is_shadowed)?;
            if let Some(granule) = self.blocks.table().get(granule_number) {
                granule.next.store(record.granules.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            record.granules.store(granule_number, Ordering::Relaxed);
            tracker::set_span(tracked, address, 1, granule_number)?;
            let overflow = Error::SizeOverflow { size: region.size(), align: GRANULE };
            address = address.checked_add(1).and_then(|next| next.align_up(GRANULE)).ok_or(overflow)?;
        }
        Ok(())
    }

    /// Returns the numbers of the granules of a region.
    pub(crate) fn granules<'a>(&'a self, record: &RegionRecord) -> impl Iterator<Item = u32> + use<'a> {
        let mut next = record.granules.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let number = next;
            next = self.blocks.table().get(number).filter(|_| number != 0)?.next.load(Ordering::Relaxed);
            Some(number)
        })
    }

    fn remove_granules(&self, record: &RegionRecord) {
        self.granules(record).for_each(|number| self.blocks.remove(number));
        record.granules.store(0, Ordering::Relaxed);
    }

    /// Sets the granules of a region in the tracker again, after the provider refused the region:
    /// the tracker may have it under another number.
    fn retag_granules(&self, region: Region, record: &RegionRecord) {
        let Some(found) = tracker::find(region.base()).filter(|found| found.region == region) else { return };
        for number in self.granules(record) {
            if let Some(begin) = self.blocks.table().get(number).and_then(crate::blocks::Granule::begin) {
                let address = if region.contains(begin) { begin } else { region.base() };
                let _ = tracker::set_span(found.number, address, 1, number);
            }
        }
    }

    /// Returns a region to the provider and counts that. If other processes have it open, the
    /// upstream defers that.
    fn return_region(&self, region: Region) -> Result<()> {
        // SAFETY: no block of the region is live, or the pool is dropped; the caller has removed it
        // from the free extents.
        if unsafe { self.upstream.free(region)? } == FreeOutcome::Freed {
            self.reserved.remove_region(region.size());
        }
        Ok(())
    }

    /// Returns idle regions to the provider until at most `keep` bytes are free. Returns the bytes
    /// released.
    ///
    /// # Errors
    /// The last error of the provider. Regions that it refuses stay in the pool.
    pub(crate) fn release_idle(&self, keep: u64) -> Result<usize> {
        self.purge_dirty();
        // An exchange, not a store: regions that are noted from here on stay noted.
        self.has_idle.swap(false, Ordering::AcqRel);
        let (mut released, mut result) = (0_usize, Ok(()));
        for number in 1..self.regions.end() {
            let Some(record) = self.regions.get(number) else { continue };
            if !record.is_entered() || record.used.load(Ordering::Relaxed) != 0 {
                continue;
            }
            if keep > 0 && self.free_bytes() <= keep {
                break;
            }
            if self.remove_from_free_extents(number, record) {
                match self.return_idle_region(number, record) {
                    Ok(size) => released += size,
                    Err(error) => result = Err(error),
                }
            }
        }
        result.map(|()| released)
    }

    /// Removes an idle region from the free extents; returns `false` if it is not idle, or another
    /// thread removed it.
    fn remove_from_free_extents(&self, number: u32, record: &RegionRecord) -> bool {
        let index = record.arena.load(Ordering::Relaxed);
        let Some(arena) = self.arenas().get(index as usize) else { return false };
        let mut extents = arena.free_extents.lock();
        // The record may belong to another region by now. Under the lock of its arena it does not
        // change.
        if !record.is_entered()
            || record.arena.load(Ordering::Relaxed) != index
            || record.used.load(Ordering::Relaxed) != 0
        {
            return false;
        }
        let (position, size) = record.position(number);
        let is_removed = extents.remove(position, size);
        if is_removed {
            record.is_entered.store(0, Ordering::Release);
        }
        is_removed
    }

    /// Returns a region that the caller has removed from the free extents.
    fn return_idle_region(&self, number: u32, record: &RegionRecord) -> Result<usize> {
        // SAFETY: the record was entered, and the caller has removed it.
        let (region, shadow) = unsafe { record.regions() };
        if let Err(error) = self.return_region(region) {
            self.retag_granules(region, record);
            self.add_to_free_extents(number, record)?;
            return Err(error);
        }
        self.remove_granules(record);
        self.free_shadow(shadow);
        self.regions.release(number);
        Ok(region.size())
    }

    /// Returns whether jemalloc has freed all extents of an arena.
    pub(crate) fn is_empty(&self, arena: &Arena) -> bool {
        (1..self.regions.end())
            .filter_map(|number| self.regions.get(number))
            .filter(|record| record.is_entered() && record.arena.load(Ordering::Relaxed) == arena.index())
            .all(|record| record.used.load(Ordering::Relaxed) == 0)
    }

    /// Returns all regions, those in use included, when the pool is dropped.
    pub(crate) fn return_all_regions(&self) {
        for number in 1..self.regions.end() {
            let Some(record) = self.regions.get(number).filter(|record| record.is_entered()) else {
                continue;
            };
            // SAFETY: the record is entered, and no other thread uses the pool.
            let (region, shadow) = unsafe { record.regions() };
            record.is_entered.store(0, Ordering::Relaxed);
            // A region that the provider refuses is leaked.
            let _ = self.return_region(region);
            self.free_shadow(shadow);
        }
    }

    /// Returns the bytes that are neither live nor deferred.
    pub(crate) fn free_bytes(&self) -> u64 {
        let used = self.caches.counts().live_bytes() + self.upstream.deferred().bytes;
        self.reserved.bytes().saturating_sub(used)
    }

    /// Returns free memory to the provider until at most `keep` bytes are free. Returns the bytes
    /// released.
    pub(crate) fn trim_to(&self, keep: usize) -> Result<usize> {
        if self.upstream.is_frozen() {
            return Ok(0);
        }
        self.upstream.poll();
        let keep = keep as u64;
        if self.free_bytes() <= keep {
            return Ok(0);
        }
        self.caches.flush();
        // Pages in regions that stay are purged.
        self.purge_arenas();
        self.release_idle(keep)
    }

    /// Releases up to `bytes` free bytes for another pool that shares the limit. Returns the bytes
    /// released.
    pub(crate) fn release_for_others(&self, bytes: u64) -> u64 {
        if self.upstream.is_frozen() {
            return 0;
        }
        let free = self.free_bytes();
        let keep = usize::try_from(free.saturating_sub(bytes)).unwrap_or(usize::MAX);
        self.trim_to(keep).map_or(0, |released| released as u64)
    }
}
