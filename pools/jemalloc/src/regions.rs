//! Regions: got from the provider a few MiB at a time, given back when jemalloc has nothing of them.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use umf_core::{Address, AddressSpace, Error, Layout, Region, Result};
use umf_runtime::Upstream;
use umf_runtime::deferred::FreeOutcome;
use umf_runtime::tracker::{self, GRANULE, RegionNumber};
use umf_sync::{LockGuard, chunks::Zeroable, fork::Leaf};

use crate::JemallocPool;
use crate::hooks::{Arena, Wanted, sweeping};
use crate::je::{self, PAGE};
use crate::pool::{FILLS, OWNER};
use crate::room::{LARGEST as LARGEST_REGION, Room, number_of, offset_of, place};
use crate::shadow::{ALIKE, REMAINDER, Shadow, VISIBLE};

/// A pool begins with regions of this size, and grows by a part of what it has, up to the largest.
const SMALLEST: usize = 1 << 20;
const LARGEST: usize = 64 << 20;
const PART: u64 = 16;
/// Extents of a good part of such a region, and up to this size, come so many to a region.
const SHARED: usize = 4 << 20;
const SHARERS: usize = 4;

/// A region.
#[derive(Debug)]
pub(crate) struct Record {
    /// Where it begins for jemalloc; whole pages.
    pub(crate) visible: AtomicU64,
    /// Where that is.
    real: AtomicU64,
    size: AtomicU64,
    /// Bytes that jemalloc has. Changes under the room's lock.
    pub(crate) used: AtomicU64,
    /// Which of the pool's arenas has it.
    arena: AtomicU32,
    /// The first of its granules' records.
    first: AtomicU32,
    /// Whether it is in the room. Changes under the room's lock.
    is_entered: AtomicU32,
    regions: UnsafeCell<MaybeUninit<(Region, Option<Region>)>>,
}

// SAFETY: a zeroed record is that of no region; the cell is written before the record is entered, and read by whoever took it
// out.
unsafe impl Zeroable for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Record {
    pub(crate) fn is_entered(&self) -> bool {
        self.is_entered.load(Ordering::Acquire) != 0
    }

    fn place(&self, number: u32) -> (u64, u64) {
        let visible = self.visible.load(Ordering::Relaxed);
        (place(number, visible, visible), self.size.load(Ordering::Relaxed))
    }

    /// How jemalloc knows a place in the region.
    pub(crate) fn visible_at(&self, place: u64) -> u64 {
        let begin = self.visible.load(Ordering::Relaxed);
        begin + offset_of(place, begin)
    }

    /// Whether jemalloc knows the memory by other addresses, which nobody can touch.
    pub(crate) fn is_shadowed(&self) -> bool {
        self.visible.load(Ordering::Relaxed) != self.real.load(Ordering::Relaxed)
    }

    /// # Safety
    /// The record was entered once, and the caller alone looks after it.
    unsafe fn regions(&self) -> (Region, Option<Region>) {
        // SAFETY: written before it was entered.
        unsafe { (*self.regions.get()).assume_init() }
    }
}

/// What of a region jemalloc can have: whole pages.
fn pages(region: Region) -> Option<(Address, usize)> {
    let begin = region.base().align_up(PAGE)?;
    let front = usize::try_from(begin.offset_from(region.base())?).ok()?;
    let size = region.size().checked_sub(front)? / PAGE * PAGE;
    (size > 0).then_some((begin, size))
}

/// Whether jemalloc can know these pages by their addresses.
fn is_in_reach(begin: Address, size: usize) -> bool {
    begin.space() == AddressSpace::PROCESS && begin.value() + size as u64 <= VISIBLE
}

/// Providers whose regions are never blocks of an allocator.
const MAPPING: [&str; 6] = ["cuda", "devdax", "dma-buf", "file", "host", "level-zero"];

impl JemallocPool {
    /// The number of the region that an address of jemalloc's lies in.
    pub(crate) fn region_at(&self, visible: Address) -> Option<u32> {
        if let Some((_, granule)) = self.blocks.granule_at(self.upstream.id(), visible) {
            return Some(granule.region().0);
        }
        let shadow = self.shadow.get()?.id();
        tracker::find(visible).filter(|found| found.owner == shadow).map(|found| found.span)
    }

    /// Where memory is that jemalloc knows by this address.
    pub(crate) fn real(&self, visible: Address) -> Option<Address> {
        let record = self.regions.get(self.region_at(visible)?)?;
        let offset = visible.to_bits().checked_sub(record.visible.load(Ordering::Relaxed))?;
        Some(Address::from_bits(record.real.load(Ordering::Relaxed) + offset))
    }

    /// How jemalloc knows memory of this region.
    pub(crate) fn visible(&self, number: u32, real: Address) -> Option<Address> {
        let record = self.regions.get(number)?;
        let offset = real.to_bits().checked_sub(record.real.load(Ordering::Relaxed))?;
        Some(Address::from_bits(record.visible.load(Ordering::Relaxed) + offset))
    }

    /// Gives pages back to the system, as far as they are whole pages of the provider, and as it can.
    ///
    /// # Safety
    /// Nobody needs their content.
    unsafe fn purge(&self, visible: Address, size: usize) {
        let Some(ability) = self.upstream.provider().purge().filter(|_| !self.upstream.is_frozen()) else {
            return;
        };
        let page = self.upstream.provider().page_size().max(PAGE);
        let whole = || {
            let begin = self.real(visible)?;
            let first = begin.align_up(page)?;
            let before = usize::try_from(first.offset_from(begin)?).ok()?;
            Some((first, size.checked_sub(before)? / page * page))
        };
        if let Some((first, pages)) = whole().filter(|&(_, pages)| pages > 0) {
            // SAFETY: passed on to the caller. (What is not purged stays as it is.)
            let _ = unsafe { ability.purge_forced(first, pages) };
        }
    }

    /// Purges what jemalloc gave back of regions of which it still has something.
    ///
    /// In a child that is forked meanwhile, what another thread has out of the room is lost.
    pub(crate) fn purge_dirty(&self) {
        for arena in self.arenas() {
            loop {
                // (Not as the loop's condition: that would keep the lock.)
                let dirty = arena.room.lock().take_dirty();
                let Some((place, size)) = dirty else { break };
                let Some(record) = self.regions.get(number_of(place)) else { break };
                if record.used.load(Ordering::Relaxed) != 0 {
                    // SAFETY: jemalloc, and with it everybody, has done with the content, and nobody gets this before it is given.
                    unsafe { self.purge(Address::from_bits(record.visible_at(place)), size as usize) };
                }
                let mut room = arena.room.lock();
                room.give(place, size);
                // Whoever looked meanwhile found that a part of it was missing.
                if record.used.load(Ordering::Relaxed) == 0 {
                    self.note_idle();
                }
            }
        }
    }

    /// jemalloc has nothing of some region.
    pub(crate) fn note_idle(&self) {
        self.has_idle.store(true, Ordering::Release);
        self.has_work.store(true, Ordering::Release);
    }

    /// Sees to it that jemalloc finds what it lacked: by what it has itself and does not use, or by
    /// a region more. Where that fails, once per allocation (`was_gathered`) by everything that can
    /// be had without the provider.
    pub(crate) fn make_room(
        &self,
        arena: &Arena,
        wanted: Wanted,
        is_first: bool,
        was_gathered: &mut bool,
    ) -> Result<()> {
        let was_at_bound = self.is_held_at_bound();
        // Without any lock: what is let go of meanwhile goes to jemalloc.
        self.upstream.admit()?;
        if was_at_bound || (is_first && (self.upstream.poll_many_pending() || self.sweep())) {
            return Ok(());
        }
        match self.grow(arena, wanted) {
            // What nobody uses any more may be what is lacking; or what is free, in pieces or with those who share the limit.
            Err(Error::OutOfMemory { .. } | Error::LimitReached { .. })
                if !core::mem::replace(was_gathered, true) && self.gather() =>
            {
                Ok(())
            }
            Err(error) if self.reserved.reclaim(&error) => self.grow(arena, wanted),
            grown => grown,
        }
    }

    /// Gets what jemalloc keeps free, if that is much, so that neighbours are joined; whether there was.
    fn sweep(&self) -> bool {
        let reserved = self.reserved.bytes();
        let free = self.free_in_rooms();
        let kept = reserved.saturating_sub(self.caches.counts().live_bytes()).saturating_sub(free);
        if kept < (reserved / 8).max(SMALLEST as u64) {
            return false;
        }
        sweeping(|| self.purge_arenas());
        self.free_in_rooms().saturating_sub(free) >= kept / 2
    }

    fn free_in_rooms(&self) -> u64 {
        self.arenas().iter().map(|arena| arena.room.lock().free).sum()
    }

    /// Gets everything that can be had without the provider; whether that was anything.
    fn gather(&self) -> bool {
        let polled = self.upstream.poll();
        let free = self.free_in_rooms();
        self.caches.flush();
        sweeping(|| self.purge_arenas());
        // (What goes back to the provider may be what it lacks.)
        let went = self.release_idle(0).is_ok_and(|went| went > 0);
        polled > 0 || went || self.free_in_rooms() > free
    }

    /// Whether jemalloc is not told of the first and the last page of a region. Its map of extents is one for all arenas, and knows
    /// large ones by these two: where a region is a block of jemalloc's itself (of a pool that is this one's provider, or of a program's
    /// that has it as its allocator), they are taken.
    fn has_margins(&self) -> bool {
        self.has_margins.load(Ordering::Relaxed)
            || !MAPPING.contains(&self.upstream.provider().kind().as_str())
    }

    /// Adds a region in which that fits.
    fn grow(&self, arena: &Arena, wanted: Wanted) -> Result<()> {
        let had_margins = self.has_margins();
        let result = self.grow_by(arena, wanted, had_margins);
        if result.is_err() && self.has_margins() != had_margins {
            // It turned out only when the region was there.
            return self.grow_by(arena, wanted, true);
        }
        result
    }

    fn grow_by(&self, arena: &Arena, wanted: Wanted, has_margins: bool) -> Result<()> {
        let Wanted { size, align } = wanted;
        let margins = match has_margins {
            true if align > PAGE => align.saturating_add(2 * PAGE),
            true => 2 * PAGE,
            false => 0,
        };
        let unit = self.upstream.provider().page_size().max(PAGE);
        let overflow = Error::SizeOverflow { size, align };
        let all = size.checked_add(margins).ok_or(overflow)?;
        let least = all.checked_next_multiple_of(unit).ok_or(overflow)?;
        let part = usize::try_from(self.reserved.bytes() / PART).unwrap_or(LARGEST).clamp(SMALLEST, LARGEST);
        let part = (part + 1).next_power_of_two() / 2;
        let several = if all <= part / SHARERS {
            part
        } else if size <= SHARED || least - size > size / 8 {
            size.checked_mul(SHARERS).and_then(|several| several.checked_add(margins)).ok_or(overflow)?
        } else {
            all
        };
        let rounded = several.checked_next_multiple_of(unit.max(GRANULE));
        let mut ask = rounded.ok_or(overflow)?.max(least);
        loop {
            match self.enter_region(arena, ask, size, align) {
                Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) if ask > least => {
                    ask = (ask / 2).checked_next_multiple_of(unit).map_or(least, |half| half.max(least));
                }
                result => return result,
            }
        }
    }

    fn enter_region(&self, arena: &Arena, ask: usize, need: usize, align: usize) -> Result<()> {
        let (least, align) = (align, align.max(GRANULE));
        let taken = match self.reserved.allocate_region(&self.upstream, Layout::new(ask, align)?) {
            Err(Error::BadAlignment { .. }) => {
                // Aligned by taking more.
                let padded = ask.checked_add(align).ok_or(Error::SizeOverflow { size: ask, align })?;
                let page = self.upstream.provider().page_size();
                self.reserved.allocate_region(&self.upstream, Layout::new(padded, page.min(GRANULE))?)
            }
            taken => taken,
        };
        let (region, number) = taken?;
        self.make_region(arena, (region, number), need, least).inspect_err(|_| {
            if self.return_region(region).is_err()
                && let Some(found) = tracker::find(region.base()).filter(|found| found.region == region)
            {
                // The provider does not take it back: it stays with the pool, for whatever fits.
                // (Where there is no memory for its record it cannot be used, nor given back.)
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
        // Within another region, or beside one.
        if tracker::span_below(real, 1) != Some(0) {
            self.has_margins.store(true, Ordering::Relaxed);
        }
        if self.has_margins() && is_in_reach(real, size) {
            real = real.checked_add(PAGE as u64).ok_or(too_small)?;
            size = size.checked_sub(2 * PAGE).ok_or(too_small)?;
        }
        let aligned = real.align_up(align).and_then(|place| place.offset_from(real)).ok_or(too_small)?;
        if need as u64 > (size as u64).saturating_sub(aligned) || size as u64 > LARGEST_REGION {
            return Err(too_small);
        }
        let shadow = if is_in_reach(real, size) { None } else { Some(self.cast_shadow(real, size)?) };
        let undo_shadow = |error| {
            self.drop_shadow(shadow.map(|(region, _)| region));
            Err(error)
        };
        let (number, record) = match self.regions.allocate() {
            Ok(record) => record,
            Err(error) => return undo_shadow(error),
        };
        let visible = shadow.map_or(real, |(region, _)| region.base());
        record.visible.store(visible.to_bits(), Ordering::Relaxed);
        record.real.store(real.to_bits(), Ordering::Relaxed);
        record.size.store(size as u64, Ordering::Relaxed);
        record.used.store(0, Ordering::Relaxed);
        record.arena.store(arena.index(), Ordering::Relaxed);
        record.first.store(0, Ordering::Relaxed);
        // SAFETY: nobody else knows the number yet.
        unsafe { *record.regions.get() = MaybeUninit::new((region, shadow.map(|(region, _)| region))) };
        let entered = self
            .add_granules(region, tracked, number, record, shadow.is_some())
            .and_then(|()| {
                shadow.map_or(Ok(()), |(region, tracked)| {
                    tracker::set_span(tracked, region.base(), region.size(), number)
                })
            })
            .and_then(|()| self.put_in_room(number, record));
        if let Err(error) = entered {
            self.remove_granules(record);
            self.regions.release(number);
            return undo_shadow(error);
        }
        Ok(())
    }

    fn put_in_room(&self, number: u32, record: &Record) -> Result<()> {
        let (place, size) = record.place(number);
        let none = Error::OutOfMemory { size: size as usize, owner: OWNER, native: 0 };
        let mut room = self.room_of(record).ok_or(none)?;
        room.add(place, size)?;
        record.is_entered.store(1, Ordering::Release);
        Ok(())
    }

    fn room_of(&self, record: &Record) -> Option<LockGuard<'_, Room, Leaf>> {
        let arena = self.arenas().get(record.arena.load(Ordering::Relaxed) as usize)?;
        Some(arena.room.lock())
    }

    /// Addresses for memory that jemalloc cannot know by its own.
    fn cast_shadow(&self, real: Address, size: usize) -> Result<(Region, RegionNumber)> {
        if je::fills_blocks() {
            return Err(FILLS);
        }
        let shadow = match self.shadow.get() {
            Some(shadow) => shadow,
            None => {
                let made = Upstream::new(Arc::new(Shadow))?;
                self.shadow.get_or_init(|| made)
            }
        };
        REMAINDER.set((real.value() % ALIKE as u64) as usize);
        shadow.allocate(Layout::new(size, PAGE)?)
    }

    fn drop_shadow(&self, region: Option<Region>) {
        if let (Some(shadow), Some(region)) = (self.shadow.get(), region) {
            // SAFETY: nothing but numbers stand for these addresses, and nobody has one any more.
            let _ = unsafe { shadow.free(region) };
        }
    }

    /// Makes records for the granules of a region, and has the tracker name them.
    fn add_granules(
        &self,
        region: Region,
        tracked: RegionNumber,
        number: u32,
        record: &Record,
        is_shadowed: bool,
    ) -> Result<()> {
        let mut address = region.base();
        while region.contains(address) {
            let granule_number = self.blocks.add(address, number, is_shadowed)?;
            if let Some(granule) = self.blocks.table().get(granule_number) {
                granule.next.store(record.first.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            record.first.store(granule_number, Ordering::Relaxed);
            tracker::set_span(tracked, address, 1, granule_number)?;
            let overflow = Error::SizeOverflow { size: region.size(), align: GRANULE };
            address = address.checked_add(1).and_then(|next| next.align_up(GRANULE)).ok_or(overflow)?;
        }
        Ok(())
    }

    /// The numbers of a region's granules.
    pub(crate) fn granules<'a>(&'a self, record: &Record) -> impl Iterator<Item = u32> + use<'a> {
        let mut next = record.first.load(Ordering::Relaxed);
        core::iter::from_fn(move || {
            let number = next;
            next = self.blocks.table().get(number).filter(|_| number != 0)?.next.load(Ordering::Relaxed);
            Some(number)
        })
    }

    fn remove_granules(&self, record: &Record) {
        self.granules(record).for_each(|number| self.blocks.remove(number));
        record.first.store(0, Ordering::Relaxed);
    }

    /// Names the granules again, where a provider did not take the region back: the tracker has it under another number.
    fn name_granules(&self, region: Region, record: &Record) {
        let Some(found) = tracker::find(region.base()).filter(|found| found.region == region) else { return };
        for number in self.granules(record) {
            if let Some(begin) = self.blocks.table().get(number).and_then(crate::blocks::Granule::begin) {
                let address = if region.contains(begin) { begin } else { region.base() };
                let _ = tracker::set_span(found.number, address, 1, number);
            }
        }
    }

    /// Hands a region to the provider, and counts that, unless other processes have it open.
    fn return_region(&self, region: Region) -> Result<()> {
        // SAFETY: nothing of the region is in use, or the pool goes; the caller took it out of everyone's reach.
        if unsafe { self.upstream.free(region)? } == FreeOutcome::Freed {
            self.reserved.remove_region(region.size());
        }
        Ok(())
    }

    /// Gives regions back of which jemalloc has nothing, until no more than `keep` bytes are free; returns how many bytes went.
    ///
    /// # Errors
    /// What the provider says; regions that it does not take stay in the pool.
    pub(crate) fn release_idle(&self, keep: u64) -> Result<usize> {
        self.purge_dirty();
        // Not a plain store: what is noted from here on stays noted.
        self.has_idle.swap(false, Ordering::AcqRel);
        let (mut went, mut result) = (0_usize, Ok(()));
        for number in 1..self.regions.end() {
            let Some(record) = self.regions.get(number) else { continue };
            if !record.is_entered() || record.used.load(Ordering::Relaxed) != 0 {
                continue;
            }
            if keep > 0 && self.free_bytes() <= keep {
                break;
            }
            let is_out = self.take_out(number, record);
            if is_out {
                match self.give_back(number, record) {
                    Ok(size) => went += size,
                    Err(error) => result = Err(error),
                }
            }
        }
        result.map(|()| went)
    }

    /// Takes a region out of its room; `false` if jemalloc has something of it, or somebody else took it out.
    fn take_out(&self, number: u32, record: &Record) -> bool {
        let index = record.arena.load(Ordering::Relaxed);
        let Some(arena) = self.arenas().get(index as usize) else { return false };
        let mut room = arena.room.lock();
        // It may be another region's record by now. Under the lock of its arena it stays what it is.
        if !record.is_entered()
            || record.arena.load(Ordering::Relaxed) != index
            || record.used.load(Ordering::Relaxed) != 0
        {
            return false;
        }
        let (place, size) = record.place(number);
        let is_out = room.remove(place, size);
        if is_out {
            record.is_entered.store(0, Ordering::Release);
        }
        is_out
    }

    /// Gives a region back that is out of the room.
    fn give_back(&self, number: u32, record: &Record) -> Result<usize> {
        // SAFETY: it was entered, and the caller took it out.
        let (region, shadow) = unsafe { record.regions() };
        if let Err(error) = self.return_region(region) {
            self.name_granules(region, record);
            self.put_in_room(number, record)?;
            return Err(error);
        }
        self.remove_granules(record);
        self.drop_shadow(shadow);
        self.regions.release(number);
        Ok(region.size())
    }

    /// Whether jemalloc has given back all that it had of an arena's regions.
    pub(crate) fn is_empty(&self, arena: &Arena) -> bool {
        (1..self.regions.end())
            .filter_map(|number| self.regions.get(number))
            .filter(|record| record.is_entered() && record.arena.load(Ordering::Relaxed) == arena.index())
            .all(|record| record.used.load(Ordering::Relaxed) == 0)
    }

    /// Gives all regions back, whatever is in them: the pool goes.
    pub(crate) fn give_all_back(&self) {
        for number in 1..self.regions.end() {
            let Some(record) = self.regions.get(number).filter(|record| record.is_entered()) else {
                continue;
            };
            // SAFETY: entered, and nobody else is left.
            let (region, shadow) = unsafe { record.regions() };
            record.is_entered.store(0, Ordering::Relaxed);
            // A provider that refuses keeps the region.
            let _ = self.return_region(region);
            self.drop_shadow(shadow);
        }
    }

    /// Bytes that are neither live nor held.
    pub(crate) fn free_bytes(&self) -> u64 {
        let used = self.caches.counts().live_bytes() + self.upstream.deferred().bytes;
        self.reserved.bytes().saturating_sub(used)
    }
}
