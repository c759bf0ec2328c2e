//! The tracker: the process-wide map from an address to its region and pool.
//!
//! The map is a two-level table over granules of 64 KiB ([`GRANULE`]). An entry has the number of a
//! region and a *span*: a number that the region's pool sets, so that `free(address)` finds the
//! slab in the same load. A granule with several regions (small, unaligned or nested ones) has an
//! overflow list.
//!
//! [`find`] costs two dependent loads and the comparison with the bounds of the region. It takes no
//! lock and writes nothing.
//!
//! Records are never unmapped, and each has a sequence number. A reader that races with a writer
//! either reads one consistent record, or detects the race and retries when no writer is active.
//!
//! | module | part |
//! |---|---|
//! | `page_map` | the table from granule to entry |
//! | `overflow` | the lists of granules with several regions |
//! | `record` | the record of a region |
//! | `owner` | the owners of regions: provider and pool |
//! | `upstream` | [`Upstream`], through which pools allocate and free regions |

mod overflow;
mod owner;
mod page_map;
mod record;
mod upstream;

use std::sync::Arc;

use overflow::OVERFLOW_LISTS;
use page_map::{Entry, MapSlot, PageMap};
use record::REGIONS;
use umf_core::{Address, Completion, Error, Pool, Region, Result};
use umf_sync::Lock;
use umf_sync::sequence::{SequenceLock, Settled};

pub use owner::{OwnerGuard, OwnerId, for_each_pool};
pub(crate) use owner::{owner_of_pool, replace_pool};
pub use page_map::GRANULE;
pub use upstream::Upstream;

/// A tracked region, as found by an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedRegion {
    /// The innermost region that contains the address.
    pub region: Region,
    /// The upstream that allocated it.
    pub owner: OwnerId,
    /// The span that the region's pool set for the granule; 0 by default.
    pub span: u32,
    /// The tracker's number for the region.
    pub number: RegionNumber,
}

/// The tracker's number for a region, for as long as it is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionNumber(u32);

static MAP: PageMap = PageMap::new();
static WRITERS: Lock<()> = Lock::new(());
/// Odd while a writer is active.
static CHANGES: SequenceLock = SequenceLock::new();

/// Returns the innermost live region that contains `address`.
#[inline]
#[must_use]
pub fn find(address: Address) -> Option<TrackedRegion> {
    find_where(address, |_| true)
}

/// Returns the innermost live region that contains `address` and that `accept` accepts. `accept`
/// may be called several times, also with a region that is being freed.
///
/// Regions nest: a pool over a provider that forwards to another one has a region inside of the
/// other provider's region, and both may have the same base and size.
#[inline]
pub fn find_where(address: Address, accept: impl Fn(&TrackedRegion) -> bool + Copy) -> Option<TrackedRegion> {
    let slot = MAP.get(address)?;
    match look(slot, address, accept) {
        None if slot.load() == Entry::Empty => None,
        // The address is in no such region, or a writer is changing the entry.
        None => find_settled(slot, address, accept),
        found => found,
    }
}

/// Looks up once. A found region is valid. `None` may be due to a concurrent change.
#[inline]
fn look(slot: &MapSlot, address: Address, accept: impl Fn(&TrackedRegion) -> bool) -> Option<TrackedRegion> {
    match slot.load() {
        Entry::Empty => None,
        Entry::Region { number, span } => {
            let found = REGIONS.get(number)?.read(number, span)?;
            (found.region.contains(address) && accept(&found)).then_some(found)
        }
        Entry::Overflow(number) => {
            OVERFLOW_LISTS.get(number)?.find(address, accept).filter(|found| found.region.contains(address))
        }
    }
}

/// Looks up while no writer is active. Does not wait for a fork, which holds the writer lock but
/// changes nothing: the caller may hold locks that the fork waits for.
#[cold]
fn find_settled(
    slot: &MapSlot,
    address: Address,
    accept: impl Fn(&TrackedRegion) -> bool + Copy,
) -> Option<TrackedRegion> {
    const TRIES: usize = 100;
    loop {
        for _ in 0..TRIES {
            match CHANGES.settled(|| look(slot, address, accept)) {
                Settled::Found(found) => return Some(found),
                Settled::Nothing => return None,
                Settled::Unknown => core::hint::spin_loop(),
            }
        }
        if let Some(_writers) = WRITERS.try_lock() {
            return look(slot, address, accept);
        }
        std::thread::yield_now();
    }
}

/// Runs `change` as the only writer, with [`CHANGES`] odd.
fn change<T>(change: impl FnOnce() -> T) -> T {
    let _writers = WRITERS.lock();
    CHANGES.write(change)
}

/// Returns the region number and the span of the granule of `address`, without a check of the
/// region's bounds. For pools, which check the address against their own record of the span. If the
/// granule has several regions, returns the innermost one that contains `address`.
#[inline]
#[must_use]
pub fn span(address: Address) -> Option<(RegionNumber, u32)> {
    match MAP.get(address)?.load() {
        Entry::Region { number, span } => Some((RegionNumber(number), span)),
        Entry::Empty => None,
        Entry::Overflow(_) => find(address).map(|found| (found.number, found.span)),
    }
}

/// Returns the owner of the innermost live region that contains `address`. Takes half the time of
/// [`find`].
#[inline]
#[must_use]
pub fn owner(address: Address) -> Option<OwnerId> {
    if let Some(slot) = MAP.get_in_process(address)
        && let Some(number) = slot.single()
        && let Some(record) = REGIONS.get(number)
        && let Some(owner) = record.owner_around(address)
    {
        return Some(owner);
    }
    owner_of(address)
}

/// Returns the pool of the live block at `address`, without a guard. For `free(address)`: it costs
/// four dependent loads, and no shared write.
///
/// # Safety
/// As [`OwnerId::pool_unguarded`]: the caller owns a live block there. An address that was never in
/// any pool is safe to pass.
#[inline]
#[must_use]
pub unsafe fn pool_of<'a>(address: Address) -> Option<&'a dyn Pool> {
    let owner = match MAP.get_in_process(address).map(MapSlot::load) {
        // The region does not change while the block is live.
        Some(Entry::Region { number, .. }) => REGIONS.get(number)?.owner(),
        _ => owner_of(address),
    };
    // SAFETY: passed on to the caller.
    unsafe { owner?.pool_unguarded() }
}

#[cold]
fn owner_of(address: Address) -> Option<OwnerId> {
    find(address).map(|found| found.owner)
}

/// Frees the live block at `address` of any pool.
///
/// # Errors
/// [`Error::ForeignAddress`] if no pool has a region there, and those of [`Pool::free`].
///
/// # Safety
/// As [`Pool::free`], and [`pool_of`].
#[inline]
pub unsafe fn free(address: Address) -> Result<()> {
    // SAFETY: passed on to the caller, here and below.
    match unsafe { pool_of(address) } {
        // SAFETY: as above.
        Some(pool) => unsafe { umf_core::pool::free(pool, address) },
        None => Err(Error::ForeignAddress { address, owner: "any pool" }),
    }
}

/// Frees the live block at `address` of any pool when `completion` is ready: see
/// [`umf_core::DeferredFree::free_after`].
///
/// # Errors
/// As [`umf_core::DeferredFree::free_after`]; [`Error::ForeignAddress`] if no pool has a region
/// there.
///
/// # Safety
/// As [`umf_core::DeferredFree::free_after`]; the pool is alive.
pub unsafe fn free_after(address: Address, completion: Arc<dyn Completion>) -> Result<()> {
    // SAFETY: passed on to the caller, here and below.
    match unsafe { pool_of(address) } {
        Some(pool) => match pool.deferred_free() {
            // SAFETY: as above.
            Some(deferred) => unsafe { deferred.free_after(address, completion) },
            None => Err(umf_core::pool::missing("freeing with a completion")),
        },
        None => Err(Error::ForeignAddress { address, owner: "any pool" }),
    }
}

/// Returns the span of the granule of `address`; 0 if none was set. `None` if the span is not below
/// `limit`, a power of two, if the granule has several regions, or in another address space. For
/// fast paths: this calls no function.
#[inline(always)]
#[must_use]
pub fn span_below(address: Address, limit: u32) -> Option<u32> {
    MAP.get_in_process(address)?.span_below(limit)
}

/// Adds a region. Called by [`Upstream`]; pools do not call it.
fn insert(region: Region, owner: OwnerId) -> Result<RegionNumber> {
    change(|| insert_locked(region, owner))
}

fn insert_locked(region: Region, owner: OwnerId) -> Result<RegionNumber> {
    // Everything that can fail for lack of memory comes before the publication.
    for granule in granules(region.base(), region.size())? {
        MAP.get_or_grow(granule)?;
    }
    let (number, record) = REGIONS.allocate()?;
    record.publish(region, owner);
    for granule in granules(region.base(), region.size())? {
        let inserted = MAP.get_or_grow(granule).and_then(|slot| slot.insert(number));
        if let Err(error) = inserted {
            remove_locked(number, region);
            return Err(error);
        }
    }
    Ok(RegionNumber(number))
}

/// Adds a region that was freed, and whose provider failed to take it back. It can be found, but
/// not freed or exported.
pub(crate) fn insert_retired(region: Region, owner: OwnerId) -> Result<RegionNumber> {
    change(|| {
        let number = insert_locked(region, owner)?;
        if let Some(record) = REGIONS.get(number.0) {
            record.end(region.id());
        }
        Ok(number)
    })
}

/// Removes a region.
pub(crate) fn remove(number: RegionNumber, region: Region) {
    change(|| remove_locked(number.0, region));
}

fn remove_locked(number: u32, region: Region) {
    if let Ok(granules) = granules(region.base(), region.size()) {
        for granule in granules {
            if let Some(slot) = MAP.get(granule) {
                slot.remove(number);
            }
        }
    }
    if let Some(record) = REGIONS.get(number) {
        record.withdraw();
        REGIONS.release(number);
    }
}

/// Sets the span of the granules of `size` bytes from `base`, which lie in region `number`. For the
/// pool that owns the region.
///
/// # Errors
/// [`Error::ForeignAddress`] if a granule does not belong to that region.
pub fn set_span(number: RegionNumber, base: Address, size: usize, span: u32) -> Result<()> {
    for granule in granules(base, size)? {
        let foreign = Error::ForeignAddress { address: granule, owner: "the region" };
        let slot = MAP.get(granule).ok_or(foreign)?;
        let set = slot.set_span_of_single(number.0, span) || change(|| slot.set_span(number.0, span));
        if !set {
            return Err(foreign);
        }
    }
    Ok(())
}

/// Marks a region as exported: its [`Upstream`] calls the observers before it is freed.
///
/// # Errors
/// [`Error::NotAllocated`] if the region was freed meanwhile.
pub fn mark_exported(number: RegionNumber, region: Region) -> Result<()> {
    let _writers = WRITERS.lock();
    if REGIONS.get(number.0).is_some_and(|record| record.mark_exported(region.id())) {
        return Ok(());
    }
    Err(Error::NotAllocated { address: region.base() })
}

/// Clears the live bit of a region, so that of concurrent frees one succeeds. Returns whether the
/// region is exported.
///
/// # Errors
/// [`Error::NotAllocated`] if the bit was clear.
fn end(number: RegionNumber, region: Region) -> Result<bool> {
    let _writers = WRITERS.lock();
    let ended = REGIONS.get(number.0).and_then(|record| record.end(region.id()));
    ended.ok_or(Error::NotAllocated { address: region.base() })
}

/// Returns the first address of each granule that the range overlaps.
fn granules(base: Address, size: usize) -> Result<impl Iterator<Item = Address>> {
    let overflow = Error::SizeOverflow { size, align: 1 };
    let last = base.checked_add((size as u64).saturating_sub(1)).ok_or(overflow)?;
    let first = base.to_bits() / GRANULE as u64;
    let last = last.to_bits() / GRANULE as u64;
    Ok((first..=last).map(|granule| Address::from_bits(granule * GRANULE as u64)))
}

#[cfg(test)]
mod tests;
