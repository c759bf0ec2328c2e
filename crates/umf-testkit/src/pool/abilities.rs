//! Which abilities a pool has, and that it says so where it lacks one.

use super::{Make, Pages, Token, allocate, free};
use umf_core::Error;
use umf_runtime::tracker;

fn says(name: &str, ability: &str, has_it: bool) -> bool {
    if !has_it {
        println!("passed over for pool {name:?}: {ability}");
    }
    has_it
}

/// Whether blocks can stay in use after their free. If not, the tracker refuses such a free and leaves
/// the block as it was.
pub fn can_defer(make: Make<'_>) -> bool {
    let pool = make(Pages::private().into());
    let can = pool.deferred_free().is_some() && pool.controls().is_some();
    if pool.deferred_free().is_none() {
        let block = allocate(&*pool, 64);
        // SAFETY: the suite's own block, which it does not use.
        let refused = unsafe { tracker::free_after(block, Token::new()) };
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
        free(&*pool, block);
    }
    says(pool.name(), "it does not defer frees", can)
}

/// Whether a callback can be set for lack of memory.
pub fn can_ask(make: Make<'_>) -> bool {
    let pool = make(Pages::private().into());
    says(pool.name(), "it has no controls", pool.controls().is_some())
}

/// Whether the pool reserves memory ahead of need.
pub fn can_reserve(make: Make<'_>) -> bool {
    let pool = make(Pages::private().into());
    says(pool.name(), "it does not reserve memory", pool.reserves().is_some())
}
