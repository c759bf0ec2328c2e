//! Lookup of the pool handle that owns an address.

use core::sync::atomic::{AtomicPtr, Ordering};

use umf_core::Address;
use umf_runtime::tracker::{self, OwnerId, TrackedRegion};
use umf_sync::Lock;

use crate::pool::Pool;

/// The most users of providers.
const OWNERS: usize = 1 << 14;

/// Pool handle of each owner of regions. Null if it is not known yet, or if there is none.
static POOLS: [AtomicPtr<Pool>; OWNERS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; OWNERS];

/// Pools of this library that own their regions: address of the pool object, and its handle.
static SELF_OWNED: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());

/// Assigns all regions of this owner to the pool handle.
pub(crate) fn set(owner: OwnerId, pool: *mut Pool) {
    if let Some(place) = POOLS.get(owner.number() as usize) {
        place.store(pool, Ordering::Release);
    }
}

/// Assigns all regions of the pool object at `pool` to the handle.
pub(crate) fn register(pool: *const (), handle: *mut Pool) {
    SELF_OWNED.lock().push((pool.addr(), handle.expose_provenance()));
}

/// Removes all entries of the handle.
pub(crate) fn unregister(handle: *mut Pool) {
    SELF_OWNED.lock().retain(|&(_, known)| known != handle.addr());
    for place in &POOLS {
        if place.load(Ordering::Relaxed) == handle {
            place.store(core::ptr::null_mut(), Ordering::Release);
        }
    }
}

/// Returns the pool that owns the address, on the fast path. Null if [`find`] has to search.
#[inline(always)]
pub(crate) fn find_fast(address: Address) -> *mut Pool {
    let place = tracker::owner(address).and_then(|owner| POOLS.get(owner.number() as usize));
    place.map_or(core::ptr::null_mut(), |place| place.load(Ordering::Acquire))
}

/// Returns the pool that owns the address, and the region that holds it.
#[inline]
pub(crate) fn find(address: Address) -> Option<(*mut Pool, TrackedRegion)> {
    let found = tracker::find(address)?;
    let pool = POOLS.get(found.owner.number() as usize)?.load(Ordering::Acquire);
    if pool.is_null() { find_slow(found) } else { Some((pool, found)) }
}

/// Resolves the owner of a region on its first lookup.
#[cold]
fn find_slow(found: TrackedRegion) -> Option<(*mut Pool, TrackedRegion)> {
    let guard = found.owner.guard()?;
    let pool = core::ptr::from_ref(guard.pool()?).cast::<()>();
    let own = SELF_OWNED.lock();
    let (_, handle) = own.iter().find(|(known, _)| *known == pool.addr())?;
    let handle = core::ptr::with_exposed_provenance_mut::<Pool>(*handle);
    // Under the lock, so that a concurrent `unregister` removes this entry.
    set(found.owner, handle);
    Some((handle, found))
}
