//! Cases about the abilities purge, populate and properties.

use super::process::run_shared;
use super::{
    MakeProvider, allocate, assert_filled, assert_part_filled, fill, free, is_accessible, is_filled, is_zero,
    skip,
};
use umf_core::{Address, Error, Property, Provider, Purge, Region, Result};

#[track_caller]
fn offset_by(base: Address, bytes: usize) -> Address {
    base.checked_add(bytes as u64).expect("inside of the region")
}

/// Purged pages read as zero, at once or (lazy purge) later. Neighbouring pages keep their
/// contents.
pub fn purged_pages_read_as_zero(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(purge) = provider.purge() else {
        return skip(&*provider, "it cannot purge");
    };
    forced(&*provider, purge);
    lazy(&*provider, purge);
}

/// Returns `false` if the operation is not supported.
#[track_caller]
fn exists(provider: &dyn Provider, result: Result<()>, what: &str) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::NotSupported { .. }) => {
            skip(provider, what);
            false
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

fn forced(provider: &dyn Provider, purge: &dyn Purge) {
    let page = provider.page_size();
    let region = allocate(provider, 4 * page, 1);
    let base = region.base();
    if is_accessible(provider) {
        fill(base, region.size(), 21);
    }
    // SAFETY: the contents of the two pages are not needed.
    let purged = unsafe { purge.purge_forced(offset_by(base, page), 2 * page) };
    if exists(provider, purged, "forced purge") && is_accessible(provider) {
        assert_part_filled(base, page, 21, 0);
        assert!(is_zero(offset_by(base, page), 2 * page), "purged memory does not read as zero");
        assert_part_filled(offset_by(base, 3 * page), page, 21, 3 * page);
        fill(base, region.size(), 22);
        assert_filled(base, region.size(), 22);
    }
    let refused = |base, size, what: &str| {
        // SAFETY: the range is not part of a live region, so nothing is purged.
        let result = unsafe { purge.purge_forced(base, size) };
        assert!(result.is_err(), "purging {what} succeeded");
    };
    refused(offset_by(base, 1), page, "a range that does not begin at a page");
    refused(base, page + 1, "a range that does not end at a page");
    refused(base, 0, "an empty range");
    refused(base, region.size() + page, "a range past the end");
    refused(base, usize::MAX - page + 1, "the whole address space");
    if is_accessible(provider) {
        assert_filled(base, region.size(), 22);
    }
    free(provider, region);
    refused(base, page, "a region that was freed");
}

fn lazy(provider: &dyn Provider, purge: &dyn Purge) {
    let page = provider.page_size();
    let region = allocate(provider, 4 * page, 1);
    let base = region.base();
    if is_accessible(provider) {
        fill(base, region.size(), 31);
    }
    // SAFETY: the contents of the two pages are not needed.
    let purged = unsafe { purge.purge_lazy(offset_by(base, page), 2 * page) };
    if exists(provider, purged, "lazy purge") && is_accessible(provider) {
        for number in 1..3 {
            let start = offset_by(base, number * page);
            assert!(
                is_zero(start, page) || is_filled(start, page, 31, number * page),
                "lazily purged memory has neither its old contents nor zeros"
            );
        }
        assert_part_filled(base, page, 31, 0);
        assert_part_filled(offset_by(base, 3 * page), page, 31, 3 * page);
        fill(base, region.size(), 32);
        assert_filled(base, region.size(), 32);
    }
    free(provider, region);
}

/// Populating changes no contents, and fails for a range outside of live regions.
pub fn populate_keeps_contents(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(populate) = provider.populate() else {
        return skip(&*provider, "it cannot populate pages");
    };
    let page = provider.page_size();
    let region = allocate(&*provider, 4 * page, 1);
    let base = region.base();
    let accessible = is_accessible(&*provider);
    if accessible {
        fill(offset_by(base, page), page, 61);
    }
    if exists(&*provider, populate.populate(base, 4 * page), "populating pages") && accessible {
        assert_filled(offset_by(base, page), page, 61);
        assert!(!provider.zeroed() || is_zero(offset_by(base, 2 * page), 2 * page));
        // Populating twice has no further effect.
        populate.populate(offset_by(base, page), 2 * page).expect("the pages are populated");
        fill(base, region.size(), 62);
        assert_filled(base, region.size(), 62);
    }
    for (base, size, what) in [
        (offset_by(base, 1), page, "a range that does not begin at a page"),
        (base, page + 1, "a range that does not end at a page"),
        (base, 0, "an empty range"),
        (base, region.size() + page, "a range past the end"),
        (base, usize::MAX - page + 1, "the whole address space"),
    ] {
        assert!(populate.populate(base, size).is_err(), "populating {what} succeeded");
    }
    free(&*provider, region);
    assert!(populate.populate(base, page).is_err(), "populating a region that was freed succeeded");
}

/// Two threads purge different pages of a region at the same time. Pages between them keep their
/// contents.
pub fn concurrent_purges_of_disjoint_pages_succeed(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(purge) = provider.purge() else {
        return skip(&*provider, "it cannot purge");
    };
    let page = provider.page_size();
    let region = allocate(&*provider, 5 * page, 1);
    let at = |number: usize| offset_by(region.base(), number * page);
    let accessible = is_accessible(&*provider);
    if accessible {
        fill(region.base(), region.size(), 51);
    }
    std::thread::scope(|scope| {
        for number in [1, 3] {
            let provider = &*provider;
            scope.spawn(move || {
                for _ in 0..50 {
                    if accessible {
                        fill(at(number), page, 52);
                    }
                    // SAFETY: the page belongs to this thread, and its contents are not needed.
                    let purged = unsafe { purge.purge_forced(at(number), page) };
                    if exists(provider, purged, "forced purge") && accessible {
                        assert!(is_zero(at(number), page), "purged memory does not read as zero");
                    }
                }
            });
        }
    });
    if accessible {
        for number in [0, 2] {
            assert_part_filled(at(number), page, 51, number * page);
        }
    }
    free(&*provider, region);
}

/// Properties exist for live regions, and fail for any other region.
pub fn properties_exist_for_live_regions_only(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let Some(properties) = provider.properties() else {
        return skip(&*provider, "it has no properties");
    };
    let all =
        [Property::AllocationId, Property::Node, Property::Context, Property::Device, Property::CacheLine];
    let region = allocate(&*provider, 1, 1);
    let mut first_id = None;
    for property in all {
        match properties.property(&region, property) {
            Ok(value) if property == Property::AllocationId => first_id = Some(value),
            Ok(_) | Err(Error::NotSupported { .. }) => {}
            Err(error) => panic!("{property:?}: {error}"),
        }
        let none = Region::new(offset_by(region.base(), 1), 1);
        assert!(properties.property(&none, property).is_err(), "{property:?} of no region");
    }
    free(&*provider, region);
    let again = allocate(&*provider, 1, 1);
    if let Some(first) = first_id {
        let second = properties.property(&again, Property::AllocationId).expect("as before");
        assert_ne!(first, second, "two allocations have one allocation id");
    }
    free(&*provider, again);
}
