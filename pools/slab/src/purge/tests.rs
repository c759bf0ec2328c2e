//! Automatic release. The tests set the time.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex, OnceLock, Weak};

use umf_core::{Address, Layout, MemoryKind, Pool, Provider, ProviderKind, Region, Reserve, Visibility};
use umf_testkit::pool::{AddressOnlyProvider, Random};

use super::*;
use core::sync::atomic::AtomicBool;

use crate::SlabSettings;

const MIB: usize = 1 << 20;
const HOUR: u64 = 3_600_000;

fn allocate(pool: &SlabPool, size: usize) -> Address {
    pool.allocate(Layout::new(size, 8).unwrap()).unwrap()
}

fn free(pool: &SlabPool, address: Address) {
    // SAFETY: the block is the caller's, and no thread uses it.
    unsafe { pool.free(address) }.unwrap();
}

fn fill(pool: &SlabPool, bytes: usize, size: usize) -> Vec<Address> {
    (0..bytes / size).map(|_| allocate(pool, size)).collect()
}

/// Allocates blocks, frees all but the first 2 MiB, and returns these.
fn allocate_and_free(pool: &SlabPool, bytes: usize, size: usize) -> Vec<Address> {
    let live = fill(pool, 2 * MIB, size);
    fill(pool, bytes, size).into_iter().for_each(|address| free(pool, address));
    live
}

fn are_live(pool: &SlabPool, blocks: &[Address]) -> bool {
    blocks.iter().all(|&address| pool.block_at(address).is_ok_and(|block| block.address == address))
}

const SIZES: [(usize, usize); 4] =
    [(64, 24 * MIB), (5000, 64 * MIB), (100_000, 128 * MIB), (3 * MIB, 256 * MIB)];

#[test]
fn bytes_beyond_max_cached_are_released() {
    for (size, bytes) in SIZES {
        let most = 8 * MIB as u64;
        let left = |settings: SlabSettings| {
            let provider = AddressOnlyProvider::new(4096);
            let pool = SlabPool::new(provider.clone(), settings).unwrap();
            let live = allocate_and_free(&pool, bytes, size);
            let statistics = pool.statistics();
            assert_eq!(statistics.reserved_bytes, provider.live_bytes() as u64);
            assert_eq!(statistics.live_blocks, live.len() as u64);
            assert!(are_live(&pool, &live));
            statistics.cached_bytes
        };
        // Few small blocks stay cached in any case, since empty slabs are removed.
        let without = left(SlabSettings::new());
        assert!(
            size < 64 << 10 || without > 2 * most,
            "blocks of {size} bytes: too few are cached without the limit"
        );
        // The thread's own heap is not emptied yet.
        let cached = left(SlabSettings::new().max_cached(most));
        assert!(cached <= most + most / 2, "blocks of {size} bytes: {cached}");
    }
}

#[test]
fn capacity_bounds_free_memory_beyond_as_much_as_is_live() {
    const BLOCK: usize = 2 * MIB;
    let settings = SlabSettings::new().max_poolable_size(4 * MIB).capacity(4).capacity_bounds_cache(true);
    let provider = AddressOnlyProvider::new(4096);
    let pool = SlabPool::new(provider.clone(), settings).unwrap();
    let blocks = fill(&pool, 16 * BLOCK, BLOCK);
    for (freed, address) in blocks.into_iter().enumerate() {
        free(&pool, address);
        let statistics = pool.statistics();
        // Four blocks, as many bytes as are live, and what a thread returns between two checks.
        let most = 4 * BLOCK as u64 + statistics.live_bytes + MIB as u64;
        assert!(statistics.cached_bytes <= most, "{freed}: {}", statistics.cached_bytes);
    }
    assert!(provider.live_bytes() <= 4 * BLOCK + MIB, "{}", provider.live_bytes());
    // With small blocks: 7 MiB for each unit of capacity.
    let blocks = fill(&pool, 256 * MIB, 5000);
    blocks.into_iter().for_each(|address| free(&pool, address));
    assert!(provider.live_bytes() <= 4 * 7 * MIB + 4 * MIB, "{}", provider.live_bytes());
}

/// If every region has a live block, the pool cannot keep the limit. The number of attempts is
/// bounded.
#[test]
fn bytes_that_cannot_be_released_cause_few_attempts() {
    let provider = AddressOnlyProvider::new(4096);
    let pool = SlabPool::new(provider, SlabSettings::new().max_cached(MIB as u64)).unwrap();
    let blocks = fill(&pool, 64 * MIB, 5000);
    let mut attempts = 0;
    let mut before = 0;
    for (n, &address) in blocks.iter().enumerate().filter(|(n, _)| n % 200 != 0) {
        free(&pool, address);
        let stuck = pool.policy.stuck.load(Ordering::Relaxed);
        if stuck > before {
            attempts += 1;
        }
        before = stuck;
        assert!(n < blocks.len());
    }
    assert!(before > 8 * MIB as u64, "{before}");
    // One attempt for each 32nd from 4 MiB, whose 32nd is an eighth of the limit, to 64 MiB, and 24
    // before.
    assert!((2..=120).contains(&attempts), "{attempts}");
}

/// A provider in whose `free` other threads free blocks.
struct FreeDuringRelease {
    inner: Arc<AddressOnlyProvider>,
    pool: OnceLock<Weak<SlabPool>>,
    /// Blocks to free, the last batch first, when a region of the previous batch is released.
    batches: Mutex<Vec<Vec<Address>>>,
    /// The previous batch.
    previous: Mutex<Vec<Address>>,
}

// SAFETY: passes everything on to another provider.
unsafe impl Provider for FreeDuringRelease {
    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }
    fn name(&self) -> &str {
        "free during release"
    }
    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind()
    }
    fn visibility(&self) -> Visibility {
        self.inner.visibility()
    }
    fn page_size(&self) -> usize {
        self.inner.page_size()
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.inner.allocate(layout)
    }
    unsafe fn free(&self, region: Region) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.inner.free(region) }?;
        let mut previous = self.previous.lock().unwrap();
        if previous.iter().any(|&address| region.contains(address)) {
            let next = self.batches.lock().unwrap().pop().unwrap_or_default();
            previous.clone_from(&next);
            drop(previous);
            let Some(pool) = self.pool.get().and_then(Weak::upgrade) else { return Ok(()) };
            std::thread::scope(|scope| {
                scope.spawn(|| next.into_iter().for_each(|address| free(&pool, address))).join().unwrap();
            });
        }
        Ok(())
    }
}

/// A thread that finds a purge in progress leaves the release to it. The purging thread checks
/// again.
#[test]
fn blocks_freed_during_a_release_are_released_too() {
    // More than the checks that the frees of this test cause by themselves.
    const BATCHES: usize = 16;
    let provider = Arc::new(FreeDuringRelease {
        inner: AddressOnlyProvider::new(4096),
        pool: OnceLock::new(),
        batches: Mutex::default(),
        previous: Mutex::default(),
    });
    let most = 2 * MIB as u64;
    let pool = SlabPool::new(provider.clone(), SlabSettings::new().max_cached(most)).unwrap();
    provider.pool.set(Arc::downgrade(&pool)).unwrap();
    // The first released region is after all others, so that the release in progress does not visit
    // these.
    let batches: Vec<_> = (0..BATCHES).map(|_| fill(&pool, 24 * MIB, 3 * MIB)).collect();
    let first = fill(&pool, 6 * MIB, 3 * MIB);
    provider.previous.lock().unwrap().clone_from(&first);
    *provider.batches.lock().unwrap() = batches;
    std::thread::scope(|scope| {
        scope.spawn(|| first.into_iter().for_each(|address| free(&pool, address))).join().unwrap();
    });
    assert_eq!(provider.batches.lock().unwrap().len(), 0, "the blocks of a batch were not released");
    let statistics = pool.statistics();
    assert_eq!(statistics.live_blocks, 0);
    assert!(statistics.cached_bytes <= most + most / 2, "{} bytes are cached", statistics.cached_bytes);
}

#[test]
fn concurrent_frees_stay_below_max_cached() {
    let most = MIB as u64;
    for round in 0..60 {
        let pool =
            SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().max_cached(most)).unwrap();
        std::thread::scope(|scope| {
            let work = |seed: u64| {
                let mut random = Random(3 * round + seed);
                let blocks: Vec<_> = (0..400).map(|_| allocate(&pool, 1 + random.below(200_000))).collect();
                blocks.into_iter().for_each(|address| free(&pool, address));
            };
            let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || work(seed))).collect();
            // Joined: a scope does not wait for the thread-exit handlers of its threads.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let statistics = pool.statistics();
        assert_eq!(statistics.live_blocks, 0);
        assert!(
            statistics.cached_bytes <= 8 * most,
            "round {round}: {} bytes are cached",
            statistics.cached_bytes
        );
    }
}

#[test]
fn unused_memory_is_released_after_its_age_only() {
    for (size, bytes) in SIZES {
        let provider = AddressOnlyProvider::new(4096);
        let settings =
            SlabSettings::new().release_after(Duration::from_millis(HOUR)).max_poolable_size(4 * MIB);
        let pool = SlabPool::new(provider.clone(), settings).unwrap();
        // The test sets the time at which a decay is due.
        pool.policy.due.store(u64::MAX, Ordering::Relaxed);
        let live = allocate_and_free(&pool, bytes, size);
        // Another thread has freed blocks in its heap.
        let (done, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _ends = umf_testkit::SetOnDrop(&stop);
            let other = scope.spawn(|| {
                fill(&pool, 4 * MIB, size).into_iter().for_each(|address| free(&pool, address));
                done.store(true, Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
            while !done.load(Ordering::SeqCst) && !other.is_finished() {
                std::thread::yield_now();
            }
            let begin = 5_u64;
            pool.policy.due.store(begin, Ordering::Relaxed);
            pool.decay_if_due(begin);
            let first = pool.statistics();
            for early in [begin, begin + 1, begin + HOUR - 1] {
                pool.decay_if_due(early);
                assert_eq!(pool.statistics(), first, "{size} bytes: released before it was due");
            }
            // The first decay finds the blocks used, and moves half of them to the stock. The two
            // later ones find them unused.
            pool.decay_if_due(begin + HOUR);
            pool.decay_if_due(begin + 2 * HOUR);
            let statistics = pool.statistics();
            assert_eq!(statistics.live_blocks, live.len() as u64);
            assert!(statistics.reserved_bytes < first.reserved_bytes || first.cached_bytes < 2 * MIB as u64);
            // The remaining free memory is in regions with live blocks.
            let most = statistics.live_bytes + 4 * MIB as u64;
            assert!(statistics.reserved_bytes <= most, "{size} bytes: {statistics:?}");
            assert!(are_live(&pool, &live));
            pool.policy.due.store(u64::MAX, Ordering::Relaxed);
            stop.store(true, Ordering::SeqCst);
            // Joined: a scope does not wait for the thread-exit handlers of its threads.
            other.join().unwrap();
        });
        live.into_iter().for_each(|address| free(&pool, address));
        pool.policy.due.store(0, Ordering::Relaxed);
        for hour in 3..6 {
            pool.decay_if_due(5 + hour * HOUR);
        }
        assert_eq!((provider.live_regions(), pool.statistics().reserved_bytes), (0, 0), "{size} bytes");
    }
}

/// Memory that is used in every period is not released.
#[test]
fn used_memory_is_not_released() {
    for (size, bytes) in SIZES {
        let calls = |age: Duration| {
            let provider = AddressOnlyProvider::new(4096);
            let pool = SlabPool::new(provider.clone(), SlabSettings::new().release_after(age)).unwrap();
            for hour in 0..12 {
                pool.policy.due.store(u64::MAX, Ordering::Relaxed);
                fill(&pool, bytes, size).into_iter().for_each(|address| free(&pool, address));
                pool.policy.due.store(0, Ordering::Relaxed);
                if !age.is_zero() {
                    pool.decay_if_due(hour * HOUR);
                }
            }
            provider.allocations()
        };
        let (without, with) = (calls(Duration::ZERO), calls(Duration::from_millis(HOUR)));
        assert!(with <= without + without / 4 + 4, "{size} bytes: {with}, and {without} without a policy");
    }
}

#[test]
fn reserve_is_not_released_by_the_policy() {
    let provider = AddressOnlyProvider::new(4096);
    let settings = SlabSettings::new()
        .reserve(32 << 20)
        .max_cached(MIB as u64)
        .release_after(Duration::from_millis(HOUR));
    let pool = SlabPool::new(provider, settings).unwrap();
    pool.policy.due.store(0, Ordering::Relaxed);
    for hour in 0..6 {
        fill(&pool, 64 * MIB, 100_000).into_iter().for_each(|address| free(&pool, address));
        pool.policy.due.store(0, Ordering::Relaxed);
        pool.decay_if_due(hour * HOUR);
        pool.policy.due.store(u64::MAX, Ordering::Relaxed);
        pool.release_excess();
        let reserved = pool.statistics().reserved_bytes;
        assert!((32 << 20..=40 << 20).contains(&reserved), "{reserved}");
    }
    // No thread uses the pool from here on.
    for hour in 6..10 {
        pool.policy.due.store(0, Ordering::Relaxed);
        pool.decay_if_due(hour * HOUR);
    }
    assert!(pool.statistics().reserved_bytes >= 32 << 20);
}

/// Threads allocate, free each other's blocks, and end, while another thread decays and purges.
#[test]
fn threads_allocate_during_decay_and_purge() {
    let provider = AddressOnlyProvider::new(4096);
    let settings = SlabSettings::new().max_cached(4 << 20).release_after(Duration::from_millis(1));
    let pool = SlabPool::new(provider.clone(), settings).unwrap();
    let shelf: Arc<Mutex<Vec<Address>>> = Arc::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        let (pool, shelf) = (&pool, &shelf);
        let purging = scope.spawn(|| {
            let mut hour = 0;
            while !stop.load(Ordering::Relaxed) {
                pool.policy.due.store(0, Ordering::Relaxed);
                pool.decay_if_due(hour * HOUR);
                pool.purge().unwrap();
                hour += 1;
            }
        });
        for seed in 0..8 {
            let work = |seed: u64| {
                move || {
                    let mut random = Random(seed);
                    for _ in 0..2_000 {
                        let address = allocate(pool, (random.below(1 << 12) + 1) << random.below(9));
                        let mut shelf = shelf.lock().unwrap();
                        shelf.push(address);
                        if shelf.len() > 100 {
                            let place = random.below(shelf.len());
                            let other = shelf.swap_remove(place);
                            drop(shelf);
                            free(pool, other);
                        }
                    }
                }
            };
            let threads: Vec<_> = (0..2).map(|n| scope.spawn(work(seed * 2 + n))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        purging.join().unwrap();
    });
    let live = core::mem::take(&mut *shelf.lock().unwrap());
    assert_eq!(pool.statistics().live_blocks, live.len() as u64);
    assert!(are_live(&pool, &live));
    live.into_iter().for_each(|address| free(&pool, address));
    pool.trim(0).unwrap();
    assert_eq!(provider.live_regions(), 0);
}
