//! Conformance suite of pools: see [`crate::pool_conformance!`].
//!
//! Each case is a function that takes a constructor of the pool, [`MakePool`]. The macro turns each
//! into a test. The cases bring their own providers, [`AddressOnlyProvider`] and [`MmapProvider`],
//! which count allocations and fail on demand.

mod abilities;
mod blocks;
mod completion;
mod fork;
mod leases;
mod misuse;
mod out_of_memory;
mod providers;
mod threads;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use umf_core::{Address, Controls, DeferredFree, Layout, Pool, ProviderRef, Reserve, Reuse};

pub use abilities::{
    failed_reserve_changes_nothing, has_deferred_free, has_free_after, has_out_of_memory_callback,
    has_reserve, reserved_memory_is_populated_and_kept,
};
pub use blocks::{
    blocks_are_aligned_contained_and_disjoint, drop_returns_all_regions, freed_addresses_are_reused,
    memory_is_bounded_over_a_million_cycles, pool_never_accesses_memory, provider_failure_leaves_pool_usable,
    statistics_add_up, trim_keeps_live_blocks_and_requested_bytes, trim_returns_all_free_regions,
};
pub use completion::{
    ManualCompletion, block_is_not_reused_before_completion, block_is_reused_after_completion,
    completion_may_use_its_pool, concurrent_threads_never_get_pending_blocks,
    drain_returns_after_completions_are_dropped, forked_child_has_no_pending_blocks,
    free_after_ends_exports_at_once, free_after_of_invalid_address_is_refused,
    lost_completion_keeps_block_held, pending_blocks_outlive_pool,
};
pub use fork::{
    fork_during_pool_drop_does_not_deadlock, private_pool_works_in_forked_child,
    shared_pool_is_frozen_in_forked_child,
};
pub use leases::{
    closed_block_is_reused_without_poll, concurrent_threads_never_get_leased_blocks,
    drain_waits_for_last_lease, forked_child_holds_no_parent_blocks, held_limit_refuses_allocation,
    leased_block_is_not_reused, leased_blocks_outlive_pool, on_free_keeps_or_releases_contents,
};
pub use misuse::{
    concurrent_double_free_succeeds_once, exported_blocks_are_announced_once,
    free_of_invalid_address_is_refused,
};
pub use out_of_memory::{
    concurrent_threads_share_one_callback, out_of_memory_callback_can_free_and_retry,
    out_of_memory_callback_is_called_bounded_times, out_of_memory_callback_may_use_pool,
};
pub use providers::{AddressOnlyProvider, MmapProvider};
pub use threads::{
    concurrent_threads_get_disjoint_blocks, ended_threads_leak_nothing, remotely_freed_blocks_are_reused,
};

/// Constructor of the pool under test.
pub type MakePool<'a> = &'a dyn Fn(ProviderRef) -> Arc<dyn Pool>;

/// Runs the conformance suite against a pool, as a module of tests.
///
/// The second argument makes a pool over a provider. Its settings must allow blocks of up to 64 MiB
/// and set no limit. A case that needs an ability passes if the pool lacks it, after a check that
/// the pool reports the lack:
///
/// | the pool lacks | it reports that by |
/// |---|---|
/// | deferred frees, controls, a reserve | the accessor of [`Pool`] returns `None` |
/// | frees with a completion | `DeferredFree::free_after` fails with `NotSupported` |
/// | an out-of-memory callback | `Controls::set_on_out_of_memory` fails with `NotSupported` |
/// | reuse of memory while other blocks are live | [`Pool::reuse`] returns [`Reuse::WhenEmpty`] |
///
/// ```ignore
/// umf_testkit::pool_conformance!(conformance, |provider: ProviderRef| -> Arc<dyn Pool> {
///     MyPool::new(provider).unwrap()
/// });
/// ```
#[macro_export]
macro_rules! pool_conformance {
    ($module:ident, $make:expr) => {
        #[cfg(test)]
        mod $module {
            #[allow(unused_imports, reason = "what the expression needs is in scope around it")]
            use super::*;

            fn make(provider: $crate::ProviderRef) -> ::std::sync::Arc<dyn $crate::Pool> {
                let make: fn($crate::ProviderRef) -> ::std::sync::Arc<dyn $crate::Pool> = $make;
                make(provider)
            }

            $crate::pool_conformance! { @tests
                blocks_are_aligned_contained_and_disjoint,
                pool_never_accesses_memory,
                freed_addresses_are_reused,
                memory_is_bounded_over_a_million_cycles,
                statistics_add_up,
                provider_failure_leaves_pool_usable,
                trim_returns_all_free_regions,
                trim_keeps_live_blocks_and_requested_bytes,
                drop_returns_all_regions,
                free_of_invalid_address_is_refused,
                concurrent_double_free_succeeds_once,
                concurrent_threads_get_disjoint_blocks,
                remotely_freed_blocks_are_reused,
                ended_threads_leak_nothing,
                private_pool_works_in_forked_child,
                shared_pool_is_frozen_in_forked_child,
                fork_during_pool_drop_does_not_deadlock,
            }
            $crate::pool_conformance! { @tests has_deferred_free:
                exported_blocks_are_announced_once,
                leased_block_is_not_reused,
                closed_block_is_reused_without_poll,
                drain_waits_for_last_lease,
                held_limit_refuses_allocation,
                on_free_keeps_or_releases_contents,
                leased_blocks_outlive_pool,
                concurrent_threads_never_get_leased_blocks,
                forked_child_holds_no_parent_blocks,
            }
            $crate::pool_conformance! { @tests has_free_after:
                block_is_not_reused_before_completion,
                block_is_reused_after_completion,
                lost_completion_keeps_block_held,
                pending_blocks_outlive_pool,
                free_after_ends_exports_at_once,
                free_after_of_invalid_address_is_refused,
                completion_may_use_its_pool,
                drain_returns_after_completions_are_dropped,
                concurrent_threads_never_get_pending_blocks,
                forked_child_has_no_pending_blocks,
            }
            $crate::pool_conformance! { @tests has_reserve:
                reserved_memory_is_populated_and_kept,
                failed_reserve_changes_nothing,
            }
            $crate::pool_conformance! { @tests has_out_of_memory_callback:
                out_of_memory_callback_can_free_and_retry,
                out_of_memory_callback_is_called_bounded_times,
                out_of_memory_callback_may_use_pool,
                concurrent_threads_share_one_callback,
            }
        }
    };
    (@tests $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                let _turn = $crate::pool::turn(stringify!($case));
                $crate::pool::$case(&make);
            }
        )*
    };
    (@tests $can:ident: $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                let _turn = $crate::pool::turn(stringify!($case));
                if $crate::pool::$can(&make) {
                    $crate::pool::$case(&make);
                }
            }
        )*
    };
}

/// Cases whose threads poll deferred frees all the time. An item that one thread polls is skipped
/// by others, so such a case runs alone.
const POLLING_CASES: [&str; 4] = [
    "concurrent_threads_never_get_leased_blocks",
    "concurrent_threads_never_get_pending_blocks",
    "forked_child_has_no_pending_blocks",
    "forked_child_holds_no_parent_blocks",
];

static TURNS: RwLock<()> = RwLock::new(());

/// The turn of a case: beside others, or alone.
#[doc(hidden)]
#[derive(Debug)]
pub enum Turn {
    /// Beside others.
    Shared(RwLockReadGuard<'static, ()>),
    /// Alone.
    Alone(RwLockWriteGuard<'static, ()>),
}

/// Waits for the turn of a case.
#[doc(hidden)]
#[must_use]
pub fn turn(case: &str) -> Turn {
    if POLLING_CASES.contains(&case) {
        Turn::Alone(TURNS.write().unwrap_or_else(PoisonError::into_inner))
    } else {
        Turn::Shared(TURNS.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::new(size, align).expect("the suite's layouts are valid")
}

fn allocate(pool: &dyn Pool, size: usize) -> Address {
    allocate_at(pool, size, 1)
}

fn allocate_at(pool: &dyn Pool, size: usize, align: usize) -> Address {
    pool.allocate(layout(size, align)).unwrap_or_else(|error| panic!("{size} bytes at {align}: {error}"))
}

fn free(pool: &dyn Pool, address: Address) {
    // SAFETY: the block is live, was allocated by the suite, and is not used any more.
    unsafe { pool.free(address) }.unwrap_or_else(|error| panic!("freeing {address}: {error}"));
}

fn deferred(pool: &dyn Pool) -> &dyn DeferredFree {
    pool.deferred_free().expect("asked before")
}

fn controls(pool: &dyn Pool) -> &dyn Controls {
    pool.controls().expect("asked before")
}

fn reserves(pool: &dyn Pool) -> &dyn Reserve {
    pool.reserves().expect("asked before")
}

fn mark_exported(pool: &dyn Pool, address: Address) -> umf_core::Result<()> {
    deferred(pool).mark_exported(address)
}

/// Trims a pool that may need it to reuse memory, while the caller has no live block.
fn trim_if_empty_only(pool: &dyn Pool) {
    if pool.reuse() == Reuse::WhenEmpty {
        pool.trim(0).expect("the provider frees all regions");
    }
}

fn try_free(pool: &dyn Pool, address: Address) -> umf_core::Result<()> {
    // SAFETY: the address is not a live block, or is a block of the suite that is not used any
    // more.
    unsafe { pool.free(address) }
}

fn at(address: Address, offset: u64) -> Address {
    address.checked_add(offset).expect("the suite's addresses lie far from the end")
}

/// Deterministic pseudorandom numbers (SplitMix64), for tests of pools.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns a size of up to `1 << bits` bytes, uniform over the magnitudes.
    fn size(&mut self, bits: u32) -> usize {
        let magnitude = self.next() % u64::from(bits);
        self.below(2 << magnitude) + 1
    }
}
