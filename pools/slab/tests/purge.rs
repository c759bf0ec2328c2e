//! The background purger. A separate program, since the test counts threads.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use umf_core::{Address, DeferredFree, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::{AddressOnlyProvider, ManualCompletion, MmapProvider};

/// The timeout of each wait.
const TIMEOUT: Duration = Duration::from_secs(30);

fn purgers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
    names.filter(|name| name.trim() == "umf-purger").count()
}

#[track_caller]
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn settings() -> SlabSettings {
    SlabSettings::new().release_after(Duration::from_millis(20)).background(true)
}

fn fill(pool: &SlabPool) -> Vec<Address> {
    let sizes = [64, 5000, 100_000, 1 << 20];
    (0..400).map(|n| pool.allocate(Layout::new(sizes[n % 4], 8).unwrap()).unwrap()).collect()
}

fn free(pool: &SlabPool, address: Address) {
    // SAFETY: the block is the caller's, and no thread uses it.
    unsafe { pool.free(address) }.unwrap();
}

/// One test, so that no other test starts threads meanwhile.
#[test]
fn background_purger_releases_unused_memory() {
    // Without the setting, a pool does not start the purger.
    let plain = SlabPool::new(AddressOnlyProvider::new(4096), settings().background(false)).unwrap();
    fill(&plain).into_iter().for_each(|address| free(&plain, address));
    assert_eq!(purgers(), 0);
    let nothing_to_do =
        SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().background(true)).unwrap();
    assert_eq!(purgers(), 0);
    drop(nothing_to_do);

    let providers = [AddressOnlyProvider::new(4096), AddressOnlyProvider::new(4096)];
    let pools = providers.clone().map(|provider| SlabPool::new(provider, settings()).unwrap());
    let live = pools[0].allocate(Layout::new(64, 8).unwrap()).unwrap();
    for pool in &pools {
        fill(pool).into_iter().for_each(|address| free(pool, address));
    }
    wait_for("an idle pool still has memory", || providers[1].live_regions() == 0);
    wait_for("a pool has more than the region of its live block", || providers[0].live_regions() == 1);
    assert!(pools[0].block_at(live).is_ok());
    assert_eq!(purgers(), 1, "one purger for all pools");
    // A block whose completion becomes ready is released too, even if the pool is dropped
    // meanwhile.
    let token = ManualCompletion::new();
    // SAFETY: no thread uses the block.
    unsafe { pools[0].free_after(live, token.clone()) }.unwrap();
    token.set_ready();
    wait_for("a block whose completion is ready was not released", || providers[0].live_regions() == 0);
    drop(pools);
    wait_for("the purger runs without a pool", || purgers() == 0);

    // With `max_cached` only.
    let provider = AddressOnlyProvider::new(4096);
    let bounded = SlabSettings::new().max_cached(1 << 20).background(true);
    let pool = SlabPool::new(provider.clone(), bounded).unwrap();
    fill(&pool).into_iter().for_each(|address| free(&pool, address));
    wait_for("more bytes are free than max_cached", || pool.statistics().cached_bytes <= 1 << 20);
    drop(pool);

    // Pools are created and dropped while the purger runs.
    for _ in 0..300 {
        let pool =
            SlabPool::new(AddressOnlyProvider::new(4096), settings().release_after(Duration::from_millis(1)))
                .unwrap();
        fill(&pool).into_iter().take(300).for_each(|address| free(&pool, address));
    }
    wait_for("the purger runs without a pool", || purgers() == 0);
    in_a_forked_child();
    drop(plain);
}

/// A forked child starts its own purger.
fn in_a_forked_child() {
    let provider = MmapProvider::private();
    let pool = SlabPool::new(provider.clone(), settings()).unwrap();
    let inherited = fill(&pool);
    wait_for("the purger does not run", || purgers() == 1);
    for _ in 0..20 {
        // SAFETY: the child runs pool code, whose locks support a fork, and ends without
        // unwinding.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: sets a timer of this process.
            unsafe { libc::alarm(30) };
            for &address in &inherited {
                free(&pool, address);
            }
            fill(&pool).into_iter().for_each(|address| free(&pool, address));
            let begin = Instant::now();
            while (provider.live_regions() > 0 || purgers() != 1) && begin.elapsed() < Duration::from_secs(20)
            {
                // A slow path starts the purger again.
                fill(&pool).into_iter().for_each(|address| free(&pool, address));
                std::thread::sleep(Duration::from_millis(200));
            }
            let code = i32::from(provider.live_regions() > 0) + 2 * i32::from(purgers() != 1);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0, "wait status");
    }
    for address in inherited {
        free(&pool, address);
    }
    drop(pool);
    wait_for("the purger runs without a pool", || purgers() == 0);
    assert_eq!(Arc::strong_count(&provider), 1);
}
