//! From an address to the pool handle of C.

use core::sync::atomic::{AtomicPtr, Ordering};

use umf_core::Address;
use umf_runtime::tracker::{self, OwnerId, TrackedRegion};
use umf_sync::Lock;

use crate::pool::Pool;

/// As many as there can be users of providers.
const OWNERS: usize = 1 << 14;

/// The pool of each owner of regions; null where it is not known (yet), or there is none.
static POOLS: [AtomicPtr<Pool>; OWNERS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; OWNERS];

/// Pools of this library that own their regions themselves: where the pool lies, and its handle.
static OWN: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());

/// All regions of this owner belong to the pool.
pub(crate) fn set(owner: OwnerId, pool: *mut Pool) {
    if let Some(place) = POOLS.get(owner.number() as usize) {
        place.store(pool, Ordering::Release);
    }
}

/// All regions of the pool of this library at `pool` belong to that handle.
pub(crate) fn enter(pool: *const (), handle: *mut Pool) {
    OWN.lock().push((pool.addr(), handle.expose_provenance()));
}

/// Forgets everything that led to the handle.
pub(crate) fn leave(handle: *mut Pool) {
    OWN.lock().retain(|&(_, known)| known != handle.addr());
    for place in &POOLS {
        if place.load(Ordering::Relaxed) == handle {
            place.store(core::ptr::null_mut(), Ordering::Release);
        }
    }
}

/// The pool whose memory holds the address, the way it mostly goes: null where [`find`] has to
/// look.
#[inline(always)]
pub(crate) fn pool_at(address: Address) -> *mut Pool {
    let place = tracker::owner(address).and_then(|owner| POOLS.get(owner.number() as usize));
    place.map_or(core::ptr::null_mut(), |place| place.load(Ordering::Acquire))
}

/// The pool whose memory holds the address, and the region that does.
#[inline]
pub(crate) fn find(address: Address) -> Option<(*mut Pool, TrackedRegion)> {
    let found = tracker::find(address)?;
    let pool = POOLS.get(found.owner.number() as usize)?.load(Ordering::Acquire);
    if pool.is_null() { first_look(found) } else { Some((pool, found)) }
}

/// The first region of a pool of this library that is asked for.
#[cold]
fn first_look(found: TrackedRegion) -> Option<(*mut Pool, TrackedRegion)> {
    let guard = found.owner.guard()?;
    let pool = core::ptr::from_ref(guard.pool()?).cast::<()>();
    let own = OWN.lock();
    let (_, handle) = own.iter().find(|(known, _)| *known == pool.addr())?;
    let handle = core::ptr::with_exposed_provenance_mut::<Pool>(*handle);
    // Under the lock: `leave` finds it here, or has been here.
    set(found.owner, handle);
    Some((handle, found))
}
