//! Regions: got from the provider a few MiB at a time, given back when nothing in them is used.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use umf_core::{Address, Error, Layout, Region, Result};
use umf_runtime::held::Fate;
use umf_runtime::tracker::{self, GRANULE, RegionNumber};
use umf_sync::failpoint;

use crate::SlabPool;
use crate::blocks::Gathered;
use crate::extents::{Range, UNIT, table_bytes};
use crate::pool::OWNER;
use crate::span::{Cold, Place};

/// A pool begins with regions of this size, and grows by a part of what it has, up to the largest.
const SMALLEST: usize = 1 << 20;
const LARGEST: usize = 64 << 20;
const PART: u64 = 32;

impl SlabPool {
    /// Units from a region, if need be a new one.
    pub(crate) fn obtain(&self, units: u32, align: u32, holder: u32) -> Result<Range> {
        let mut attempt = 0;
        loop {
            if let Some(range) = self.extents.lock().allocate(&self.meta, units, align, holder) {
                return Ok(range);
            }
            let size = units as usize * UNIT;
            // No lock is held while the provider is at work.
            match self.gather(attempt) {
                Gathered::Some => {}
                Gathered::Little => self.add_region(size, align as usize * UNIT, PART)?,
                Gathered::All => self.add_region(size, align as usize * UNIT, 8 * PART)?,
            }
            attempt += 1;
        }
    }

    /// Takes units back, and gives their region back if it is idle and there is another.
    pub(crate) fn give_range(&self, range: Range) {
        let (units, removed) = {
            let mut large = self.extents.lock();
            let (units, whole) = large.free(&self.meta, range).unwrap_or_default();
            let (idle, regions) = large.idle();
            // One idle region, or an eighth of all, is kept against coming and going, within `max_cached`.
            let idle = idle * UNIT as u64;
            let enough = regions > 1 && idle > self.reserve.bytes() / 8 || self.policy.is_beyond(idle);
            let floor = self.ahead.floor().div_ceil(UNIT as u64);
            let removed = whole && enough && large.remove_region(&self.meta, range.region, floor);
            (units, removed)
        };
        if removed {
            // A provider that does not take it back leaves it with us.
            let _ = self.give_back(range.region);
        }
        self.mind_policy(units as usize * UNIT);
    }

    /// Address of the first unit, and the tracker's number of the region.
    pub(crate) fn region_of(&self, range: Range) -> Option<(Address, RegionNumber)> {
        let span = self.meta.span(range.region)?;
        // SAFETY: written before the region is entered, and not while units of it are used.
        let (_, number) = unsafe { span.settled().upstream.assume_init() };
        Some((span.base().checked_add(u64::from(range.first) * UNIT as u64)?, number))
    }

    /// Adds a region in which `size` bytes at `align` fit, of this part of what the pool has.
    fn add_region(&self, size: usize, align: usize, part: u64) -> Result<()> {
        let page = self.upstream.provider().page_size().max(UNIT);
        let align = align.max(GRANULE);
        let wanted = usize::try_from(self.reserve.bytes() / part).unwrap_or(LARGEST).clamp(SMALLEST, LARGEST);
        let wanted = (wanted + 1).next_power_of_two() / 2;
        let overflow = Error::SizeOverflow { size, align };
        let least = size.checked_next_multiple_of(page).ok_or(overflow)?;
        let mut ask = least.max(wanted.next_multiple_of(page));
        loop {
            match self.enter_region(ask, size, align, |_| Ok(())) {
                Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) if ask > least => {
                    ask = (ask / 2).next_multiple_of(page).max(least);
                }
                result => return result,
            }
        }
    }

    /// A region that counts against the limits.
    fn take_region(&self, layout: Layout) -> Result<(Region, RegionNumber)> {
        let got = self.reserve.take(&self.upstream, layout)?;
        Ok(got)
    }

    /// Takes a region of `ask` bytes, readies it, and enters it.
    pub(crate) fn enter_region(
        &self,
        ask: usize,
        need: usize,
        align: usize,
        ready: impl FnOnce(Region) -> Result<()>,
    ) -> Result<()> {
        let (region, number) = match self.take_region(Layout::new(ask, align)?) {
            Err(Error::BadAlignment { .. }) => {
                // Aligned by taking more.
                let padded = ask.checked_add(align).ok_or(Error::SizeOverflow { size: ask, align })?;
                self.reserve.take(
                    &self.upstream,
                    Layout::new(padded, self.upstream.provider().page_size().min(GRANULE))?,
                )?
            }
            result => result?,
        };
        let entered = ready(region).and_then(|()| self.make_region(region, number, need, align));
        if entered.is_err() {
            self.return_unused(region);
        }
        self.trace_region("got", region);
        entered
    }

    /// Gives a region back that could not be used as it was meant to be. If the provider refuses,
    /// it is entered, and given back when it is idle: at the next trimming, for one.
    fn return_unused(&self, region: Region) {
        if self.return_region(region).is_err()
            && let Some(found) = tracker::find(region.base()).filter(|found| found.region == region)
        {
            // Where there is no memory for its record it cannot be used, nor given back.
            let _ = self.make_region(region, found.number, UNIT, GRANULE);
        }
    }

    fn make_region(&self, region: Region, number: RegionNumber, need: usize, align: usize) -> Result<()> {
        let too_small = Error::OutOfMemory { size: need, owner: OWNER, native: 0 };
        let base = region.base().align_up(GRANULE).ok_or(too_small)?;
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
        // SAFETY: nobody else knows the span's number yet.
        unsafe {
            *span.cold() = Cold {
                unit: units,
                table_run: MaybeUninit::new(table_run),
                upstream: MaybeUninit::new((region, number)),
                ..Cold::EMPTY
            };
        }
        // (Less than a granule lies before the base.)
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

    /// Gives a region back that [`crate::extents::Extents::remove_region`] took out. If the provider refuses, it is
    /// entered again.
    pub(crate) fn give_back(&self, number: u32) -> Result<usize> {
        let Some(span) = self.meta.span(number) else { return Ok(0) };
        // SAFETY: the region was taken out, so nobody else uses its record.
        let cold = unsafe { *span.cold() };
        // SAFETY: a region has it.
        let (region, _) = unsafe { cold.upstream.assume_init() };
        failpoint!("pool.region_taken_out");
        if let Err(error) = self.return_region(region) {
            // The tracker may have taken the region out and in again, under another number.
            if let Some(found) = tracker::find(region.base()).filter(|found| found.region == region) {
                // SAFETY: as above.
                unsafe { span.cold().upstream = MaybeUninit::new((region, found.number)) };
                let _ = tracker::set_span(found.number, region.base(), region.size(), number);
            }
            self.extents.lock().add_region(&self.meta, number);
            return Err(error);
        }
        span.retract();
        // SAFETY: a region has it.
        self.meta.runs.release(unsafe { cold.table_run.assume_init() });
        self.meta.release_span(number);
        Ok(region.size())
    }

    /// Hands a region to the provider, and counts that, unless other processes have it open: then
    /// [`SlabPool::take_back`] counts it.
    pub(crate) fn return_region(&self, region: Region) -> Result<()> {
        // SAFETY: no block of the region is live, or the pool goes; the caller took it out of everyone's reach.
        match unsafe { self.upstream.free(region)? } {
            Fate::Gone => {
                self.region_went(region);
            }
            Fate::Held => self.trace_region("holds", region),
        }
        Ok(())
    }

    /// A region is the provider's again.
    pub(crate) fn region_went(&self, region: Region) {
        self.reserve.region_went(region.size());
        self.trace_region("gave back", region);
    }

    /// A block that is a region.
    pub(crate) fn allocate_direct(&self, layout: Layout) -> Result<Address> {
        let (region, number) = self.retrying(|| self.take_region(layout))?;
        let entered = self.meta.allocate_span().and_then(|(span_number, span)| {
            // SAFETY: nobody else knows the number yet.
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

    /// Frees a block that is a region, whose life the caller has taken.
    #[cold]
    pub(crate) fn free_direct(&self, place: Place<'_>) -> Result<()> {
        let size = place.span.bytes() as usize;
        self.end_direct(place).inspect_err(|_| place.state.store(crate::span::LIVE, Ordering::Release))?;
        self.direct.remove(size);
        Ok(())
    }

    /// Gives a region back that was a block. If the provider refuses, it is as before, and still not live.
    pub(crate) fn end_direct(&self, place: Place<'_>) -> Result<()> {
        let span = place.span;
        // SAFETY: a direct span has it, and the caller alone took the block's life.
        let (region, _) = unsafe { span.cold().upstream.assume_init() };
        if let Err(error) = self.return_region(region) {
            if let Some(found) = tracker::find(region.base()).filter(|found| found.region == region) {
                // SAFETY: as above.
                unsafe { span.cold().upstream = MaybeUninit::new((region, found.number)) };
                let _ = tracker::set_span(found.number, region.base(), region.size(), place.number);
            }
            return Err(error);
        }
        span.retract();
        self.meta.release_span(place.number);
        Ok(())
    }
}
