//! Tests for the optional abilities of a pool, each of which must be reported correctly.

use super::{MakePool, ManualCompletion, MmapProvider, allocate, free};
use umf_core::Error;
use umf_runtime::tracker;

fn says(name: &str, ability: &str, has_it: bool) -> bool {
    if !has_it {
        println!("skipped for pool {name:?}: {ability}");
    }
    has_it
}

/// Returns whether the pool has deferred frees. If not, the tracker must refuse such a free without
/// effect.
pub fn has_deferred_free(make: MakePool<'_>) -> bool {
    let pool = make(MmapProvider::private().into());
    let can = pool.deferred_free().is_some() && pool.controls().is_some();
    if pool.deferred_free().is_none() {
        let block = allocate(&*pool, 64);
        // SAFETY: a block of the suite that is not used.
        let refused = unsafe { tracker::free_after(block, ManualCompletion::new()) };
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
        free(&*pool, block);
    }
    says(pool.name(), "it does not defer frees", can)
}

/// Returns whether the pool has controls, such as the out-of-memory callback.
pub fn has_controls(make: MakePool<'_>) -> bool {
    let pool = make(MmapProvider::private().into());
    says(pool.name(), "it has no controls", pool.controls().is_some())
}

/// Returns whether the pool can reserve memory.
pub fn has_reserve(make: MakePool<'_>) -> bool {
    let pool = make(MmapProvider::private().into());
    says(pool.name(), "it does not reserve memory", pool.reserves().is_some())
}
