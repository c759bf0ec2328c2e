//! Cases about freeing blocks that other processes have open.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fork::{fork_during, require};
use super::misuse::is_not_allocated;
use super::threads::join;
use super::{MakePool, MmapProvider, Random, allocate, controls, free, layout, mark_exported, try_free};
use crate::LeaseHolder;
use umf_core::deferred::OnFree;
use umf_core::{Address, Error, Pool};
use umf_runtime::deferred;

/// Longer than any wait in these cases.
const LONG: Duration = Duration::from_secs(20);
const SIZES: [usize; 4] = [64, 5000, 100_000, 10 << 20];

/// Exports a block, opens it as another process would, and frees it.
fn free_leased(pool: &dyn Pool, importer: &LeaseHolder, address: Address, size: usize) {
    mark_exported(pool, address).expect("the block is live");
    importer.open(address, size);
    free(pool, address);
}

/// Returns the size of the block that holds `size` bytes.
fn block_size(pool: &dyn Pool, size: usize) -> usize {
    let address = allocate(pool, size);
    let block = pool.block_at(address).expect("live");
    free(pool, address);
    block.size
}

fn overlap(one: (Address, usize), other: (Address, usize)) -> bool {
    one.0.to_bits() < other.0.to_bits() + other.1 as u64 && other.0.to_bits() < one.0.to_bits() + one.1 as u64
}

#[track_caller]
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A block that is freed while it is open is free, and is not reused before it is closed.
pub fn leased_block_is_not_reused(make: MakePool<'_>) {
    for size in SIZES {
        let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
        let pool = make(provider.clone().into());
        let address = allocate(&*pool, size);
        let block = pool.block_at(address).expect("live");
        free_leased(&*pool, &importer, address, size);
        for result in
            [try_free(&*pool, address), mark_exported(&*pool, address), pool.block_at(address).map(drop)]
        {
            assert!(
                result.as_ref().is_err_and(|error| is_not_allocated(error, address)),
                "{size} bytes: {result:?}"
            );
        }
        let statistics = pool.statistics();
        assert_eq!((statistics.live_blocks, statistics.live_bytes, statistics.frees), (0, 0, 1));
        assert_eq!(statistics.held_bytes, block.size as u64);
        let used = statistics.live_bytes + statistics.held_bytes;
        assert_eq!(statistics.cached_bytes, statistics.reserved_bytes - used);
        assert_eq!(statistics.reserved_bytes, provider.live_bytes() as u64);
        for round in 0..3 {
            let others: Vec<_> =
                (0..(64 << 20) / size.max(256 << 10)).map(|_| allocate(&*pool, size)).collect();
            let taken = others.iter().find(|&&other| overlap((other, size), (address, block.size)));
            assert_eq!(taken, None, "{size} bytes at {address} are leased, round {round}");
            others.into_iter().for_each(|other| free(&*pool, other));
            pool.trim(0).expect("the provider frees all regions");
            assert!(provider.contains(address, block.size), "the region of a leased block was freed");
        }
        assert_eq!(pool.statistics().held_bytes, block.size as u64);
        importer.close(address);
        pool.trim(0).expect("the provider frees all regions");
        let statistics = pool.statistics();
        assert_eq!(
            (statistics.held_bytes, statistics.frees, statistics.live_blocks),
            (0, statistics.allocations, 0)
        );
        assert_eq!((provider.live_regions(), statistics.reserved_bytes), (0, 0), "{size} bytes");
        // The range is reusable now.
        let again = allocate(&*pool, size);
        free(&*pool, again);
    }
}

/// A closed block becomes reusable with later frees, without a poll by the caller.
pub fn closed_block_is_reused_without_poll(make: MakePool<'_>) {
    let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
    let pool = make(provider.clone().into());
    for size in SIZES {
        let mut most = 0;
        let block = block_size(&*pool, size);
        for _ in 0..300 {
            let address = allocate(&*pool, size);
            free_leased(&*pool, &importer, address, size);
            most = most.max(pool.statistics().held_bytes / block as u64);
            importer.close_all();
        }
        assert!(most < 20, "{most} blocks of {size} bytes were held at one time, of which one was open");
    }
    // A block that was closed before its free is not held at all.
    let left = controls(&*pool).drain(LONG);
    assert!(left.is_empty(), "{left:?}");
    let address = allocate(&*pool, 64);
    mark_exported(&*pool, address).expect("live");
    importer.open(address, 64);
    importer.close(address);
    free(&*pool, address);
    assert_eq!(pool.statistics().held_bytes, 0);
}

/// `drain` returns when the last lease is closed, or at its timeout.
pub fn drain_waits_for_last_lease(make: MakePool<'_>) {
    let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
    let pool = make(provider.into());
    assert!(controls(&*pool).drain(Duration::ZERO).is_empty());
    let blocks = SIZES.map(|size| (allocate(&*pool, size), size));
    for (address, size) in blocks {
        free_leased(&*pool, &importer, address, size);
    }
    let begin = Instant::now();
    let left = controls(&*pool).drain(Duration::from_millis(20));
    let took = begin.elapsed();
    assert_eq!((left.blocks + left.regions, left.bytes), (4, pool.statistics().held_bytes));
    assert!(took >= Duration::from_millis(20) && took < LONG, "{took:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (address, _) in blocks {
                std::thread::sleep(Duration::from_millis(10));
                importer.close(address);
            }
        });
        let left = controls(&*pool).drain(LONG);
        assert!(left.is_empty(), "{left:?}");
    });
    assert!(begin.elapsed() < LONG);
    assert_eq!(pool.statistics().held_bytes, 0);
}

/// Allocation fails while the held bytes reach the limit, and succeeds after a close.
pub fn held_limit_refuses_allocation(make: MakePool<'_>) {
    for size in SIZES {
        let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
        let pool = make(provider.into());
        let limit = 3 * block_size(&*pool, size) as u64;
        controls(&*pool).set_on_free(OnFree::Hold, limit);
        let blocks: Vec<_> = (0..4).map(|_| allocate(&*pool, size)).collect();
        for &address in &blocks {
            free_leased(&*pool, &importer, address, size);
        }
        let held = pool.statistics().held_bytes;
        let mut kept = Vec::new();
        // Cached blocks may be allocated. New memory must not.
        let refused = loop {
            match pool.allocate(layout(size, 1)) {
                Ok(address) => kept.push(address),
                Err(error) => break error,
            }
            assert!(
                kept.len() * size < 128 << 20 && kept.len() < 10_000,
                "{size} bytes: the limit is exceeded"
            );
        };
        assert_eq!(refused, Error::HeldLimit { held, limit }, "{size} bytes");
        importer.close(blocks[0]);
        importer.close(blocks[1]);
        kept.push(allocate(&*pool, size));
        assert!(pool.statistics().held_bytes < limit);
        controls(&*pool).set_on_free(OnFree::Hold, 0);
        for address in kept {
            free(&*pool, address);
        }
        importer.close_all();
        let left = controls(&*pool).drain(LONG);
        assert!(left.is_empty(), "{left:?}");
    }
}

/// With `Release` the whole pages of a held block read as zero at once; with `Hold` they keep their
/// contents. Neighbours are not affected.
pub fn on_free_keeps_or_releases_contents(make: MakePool<'_>) {
    for (on_free, kept) in [(OnFree::Hold, true), (OnFree::Release, false)] {
        for size in SIZES {
            let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
            let pool = make(provider.into());
            controls(&*pool).set_on_free(on_free, 0);
            let all = block_size(&*pool, size);
            let blocks = [(); 3].map(|()| allocate(&*pool, size));
            for (address, value) in blocks.into_iter().zip(1..) {
                let pointer = address.as_ptr().expect("host memory");
                // SAFETY: a live block of this test, of that size.
                unsafe { pointer.write_bytes(value, size) };
            }
            let [_, leased, _] = blocks;
            free_leased(&*pool, &importer, leased, size);
            for (address, value) in blocks.into_iter().zip(1..) {
                let pointer = address.as_ptr().expect("host memory");
                for offset in (0..size).step_by(61) {
                    // SAFETY: live or held, so its region is mapped.
                    let found = unsafe { pointer.add(offset).read_volatile() };
                    let page = (address.value() as usize + offset) / 4096 * 4096;
                    let begin = address.value() as usize;
                    let whole = page >= begin && page + 4096 <= begin + all;
                    let expected = if address == leased && !kept && whole { 0 } else { value };
                    assert_eq!(found, expected, "{on_free:?}, byte {offset} of {size}");
                }
            }
            // SAFETY: held, so its region is mapped. The write makes the kernel allocate the page
            // again.
            unsafe { leased.as_ptr().expect("host memory").write_volatile(1) };
            importer.close_all();
            assert!(controls(&*pool).drain(LONG).is_empty());
            for address in blocks.into_iter().filter(|&address| address != leased) {
                free(&*pool, address);
            }
        }
    }
}

/// Dropping a pool keeps regions with open blocks until these are closed, and frees all others.
pub fn leased_blocks_outlive_pool(make: MakePool<'_>) {
    for size in SIZES {
        for freed_before in [true, false] {
            let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
            let pool = make(provider.clone().into());
            let address = allocate(&*pool, size);
            mark_exported(&*pool, address).expect("live");
            importer.open(address, size);
            let others: Vec<_> = (0..10).map(|_| allocate(&*pool, 2 << 20)).collect();
            if freed_before {
                free(&*pool, address);
            }
            drop(pool);
            assert!(provider.contains(address, size), "{size} leased bytes were freed with their pool");
            assert!(provider.live_bytes() <= (32 << 20), "{others:?}: more is held than is open");
            deferred::poll();
            assert!(provider.contains(address, size));
            // Later pools of the process do not get these addresses.
            let next = make(MmapProvider::shared().into());
            for wanted in SIZES {
                let other = allocate(&*next, wanted);
                assert!(!overlap((other, wanted), (address, size)));
                free(&*next, other);
            }
            // A refused free is tried again later.
            provider.refuse_frees(true);
            importer.close(address);
            deferred::poll();
            assert!(provider.contains(address, size) && deferred::statistics().regions > 0);
            provider.refuse_frees(false);
            wait_for("a region without leases was not freed", || {
                deferred::poll();
                provider.live_regions() == 0 && Arc::strong_count(&provider) == 1
            });
        }
    }
}

/// Four threads free open blocks, and close them later. No open block is reused, and none is lost.
pub fn concurrent_threads_never_get_leased_blocks(make: MakePool<'_>) {
    let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
    let pool = make(provider.clone().into());
    let taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, importer, taken) = (&*pool, &*importer, &taken);
        let work = |seed| {
            move || {
                let mut random = Random(seed);
                let mut open = Vec::new();
                for _ in 0..1_500 {
                    let size = random.size(17);
                    let address = allocate(pool, size);
                    if importer.has(address, size) {
                        taken.store(true, Ordering::Relaxed);
                    }
                    if random.below(2) == 0 {
                        free_leased(pool, importer, address, size);
                        open.push(address);
                    } else {
                        free(pool, address);
                    }
                    if open.len() > 20 {
                        importer.close(open.swap_remove(random.below(20)));
                    }
                    if random.below(200) == 0 {
                        deferred::poll();
                        pool.trim(random.below(8 << 20)).expect("the provider frees all regions");
                    }
                }
                open.into_iter().for_each(|address| importer.close(address));
            }
        };
        // Joins the threads, so that their caches are flushed before the drain.
        join((0..4).map(|seed| scope.spawn(work(seed))).collect());
    });
    assert!(!taken.load(Ordering::Relaxed), "a leased block was allocated again");
    let left = controls(&*pool).drain(LONG);
    assert!(left.is_empty(), "{left:?}");
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.held_bytes, statistics.allocations), (0, 0, 6_000));
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// A child forked under load holds no blocks, and its pool stays usable. The parent's blocks stay
/// held.
pub fn forked_child_holds_no_parent_blocks(make: MakePool<'_>) {
    let (provider, importer) = (MmapProvider::private(), LeaseHolder::new());
    let pool = make(provider.into());
    let pool = &*pool;
    let held: Vec<_> = SIZES.map(|size| (allocate(pool, size), size)).into();
    for &(address, size) in &held {
        free_leased(pool, &importer, address, size);
    }
    let traffic = |seed, stop: &AtomicBool| {
        let mut random = Random(seed);
        while !stop.load(Ordering::Relaxed) {
            let size = random.size(15);
            let address = allocate(pool, size);
            free_leased(pool, &importer, address, size);
            importer.close(address);
            deferred::poll();
        }
    };
    fork_during(traffic, || {
        require(
            deferred::statistics().is_empty() && pool.statistics().held_bytes == 0,
            "it counts blocks as held that the parent holds",
        )?;
        for round in 0..200 {
            let size = SIZES[round % 3];
            let address =
                pool.allocate(layout(size, 1)).map_err(|error| format!("`allocate` failed: {error}"))?;
            // The child has a copy of the parent's block, and did not reclaim it.
            let is_new = !held.iter().any(|&held| overlap(held, (address, size)));
            require(is_new, "`allocate` returned a block that the parent holds")?;
            if round % 2 == 0 {
                require(try_free(pool, address).is_ok(), "`free` failed for a block of the child")?;
            }
        }
        let is_drained = controls(pool).drain(Duration::from_millis(1)).is_empty();
        require(is_drained, "`drain` waits for blocks that the parent holds")
    });
    for &(address, size) in &held {
        assert!(pool.statistics().held_bytes >= size as u64, "{address}");
    }
    importer.close_all();
    assert!(controls(pool).drain(LONG).is_empty());
}
