//! Cases about allocating and freeing.

use std::collections::HashSet;
use std::sync::PoisonError;

use super::process::run_shared;
use super::{MakeProvider, allocate, assert_filled, fill, free, is_accessible, is_zero, skip};
use umf_core::{Address, Error, Layout, Provider, Region};

/// Page sizes are powers of two, and name and kind are not empty.
pub fn identity_is_valid(make: MakeProvider<'_>) {
    let provider = make();
    assert!(provider.page_size().is_power_of_two());
    for size in [1, provider.page_size(), 1 << 20, 1 << 30] {
        let recommended = provider.recommended_page_size(size);
        assert!(recommended.is_power_of_two() && recommended >= provider.page_size(), "{recommended}");
    }
    assert!(!provider.name().is_empty());
    assert!(!provider.kind().as_str().is_empty());
    if let Some(import) = provider.import() {
        assert_eq!(import.kind(), provider.kind());
    }
}

#[track_caller]
fn assert_well_formed(provider: &dyn Provider, region: &Region, size: usize, align: usize) {
    assert!(region.size() >= size, "{region:?} for {size} bytes");
    assert!(region.size().is_multiple_of(provider.page_size()), "{region:?} does not consist of whole pages");
    assert!(region.base().is_aligned_to(provider.page_size()), "{region:?} does not begin at a page");
    assert!(region.base().is_aligned_to(align), "{region:?} is not aligned to {align}");
    assert!(
        region.base().checked_add(region.size() as u64 - 1).is_some(),
        "{region:?} exceeds its address space"
    );
}

/// Regions have at least the requested size, consist of whole pages, and are usable to the last
/// byte.
pub fn region_sizes_are_page_multiples(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let page = provider.page_size();
    for size in [1, 2, page - 1, page, page + 1, 2 * page, 3 * page - 7, 5 * page + 1] {
        let region = allocate(&*provider, size, 1);
        assert_well_formed(&*provider, &region, size, 1);
        if is_accessible(&*provider) {
            fill(region.base(), region.size(), 3);
            assert_filled(region.base(), region.size(), 3);
        }
        free(&*provider, region);
    }
}

/// Each alignment is met or refused. A refusal leaves the provider usable.
pub fn alignment_is_met_or_refused(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let mut live = Vec::new();
    for shift in 0..62 {
        let align = 1 << shift;
        let size = provider.page_size();
        let Ok(layout) = Layout::new(size, align) else { continue };
        match provider.allocate(layout) {
            Ok(region) => {
                assert_well_formed(&*provider, &region, size, align);
                if is_accessible(&*provider) {
                    fill(region.base(), region.size(), shift as u8);
                }
                live.push((region, shift as u8));
            }
            Err(Error::BadAlignment { .. } | Error::OutOfMemory { .. } | Error::NotSupported { .. }) => {
                assert!(align > provider.page_size(), "an alignment of {align}, at most a page, was refused");
            }
            Err(error) => panic!("alignment {align}: {error}"),
        }
    }
    for (region, seed) in live {
        if is_accessible(&*provider) {
            assert_filled(region.base(), region.size(), seed);
        }
        free(&*provider, region);
    }
}

/// Live regions share no byte, while other regions are allocated and freed.
pub fn regions_do_not_overlap(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let page = provider.page_size();
    // Fewer with huge pages or a low descriptor limit, because a region may be a file.
    let count = (16 << 20) / (4 * page).clamp(1 << 14, 1 << 22);
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = count.min(usize::try_from(files / 4).unwrap_or(usize::MAX)).max(4);
    let mut live: Vec<(Region, u8)> = Vec::new();
    for round in 0..3_usize {
        for number in live.len()..count {
            let size = page * (1 + (number + round) % 3);
            let align = page << (number % 3);
            let align = if Layout::new(size, align).is_ok_and(|layout| probe(&*provider, layout)) {
                align
            } else {
                1
            };
            let region = allocate(&*provider, size, align);
            let seed = (number * 5 + round) as u8;
            if is_accessible(&*provider) {
                fill(region.base(), region.size(), seed);
            }
            live.push((region, seed));
        }
        let mut places: Vec<(Address, usize)> =
            live.iter().map(|(region, _)| (region.base(), region.size())).collect();
        places.sort_unstable();
        for pair in places.windows(2) {
            let distance = pair[1].0.offset_from(pair[0].0);
            assert!(distance.is_none_or(|bytes| bytes >= pair[0].1 as u64), "{pair:?} overlap");
        }
        if is_accessible(&*provider) {
            for (region, seed) in &live {
                assert_filled(region.base(), region.size(), *seed);
            }
        }
        let mut index = 0;
        live.retain(|(region, _)| {
            index += 1;
            if (index + round) % 2 == 0 {
                free(&*provider, *region);
            }
            (index + round) % 2 != 0
        });
    }
    for (region, seed) in live {
        if is_accessible(&*provider) {
            assert_filled(region.base(), region.size(), seed);
        }
        free(&*provider, region);
    }
}

/// Returns whether the provider supports the layout.
fn probe(provider: &dyn Provider, layout: Layout) -> bool {
    match provider.allocate(layout) {
        Ok(region) => {
            free(provider, region);
            true
        }
        Err(_) => false,
    }
}

/// A region id is never reused, even at the same address.
pub fn region_ids_are_never_reused(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let mut seen = HashSet::new();
    for _ in 0..200 {
        let region = allocate(&*provider, 1, 1);
        assert!(seen.insert(region.id()), "id {:?} was used before", region.id());
        free(&*provider, region);
    }
}

/// Fresh memory is zero if the provider says so, also at addresses that were used before.
pub fn fresh_memory_is_zero_where_promised(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    if !provider.zeroed() || !is_accessible(&*provider) {
        return skip(&*provider, "fresh memory need not be zero, or the CPU cannot access it");
    }
    let page = provider.page_size();
    for round in 0..8 {
        let regions = [1, 3, 2].map(|pages| allocate(&*provider, pages * page, 1));
        for region in &regions {
            assert!(is_zero(region.base(), region.size()), "fresh memory is not zero in round {round}");
            fill(region.base(), region.size(), 0xA5);
        }
        for region in regions {
            free(&*provider, region);
        }
    }
}

#[track_caller]
fn assert_refused(provider: &dyn Provider, region: Region, what: &str) {
    // SAFETY: the region is not a live one of this provider, so nothing is freed.
    match unsafe { provider.free(region) } {
        Err(Error::ForeignAddress { .. } | Error::NotAllocated { .. }) => {}
        Err(error) => panic!("freeing {what} fails with another error: {error}"),
        Ok(()) => panic!("freeing {what} succeeded"),
    }
}

/// Freeing anything but a live region is an error without effect.
pub fn foreign_and_double_frees_are_errors(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let (provider, other) = (make(), make());
    let page = provider.page_size();
    let region = allocate(&*provider, 3 * page, 1);
    let foreign = allocate(&*other, page, 1);
    if is_accessible(&*provider) {
        fill(region.base(), region.size(), 11);
    }
    let inside = region.base().checked_add(page as u64).expect("inside of the region");
    assert_refused(&*provider, Region::new(region.base(), region.size()), "a region with another id");
    assert_refused(&*provider, Region::new(region.base(), page), "the first page of a region");
    assert_refused(&*provider, Region::new(inside, page), "the middle of a region");
    let nowhere = Address::new(page).expect("a valid address");
    assert_refused(&*provider, Region::new(nowhere, page), "an address that was never allocated");
    if foreign.base() != region.base() {
        assert_refused(&*provider, foreign, "a region of another provider");
    }
    free(&*other, foreign);
    if is_accessible(&*provider) {
        assert_filled(region.base(), region.size(), 11);
    }
    free(&*provider, region);
    assert_refused(&*provider, region, "a region twice");
    // Probably at the same address.
    let again = allocate(&*provider, 3 * page, 1);
    assert_refused(&*provider, region, "a region twice, whose address is in use again");
    free(&*provider, again);
}

/// A size that no address space can hold is an error, and the provider stays usable.
pub fn oversized_allocations_fail(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let keep = allocate(&*provider, 1, 1);
    if is_accessible(&*provider) {
        fill(keep.base(), keep.size(), 77);
    }
    for size in [Layout::MAX_SIZE, Layout::MAX_SIZE - (1 << 22), 1 << 62, (1 << 56) + 1, 1 << 50] {
        for align in [1, provider.page_size(), 1 << 21] {
            let Ok(layout) = Layout::new(size, align) else { continue };
            if let Ok(region) = provider.allocate(layout) {
                panic!("{size} bytes were allocated: {region:?}");
            }
        }
    }
    if is_accessible(&*provider) {
        assert_filled(keep.base(), keep.size(), 77);
    }
    let after = allocate(&*provider, 1, 1);
    free(&*provider, after);
    free(&*provider, keep);
}

/// Four threads allocate and free at the same time. Each finds its contents unchanged.
pub fn concurrent_threads_get_disjoint_regions(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let provider = make();
    let page = provider.page_size();
    let rounds = if page > 1 << 16 { 20 } else { 200 };
    let seen = std::sync::Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (provider, seen) = (&*provider, &seen);
            scope.spawn(move || {
                let mut live: Vec<(Region, u8)> = Vec::new();
                for round in 0..rounds {
                    let seed = (thread * 50 + round % 50) as u8;
                    let region = allocate(provider, page * (1 + (thread + round) % 2), 1);
                    assert!(
                        seen.lock().unwrap_or_else(PoisonError::into_inner).insert(region.id()),
                        "a region id was used twice"
                    );
                    if is_accessible(provider) {
                        fill(region.base(), region.size(), seed);
                    }
                    live.push((region, seed));
                    if live.len() == 3 {
                        let (region, seed) = live.swap_remove(round % 3);
                        if is_accessible(provider) {
                            assert_filled(region.base(), region.size(), seed);
                        }
                        free(provider, region);
                    }
                }
                for (region, _) in live {
                    free(provider, region);
                }
            });
        }
    });
}
