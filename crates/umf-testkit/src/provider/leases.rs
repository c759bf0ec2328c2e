//! Cases about regions that other processes have open when they are freed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::borrower::Borrower;
use super::Make;
use super::memory::{assert_filled, fill, is_accessible, is_zero};
use super::process::beside_others;
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
fn free(upstream: &Upstream, region: Region, fate: FreeOutcome) {
    // SAFETY: the region is the test's, and not used after.
    assert_eq!(unsafe { upstream.free(region) }, Ok(fate), "{region:?}");
}

/// Exports a region and has its range opened.
fn lend(borrower: &Borrower, (region, number): (Region, RegionNumber)) {
    tracker::mark_exported(number, region).expect("the region is live");
    borrower.open(region.base(), region.size());
}

/// Allocates and frees a few regions, none of which touches what is open.
#[track_caller]
fn others_keep_off(upstream: &Upstream, borrower: &Borrower) {
    let others = [1, 2, 1].map(|pages| allocate(upstream, pages).0);
    for other in others {
        assert!(!borrower.has(other.base(), other.size()), "{other:?} touches memory that is open elsewhere");
        if is_accessible(&**upstream.provider()) {
            fill(other.base(), other.size(), 9);
        }
    }
    others.into_iter().for_each(|other| free(upstream, other, FreeOutcome::Freed));
}

/// A region that is freed while others have it open keeps its place, and its content unless that is to be released.
pub fn leased_regions_are_held(make: Make<'_>) {
    let _beside = beside_others();
    for on_free in [OnFree::Hold, OnFree::Release] {
        let (provider, borrower) = (make(), Borrower::new());
        let upstream = Upstream::new(Arc::clone(&provider)).expect("an upstream");
        upstream.set_on_free(on_free, 0);
        let (region, number) = allocate(&upstream, 3);
        let accessible = is_accessible(&*provider);
        if accessible {
            fill(region.base(), region.size(), 5);
        }
        lend(&borrower, (region, number));
        free(&upstream, region, FreeOutcome::Deferred);
        // SAFETY: it is freed: an error is expected.
        let second = unsafe { upstream.free(region) };
        assert_eq!(second, Err(Error::NotAllocated { address: region.base() }));
        assert!(tracker::mark_exported(number, region).is_err());
        let held = upstream.deferred();
        assert_eq!((held.blocks, held.regions, held.bytes), (0, 1, region.size() as u64));
        others_keep_off(&upstream, &borrower);
        if accessible && (on_free == OnFree::Hold || provider.purge().is_none()) {
            assert_filled(region.base(), region.size(), 5);
        } else if accessible {
            assert!(is_zero(region.base(), region.size()), "contents that were to be released are there");
        }
        assert_eq!(upstream.poll(), 0);
        assert_eq!(upstream.drain(Duration::from_millis(1)).regions, 1);
        borrower.close_all();
        let left = upstream.drain(LONG);
        assert!(left.is_empty(), "{left:?}");
        // What is closed in time is not held.
        let last = allocate(&upstream, 1);
        lend(&borrower, last);
        borrower.close_all();
        free(&upstream, last.0, FreeOutcome::Freed);
    }
}

/// With as many bytes held as are allowed nothing is allocated, until something is closed.
pub fn the_bound_on_held_regions_is_kept(make: Make<'_>) {
    let _beside = beside_others();
    let (provider, borrower) = (make(), Borrower::new());
    let upstream = Upstream::new(provider).expect("an upstream");
    let one = allocate(&upstream, 1);
    let limit = one.0.size() as u64;
    upstream.set_on_free(OnFree::Hold, limit);
    lend(&borrower, one);
    free(&upstream, one.0, FreeOutcome::Deferred);
    let layout = Layout::new(1, 1).expect("a valid layout");
    let refused = upstream.allocate(layout);
    assert_eq!(refused.map(drop), Err(Error::HeldLimit { held: limit, limit }));
    borrower.close_all();
    let next = allocate(&upstream, 1);
    free(&upstream, next.0, FreeOutcome::Freed);
}

/// A held region keeps its provider, though nobody else does any more.
pub fn held_regions_keep_their_provider(make: Make<'_>) {
    let _beside = beside_others();
    let (provider, borrower) = (make(), Borrower::new());
    let weak = Arc::downgrade(&provider);
    let accessible = is_accessible(&*provider);
    let upstream = Upstream::new(provider).expect("an upstream");
    let region = allocate(&upstream, 2);
    if accessible {
        fill(region.0.base(), region.0.size(), 8);
    }
    lend(&borrower, region);
    free(&upstream, region.0, FreeOutcome::Deferred);
    drop(upstream);
    deferred::poll();
    assert!(weak.upgrade().is_some_and(|provider: Arc<dyn Provider>| !provider.name().is_empty()));
    if accessible {
        assert_filled(region.0.base(), region.0.size(), 8);
    }
    assert_eq!(tracker::find(region.0.base()), None, "it belongs to nobody");
    assert!(deferred::statistics().regions > 0);
    borrower.close_all();
    let begin = Instant::now();
    // Somebody else's look may be what lets go.
    while weak.strong_count() > 0 {
        assert!(begin.elapsed() < LONG, "a provider outlives what was held");
        deferred::poll();
        std::thread::yield_now();
    }
}
