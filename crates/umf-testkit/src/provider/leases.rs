//! Cases about freeing regions that other processes have open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::process::run_shared;
use super::{MakeProvider, assert_filled, fill, is_accessible, is_zero};
use crate::LeaseHolder;
use umf_core::deferred::OnFree;
use umf_core::{Error, Layout, Provider, Region};
use umf_runtime::Upstream;
use umf_runtime::deferred::{self, FreeOutcome};
use umf_runtime::tracker::{self, RegionNumber};

const LONG: Duration = Duration::from_secs(20);

fn allocate(upstream: &Upstream, pages: usize) -> (Region, RegionNumber) {
    let layout = Layout::new(pages * upstream.provider().page_size(), 1).expect("a valid layout");
    upstream.allocate(layout).unwrap_or_else(|error| panic!("{pages} pages: {error}"))
}

#[track_caller]
fn free(upstream: &Upstream, region: Region, expected: FreeOutcome) {
    // SAFETY: the region belongs to the test and is not used any more.
    assert_eq!(unsafe { upstream.free(region) }, Ok(expected), "{region:?}");
}

/// Exports a region and opens its range.
fn export_and_open(importer: &LeaseHolder, (region, number): (Region, RegionNumber)) {
    tracker::mark_exported(number, region).expect("the region is live");
    importer.open(region.base(), region.size());
}

/// Allocates and frees some regions, and checks that none overlaps an open range.
#[track_caller]
fn assert_no_overlap(upstream: &Upstream, importer: &LeaseHolder) {
    let others = [1, 2, 1].map(|pages| allocate(upstream, pages).0);
    for other in others {
        assert!(
            !importer.has(other.base(), other.size()),
            "{other:?} overlaps memory that another process has open"
        );
        if is_accessible(&**upstream.provider()) {
            fill(other.base(), other.size(), 9);
        }
    }
    others.into_iter().for_each(|other| free(upstream, other, FreeOutcome::Freed));
}

/// A region that is freed while it is open keeps its addresses. It keeps its contents with `Hold`,
/// and loses them with `Release`.
pub fn leased_region_is_held_until_closed(make: MakeProvider<'_>) {
    let _guard = run_shared();
    for on_free in [OnFree::Hold, OnFree::Release] {
        let (provider, importer) = (make(), LeaseHolder::new());
        let upstream = Upstream::new(Arc::clone(&provider)).expect("an upstream");
        upstream.set_on_free(on_free, 0);
        let (region, number) = allocate(&upstream, 3);
        let accessible = is_accessible(&*provider);
        if accessible {
            fill(region.base(), region.size(), 5);
        }
        export_and_open(&importer, (region, number));
        free(&upstream, region, FreeOutcome::Deferred);
        // SAFETY: the region is freed, so this returns an error.
        let second = unsafe { upstream.free(region) };
        assert_eq!(second, Err(Error::NotAllocated { address: region.base() }));
        assert!(tracker::mark_exported(number, region).is_err());
        let held = upstream.deferred();
        assert_eq!((held.blocks, held.regions, held.bytes), (0, 1, region.size() as u64));
        assert_no_overlap(&upstream, &importer);
        if accessible && (on_free == OnFree::Hold || provider.purge().is_none()) {
            assert_filled(region.base(), region.size(), 5);
        } else if accessible {
            assert!(is_zero(region.base(), region.size()), "`Release` kept the contents");
        }
        assert_eq!(upstream.poll(), 0);
        assert_eq!(upstream.drain(Duration::from_millis(1)).regions, 1);
        importer.close_all();
        let left = upstream.drain(LONG);
        assert!(left.is_empty(), "{left:?}");
        // A region that is closed before its free is not held.
        let last = allocate(&upstream, 1);
        export_and_open(&importer, last);
        importer.close_all();
        free(&upstream, last.0, FreeOutcome::Freed);
    }
}

/// Allocation fails while the held bytes reach the limit, and succeeds after a close.
pub fn held_limit_refuses_allocation(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let (provider, importer) = (make(), LeaseHolder::new());
    let upstream = Upstream::new(provider).expect("an upstream");
    let one = allocate(&upstream, 1);
    let limit = one.0.size() as u64;
    upstream.set_on_free(OnFree::Hold, limit);
    export_and_open(&importer, one);
    free(&upstream, one.0, FreeOutcome::Deferred);
    let layout = Layout::new(1, 1).expect("a valid layout");
    let refused = upstream.allocate(layout);
    assert_eq!(refused.map(drop), Err(Error::HeldLimit { held: limit, limit }));
    importer.close_all();
    let next = allocate(&upstream, 1);
    free(&upstream, next.0, FreeOutcome::Freed);
}

/// A held region keeps its provider alive after all other references are dropped.
pub fn held_region_keeps_provider_alive(make: MakeProvider<'_>) {
    let _guard = run_shared();
    let (provider, importer) = (make(), LeaseHolder::new());
    let weak = Arc::downgrade(&provider);
    let accessible = is_accessible(&*provider);
    let upstream = Upstream::new(provider).expect("an upstream");
    let region = allocate(&upstream, 2);
    if accessible {
        fill(region.0.base(), region.0.size(), 8);
    }
    export_and_open(&importer, region);
    free(&upstream, region.0, FreeOutcome::Deferred);
    drop(upstream);
    deferred::poll();
    assert!(weak.upgrade().is_some_and(|provider: Arc<dyn Provider>| !provider.name().is_empty()));
    if accessible {
        assert_filled(region.0.base(), region.0.size(), 8);
    }
    assert_eq!(tracker::find(region.0.base()), None, "the tracker still finds a held region");
    assert!(deferred::statistics().regions > 0);
    importer.close_all();
    let begin = Instant::now();
    // A poll of another thread may reclaim it.
    while weak.strong_count() > 0 {
        assert!(begin.elapsed() < LONG, "a provider outlives its held region");
        deferred::poll();
        std::thread::yield_now();
    }
}
