//! Granules that hold more than one region: a list that readers walk without a lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::TrackedRegion;
use super::record::REGIONS;
use umf_core::{Address, Result};
use umf_sync::SequenceLock;
use umf_sync::chunks::Zeroable;
use umf_sync::table::Table;

pub(super) static OVERFLOW_LISTS: Table<OverflowList> = Table::new(u32::MAX >> 4);

const PLACES: usize = 13;

/// Up to 13 regions of one granule, and the number of the next such list (a further 13).
///
/// A sequence lock, written under the tracker's writer lock. Lists are never unmapped; one that was
/// taken over by another granule yields regions that do not hold the address that is looked for.
#[derive(Debug)]
pub(super) struct OverflowList {
    /// Odd while being written.
    sequence: SequenceLock,
    next: AtomicU32,
    /// Region number in the upper half, span in the lower; 0 is an empty place.
    places: [AtomicU64; PLACES],
}

// SAFETY: all fields are atomics.
unsafe impl Zeroable for OverflowList {}

const fn pack(number: u32, span: u32) -> u64 {
    ((number as u64) << 32) | span as u64
}

impl OverflowList {
    fn write<T>(&self, change: impl FnOnce(&Self) -> T) -> T {
        self.sequence.write(|| change(self))
    }

    /// Returns the innermost region that holds `address` and that `accept` accepts. Returns `None` also
    /// while the list is being changed.
    pub(super) fn find(
        &self,
        address: Address,
        accept: impl Fn(&TrackedRegion) -> bool,
    ) -> Option<TrackedRegion> {
        // Of two that cover the same range, the one carved from the other came later.
        let rank = |found: &TrackedRegion| (found.region.size(), u64::MAX - found.region.id().get());
        let mut best: Option<TrackedRegion> = None;
        let mut list = self;
        loop {
            let whole = list.sequence.read(|| {
                for place in &list.places {
                    let bits = place.load(Ordering::Relaxed);
                    let (number, span) = ((bits >> 32) as u32, bits as u32);
                    let found = REGIONS.get(number).and_then(|record| record.read(number, span));
                    let found = found.filter(|found| number != 0 && found.region.contains(address));
                    if let Some(found) = found
                        && best.is_none_or(|best| rank(&found) < rank(&best))
                        && accept(&found)
                    {
                        best = Some(found);
                    }
                }
                list.next.load(Ordering::Relaxed)
            });
            let Some(next) = whole else {
                // Being changed: start again. Changes are a few stores long.
                core::hint::spin_loop();
                best = None;
                list = self;
                continue;
            };
            match OVERFLOW_LISTS.get(next).filter(|_| next != 0) {
                Some(next) => list = next,
                None => return best,
            }
        }
    }

    /// Sets the span of region `number`; `false` if it is not in the list.
    pub(super) fn set_span(&self, number: u32, span: u32) -> bool {
        let mut list = self;
        loop {
            for place in &list.places {
                if place.load(Ordering::Relaxed) >> 32 == u64::from(number) {
                    list.write(|_| place.store(pack(number, span), Ordering::Relaxed));
                    return true;
                }
            }
            let next = list.next.load(Ordering::Relaxed);
            match OVERFLOW_LISTS.get(next).filter(|_| next != 0) {
                Some(next) => list = next,
                None => return false,
            }
        }
    }
}

/// A new list of two regions.
pub(super) fn gather(first: u32, span: u32, second: u32) -> Result<u32> {
    let (number, overflow) = OVERFLOW_LISTS.allocate()?;
    overflow.write(|overflow| {
        overflow.next.store(0, Ordering::Relaxed);
        for place in &overflow.places {
            place.store(0, Ordering::Relaxed);
        }
        overflow.places[0].store(pack(first, span), Ordering::Relaxed);
        overflow.places[1].store(pack(second, 0), Ordering::Relaxed);
    });
    Ok(number)
}

/// Adds a region to the list.
pub(super) fn add(mut overflow: u32, number: u32) -> Result<()> {
    loop {
        let Some(list) = OVERFLOW_LISTS.get(overflow) else { return Ok(()) };
        if let Some(place) = list.places.iter().find(|place| place.load(Ordering::Relaxed) == 0) {
            list.write(|_| place.store(pack(number, 0), Ordering::Relaxed));
            return Ok(());
        }
        let next = list.next.load(Ordering::Relaxed);
        if next != 0 {
            overflow = next;
            continue;
        }
        let (more, fresh) = OVERFLOW_LISTS.allocate()?;
        fresh.write(|fresh| {
            fresh.next.store(0, Ordering::Relaxed);
            for place in &fresh.places {
                place.store(0, Ordering::Relaxed);
            }
            fresh.places[0].store(pack(number, 0), Ordering::Relaxed);
        });
        list.write(|list| list.next.store(more, Ordering::Relaxed));
        return Ok(());
    }
}

/// Takes a region out of the list. If one is left, yields it with its span, for the caller to put
/// in the place of the list.
pub(super) fn remove(overflow: u32, number: u32) -> Option<(u32, u32)> {
    let mut left = 0;
    let mut last = None;
    let mut current = overflow;
    while let Some(list) = OVERFLOW_LISTS.get(current).filter(|_| current != 0) {
        for place in &list.places {
            let bits = place.load(Ordering::Relaxed);
            if bits == 0 {
                continue;
            }
            if bits >> 32 == u64::from(number) {
                list.write(|_| place.store(0, Ordering::Relaxed));
            } else {
                left += 1;
                last = Some(((bits >> 32) as u32, bits as u32));
            }
        }
        current = list.next.load(Ordering::Relaxed);
    }
    last.filter(|_| left == 1)
}

/// Gives the list's records back, once no entry names it.
pub(super) fn dissolve(overflow: u32) {
    let mut current = overflow;
    while let Some(list) = OVERFLOW_LISTS.get(current).filter(|_| current != 0) {
        let next = list.next.load(Ordering::Relaxed);
        list.write(|list| {
            list.next.store(0, Ordering::Relaxed);
            for place in &list.places {
                place.store(0, Ordering::Relaxed);
            }
        });
        OVERFLOW_LISTS.release(current);
        current = next;
    }
}
