//! Threads and pools that end, in any order; and how many there can be.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

use umf_core::{Address, Error, Layout, Pool};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider, Random};

/// Arenas and caches are the process's: these tests use up either.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn allocate(pool: &JemallocPool, size: usize) -> Address {
    pool.allocate(Layout::new(size, 1).unwrap()).unwrap()
}

fn free(pool: &JemallocPool, address: Address) {
    // SAFETY: the block is the test's, and no thread uses it.
    unsafe { pool.free(address) }.unwrap();
}

/// A thread that used a pool outlives it and uses others; its caches are destroyed with the pools.
#[test]
fn threads_outlive_pools() {
    let _alone = alone();
    let provider = MmapProvider::private();
    let (send, receive): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel::<Arc<JemallocPool>>()).unzip();
    let done = Arc::new(Barrier::new(4));
    let threads: Vec<_> = receive
        .into_iter()
        .map(|pools| {
            let done = done.clone();
            std::thread::spawn(move || {
                for pool in pools {
                    let mut random = Random(1);
                    let blocks: Vec<_> =
                        (0..200).map(|_| allocate(&pool, random.below(40_000) + 1)).collect();
                    blocks.into_iter().for_each(|block| free(&pool, block));
                    drop(pool);
                    done.wait();
                }
            })
        })
        .collect();
    for _ in 0..50 {
        let pool = JemallocPool::new(provider.clone()).unwrap();
        for send in &send {
            send.send(pool.clone()).unwrap();
        }
        done.wait();
        assert_eq!((Arc::strong_count(&pool), pool.statistics().live_blocks), (1, 0));
        drop(pool);
        assert_eq!(provider.live_regions(), 0);
    }
    drop(send);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Threads end while other threads create and drop the pools that they used.
#[test]
fn threads_and_pools_end_together() {
    let _alone = alone();
    let provider = MmapProvider::private();
    for round in 0..60 {
        let pools: Vec<_> = (0..4).map(|_| JemallocPool::new(provider.clone()).unwrap()).collect();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let pools = pools.clone();
                std::thread::spawn(move || {
                    let mut random = Random(thread + round);
                    for _ in 0..200 {
                        let pool = &pools[random.below(4)];
                        let block = allocate(pool, random.below(20_000) + 1);
                        free(pool, block);
                    }
                })
            })
            .collect();
        drop(pools);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((provider.live_regions(), Arc::strong_count(&provider)), (0, 1));
    }
}

/// The arenas of a dropped pool serve the next one. If there are no more, creating a pool fails.
#[test]
fn arenas_are_reused_and_run_out_with_an_error() {
    let _alone = alone();
    let provider = AddressOnlyProvider::new(4096);
    let of =
        |arenas| JemallocPool::with_settings(provider.clone(), JemallocSettings::default().arenas(arenas));
    for _ in 0..20 {
        let pool = of(500).unwrap();
        assert_eq!(pool.arena_count(), 500);
        let block = allocate(&pool, 100);
        drop(pool);
        assert_eq!((provider.live_regions(), umf_runtime::tracker::find(block)), (0, None));
    }
    assert!(matches!(of(5000), Err(Error::TooMany { what: "arenas of jemalloc", .. })));
    let many: Vec<_> = core::iter::from_fn(|| of(500).ok()).collect();
    assert!(many.len() >= 7, "{}", many.len());
    assert!(matches!(of(500), Err(Error::TooMany { .. })));
    // A pool without settings gets the arenas that are left.
    let rest: Vec<_> = core::iter::from_fn(|| of(1).ok()).collect();
    assert!(of(0).is_err());
    drop(many);
    let pool = of(0).unwrap();
    free(&pool, allocate(&pool, 100));
    assert!(pool.arena_count() >= 1);
    drop(rest);
}

/// Returns the bytes of addresses that this process has mapped; `None` if `/proc` does not show
/// them.
fn mapped_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// jemalloc never unmaps the metadata of a destroyed arena: 2 MiB each, 800 MiB here.
#[test]
fn dropped_pools_leave_no_mappings() {
    let _alone = alone();
    let provider = MmapProvider::private();
    let use_pool = || {
        let settings = JemallocSettings::default().arenas(2);
        let pool = JemallocPool::with_settings(provider.clone(), settings).unwrap();
        let blocks = [100, 5000, 50_000, 3_000_000].map(|size| allocate(&pool, size));
        blocks.into_iter().for_each(|block| free(&pool, block));
        // A block that is live when the pool is dropped.
        allocate(&pool, 1000);
        drop(pool);
        assert_eq!(provider.live_regions(), 0);
    };
    (0..10).for_each(|_| use_pool());
    let Some(before) = mapped_bytes() else {
        println!("umf-skip: jemalloc pools keep no addresses: /proc/self/status does not show VmSize");
        return;
    };
    (0..200).for_each(|_| use_pool());
    let more = mapped_bytes().unwrap().saturating_sub(before);
    // The test harness maps stacks and heaps for threads of other tests meanwhile.
    assert!(more < 300 << 20, "{more} bytes of addresses stay mapped after 200 pools");
}

/// A thread for which jemalloc has no more caches allocates without one.
#[test]
fn threads_beyond_the_caches_allocate_without_one() {
    let _alone = alone();
    let provider = AddressOnlyProvider::new(4096);
    let of = || JemallocPool::with_settings(provider.clone(), JemallocSettings::default().arenas(1)).unwrap();
    let pools: Vec<_> = (0..1100).map(|_| of()).collect();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // 4,400 caches, of which jemalloc has 4,093.
                for pool in &pools {
                    free(pool, allocate(pool, 100));
                }
                barrier.wait();
                for pool in &pools {
                    let blocks = [1, 100, 5000, 50_000].map(|size| allocate(pool, size));
                    blocks.into_iter().for_each(|block| free(pool, block));
                }
            });
        }
    });
    assert!(pools.iter().all(|pool| pool.statistics().live_blocks == 0));
    drop(pools);
    assert_eq!(provider.live_regions(), 0);
}
