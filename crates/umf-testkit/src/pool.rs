//! What every pool must do: see [`crate::pool_conformance!`].
//!
//! The cases are functions that take a way to make a pool, [`Make`]; the macro turns each into a test. They bring
//! providers of their own, [`Numbers`] and [`Pages`], which count what is allocated and fail on demand.

mod abilities;
mod ahead;
mod blocks;
mod delayed;
mod forks;
mod leases;
mod misuse;
mod providers;
mod shortage;
mod threads;

use std::sync::Arc;

use umf_core::{Address, Controls, DeferredFree, Layout, Pool, ProviderRef, Reserve};

pub use abilities::{can_ask, can_defer, can_reserve};
pub use ahead::{reserved_memory_is_there_and_stays, reserving_too_much_changes_nothing};
pub use blocks::{
    addresses_are_used_again, blocks_are_aligned_contained_and_apart, dropping_gives_everything_back,
    everything_goes_back_after_trim, failure_of_the_provider_leaves_the_pool_usable, memory_is_not_touched,
    nothing_grows_over_a_million_cycles, statistics_add_up, trim_keeps_what_it_is_told_to,
};
pub use delayed::{
    Token, a_child_awaits_nothing_of_its_parent, completions_may_use_their_pool,
    delayed_blocks_are_not_handed_out, delayed_blocks_outlive_their_pool,
    delayed_frees_of_other_addresses_are_refused, exports_of_delayed_blocks_end_at_once,
    lost_completions_hold_their_blocks, ready_blocks_are_used_again, threads_keep_off_delayed_blocks,
};
pub use forks::{
    a_child_is_shown_a_pool_that_is_dropped, private_memory_works_on_in_a_child,
    shared_memory_is_frozen_in_a_child,
};
pub use leases::{
    a_child_holds_nothing_of_its_parent, closed_blocks_are_used_again, contents_stay_or_go_as_told,
    draining_waits_for_the_last_lease, leased_blocks_are_not_handed_out, leased_blocks_outlive_their_pool,
    the_bound_on_what_is_held_is_kept, threads_keep_off_leased_blocks,
};
pub use misuse::{
    every_other_address_is_refused, exported_blocks_are_announced_once, of_two_frees_one_succeeds,
};
pub use providers::{Numbers, Pages};
pub use shortage::{
    threads_ask_beside_each_other, who_cannot_help_is_not_asked_for_ever, who_is_asked_can_help,
    who_is_asked_may_do_anything,
};
pub use threads::{blocks_may_be_freed_elsewhere, ended_threads_strand_nothing, threads_share_a_pool};

/// How to make the pool that is tested.
pub type Make<'a> = &'a dyn Fn(ProviderRef) -> Arc<dyn Pool>;

/// Runs the conformance suite against a pool, as a module of tests.
///
/// The second argument makes a pool over a provider, with settings that allow blocks of up to 64 MiB and set no
/// limit. Cases that need an ability pass where a pool does not have it, and test that it says so.
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
                blocks_are_aligned_contained_and_apart,
                memory_is_not_touched,
                addresses_are_used_again,
                nothing_grows_over_a_million_cycles,
                statistics_add_up,
                failure_of_the_provider_leaves_the_pool_usable,
                everything_goes_back_after_trim,
                trim_keeps_what_it_is_told_to,
                dropping_gives_everything_back,
                every_other_address_is_refused,
                of_two_frees_one_succeeds,
                threads_share_a_pool,
                blocks_may_be_freed_elsewhere,
                ended_threads_strand_nothing,
                private_memory_works_on_in_a_child,
                shared_memory_is_frozen_in_a_child,
                a_child_is_shown_a_pool_that_is_dropped,
            }
            $crate::pool_conformance! { @tests can_defer:
                exported_blocks_are_announced_once,
                leased_blocks_are_not_handed_out,
                closed_blocks_are_used_again,
                draining_waits_for_the_last_lease,
                the_bound_on_what_is_held_is_kept,
                contents_stay_or_go_as_told,
                leased_blocks_outlive_their_pool,
                threads_keep_off_leased_blocks,
                a_child_holds_nothing_of_its_parent,
                delayed_blocks_are_not_handed_out,
                ready_blocks_are_used_again,
                lost_completions_hold_their_blocks,
                delayed_blocks_outlive_their_pool,
                exports_of_delayed_blocks_end_at_once,
                delayed_frees_of_other_addresses_are_refused,
                completions_may_use_their_pool,
                threads_keep_off_delayed_blocks,
                a_child_awaits_nothing_of_its_parent,
            }
            $crate::pool_conformance! { @tests can_reserve:
                reserved_memory_is_there_and_stays,
                reserving_too_much_changes_nothing,
            }
            $crate::pool_conformance! { @tests can_ask:
                who_is_asked_can_help,
                who_cannot_help_is_not_asked_for_ever,
                who_is_asked_may_do_anything,
                threads_ask_beside_each_other,
            }
        }
    };
    (@tests $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $crate::pool::$case(&make);
            }
        )*
    };
    (@tests $can:ident: $($case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                if $crate::pool::$can(&make) {
                    $crate::pool::$case(&make);
                }
            }
        )*
    };
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
    // SAFETY: the suite frees blocks that it allocated, and that nobody uses.
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

fn try_free(pool: &dyn Pool, address: Address) -> umf_core::Result<()> {
    // SAFETY: the suite passes addresses that are no live block, or blocks of its own.
    unsafe { pool.free(address) }
}

fn at(address: Address, offset: u64) -> Address {
    address.checked_add(offset).expect("the suite's addresses lie far from the end")
}

/// Numbers without order, the same in each run (splitmix64). For tests of pools.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A size of up to `1 << bits` bytes, all magnitudes alike.
    fn size(&mut self, bits: u32) -> usize {
        let magnitude = self.next() % u64::from(bits);
        self.below(2 << magnitude) + 1
    }
}
