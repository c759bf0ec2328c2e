//! Conformance suite of providers: see [`crate::provider_conformance!`].
//!
//! Each public function is a case. It takes a constructor of the provider, and panics if the
//! provider breaks a rule of its traits. A case that needs an ability prints one line and passes if
//! the provider lacks it. This file also has the helpers of the cases.

mod abilities;
mod access;
mod allocation;
mod export;
mod leases;
mod process;

pub use abilities::{
    concurrent_purges_of_disjoint_pages_succeed, populate_keeps_contents,
    properties_exist_for_live_regions_only, purged_pages_read_as_zero,
};
pub use access::{
    concurrent_copies_do_not_mix, copies_are_visible_through_imports, copies_change_named_bytes_only,
    cpu_access_is_bracketed,
};
pub use allocation::{
    alignment_is_met_or_refused, concurrent_threads_get_disjoint_regions,
    foreign_and_double_frees_are_errors, fresh_memory_is_zero_where_promised, identity_is_valid,
    oversized_allocations_fail, region_ids_are_never_reused, region_sizes_are_page_multiples,
    regions_do_not_overlap,
};
pub use export::{
    import_maps_the_exported_bytes, imports_outlive_their_region, invalid_import_requests_are_refused,
    read_only_imports_cannot_be_written,
};
pub use leases::{
    held_limit_refuses_allocation, held_region_keeps_provider_alive, leased_region_is_held_until_closed,
};
pub use process::{
    cycles_leak_nothing, dropped_providers_leak_nothing, forked_child_leaves_shared_memory_alone,
};

use core::ptr;
use std::sync::Arc;

use umf_core::{Address, Layout, Provider, Region};

/// Constructor of the provider under test. Returns a new provider at each call.
pub type MakeProvider<'a> = &'a (dyn Fn() -> Arc<dyn Provider> + Sync);

/// Prints why a case, or the rest of it, is skipped.
fn skip(provider: &dyn Provider, why: &str) {
    println!("skipped for {} provider {:?}: {why}", provider.kind(), provider.name());
}

// Helpers of the cases: allocation that panics on failure, and test patterns.

/// Allocates, or panics.
#[track_caller]
fn allocate(provider: &dyn Provider, size: usize, align: usize) -> Region {
    let layout = Layout::new(size, align).expect("a valid layout");
    provider.allocate(layout).unwrap_or_else(|error| panic!("allocating {size} bytes at {align}: {error}"))
}

/// Frees, or panics.
#[track_caller]
fn free(provider: &dyn Provider, region: Region) {
    // SAFETY: the cases free what they allocated, and do not use it any more.
    if let Err(error) = unsafe { provider.free(region) } {
        panic!("freeing {region:?}: {error}");
    }
}

/// Returns whether the CPU may access the memory.
fn is_accessible(provider: &dyn Provider) -> bool {
    provider.memory_kind().is_host_accessible()
}

const STEP: usize = 509;

/// Returns the tested offsets: the first byte, the last byte, and some in every page between.
fn places(size: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(STEP).chain(core::iter::once(size - 1))
}

fn expected(seed: u8, place: usize) -> u8 {
    // Never 0, the value of purged memory.
    (seed.wrapping_add((place / 7) as u8)) | 1
}

#[track_caller]
fn pointer(base: Address) -> *mut u8 {
    base.as_ptr().expect("host-accessible memory has pointers")
}

/// Writes a pattern to host-accessible memory.
#[track_caller]
fn fill(base: Address, size: usize, seed: u8) {
    let base = pointer(base);
    for place in places(size) {
        // SAFETY: the provider reports the memory as host-accessible, and it has `size` bytes.
        unsafe { ptr::write_volatile(base.add(place), expected(seed, place)) };
    }
}

/// Compares memory with the part of a pattern that begins `skipped` bytes into it.
fn holds_from(base: Address, size: usize, seed: u8, skipped: usize) -> Result<(), usize> {
    let base = pointer(base);
    let inside = |place: &usize| (skipped..skipped + size).contains(place);
    // The last byte of the pattern is tested by the caller that has all of it.
    for place in (0..skipped + size).step_by(STEP).filter(inside) {
        // SAFETY: the provider reports the memory as host-accessible, and it has `size` bytes.
        if unsafe { ptr::read_volatile(base.add(place - skipped)) } != expected(seed, place) {
            return Err(place);
        }
    }
    Ok(())
}

/// Panics unless the memory holds what [`fill`] wrote.
#[track_caller]
fn assert_filled(base: Address, size: usize, seed: u8) {
    assert_part_filled(base, size, seed, 0);
    // SAFETY: the memory is host-accessible and has `size` bytes.
    let last = unsafe { ptr::read_volatile(pointer(base).add(size - 1)) };
    assert_eq!(last, expected(seed, size - 1), "last of {size} bytes at {base}");
}

/// As [`assert_filled`], for a part that begins `skipped` bytes into the pattern. Does not test the
/// last byte of the whole.
#[track_caller]
fn assert_part_filled(base: Address, size: usize, seed: u8, skipped: usize) {
    if let Err(place) = holds_from(base, size, seed, skipped) {
        panic!("byte {place} of a region, of which {size} bytes are at {base}, is not what was written");
    }
}

/// Returns whether the memory holds the pattern, except for the last byte.
fn is_filled(base: Address, size: usize, seed: u8, skipped: usize) -> bool {
    holds_from(base, size, seed, skipped).is_ok()
}

/// Returns whether every byte is 0.
fn is_zero(base: Address, size: usize) -> bool {
    let base = pointer(base);
    // SAFETY: the memory is host-accessible and has `size` bytes.
    (0..size).all(|place| unsafe { ptr::read_volatile(base.add(place)) } == 0)
}

/// Runs the conformance suite against a provider, as a module of tests.
///
/// The first argument names the module, and must differ from the names of the crate's dependencies.
/// The second argument is called for each test, several times in some, and returns an `Arc<dyn
/// Provider>`. A provider must be able to allocate about 32 MiB of regions. The tests fork.
///
/// The third argument, `lacks: `, is for providers that need special hardware or drivers. It is
/// called first, and returns what is missing, if anything. The tests then pass, and print a line
/// `umf-skip: ` with that text.
///
/// ```ignore
/// umf_testkit::provider_conformance!(private, || HostProvider::builder().build().unwrap());
/// umf_testkit::provider_conformance!(device, make_device, lacks: || open_device().err().map(|error| error.to_string()));
/// ```
#[macro_export]
macro_rules! provider_conformance {
    ($module:ident, $make:expr) => {
        $crate::provider_conformance!($module, $make, lacks: || None);
    };
    ($module:ident, $make:expr, lacks: $lacks:expr) => {
        $crate::provider_conformance!(
            @cases $module, $make, $lacks,
            identity_is_valid
            region_sizes_are_page_multiples
            alignment_is_met_or_refused
            regions_do_not_overlap
            region_ids_are_never_reused
            fresh_memory_is_zero_where_promised
            foreign_and_double_frees_are_errors
            oversized_allocations_fail
            concurrent_threads_get_disjoint_regions
            purged_pages_read_as_zero
            populate_keeps_contents
            properties_exist_for_live_regions_only
            cpu_access_is_bracketed
            copies_change_named_bytes_only
            copies_are_visible_through_imports
            concurrent_copies_do_not_mix
            import_maps_the_exported_bytes
            read_only_imports_cannot_be_written
            imports_outlive_their_region
            invalid_import_requests_are_refused
            cycles_leak_nothing
            dropped_providers_leak_nothing
            forked_child_leaves_shared_memory_alone
            concurrent_purges_of_disjoint_pages_succeed
            leased_region_is_held_until_closed
            held_limit_refuses_allocation
            held_region_keeps_provider_alive
        );
    };
    (@cases $module:ident, $make:expr, $lacks:expr, $($case:ident)*) => {
        #[cfg(test)]
        mod $module {
            #[allow(unused_imports)]
            use super::*;

            fn make() -> ::std::sync::Arc<dyn $crate::Provider> {
                ($make)()
            }

            $(
                #[test]
                fn $case() {
                    let lacking: Option<String> = ($lacks)();
                    if let Some(what) = lacking {
                        println!("umf-skip: conformance of {}: {what}", stringify!($module));
                        return;
                    }
                    $crate::provider::$case(&make);
                }
            )*
        }
    };
}
