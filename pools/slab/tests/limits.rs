//! Limits of one pool and of several pools, reserves within them, and the out-of-memory callback.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use umf_core::out_of_memory::OutOfMemoryAction;
use umf_core::{Address, DeferredFree, Error, Layout, Pool, Reserve, ShareLimit};
use umf_pool_slab::{SharedLimit, SlabPool, SlabSettings};
use umf_testkit::pool::{AddressOnlyProvider, ManualCompletion, Random};

const MIB: usize = 1 << 20;

fn layout(size: usize) -> Layout {
    Layout::new(size, 8).unwrap()
}

fn free(pool: &SlabPool, address: Address) {
    // SAFETY: the block is the caller's, and no thread uses it.
    unsafe { pool.free(address) }.unwrap();
}

/// Allocates `bytes` in blocks of `size`.
fn fill(pool: &SlabPool, bytes: usize, size: usize) -> Vec<Address> {
    (0..bytes / size).map(|_| pool.allocate(layout(size)).unwrap()).collect()
}

fn sharing(limit: &Arc<SharedLimit>) -> Arc<SlabPool> {
    SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().shared_limit(Arc::clone(limit)))
        .unwrap()
}

#[test]
fn shared_limit_takes_free_memory_of_other_pools_first() {
    for (size, most) in [(64, 4 * MIB), (5000, 16 * MIB), (100_000, 64 * MIB), (MIB, 64 * MIB)] {
        let limit = Arc::new(SharedLimit::new(most as u64));
        let (one, two) = (sharing(&limit), sharing(&limit));
        for _ in 0..3 {
            for (first, second) in [(&one, &two), (&two, &one)] {
                // The freed blocks stay in the caches of a live thread.
                let (freed, stop) = (AtomicBool::new(false), AtomicBool::new(false));
                std::thread::scope(|scope| {
                    let _ends = umf_testkit::SetOnDrop(&stop);
                    let other = scope.spawn(|| {
                        fill(first, most / 4 * 3, size).into_iter().for_each(|address| free(first, address));
                        freed.store(true, Ordering::SeqCst);
                        while !stop.load(Ordering::SeqCst) {
                            std::thread::yield_now();
                        }
                    });
                    while !freed.load(Ordering::SeqCst) && !other.is_finished() {
                        std::thread::yield_now();
                    }
                    let blocks = fill(second, most / 4 * 3, size);
                    assert!(limit.used() <= most as u64);
                    assert_eq!(
                        limit.used(),
                        one.statistics().reserved_bytes + two.statistics().reserved_bytes
                    );
                    blocks.into_iter().for_each(|address| free(second, address));
                });
            }
        }
        one.trim(0).unwrap();
        two.trim(0).unwrap();
        assert_eq!(limit.used(), 0);
    }
}

#[test]
fn reserve_of_a_pool_is_not_released_for_others() {
    let limit = Arc::new(SharedLimit::new(64 << 20));
    let (one, two) = (sharing(&limit), sharing(&limit));
    one.reserve(24 * MIB).unwrap();
    free(&one, one.allocate(layout(MIB)).unwrap());
    let mut blocks = Vec::new();
    let refused = loop {
        match two.allocate(layout(MIB)) {
            Ok(address) => blocks.push(address),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::LimitReached { what: "shared memory", .. }), "{refused:?}");
    assert!(blocks.len() >= 38 && blocks.len() <= 40, "{}", blocks.len());
    assert_eq!(fill(&one, 23 * MIB, MIB).len(), 23);
    // A pool gets no live memory of another pool.
    assert!(two.allocate(layout(4 * MIB)).is_err());
    let limit = SharedLimit::new(1);
    assert_eq!(one.yield_free(&limit, u64::MAX), 0, "the pool does not share that limit");
}

#[test]
fn pools_are_dropped_while_others_reclaim_memory() {
    let limit = Arc::new(SharedLimit::new(24 << 20));
    let stop = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        for seed in 0..2 {
            let (limit, stop, served) = (&limit, &stop, &served);
            scope.spawn(move || {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    let pool = sharing(limit);
                    let blocks: Vec<_> =
                        (0..12).flat_map(|_| pool.allocate(layout((1 + random.below(16)) << 16))).collect();
                    served.fetch_add(blocks.len() as u64, Ordering::Relaxed);
                    blocks.into_iter().for_each(|address| free(&pool, address));
                }
            });
        }
        let pool = sharing(&limit);
        for round in 0..2_000 {
            if let Ok(address) = pool.allocate(layout(MIB + round * 4096)) {
                free(&pool, address);
            }
            if round % 4 == 0 {
                umf_runtime::limit::reclaim(&limit, u64::MAX);
            }
        }
    });
    assert!(served.load(Ordering::Relaxed) > 0);
    assert_eq!(limit.used(), 0);
}

#[test]
fn reserve_stops_at_the_limits() {
    let provider = AddressOnlyProvider::new(4096);
    let shared = Arc::new(SharedLimit::new(32 << 20));
    let settings = SlabSettings::new().memory_limit(48 << 20).shared_limit(Arc::clone(&shared));
    let pool = SlabPool::new(provider.clone(), settings.clone()).unwrap();
    let refused = pool.reserve(64 * MIB);
    assert!(matches!(refused, Err(Error::LimitReached { what: "pool memory", .. })), "{refused:?}");
    let refused = pool.reserve(40 * MIB);
    assert!(matches!(refused, Err(Error::LimitReached { what: "shared memory", .. })), "{refused:?}");
    assert_eq!((provider.live_regions(), shared.used(), pool.statistics().reserved_bytes), (0, 0, 0));
    assert_eq!(pool.reserve(32 * MIB), Ok(32 * MIB));
    // An allocation that would fail otherwise uses memory of the reserve.
    free(&pool, pool.allocate(layout(8 * MIB)).unwrap());
    free(&pool, pool.allocate(layout(30 * MIB)).unwrap());
    drop(pool);
    // With the reserve in the settings, building the pool fails if the limit does not allow it.
    let refused = SlabPool::new(provider.clone(), settings.clone().reserve(40 << 20));
    assert!(matches!(refused, Err(Error::LimitReached { .. })), "{:?}", refused.err());
    assert_eq!((provider.live_regions(), shared.used()), (0, 0));
    let pool = SlabPool::new(provider.clone(), settings.reserve(20 << 20)).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 20 << 20);
    assert_eq!(provider.populated_bytes(), (32 + 20) << 20);
}

/// An explicit trim that keeps half of the reserve leaves half of it.
#[test]
fn trim_lowers_the_reserve() {
    let provider = AddressOnlyProvider::new(4096);
    let pool = SlabPool::new(provider.clone(), SlabSettings::new()).unwrap();
    for n in 1..=4 {
        pool.reserve(n * 8 * MIB).unwrap();
    }
    pool.trim(16 * MIB).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 16 << 20);
    for _ in 0..3 {
        fill(&pool, 60 * MIB, MIB).into_iter().for_each(|address| free(&pool, address));
        assert!(pool.statistics().reserved_bytes >= 16 << 20);
    }
    pool.trim(0).unwrap();
    assert_eq!(provider.live_regions(), 0);
}

#[test]
fn out_of_memory_callback_may_free_and_wait() {
    for (size, limit) in [(5000, 2 << 20), (100_000, 32 << 20), (9 * MIB, 32 << 20)] {
        let token = ManualCompletion::new();
        let shelf = Arc::new(Mutex::new(Vec::new()));
        let (from, ready) = (shelf.clone(), token.clone());
        let settings = SlabSettings::new().memory_limit(limit).out_of_memory(
            move |event: &umf_core::out_of_memory::OutOfMemoryEvent<'_>| {
                assert!(matches!(event.error, Error::LimitReached { what: "pool memory", .. }), "{event:?}");
                assert!(event.statistics.reserved_bytes <= limit);
                if let Some(address) = from.lock().unwrap().pop() {
                    // SAFETY: no thread uses the block.
                    unsafe { event.pool.free(address) }.unwrap();
                    return OutOfMemoryAction::Retry;
                }
                // The device completes its work.
                ready.set_ready();
                match event.pool.controls().unwrap().drain(std::time::Duration::from_secs(20)).is_empty()
                    && event.attempt < 3
                {
                    true => OutOfMemoryAction::Retry,
                    false => OutOfMemoryAction::GiveUp,
                }
            },
        );
        let pool = SlabPool::new(AddressOnlyProvider::new(4096), settings).unwrap();
        let first = pool.allocate(layout(size)).unwrap();
        let whole = pool.block_at(first).unwrap().size;
        // Allocates until memory runs out. One of four blocks is put on the shelf; the frees of the
        // others wait for the device.
        // SAFETY: no thread uses the block.
        unsafe { pool.free_after(first, token.clone()) }.unwrap();
        let most = limit as usize / whole;
        for n in 0..most * 5 / 4 {
            let address =
                pool.allocate(layout(size)).unwrap_or_else(|error| panic!("{size}, block {n}: {error}"));
            match n % 4 {
                0 => shelf.lock().unwrap().push(address),
                // SAFETY: no thread uses the block.
                _ => unsafe { pool.free_after(address, token.clone()) }.unwrap(),
            }
        }
        assert!(pool.statistics().reserved_bytes <= limit);
    }
}

/// Blocks with a greater alignment than that of their class are cached and reused.
#[test]
fn aligned_blocks_are_reused() {
    for (size, align) in [(100 << 10, 64 << 10), (8 << 10, 8 << 10), (MIB, MIB), (5000, 2 * MIB)] {
        let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
        let aligned = Layout::new(size, align).unwrap();
        let mut reserved = 0;
        for round in 0..300 {
            // Blocks of the same class without that alignment are in the same bin.
            let others: Vec<Address> =
                (0..3).map(|_| pool.allocate(layout(size.max(70_000))).unwrap()).collect();
            let blocks: Vec<Address> = (0..5).map(|_| pool.allocate(aligned).unwrap()).collect();
            assert!(blocks.iter().all(|block| block.is_aligned_to(align)));
            assert_eq!(pool.statistics().live_blocks, 8);
            blocks.into_iter().chain(others).for_each(|address| free(&pool, address));
            if round == 2 {
                reserved = pool.statistics().reserved_bytes;
            }
        }
        assert_eq!(pool.statistics().reserved_bytes, reserved, "blocks of {size} bytes at {align}");
        assert_eq!(pool.statistics().live_bytes, 0);
        pool.trim(0).unwrap();
        assert_eq!(pool.statistics().reserved_bytes, 0);
    }
}

/// The largest number means an unbounded cache.
#[test]
fn thread_cache_size_may_be_any_number() {
    let pool =
        SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().thread_cache_size(usize::MAX))
            .unwrap();
    let blocks: Vec<Address> = (1..200).map(|n| pool.allocate(layout(n * 100_000)).unwrap()).collect();
    blocks.into_iter().for_each(|address| free(&pool, address));
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}
