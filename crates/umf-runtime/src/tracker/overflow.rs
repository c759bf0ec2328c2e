//! [`OverflowList`]: the regions of a granule that has several, in a list that readers walk without a
//! lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::TrackedRegion;
use super::record::REGIONS;
use umf_core::{Address, Result};
use umf_sync::SequenceLock;
use umf_sync::chunks::Zeroable;
use umf_sync::table::Table;

pub(super) static OVERFLOW_LISTS: Table<OverflowList> = Table::new(u32::MAX >> 4);

/// The regions per list: it fills two cache lines.
const ENTRIES: usize = 13;

/// Up to 13 regions of one granule, and the number of the list with further ones.
///
/// Guarded by a sequence lock, and written under the tracker's writer lock. Lists are never
/// unmapped. A reader of a list that another granule has reused finds no region with its address.
#[derive(Debug)]
pub(super) struct OverflowList {
    /// Odd while a writer is active.
    sequence: SequenceLock,
    /// The number of the next list; 0 is none.
    next: AtomicU32,
    /// Region number in the upper half, span in the lower; 0 is an unused entry.
    entries: [AtomicU64; ENTRIES],
}

// SAFETY: all fields are atomics; zeros are an empty list.
unsafe impl Zeroable for OverflowList {}

const fn pack(number: u32, span: u32) -> u64 {
    ((number as u64) << 32) | span as u64
}

impl OverflowList {
    fn write<T>(&self, change: impl FnOnce(&Self) -> T) -> T {
        self.sequence.write(|| change(self))
    }

    /// Returns the innermost region that contains `address` and that `accept` accepts.
    pub(super) fn find(
        &self,
        address: Address,
        accept: impl Fn(&TrackedRegion) -> bool,
    ) -> Option<TrackedRegion> {
        // Of two regions with the same range, the inner one was added later.
        let rank = |found: &TrackedRegion| (found.region.size(), u64::MAX - found.region.id().get());
        let mut best: Option<TrackedRegion> = None;
        let mut list = self;
        loop {
            let consistent = list.sequence.read(|| {
                for entry in &list.entries {
                    let bits = entry.load(Ordering::Relaxed);
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
            let Some(next) = consistent else {
                // A writer is active: start again. A change is a few stores.
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

    /// Sets the span of region `number`. Returns `false` if it is not in the list.
    pub(super) fn set_span(&self, number: u32, span: u32) -> bool {
        let mut list = self;
        loop {
            for entry in &list.entries {
                if entry.load(Ordering::Relaxed) >> 32 == u64::from(number) {
                    list.write(|_| entry.store(pack(number, span), Ordering::Relaxed));
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

/// Makes a list of two regions, and returns its number.
pub(super) fn create(first: u32, span: u32, second: u32) -> Result<u32> {
    let (number, overflow) = OVERFLOW_LISTS.allocate()?;
    overflow.write(|overflow| {
        overflow.next.store(0, Ordering::Relaxed);
        for entry in &overflow.entries {
            entry.store(0, Ordering::Relaxed);
        }
        overflow.entries[0].store(pack(first, span), Ordering::Relaxed);
        overflow.entries[1].store(pack(second, 0), Ordering::Relaxed);
    });
    Ok(number)
}

/// Adds a region to the list.
pub(super) fn add(mut overflow: u32, number: u32) -> Result<()> {
    loop {
        let Some(list) = OVERFLOW_LISTS.get(overflow) else { return Ok(()) };
        if let Some(unused) = list.entries.iter().find(|entry| entry.load(Ordering::Relaxed) == 0) {
            list.write(|_| unused.store(pack(number, 0), Ordering::Relaxed));
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
            for entry in &fresh.entries {
                entry.store(0, Ordering::Relaxed);
            }
            fresh.entries[0].store(pack(number, 0), Ordering::Relaxed);
        });
        list.write(|list| list.next.store(more, Ordering::Relaxed));
        return Ok(());
    }
}

/// Removes a region from the list. If one region is left, returns its number and span: the caller
/// replaces the list by it.
pub(super) fn remove(overflow: u32, number: u32) -> Option<(u32, u32)> {
    let mut left = 0;
    let mut last = None;
    let mut current = overflow;
    while let Some(list) = OVERFLOW_LISTS.get(current).filter(|_| current != 0) {
        for entry in &list.entries {
            let bits = entry.load(Ordering::Relaxed);
            if bits == 0 {
                continue;
            }
            if bits >> 32 == u64::from(number) {
                list.write(|_| entry.store(0, Ordering::Relaxed));
            } else {
                left += 1;
                last = Some(((bits >> 32) as u32, bits as u32));
            }
        }
        current = list.next.load(Ordering::Relaxed);
    }
    last.filter(|_| left == 1)
}

/// Releases a list that no entry of the map refers to.
pub(super) fn release(overflow: u32) {
    let mut current = overflow;
    while let Some(list) = OVERFLOW_LISTS.get(current).filter(|_| current != 0) {
        let next = list.next.load(Ordering::Relaxed);
        list.write(|list| {
            list.next.store(0, Ordering::Relaxed);
            for entry in &list.entries {
                entry.store(0, Ordering::Relaxed);
            }
        });
        OVERFLOW_LISTS.release(current);
        current = next;
    }
}
