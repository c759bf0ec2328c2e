//! [`Backend`]: regions from the provider, and the extents in them.
//!
//! The back of the pool. It allocates regions of a few MiB from the provider, within the limits,
//! and extents in them for slabs and for large blocks. A free extent is merged with its neighbours.
//! A region that is wholly free is returned to the provider, unless it is the only such region or
//! part of the reserve. A block above `max_poolable_size` is a region of its own.
//!
//! The backend does not know the layers above. Functions that free memory return the number of
//! bytes, which the pool passes to its purge policy. No lock is held while the provider is called.
//!
//! **Reserve.** Regions that the pool allocates in advance and keeps. The size of the reserve is a
//! floor: automatic release leaves at least that many bytes of regions. An explicit trim ignores
//! the floor, and lowers it to the bytes that remain. An allocation that would fail otherwise
//! ignores it too.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use umf_core::statistics::Gauge;
use umf_core::{Address, Error, Layout, ProviderRef, Region, Result};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::limit::Reserved;
use umf_runtime::tracker::{self, GRANULE, RegionNumber};
use umf_sync::{Lock, failpoint};

use crate::SlabSettings;
use crate::extents::{Extents, Range, UNIT, table_bytes};
use crate::inspect::Trace;
use crate::metadata::Metadata;
use crate::span::BlockRef;
use crate::types::{Cold, Entry, Kind, LIVE, UNOWNED};

/// The name of the pool in errors.
pub(crate) const OWNER: &str = "this slab pool";

/// The sizes of regions. The size grows with the bytes of the pool.
const SMALLEST: usize = 1 << 20;
const LARGEST: usize = 64 << 20;

/// The smallest region that [`Backend::reserve`] requests when it halves its size.
const SMALLEST_RESERVE: usize = 1 << 20;

/// Regions and extents of a pool.
pub(crate) struct Backend {
    // First, so that it is dropped, and its guards waited for, before the data that they use.
    pub(crate) upstream: Upstream,
    pub(crate) meta: Metadata,
    /// The bytes of regions, against the limits.
    pub(crate) limits: Reserved,
    pub(crate) extents: Lock<Extents>,
    /// Live blocks that are regions.
    pub(crate) direct: Gauge,
    /// All allocations of such blocks.
    pub(crate) direct_allocations: AtomicU64,
    pub(crate) trace: Trace,
    /// The most bytes of wholly free regions under `max_cached`; 0: any number.
    max_idle: u64,
    reserve_floor: AtomicU64,
    /// Held while the reserve grows, and while its floor changes. Taken before all other locks
    /// except `Heaps::revoker`.
    reserving: Lock<()>,
}

impl Backend {
    pub(crate) fn new(provider: ProviderRef, settings: &SlabSettings) -> Result<Self> {
        let upstream = Upstream::new(provider)?;
        upstream.set_on_free(settings.on_free, settings.max_held);
        upstream.set_on_out_of_memory(settings.out_of_memory.clone());
        Ok(Self {
            upstream,
            meta: Metadata::new()?,
            limits: Reserved::new(settings.memory_limit, settings.shared_limit.clone()),
            extents: Lock::new(Extents::new()),
            direct: Gauge::new(),
            direct_allocations: AtomicU64::new(0),
            trace: Trace::new(settings),
            max_idle: settings.max_cached,
            reserve_floor: AtomicU64::new(0),
            reserving: Lock::new(()),
        })
    }

    // Extents.

    /// Allocates units for a span, if a free extent has enough.
    pub(crate) fn allocate(&self, units: u32, align: u32, span: u32) -> Option<Range> {
        self.extents.lock().allocate(&self.meta, units, align, span)
    }

    /// Frees an extent, and returns its bytes. If its region is then idle and the pool has enough
    /// idle memory, returns the region to the provider.
    pub(crate) fn free(&self, range: Range) -> usize {
        let (units, removed) = {
            let mut extents = self.extents.lock();
            let (units, whole) = extents.free(&self.meta, range).unwrap_or_default();
            let (idle, regions) = extents.idle();
            // The pool keeps one idle region, or an eighth of all memory, within `max_cached`. So
            // it does not return a region and allocate one again at once.
            let idle = idle * UNIT as u64;
            let is_beyond = self.max_idle != 0 && idle > self.max_idle;
            let enough = regions > 1 && idle > self.limits.bytes() / 8 || is_beyond;
            let floor = self.reserve_floor().div_ceil(UNIT as u64);
            (units, whole && enough && extents.remove_region(&self.meta, range.region, floor))
        };
        if removed {
            // A region that the provider refuses stays in the pool.
            let _ = self.return_removed(range.region);
        }
        units as usize * UNIT
    }

    /// Returns the address of the first unit, and the tracker's number of the region.
    pub(crate) fn resolve(&self, range: Range) -> Option<(Address, RegionNumber)> {
        let span = self.meta.span(range.region)?;
        // SAFETY: written before the region is entered, and not while units of it are in use.
        let (_, number) = unsafe { span.published().upstream.assume_init() };
        Some((span.base().checked_add(u64::from(range.first) * UNIT as u64)?, number))
    }

    /// Makes an extent a free large block of span `number`. Frees the extent if there is no memory
    /// for that.
    pub(crate) fn make_block(&self, class: usize, size: usize, range: Range, number: u32) -> Result<Entry> {
        let missing = Error::OutOfMemory { size, owner: "metadata", native: 0 };
        let span = self.meta.span(number).ok_or(missing)?;
        let (base, region) = self.resolve(range).ok_or(missing)?;
        // SAFETY: no other thread knows the number yet.
        unsafe { *span.cold() = Cold { unit: range.first, ..Cold::EMPTY } };
        span.publish_block(class, range.region, base, size as u64);
        if let Err(error) = tracker::set_span(region, base, 1, number) {
            span.retract();
            self.free(range);
            return Err(error);
        }
        // SAFETY: the span is in use, and has one block.
        Ok(unsafe { span.entry(0) })
    }

    /// Merges a large block, which the caller alone has, with the free extents around it. With
    /// `release`, its region may go to the provider. Returns its bytes.
    pub(crate) fn merge(&self, entry: &Entry, release: bool) -> usize {
        let Some((number, span)) = self.meta.large_span(entry) else { return 0 };
        debug_assert_eq!(span.owner.load(Ordering::Relaxed), UNOWNED, "a lookaside cache has the span");
        // SAFETY: the caller alone has the block.
        let range = Range { region: span.region(), first: unsafe { span.cold() }.unit };
        if let Some((base, region)) = self.resolve(range) {
            // Cannot fail: the granule is the region's.
            let _ = tracker::set_span(region, base, 1, range.region);
        }
        span.retract();
        self.meta.release_span(number);
        if release {
            return self.free(range);
        }
        self.extents.lock().free(&self.meta, range).map_or(0, |(units, _)| units as usize * UNIT)
    }

    // Regions.

    /// Adds a region in which `size` bytes at `align` fit. If memory allows, it has at least the
    /// bytes of the pool divided by `part`.
    pub(crate) fn add_region(&self, size: usize, align: usize, part: u64) -> Result<()> {
        let page = self.upstream.provider().page_size().max(UNIT);
        let align = align.max(GRANULE);
        let wanted = usize::try_from(self.limits.bytes() / part).unwrap_or(LARGEST).clamp(SMALLEST, LARGEST);
        let wanted = (wanted + 1).next_power_of_two() / 2;
        let overflow = Error::SizeOverflow { size, align };
        let least = size.checked_next_multiple_of(page).ok_or(overflow)?;
        let mut request = least.max(wanted.next_multiple_of(page));
        loop {
            match self.take_region(request, size, align, |_| Ok(())) {
                Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) if request > least => {
                    request = (request / 2).next_multiple_of(page).max(least);
                }
                result => return result,
            }
        }
    }

    /// Allocates a region of `request` bytes within the limits, prepares it, and enters it.
    fn take_region(
        &self,
        request: usize,
        need: usize,
        align: usize,
        prepare: impl FnOnce(Region) -> Result<()>,
    ) -> Result<()> {
        let (region, number) = match self.limits.allocate_region(&self.upstream, Layout::new(request, align)?)
        {
            Err(Error::BadAlignment { .. }) => {
                // The provider cannot align that much: allocate more, and align within.
                let overflow = Error::SizeOverflow { size: request, align };
                let padded = request.checked_add(align).ok_or(overflow)?;
                self.limits.allocate_region(&self.upstream, Layout::new(padded, 1)?)?
            }
            result => result?,
        };
        let entered = prepare(region).and_then(|()| self.enter_region(region, number, need, align));
        if entered.is_err() {
            self.return_unused(region);
        }
        self.trace.region("got", region);
        entered
    }

    /// Enters a region in which `need` bytes at `align` fit.
    fn enter_region(&self, region: Region, number: RegionNumber, need: usize, align: usize) -> Result<()> {
        let too_small = Error::OutOfMemory { size: need, owner: OWNER, native: 0 };
        let base = region.base().align_up(GRANULE).ok_or(too_small)?;
        // Is less than a granule.
        let front = base.offset_from(region.base()).ok_or(too_small)? as usize;
        let units = region.size().saturating_sub(front) / UNIT;
        let aligned =
            base.align_up(align).and_then(|place| place.offset_from(base)).ok_or(too_small)? as usize;
        if aligned + need > units * UNIT {
            return Err(too_small);
        }
        let units = u32::try_from(units).map_err(|_| too_small)?;
        let (table_run, _) = self.meta.runs.allocate(table_bytes(units))?;
        let entry = self.meta.allocate_span().inspect_err(|_| self.meta.runs.release(table_run));
        let (span_number, span) = entry?;
        // SAFETY: no other thread knows the span's number yet.
        unsafe {
            *span.cold() = Cold {
                unit: units,
                table_run: MaybeUninit::new(table_run),
                upstream: MaybeUninit::new((region, number)),
                ..Cold::EMPTY
            };
        }
        span.publish_region(base, u64::from(units) * UNIT as u64, (front as u32, region.size() as u64));
        if let Err(error) = tracker::set_span(number, region.base(), region.size(), span_number) {
            span.retract();
            self.meta.release_span(span_number);
            self.meta.runs.release(table_run);
            return Err(error);
        }
        self.extents.lock().add_region(&self.meta, span_number);
        failpoint!("pool.region_entered");
        Ok(())
    }

    /// Returns a region that could not be entered. If the provider refuses it, enters it with any
    /// alignment, so that a later trim can return it.
    fn return_unused(&self, region: Region) {
        if self.return_region(region).is_err()
            && let Some(found) = tracker::find(region.base()).filter(|found| found.region == region)
        {
            // Without memory for its record the region can neither be used nor returned.
            let _ = self.enter_region(region, found.number, UNIT, GRANULE);
        }
    }

    /// Returns a region that [`Extents::remove_region`] removed to the provider. If the provider
    /// refuses it, enters it again. Returns the bytes released.
    fn return_removed(&self, number: u32) -> Result<usize> {
        let Some(span) = self.meta.span(number) else { return Ok(0) };
        // SAFETY: the region was removed, so no other thread uses its record.
        let cold = unsafe { *span.cold() };
        // SAFETY: a region has it.
        let (region, _) = unsafe { cold.upstream.assume_init() };
        failpoint!("pool.region_taken_out");
        if let Err(error) = self.return_region(region) {
            self.update_number(region, number);
            self.extents.lock().add_region(&self.meta, number);
            return Err(error);
        }
        span.retract();
        // SAFETY: a region has it.
        self.meta.runs.release(unsafe { cold.table_run.assume_init() });
        self.meta.release_span(number);
        Ok(region.size())
    }

    /// Sets the number of a region that the provider refused: the tracker may have removed the
    /// region and entered it again under another number. The caller alone has its span.
    fn update_number(&self, region: Region, number: u32) {
        if let Some(span) = self.meta.span(number)
            && let Some(found) = tracker::find(region.base()).filter(|found| found.region == region)
        {
            // SAFETY: the caller alone has the span.
            unsafe { span.cold().upstream = MaybeUninit::new((region, found.number)) };
            let _ = tracker::set_span(found.number, region.base(), region.size(), number);
        }
    }

    /// Returns a region to the provider and counts that. If other processes have it open, the
    /// upstream defers that, and [`Backend::region_returned`] counts it later.
    pub(crate) fn return_region(&self, region: Region) -> Result<()> {
        // SAFETY: no block of the region is live, or the pool is dropped; the caller removed it
        // from the extents.
        match unsafe { self.upstream.free(region)? } {
            FreeOutcome::Freed => self.region_returned(region),
            FreeOutcome::Deferred => self.trace.region("holds", region),
        }
        Ok(())
    }

    /// Counts that a region was returned to the provider.
    pub(crate) fn region_returned(&self, region: Region) {
        self.limits.remove_region(region.size());
        self.trace.region("released", region);
    }

    /// Returns idle regions to the provider until `is_enough`, or until only `floor` bytes of
    /// regions are left. If the provider refuses a region, continues with the next one, and returns
    /// the first such error at the end.
    pub(crate) fn return_idle(&self, floor: u64, mut is_enough: impl FnMut(&Extents) -> bool) -> Result<()> {
        let floor = floor.div_ceil(UNIT as u64);
        let mut result = Ok(());
        for (number, _) in self.meta.spans().filter(|(_, span)| span.kind() == Kind::Region) {
            let removed = {
                let mut extents = self.extents.lock();
                if is_enough(&extents) {
                    break;
                }
                extents.remove_region(&self.meta, number, floor)
            };
            if removed {
                result = result.and(self.return_removed(number).map(drop));
            }
        }
        result
    }

    /// Returns the bytes of regions that are divided into extents.
    fn region_bytes(&self) -> u64 {
        self.extents.lock().units() * UNIT as u64
    }

    // The reserve.

    /// Returns the bytes of regions that automatic release leaves.
    pub(crate) fn reserve_floor(&self) -> u64 {
        self.reserve_floor.load(Ordering::Relaxed)
    }

    /// Adds regions until they have `bytes` bytes. Returns the bytes added.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<usize> {
        let _reserving = self.reserving.lock();
        let (before, floor) = (self.region_bytes(), self.reserve_floor());
        // All that is missing, before a part of it takes memory that other processes need.
        let missing = usize::try_from((bytes as u64).saturating_sub(before)).unwrap_or(usize::MAX);
        if let Some(populate) = self.upstream.provider().populate().filter(|_| missing > 0) {
            populate.check_available(missing)?;
        }
        // Before the first region is added, so that automatic release does not return it meanwhile.
        self.reserve_floor.store(floor.max(bytes as u64), Ordering::Relaxed);
        let mut part = usize::MAX;
        loop {
            let present = self.region_bytes();
            let missing = usize::try_from((bytes as u64).saturating_sub(present)).unwrap_or(usize::MAX);
            if missing == 0 {
                return Ok(usize::try_from(present.saturating_sub(before)).unwrap_or(usize::MAX));
            }
            part = part.min(missing);
            match self.add_populated(part) {
                Ok(()) => {}
                // Smaller regions may fit. Not if a region was added: then the provider refused to
                // take back a region that it could not populate.
                Err(Error::OutOfMemory { .. })
                    if part > SMALLEST_RESERVE && self.region_bytes() <= present =>
                {
                    part = (part / 2).max(SMALLEST_RESERVE);
                }
                Err(error) => {
                    self.reserve_floor.store(floor, Ordering::Relaxed);
                    // Returns the added regions, except those that are in use by now.
                    let _ = self.return_idle(before.max(floor), |_| false);
                    return Err(error);
                }
            }
        }
    }

    /// Adds a region of `size` bytes, populated if the provider can.
    fn add_populated(&self, size: usize) -> Result<()> {
        let page = self.upstream.provider().page_size();
        let size =
            size.checked_next_multiple_of(page.max(UNIT)).ok_or(Error::SizeOverflow { size, align: page })?;
        self.take_region(size, size, GRANULE, |region| {
            let Some(populate) = self.upstream.provider().populate() else { return Ok(()) };
            match populate.populate(region.base(), region.size()) {
                // The kernel adds the pages when they are accessed.
                Err(Error::NotSupported { .. }) => Ok(()),
                result => result,
            }
        })
    }

    /// Lowers the floor to the bytes that an explicit trim left.
    pub(crate) fn lower_reserve(&self) {
        if self.reserve_floor() == 0 {
            return;
        }
        let _reserving = self.reserving.lock();
        let left = self.region_bytes();
        self.reserve_floor.fetch_min(left, Ordering::Relaxed);
    }

    // Blocks that are regions.

    /// Allocates a block that is a region.
    pub(crate) fn allocate_direct(&self, layout: Layout) -> Result<Address> {
        let (region, number) = self.limits.allocate_region(&self.upstream, layout)?;
        let entered = self.meta.allocate_span().and_then(|(span_number, span)| {
            // SAFETY: no other thread knows the number yet.
            unsafe { *span.cold() = Cold { upstream: MaybeUninit::new((region, number)), ..Cold::EMPTY } };
            span.publish_direct(region.base(), region.size() as u64);
            tracker::set_span(number, region.base(), region.size(), span_number).inspect_err(|_| {
                span.retract();
                self.meta.release_span(span_number);
            })
        });
        if let Err(error) = entered {
            self.return_unused(region);
            return Err(error);
        }
        self.direct.add(region.size());
        self.direct_allocations.fetch_add(1, Ordering::Relaxed);
        Ok(region.base())
    }

    /// Frees a block that is a region, whose live bit the caller has cleared.
    #[cold]
    pub(crate) fn free_direct(&self, place: BlockRef<'_>) -> Result<()> {
        let size = place.span.bytes() as usize;
        self.return_direct(place).inspect_err(|_| place.state.store(LIVE, Ordering::Release))?;
        self.direct.remove(size);
        Ok(())
    }

    /// Returns the region of a block to the provider. If the provider refuses it, the region stays,
    /// and the block stays not live.
    pub(crate) fn return_direct(&self, place: BlockRef<'_>) -> Result<()> {
        let span = place.span;
        // SAFETY: a direct span has it, and the caller alone cleared the live bit of the block.
        let (region, _) = unsafe { span.cold().upstream.assume_init() };
        if let Err(error) = self.return_region(region) {
            self.update_number(region, place.number);
            return Err(error);
        }
        span.retract();
        self.meta.release_span(place.number);
        Ok(())
    }
}
