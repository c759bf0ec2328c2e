//! Conformance suite of providers: see [`crate::provider_conformance!`].
//!
//! Each public function is a case. It takes a constructor of the provider, and panics if the
//! provider breaks a promise of its traits. A case that needs an ability prints one line and passes
//! if the provider lacks it.

mod abilities;
mod allocation;
mod export;
mod host_access;
mod leases;
mod memory;
mod process;
mod transfer;

pub use abilities::{
    concurrent_purges_of_disjoint_pages_succeed, populate_keeps_contents,
    properties_exist_for_live_regions_only, purged_pages_read_as_zero,
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
pub use host_access::cpu_access_is_bracketed;
pub use leases::{
    held_limit_refuses_allocation, held_region_keeps_provider_alive, leased_region_is_held_until_closed,
};
pub use process::{
    cycles_leak_nothing, dropped_providers_leak_nothing, forked_child_leaves_shared_memory_alone,
};

pub use transfer::{
    concurrent_copies_do_not_mix, copies_are_visible_through_imports, copies_change_named_bytes_only,
};

use std::sync::Arc;

use umf_core::Provider;

/// Constructor of the provider under test. Returns a new provider at each call.
pub type MakeProvider<'a> = &'a (dyn Fn() -> Arc<dyn Provider> + Sync);

/// Prints why a case, or the rest of it, is skipped.
fn skip(provider: &dyn Provider, why: &str) {
    println!("skipped for {} provider {:?}: {why}", provider.kind(), provider.name());
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
