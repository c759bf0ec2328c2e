//! Cases about purging, splitting and merging, and properties.

use super::memory::{
    allocate, assert_filled, assert_part_filled, fill, free, is_accessible, is_filled, is_zero,
};
use super::process::beside_others;
use super::{Make, passed_over};
use crate::{Address, Error, Property, Provider, Purge, Region, Result};

#[track_caller]
fn further(base: Address, bytes: usize) -> Address {
    base.checked_add(bytes as u64).expect("inside of the region")
}

/// Purged memory reads zeros, at once or (if purged lazily) at some time; what lies beside it stays.
pub fn purged_memory_reads_as_promised(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some(purge) = provider.purge() else {
        return passed_over(&*provider, "it cannot purge");
    };
    forced(&*provider, purge);
    lazy(&*provider, purge);
}

/// `false` if this way of purging does not exist.
#[track_caller]
fn exists(provider: &dyn Provider, result: Result<()>, what: &str) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::NotSupported { .. }) => {
            passed_over(provider, what);
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
    // SAFETY: the content of the two pages is not needed.
    let purged = unsafe { purge.purge_forced(further(base, page), 2 * page) };
    if exists(provider, purged, "forced purge") && is_accessible(provider) {
        assert_part_filled(base, page, 21, 0);
        assert!(is_zero(further(base, page), 2 * page), "purged memory does not read as zero");
        assert_part_filled(further(base, 3 * page), page, 21, 3 * page);
        fill(base, region.size(), 22);
        assert_filled(base, region.size(), 22);
    }
    let refused = |base, size, what: &str| {
        // SAFETY: nothing is purged, since the range is no part of a live region.
        let result = unsafe { purge.purge_forced(base, size) };
        assert!(result.is_err(), "purging {what} succeeded");
    };
    refused(further(base, 1), page, "what does not begin at a page");
    refused(base, page + 1, "what does not end at a page");
    refused(base, 0, "nothing");
    refused(base, region.size() + page, "past the end");
    refused(base, usize::MAX - page + 1, "everything");
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
    // SAFETY: the content of the two pages is not needed.
    let purged = unsafe { purge.purge_lazy(further(base, page), 2 * page) };
    if exists(provider, purged, "lazy purge") && is_accessible(provider) {
        for number in 1..3 {
            let start = further(base, number * page);
            assert!(
                is_zero(start, page) || is_filled(start, page, 31, number * page),
                "lazily purged memory is neither what it was nor zero"
            );
        }
        assert_part_filled(base, page, 31, 0);
        assert_part_filled(further(base, 3 * page), page, 31, 3 * page);
        fill(base, region.size(), 32);
        assert_filled(base, region.size(), 32);
    }
    free(provider, region);
}

/// Populating memory changes nothing in it, and is refused for what is no part of a live region.
pub fn populated_memory_keeps_its_content(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some(populate) = provider.populate() else {
        return passed_over(&*provider, "it cannot make pages ahead");
    };
    let page = provider.page_size();
    let region = allocate(&*provider, 4 * page, 1);
    let base = region.base();
    let accessible = is_accessible(&*provider);
    if accessible {
        fill(further(base, page), page, 61);
    }
    if exists(&*provider, populate.populate(base, 4 * page), "making pages") && accessible {
        assert_filled(further(base, page), page, 61);
        assert!(!provider.zeroed() || is_zero(further(base, 2 * page), 2 * page));
        // Twice is once.
        populate.populate(further(base, page), 2 * page).expect("they are there");
        fill(base, region.size(), 62);
        assert_filled(base, region.size(), 62);
    }
    for (base, size, what) in [
        (further(base, 1), page, "what does not begin at a page"),
        (base, page + 1, "what does not end at a page"),
        (base, 0, "nothing"),
        (base, region.size() + page, "past the end"),
        (base, usize::MAX - page + 1, "everything"),
    ] {
        assert!(populate.populate(base, size).is_err(), "populating {what} succeeded");
    }
    free(&*provider, region);
    assert!(populate.populate(base, page).is_err(), "populating a region that was freed succeeded");
}

/// Two threads purge pages of one region at the same time, each its own; what lies between them stays.
pub fn purges_apart_from_each_other_may_overlap_in_time(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some(purge) = provider.purge() else {
        return passed_over(&*provider, "it cannot purge");
    };
    let page = provider.page_size();
    let region = allocate(&*provider, 5 * page, 1);
    let at = |number: usize| further(region.base(), number * page);
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
                    // SAFETY: the page is this thread's, and its content is not needed.
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

/// Splitting and merging keep the bytes; parts are regions of their own; errors leave everything as it was.
pub fn split_and_merged_regions_keep_content(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some(ability) = provider.split_merge() else {
        return passed_over(&*provider, "it cannot split and merge");
    };
    let page = provider.page_size();
    let whole = allocate(&*provider, 4 * page, 1);
    let size = whole.size();
    let accessible = is_accessible(&*provider);
    if accessible {
        fill(whole.base(), size, 41);
    }
    for first in [0, page / 2, size, size + page, usize::MAX - page + 1] {
        // SAFETY: the region is this test's; nothing is split, since that is no place to do so.
        let result = unsafe { ability.split(whole, first) };
        assert!(result.is_err(), "a region of {size} bytes was split at {first}");
    }
    // SAFETY: the region is this test's, here and below.
    let (low, high) = unsafe { ability.split(whole, page) }.expect("splitting");
    assert_eq!((low.base(), low.size()), (whole.base(), page));
    assert_eq!((high.base(), high.size()), (further(whole.base(), page), size - page));
    if accessible {
        assert_part_filled(low.base(), page, 41, 0);
        assert_part_filled(high.base(), size - page, 41, page);
    }
    // SAFETY: as above; and what was split is no region any more.
    unsafe {
        assert!(provider.free(whole).is_err(), "a region that was split was freed as a whole");
        assert!(ability.split(whole, page).is_err(), "a region was split twice");
        assert!(ability.merge(high, low).is_err(), "regions were merged in the wrong order");
        assert!(ability.merge(low, low).is_err(), "a region was merged with itself");
    }
    // SAFETY: as above.
    let merged = unsafe { ability.merge(low, high) }.expect("merging what was split");
    assert_eq!((merged.base(), merged.size()), (whole.base(), size));
    if accessible {
        assert_filled(merged.base(), size, 41);
    }
    // SAFETY: as above.
    let (low, rest) = unsafe { ability.split(merged, 2 * page) }.expect("splitting");
    // SAFETY: as above.
    let (middle, high) = unsafe { ability.split(rest, page) }.expect("splitting a part");
    // SAFETY: as above.
    assert!(unsafe { ability.merge(low, high) }.is_err(), "regions with a gap between them were merged");
    free(&*provider, middle);
    if accessible {
        assert_part_filled(low.base(), 2 * page, 41, 0);
        assert_part_filled(high.base(), size - 3 * page, 41, 3 * page);
    }
    // What comes next may lie where the middle was, and must not touch its neighbours.
    let other = allocate(&*provider, page, 1);
    if accessible {
        fill(other.base(), other.size(), 99);
        assert_part_filled(low.base(), 2 * page, 41, 0);
        assert_part_filled(high.base(), size - 3 * page, 41, 3 * page);
    }
    free(&*provider, low);
    free(&*provider, other);
    free(&*provider, high);
}

/// Properties are told of live regions, and of no others.
pub fn properties_are_told_of_live_regions_only(make: Make<'_>) {
    let _beside = beside_others();
    let provider = make();
    let Some(properties) = provider.properties() else {
        return passed_over(&*provider, "it has no properties");
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
        let none = Region::new(further(region.base(), 1), 1);
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
