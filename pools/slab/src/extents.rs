//! [`Extents`]: a two-level segregated fit over units of 4 KiB, with boundary tags out of band.
//!
//! The lowest allocator of the pool: it allocates the extents of slabs and of large blocks from
//! regions. Every region has a table with a record per unit. The record of an extent's first unit
//! holds the length of the extent and of the one before it, so that a free extent is merged with
//! its neighbours in constant time. The record of each granule's first unit holds where the extent
//! around it begins, so that the start of an extent is found within 16 steps from any address in
//! it.
//!
//! Free extents are in lists by length: one level per power of two, with 16 steps each. Bitmaps of
//! levels and steps find the first list that is not empty.

use core::sync::atomic::{AtomicU32, Ordering};

use umf_runtime::tracker::GRANULE;

use crate::metadata::Metadata;

/// Bytes per unit.
pub(crate) const UNIT: usize = 4096;
/// Units per granule of the tracker.
pub(crate) const GRANULE_UNITS: u32 = (GRANULE / UNIT) as u32;

/// Lists per level.
const STEPS: usize = 16;
/// Levels of lists: enough for extents of 2^32 units.
const LEVELS: usize = 29;
/// The most extents that are compared for the best fit, before one from a longer list is used.
const MAX_COMPARED: u32 = 24;

// Values of `Unit::kind`.

/// Not the first unit of an extent.
const INSIDE: u32 = 0;
/// The first unit of a free extent.
const FREE: u32 = 1;
/// The first unit of a used extent.
const USED: u32 = 2;

/// The record of one unit. All words are written under the lock of the extents. The owner of a used
/// extent reads the records of its units without the lock.
#[repr(C, align(32))]
pub(crate) struct Unit {
    kind: AtomicU32,
    /// First unit: the length of this extent in units.
    size: AtomicU32,
    /// First unit: the length of the extent before it in the region; 0 if it is the first.
    before: AtomicU32,
    /// Free: the next extent in the list, as a unit id plus one. Used: the span of the extent.
    next: AtomicU32,
    /// Free: the previous extent in the list.
    prev: AtomicU32,
    /// First unit: the span of the region.
    region: AtomicU32,
    /// First unit of a granule, inside a used extent: the first unit of that extent.
    head: AtomicU32,
}

const UNITS_PER_LINE: u32 = 64 / size_of::<Unit>() as u32;

fn get(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

/// A range of units in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The span of the region.
    pub(crate) region: u32,
    /// The first unit, counted from the region's base.
    pub(crate) first: u32,
}

/// Returns the record of unit `id`. The first unit of a region has the id that [`units_of`]
/// returns.
fn unit_at(meta: &Metadata, id: u32) -> Option<&Unit> {
    let line = meta.runs.line(id / UNITS_PER_LINE)?;
    // SAFETY: unit ids lie in the table run of a region, which holds only units and stays mapped. A
    // line holds UNITS_PER_LINE units, and all words of a unit are atomics.
    Some(unsafe { line.cast::<Unit>().add((id % UNITS_PER_LINE) as usize).as_ref() })
}

/// Returns the id of the first unit of a region, and its number of units.
fn units_of(meta: &Metadata, region: u32) -> Option<(u32, u32)> {
    let span = meta.span(region)?;
    // SAFETY: both fields are written once, before the region is entered, and read while it is.
    unsafe {
        let cold = span.published();
        Some((cold.table_run.assume_init_ref().first() * UNITS_PER_LINE, cold.unit))
    }
}

/// Returns the bytes of the table of a region of `units` units.
pub(crate) const fn table_bytes(units: u32) -> usize {
    units as usize * size_of::<Unit>()
}

/// Returns the used extent that contains unit `unit` of `region`: its first unit, its length and
/// its span, which is 0 for a slab.
pub(crate) fn extent_around(meta: &Metadata, region: u32, unit: u32) -> Option<(u32, u32, u32)> {
    let (id, units) = units_of(meta, region)?;
    let granule = unit / GRANULE_UNITS * GRANULE_UNITS;
    let first = (granule..=unit)
        .rev()
        .find(|&unit| unit_at(meta, id + unit).is_some_and(|unit| get(&unit.kind) != INSIDE))
        .or_else(|| unit_at(meta, id + granule).map(|unit| get(&unit.head)))?;
    let head = unit_at(meta, id + first)?;
    let size = get(&head.size);
    let contains = get(&head.kind) == USED && first <= unit && unit - first < size && first + size <= units;
    contains.then(|| (first, size, get(&head.next)))
}

/// The lists of free extents. The backend guards them with a lock.
pub(crate) struct Extents {
    /// The levels that have a list which is not empty, a bit each.
    levels: u32,
    /// Of each level, the lists that are not empty, a bit each.
    steps: [u16; LEVELS],
    /// The first extent of each list, as a unit id plus one; 0 for an empty list.
    heads: [[u32; STEPS]; LEVELS],
    /// Free units.
    free: u64,
    /// Units in all regions.
    all: u64,
    /// Units in regions that are wholly free, and the number of such regions.
    idle: u64,
    idle_regions: u32,
    /// The minimum of `idle` since the last decay.
    least_idle: u64,
}

/// Returns level and step of the list for extents of `size` units.
const fn list_of(size: u32) -> (usize, usize) {
    if size < STEPS as u32 {
        return (0, size as usize);
    }
    let log = size.ilog2();
    ((log - 3) as usize, ((size >> (log - 4)) & (STEPS as u32 - 1)) as usize)
}

impl Extents {
    pub(crate) const fn new() -> Self {
        Self {
            levels: 0,
            steps: [0; LEVELS],
            heads: [[0; STEPS]; LEVELS],
            free: 0,
            all: 0,
            idle: 0,
            idle_regions: 0,
            least_idle: 0,
        }
    }

    /// Returns the number of free units.
    pub(crate) const fn free_units(&self) -> u64 {
        self.free
    }

    /// Returns the number of units in all regions.
    pub(crate) const fn units(&self) -> u64 {
        self.all
    }

    /// Returns the units of the longest free extent.
    pub(crate) fn longest(&self, meta: &Metadata) -> u32 {
        let Some(level) = self.levels.checked_ilog2() else { return 0 };
        let Some(step) = self.steps[level as usize].checked_ilog2() else { return 0 };
        // It is in the last list that is not empty, since lists are ordered by length.
        let mut next = self.heads[level as usize][step as usize];
        let mut longest = 0;
        while let Some(unit) = next.checked_sub(1).and_then(|id| unit_at(meta, id)) {
            longest = longest.max(get(&unit.size));
            next = get(&unit.next);
        }
        longest
    }

    /// Returns the units in wholly free regions, and the number of those regions.
    pub(crate) const fn idle(&self) -> (u64, u32) {
        (self.idle, self.idle_regions)
    }

    /// Returns how many of the units in wholly free regions were used since the last decay.
    pub(crate) const fn used_idle(&self) -> u64 {
        self.idle - self.least_idle
    }

    /// Begins a new decay period.
    pub(crate) const fn begin_period(&mut self) {
        self.least_idle = self.idle;
    }

    /// Counts that a region of `units` units is no longer wholly free.
    fn remove_idle(&mut self, units: u64) {
        self.idle -= units;
        self.idle_regions -= 1;
        self.least_idle = self.least_idle.min(self.idle);
    }

    /// Adds a region, all of it free. Its span and its unit table exist.
    pub(crate) fn add_region(&mut self, meta: &Metadata, region: u32) {
        let Some((id, units)) = units_of(meta, region) else { return };
        if let Some(span) = meta.span(region) {
            span.set_entered(true);
        }
        for offset in 0..units {
            if let Some(unit) = unit_at(meta, id + offset) {
                set(&unit.kind, INSIDE);
                set(&unit.head, 0);
            }
        }
        self.insert(meta, id, units, 0, region);
        self.all += u64::from(units);
        self.free += u64::from(units);
        self.idle += u64::from(units);
        self.idle_regions += 1;
    }

    /// Removes a wholly free region. Returns `false` if it is not wholly free, or if fewer than
    /// `floor` units would be left in other regions. Also returns `false` if it is not entered: a
    /// caller that read its number without the lock may find the table of another region there.
    pub(crate) fn remove_region(&mut self, meta: &Metadata, region: u32, floor: u64) -> bool {
        let Some(span) = meta.span(region).filter(|span| span.is_entered()) else { return false };
        let Some((id, units)) = units_of(meta, region) else { return false };
        let whole = unit_at(meta, id).is_some_and(|unit| get(&unit.kind) == FREE && get(&unit.size) == units);
        let whole = whole && self.all - u64::from(units) >= floor;
        if whole {
            span.set_entered(false);
            self.unlink(meta, id);
            self.all -= u64::from(units);
            self.free -= u64::from(units);
            self.remove_idle(u64::from(units));
        }
        whole
    }

    /// Allocates `size` units for span `holder`. The address is a multiple of `align` units.
    pub(crate) fn allocate(&mut self, meta: &Metadata, size: u32, align: u32, holder: u32) -> Option<Range> {
        let (id, front) = self.find(meta, size, align)?;
        let block = unit_at(meta, id)?;
        let (whole, before, region) = (get(&block.size), get(&block.before), get(&block.region));
        let (first, units) = units_of(meta, region)?;
        if whole == units {
            self.remove_idle(u64::from(units));
        }
        self.unlink(meta, id);
        let used = id + front;
        let back = whole - front - size;
        if front > 0 {
            self.insert(meta, id, front, before, region);
        }
        let head = unit_at(meta, used)?;
        set(&head.size, size);
        set(&head.before, if front > 0 { front } else { before });
        set(&head.region, region);
        set(&head.next, holder);
        set(&head.kind, USED);
        if back > 0 {
            self.insert(meta, used + size, back, size, region);
        }
        let after = used + size + back;
        if after < first + units {
            set(&unit_at(meta, after)?.before, if back > 0 { back } else { size });
        }
        let offset = used - first;
        let mut granule = (offset / GRANULE_UNITS + 1) * GRANULE_UNITS;
        while granule < offset + size {
            set(&unit_at(meta, first + granule)?.head, offset);
            granule += GRANULE_UNITS;
        }
        self.free -= u64::from(size);
        Some(Range { region, first: offset })
    }

    /// Frees an extent. Returns its units, and whether its region is now wholly free; `None` if no
    /// used extent begins there.
    pub(crate) fn free(&mut self, meta: &Metadata, range: Range) -> Option<(u32, bool)> {
        let (first, units) = units_of(meta, range.region)?;
        let mut id = first + range.first;
        let block = unit_at(meta, id).filter(|unit| get(&unit.kind) == USED)?;
        let freed = get(&block.size);
        let (mut size, mut before) = (freed, get(&block.before));
        let after = id + size;
        if after < first + units
            && let Some(next) = unit_at(meta, after).filter(|unit| get(&unit.kind) == FREE)
        {
            size += get(&next.size);
            self.unlink(meta, after);
        }
        if before > 0
            && let Some(prev) = unit_at(meta, id - before).filter(|unit| get(&unit.kind) == FREE)
        {
            set(&block.kind, INSIDE);
            id -= before;
            size += before;
            before = get(&prev.before);
            self.unlink(meta, id);
        }
        self.insert(meta, id, size, before, range.region);
        if id + size < first + units {
            set(&unit_at(meta, id + size)?.before, size);
        }
        self.free += u64::from(freed);
        let whole = size == units;
        if whole {
            self.idle += u64::from(units);
            self.idle_regions += 1;
        }
        Some((freed, whole))
    }

    /// Returns a free extent in which `size` aligned units fit, and how many of its units lie
    /// before them.
    fn find(&self, meta: &Metadata, size: u32, align: u32) -> Option<(u32, u32)> {
        // Lists whose extents may fit: a short best-fit search, which keeps longer extents whole.
        let mut compared = 0;
        let sure = size.checked_add(align - 1)?;
        let mut list = self.next_list(list_of(size));
        while let Some((level, step)) = list {
            if (level, step) > list_of(sure) || compared == MAX_COMPARED {
                break;
            }
            let mut next = self.heads[level][step];
            let mut best: Option<(u32, u32, u32)> = None;
            while let Some(id) = next.checked_sub(1) {
                let Some(unit) = unit_at(meta, id) else { break };
                if let Some(front) = fit(meta, id, size, align) {
                    // The shortest extent; of equal ones the lowest in memory, which keeps used
                    // extents together.
                    let found = (get(&unit.size), id, front);
                    if best.is_none_or(|best| found < best) {
                        best = Some(found);
                    }
                }
                compared += 1;
                if compared == MAX_COMPARED {
                    break;
                }
                next = get(&unit.next);
            }
            if let Some((_, id, front)) = best {
                return Some((id, front));
            }
            list = self.next_list((level, step + 1));
        }
        // Every extent of a longer list than that of the padded size fits.
        let (level, step) = list_of(sure);
        let mut list = self.next_list((level, step + 1));
        while let Some((level, step)) = list {
            let id = self.heads[level][step].checked_sub(1)?;
            if let Some(front) = fit(meta, id, size, align) {
                return Some((id, front));
            }
            list = self.next_list((level, step + 1));
        }
        None
    }

    /// Returns the first list that is not empty, beginning with this one.
    fn next_list(&self, (mut level, mut step): (usize, usize)) -> Option<(usize, usize)> {
        if step == STEPS {
            (level, step) = (level + 1, 0);
        }
        let here = self.steps.get(level)? >> step;
        if here != 0 {
            return Some((level, step + here.trailing_zeros() as usize));
        }
        let above = self.levels.checked_shr(level as u32 + 1).filter(|&above| above != 0)?;
        let level = level + 1 + above.trailing_zeros() as usize;
        Some((level, self.steps.get(level)?.trailing_zeros() as usize))
    }

    /// Makes the `size` units from unit `id` on a free extent, and adds it to its list.
    fn insert(&mut self, meta: &Metadata, id: u32, size: u32, before: u32, region: u32) {
        let Some(unit) = unit_at(meta, id) else { return };
        let (level, step) = list_of(size);
        let head = self.heads[level][step];
        set(&unit.kind, FREE);
        set(&unit.size, size);
        set(&unit.before, before);
        set(&unit.region, region);
        set(&unit.prev, 0);
        set(&unit.next, head);
        if let Some(head) = head.checked_sub(1).and_then(|head| unit_at(meta, head)) {
            set(&head.prev, id + 1);
        }
        self.heads[level][step] = id + 1;
        self.steps[level] |= 1 << step;
        self.levels |= 1 << level;
    }

    /// Removes the free extent that begins at unit `id` from its list.
    fn unlink(&mut self, meta: &Metadata, id: u32) {
        let Some(unit) = unit_at(meta, id) else { return };
        let (next, prev) = (get(&unit.next), get(&unit.prev));
        if let Some(next) = next.checked_sub(1).and_then(|next| unit_at(meta, next)) {
            set(&next.prev, prev);
        }
        match prev.checked_sub(1).and_then(|prev| unit_at(meta, prev)) {
            Some(prev) => set(&prev.next, next),
            None => {
                let (level, step) = list_of(get(&unit.size));
                self.heads[level][step] = next;
                if next == 0 {
                    self.steps[level] &= !(1 << step);
                    if self.steps[level] == 0 {
                        self.levels &= !(1 << level);
                    }
                }
            }
        }
        set(&unit.kind, INSIDE);
    }
}

/// Returns how many units of the free extent at `id` lie before `size` units at a multiple of
/// `align`; `None` if these do not fit.
fn fit(meta: &Metadata, id: u32, size: u32, align: u32) -> Option<u32> {
    let unit = unit_at(meta, id)?;
    let region = get(&unit.region);
    let (first, _) = units_of(meta, region)?;
    let base = meta.span(region)?.base().value() / UNIT as u64;
    let place = base + u64::from(id - first);
    let front = (place.wrapping_neg() & u64::from(align - 1)) as u32;
    (front.checked_add(size)? <= get(&unit.size)).then_some(front)
}

#[cfg(test)]
mod tests;
