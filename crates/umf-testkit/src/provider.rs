//! What every provider must do: see [`crate::provider_conformance!`].
//!
//! Each public function is a case. It gets a function that makes a provider, and panics if the provider
//! breaks what its traits promise. Abilities that a provider does not have are passed over with one printed
//! line.

mod abilities;
mod allocation;
mod export;
mod host_access;
mod leases;
mod memory;
mod process;
mod transfer;

pub use abilities::{
    populated_memory_keeps_its_content, properties_are_told_of_live_regions_only,
    purged_memory_reads_as_promised, purges_apart_from_each_other_may_overlap_in_time,
};
pub use allocation::{
    absurd_sizes_are_errors, alignments_are_kept_or_refused, foreign_and_double_frees_are_errors,
    fresh_memory_is_zero_where_promised, ids_are_never_used_again, it_says_what_it_is,
    regions_do_not_overlap, sizes_are_whole_pages, threads_do_not_disturb_each_other,
};
pub use export::{
    exports_open_at_the_right_bytes, imports_outlive_the_region, junk_is_not_imported,
    read_only_imports_cannot_be_written,
};
pub use host_access::touches_by_the_cpu_are_told_of;
pub use leases::{
    held_regions_keep_their_provider, leased_regions_are_held, the_bound_on_held_regions_is_kept,
};
pub use process::{a_forked_child_does_no_harm, cycles_leak_nothing, dropped_providers_leave_nothing};

pub use transfer::{copies_reach_imports, copies_reach_the_bytes_that_they_name, threads_copy_at_once};

use std::sync::Arc;

use umf_core::Provider;

/// Makes a provider, a new one at each call.
pub type Make<'a> = &'a (dyn Fn() -> Arc<dyn Provider> + Sync);

/// Says why a case, or the rest of one, does not apply.
fn passed_over(provider: &dyn Provider, why: &str) {
    println!("passed over for {} provider {:?}: {why}", provider.kind(), provider.name());
}

/// Makes a module of tests that hold a provider to what [`Provider`] and its abilities promise.
///
/// The first argument names a module of the calling crate, and differs from the names of its
/// dependencies. The second argument is called for each test, several times in some, and yields an
/// `Arc<dyn Provider>`. A provider needs room for some 32 MiB of regions. Needs the process to be
/// free to fork.
///
/// A third argument, `lacks: `, is for providers that need what not every machine has. It is called first, and says what is lacking, if
/// anything is: the tests then pass, with a line `umf-skip: ` that says so.
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
            it_says_what_it_is
            sizes_are_whole_pages
            alignments_are_kept_or_refused
            regions_do_not_overlap
            ids_are_never_used_again
            fresh_memory_is_zero_where_promised
            foreign_and_double_frees_are_errors
            absurd_sizes_are_errors
            threads_do_not_disturb_each_other
            purged_memory_reads_as_promised
            populated_memory_keeps_its_content
            properties_are_told_of_live_regions_only
            touches_by_the_cpu_are_told_of
            copies_reach_the_bytes_that_they_name
            copies_reach_imports
            threads_copy_at_once
            exports_open_at_the_right_bytes
            read_only_imports_cannot_be_written
            imports_outlive_the_region
            junk_is_not_imported
            cycles_leak_nothing
            dropped_providers_leave_nothing
            a_forked_child_does_no_harm
            purges_apart_from_each_other_may_overlap_in_time
            leased_regions_are_held
            the_bound_on_held_regions_is_kept
            held_regions_keep_their_provider
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
