//! Cases about blocks that are freed with a completion.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::fork::{fork_during, require};
use super::misuse::{is_not_allocated, is_not_live};
use super::threads::join;
use super::{
    MakePool, MmapProvider, Random, allocate, at, controls, deferred, free, layout, mark_exported, try_free,
};
use crate::LeaseHolder;
use umf_core::deferred::OnFree;
use umf_core::{Address, Completion, Error, Pool, Progress, Result};
use umf_runtime::deferred;

/// Longer than any wait in these cases.
const LONG: Duration = Duration::from_secs(20);
const SIZES: [usize; 4] = [64, 5000, 100_000, 10 << 20];

const PENDING: u8 = 0;
const READY: u8 = 1;
const LOST: u8 = 2;
const PANICS: u8 = 3;

/// A completion that reports what the test sets, for tests of pools and of layers above.
#[derive(Debug, Default)]
pub struct ManualCompletion {
    state: AtomicU8,
    was_ready: AtomicBool,
    polled_after_ready: AtomicBool,
}

impl ManualCompletion {
    /// Creates a pending completion.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the state to ready.
    pub fn set_ready(&self) {
        self.state.store(READY, Ordering::SeqCst);
    }

    /// Sets the state to lost.
    pub fn set_lost(&self) {
        self.state.store(LOST, Ordering::SeqCst);
    }

    /// Returns whether the state is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.load(Ordering::SeqCst) == READY
    }

    /// Makes later polls panic.
    pub fn set_panicking(&self) {
        self.state.store(PANICS, Ordering::SeqCst);
    }

    /// Returns whether it was polled after it had reported ready.
    #[must_use]
    pub fn was_polled_after_ready(&self) -> bool {
        self.polled_after_ready.load(Ordering::SeqCst)
    }
}

impl Completion for ManualCompletion {
    fn progress(&self) -> Progress {
        match self.state.load(Ordering::SeqCst) {
            READY => {
                if self.was_ready.swap(true, Ordering::SeqCst) {
                    self.polled_after_ready.store(true, Ordering::SeqCst);
                }
                Progress::Ready
            }
            LOST => Progress::Lost,
            // Does not print the message of the panic hook.
            PANICS => std::panic::resume_unwind(Box::new("a completion that panics")),
            state => {
                assert_eq!(state, PENDING, "a state of this token");
                Progress::Pending
            }
        }
    }
}

fn try_free_after(pool: &dyn Pool, address: Address, token: &Arc<ManualCompletion>) -> Result<()> {
    let token: Arc<dyn Completion> = token.clone();
    // SAFETY: a block of the suite that is not used any more, or an address that is no live block.
    unsafe { deferred(pool).free_after(address, token) }
}

fn free_after(pool: &dyn Pool, address: Address, token: &Arc<ManualCompletion>) {
    try_free_after(pool, address, token).unwrap_or_else(|error| panic!("freeing {address}: {error}"));
}

fn overlap(one: (Address, usize), other: (Address, usize)) -> bool {
    one.0.to_bits() < other.0.to_bits() + other.1 as u64 && other.0.to_bits() < one.0.to_bits() + one.1 as u64
}

/// Allocates blocks of `size` bytes that fill several regions.
fn many(pool: &dyn Pool, size: usize) -> Vec<Address> {
    (0..(64 << 20) / size.max(256 << 10)).map(|_| allocate(pool, size)).collect()
}

/// A block freed with a completion is free, and is not reused before the completion is ready.
pub fn block_is_not_reused_before_completion(make: MakePool<'_>) {
    for size in SIZES {
        let provider = MmapProvider::private();
        let pool = make(provider.clone().into());
        let address = allocate(&*pool, size);
        let block = pool.block_at(address).expect("live");
        let token = ManualCompletion::new();
        free_after(&*pool, address, &token);
        for result in [
            try_free(&*pool, address),
            try_free_after(&*pool, address, &ManualCompletion::new()),
            mark_exported(&*pool, address),
            pool.block_at(address).map(drop),
        ] {
            assert!(
                result.as_ref().is_err_and(|error| is_not_allocated(error, address)),
                "{size} bytes: {result:?}"
            );
        }
        let statistics = pool.statistics();
        assert_eq!((statistics.live_blocks, statistics.live_bytes, statistics.frees), (0, 0, 1));
        assert_eq!(statistics.held_bytes, block.size as u64);
        assert_eq!(statistics.reserved_bytes, provider.live_bytes() as u64);
        for round in 0..3 {
            let others = many(&*pool, size);
            let taken = others.iter().find(|&&other| overlap((other, size), (address, block.size)));
            assert_eq!(taken, None, "{size} bytes at {address} are pending, round {round}");
            others.into_iter().for_each(|other| free(&*pool, other));
            pool.trim(0).expect("the provider frees all regions");
            assert!(provider.contains(address, block.size), "the region of a pending block was freed");
        }
        let left = controls(&*pool).drain(Duration::ZERO);
        let pending = (left.bytes, left.pending_bytes, left.lost_bytes);
        assert_eq!(pending, (block.size as u64, block.size as u64, 0));
        token.set_ready();
        pool.trim(0).expect("the provider frees all regions");
        let statistics = pool.statistics();
        assert_eq!((statistics.held_bytes, statistics.frees), (0, statistics.allocations));
        assert_eq!((provider.live_regions(), statistics.reserved_bytes), (0, 0), "{size} bytes");
        assert!(!token.was_polled_after_ready());
        assert_eq!(Arc::strong_count(&token), 1, "a completion that is ready is dropped");
        free(&*pool, allocate(&*pool, size));
    }
}

/// A block becomes reusable when its completion is ready, without a poll by the caller. If the
/// completion is ready from the start, the block is free at once.
pub fn block_is_reused_after_completion(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.clone().into());
    for size in SIZES {
        let mut tokens: Vec<Arc<ManualCompletion>> = Vec::new();
        let mut most = 0;
        for _ in 0..2_000_000_000 / (size + 1_000_000) {
            let (address, token) = (allocate(&*pool, size), ManualCompletion::new());
            free_after(&*pool, address, &token);
            tokens.push(token);
            // As on a stream: completions become ready in order, some time later.
            if tokens.len() > 8 {
                tokens.remove(0).set_ready();
            }
            most = most.max(pool.statistics().held_bytes);
        }
        assert!(
            most <= (200 * (size + size / 4)).max(1 << 20) as u64,
            "{most} bytes in blocks of {size} were held"
        );
        tokens.into_iter().for_each(|token| token.set_ready());
        assert!(controls(&*pool).drain(LONG).is_empty());
    }
    let (address, token) = (allocate(&*pool, 64), ManualCompletion::new());
    token.set_ready();
    free_after(&*pool, address, &token);
    assert_eq!((pool.statistics().held_bytes, pool.statistics().live_blocks), (0, 0));
    assert_eq!(Arc::strong_count(&token), 1);
}

/// A completion that is lost or panics keeps its block held until it reports ready.
pub fn lost_completion_keeps_block_held(make: MakePool<'_>) {
    for size in SIZES {
        for lose in [ManualCompletion::set_lost, ManualCompletion::set_panicking] {
            let provider = MmapProvider::private();
            let pool = make(provider.clone().into());
            let (address, token) = (allocate(&*pool, size), ManualCompletion::new());
            let all = pool.block_at(address).expect("live").size as u64;
            lose(&token);
            free_after(&*pool, address, &token);
            let others = many(&*pool, size);
            assert!(others.iter().all(|&other| !overlap((other, size), (address, size))));
            others.into_iter().for_each(|other| free(&*pool, other));
            pool.trim(0).expect("the provider frees all regions");
            let left = controls(&*pool).drain(Duration::from_millis(1));
            assert_eq!((left.pending_bytes, left.lost_bytes), (all, all), "{size} bytes");
            assert!(provider.contains(address, size));
            token.set_ready();
            assert!(controls(&*pool).drain(LONG).is_empty() && controls(&*pool).drain(LONG).lost_bytes == 0);
            pool.trim(0).expect("the provider frees all regions");
            assert_eq!(provider.live_regions(), 0);
        }
    }
}

/// A pool that is dropped does not wait. Blocks with a pending completion keep their contents, and
/// their regions are freed later; all other regions are freed at once.
pub fn pending_blocks_outlive_pool(make: MakePool<'_>) {
    for size in SIZES {
        let provider = MmapProvider::private();
        let pool = make(provider.clone().into());
        controls(&*pool).set_on_free(OnFree::Release, 0);
        let tokens = [ManualCompletion::new(), ManualCompletion::new()];
        let blocks = [(); 2].map(|()| allocate(&*pool, size));
        let pointers = blocks.map(|address| address.as_ptr().expect("host memory"));
        for pointer in pointers {
            // SAFETY: a live block of this test, of that size.
            unsafe { pointer.write_bytes(7, size) };
        }
        let others: Vec<_> = (0..10).map(|_| allocate(&*pool, 2 << 20)).collect();
        blocks.iter().zip(&tokens).for_each(|(&address, token)| free_after(&*pool, address, token));
        tokens[1].set_lost();
        drop(pool);
        for _ in 0..2 {
            assert!(
                blocks.iter().all(|&address| provider.contains(address, size)),
                "{size} bytes were freed too early"
            );
            for pointer in pointers {
                // SAFETY: the region is still mapped, and no thread writes to it.
                let is_same =
                    (0..size).step_by(997).all(|at| unsafe { pointer.add(at).read_volatile() } == 7);
                assert!(is_same, "{size} bytes that may be in use lost their contents");
            }
            assert!(provider.live_bytes() <= (64 << 20), "{others:?}: more is held than may be in use");
            deferred::poll();
        }
        tokens.iter().for_each(|token| token.set_ready());
        let begin = Instant::now();
        while provider.live_regions() != 0 || Arc::strong_count(&provider) != 1 {
            assert!(begin.elapsed() < LONG, "an unused region was not freed");
            deferred::poll();
        }
        assert!(tokens.iter().all(|token| Arc::strong_count(token) == 1));
    }
}

/// The exports of a block end when it is freed with a completion. It is reused when the completion
/// is ready and all leases are closed.
pub fn free_after_ends_exports_at_once(make: MakePool<'_>) {
    for size in SIZES {
        for ready_first in [true, false] {
            let (provider, importer) = (MmapProvider::shared(), LeaseHolder::new());
            let pool = make(provider.clone().into());
            controls(&*pool).set_on_free(OnFree::Release, 1);
            let (address, token) = (allocate(&*pool, size), ManualCompletion::new());
            mark_exported(&*pool, address).expect("live");
            importer.open(address, size);
            let pointer = address.as_ptr().expect("host memory");
            // SAFETY: a live block of this test, of that size.
            unsafe { pointer.write_bytes(7, size) };
            free_after(&*pool, address, &token);
            assert!(importer.was_announced(address), "its exports have not ended");
            // SAFETY: the block is held, so its region is mapped.
            let last = unsafe { pointer.add(size - 1).read_volatile() };
            assert_eq!(last, 7, "a pending block keeps its contents");
            // The held limit bounds leased blocks only: a completion ends on its own.
            free(&*pool, allocate(&*pool, size));
            for step in 0..2 {
                pool.trim(0).expect("the provider frees all regions");
                assert!(provider.contains(address, size), "step {step}");
                if (step == 0) == ready_first { token.set_ready() } else { importer.close_all() }
            }
            pool.trim(0).expect("the provider frees all regions");
            assert_eq!((provider.live_regions(), pool.statistics().held_bytes), (0, 0), "{size} bytes");
        }
    }
}

/// Freeing an invalid address with a completion is refused without effect.
pub fn free_after_of_invalid_address_is_refused(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let (pool, other) = (make(provider.clone().into()), make(provider.into()));
    let token = ManualCompletion::new();
    for size in SIZES {
        let (block, foreign) = (allocate(&*pool, size), allocate(&*other, size));
        for inside in [1, size as u64 / 2, size as u64 - 1] {
            let address = at(block, inside);
            assert_eq!(try_free_after(&*pool, address, &token), Err(Error::InteriorAddress { address }));
        }
        let refused = try_free_after(&*pool, foreign, &token);
        assert!(matches!(refused, Err(Error::ForeignAddress { .. })), "{refused:?}");
        assert_eq!(pool.block_at(block).map(|span| span.address), Ok(block));
        free(&*pool, block);
        let twice = try_free_after(&*pool, block, &token);
        assert!(twice.as_ref().is_err_and(is_not_live), "{twice:?}");
        free(&*other, foreign);
    }
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!((pool.statistics().held_bytes, other.statistics().held_bytes), (0, 0));
}

/// A completion that uses its pool when it is polled and when it is dropped.
struct PoolUser {
    pool: Weak<dyn Pool>,
    polls: Arc<AtomicUsize>,
}

impl PoolUser {
    fn use_pool(&self) {
        if let Some(pool) = self.pool.upgrade() {
            for address in SIZES.iter().flat_map(|&size| pool.allocate(layout(size, 1))) {
                free(&*pool, address);
            }
        }
    }
}

impl Completion for PoolUser {
    fn progress(&self) -> Progress {
        self.use_pool();
        if self.polls.fetch_add(1, Ordering::SeqCst) < 3 { Progress::Pending } else { Progress::Ready }
    }
}

impl Drop for PoolUser {
    fn drop(&mut self) {
        self.use_pool();
    }
}

/// Completions are polled and dropped without a lock of the pool.
pub fn completion_may_use_its_pool(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.clone().into());
    let polls: Vec<_> = SIZES.map(|_| Arc::new(AtomicUsize::new(0))).into();
    for (size, polls) in SIZES.into_iter().zip(&polls) {
        let address = allocate(&*pool, size);
        let user = PoolUser { pool: Arc::downgrade(&pool), polls: polls.clone() };
        // SAFETY: a block of this test that is not used any more.
        unsafe { deferred(&*pool).free_after(address, Arc::new(user)) }.expect("it is live");
    }
    assert!(controls(&*pool).drain(LONG).is_empty());
    assert!(polls.iter().all(|polls| Arc::strong_count(polls) == 1 && polls.load(Ordering::SeqCst) == 4));
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// A completion that waits, when it is dropped, until another thread drains the pool.
struct SlowToDrop {
    is_pending: Arc<AtomicBool>,
    is_dropping: Arc<AtomicBool>,
    drains: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
}

impl Completion for SlowToDrop {
    fn progress(&self) -> Progress {
        if self.is_pending.load(Ordering::SeqCst) { Progress::Pending } else { Progress::Ready }
    }
}

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        self.is_dropping.store(true, Ordering::SeqCst);
        while !self.drains.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // A drain that does not wait returns meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        self.dropped.store(true, Ordering::SeqCst);
    }
}

/// A drain waits for what another thread has reclaimed and not dropped yet.
pub fn drain_returns_after_completions_are_dropped(make: MakePool<'_>) {
    let pool = make(MmapProvider::private().into());
    let [is_dropping, drains, dropped, is_pending] = [false; 4].map(|it| Arc::new(AtomicBool::new(it)));
    is_pending.store(true, Ordering::SeqCst);
    let slow = SlowToDrop {
        is_pending: is_pending.clone(),
        is_dropping: is_dropping.clone(),
        drains: drains.clone(),
        dropped: dropped.clone(),
    };
    let address = allocate(&*pool, 100);
    // SAFETY: a block of this test that is not used any more.
    unsafe { deferred(&*pool).free_after(address, Arc::new(slow)) }.expect("it is live");
    std::thread::scope(|scope| {
        is_pending.store(false, Ordering::SeqCst);
        scope.spawn(deferred::poll);
        while !is_dropping.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        drains.store(true, Ordering::SeqCst);
        assert!(controls(&*pool).drain(LONG).is_empty());
        assert!(dropped.load(Ordering::SeqCst), "the drain returned before the completion was dropped");
    });
}

/// Four threads free their own and each other's blocks with completions that become ready later. No
/// block is reused while its completion is pending, and none is lost.
pub fn concurrent_threads_never_get_pending_blocks(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.clone().into());
    let early = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pool, early) = (&*pool, &early);
        let work = |seed: u64| {
            move || {
                let mut random = Random(seed);
                let mut pending: Vec<(Arc<ManualCompletion>, Address, usize, u8)> = Vec::new();
                for round in 0..2_000_usize {
                    let size = random.size(17);
                    let address = allocate(pool, size);
                    let value = (round % 251) as u8;
                    // SAFETY: the block belongs to this thread, and has that size.
                    unsafe { address.as_ptr().expect("host memory").write_bytes(value, size) };
                    if random.below(2) == 0 {
                        let token = ManualCompletion::new();
                        free_after(pool, address, &token);
                        pending.push((token, address, size, value));
                    } else {
                        free(pool, address);
                    }
                    if pending.len() > 20 {
                        let (token, address, size, value) = pending.swap_remove(random.below(20));
                        // SAFETY: the completion is pending, so the region is mapped and no thread
                        // writes to the block.
                        let is_same = (0..size).step_by(997).all(|offset| unsafe {
                            address.as_ptr().expect("host memory").add(offset).read_volatile() == value
                        });
                        if !is_same {
                            early.store(true, Ordering::Relaxed);
                        }
                        token.set_ready();
                    }
                    if random.below(200) == 0 {
                        deferred::poll();
                        pool.trim(random.below(8 << 20)).expect("the provider frees all regions");
                    }
                }
                pending.into_iter().for_each(|(token, ..)| token.set_ready());
            }
        };
        // Joins the threads, so that their caches are flushed before the drain.
        join((0..4).map(|seed| scope.spawn(work(seed))).collect());
    });
    assert!(!early.load(Ordering::Relaxed), "a block was allocated again before its completion was ready");
    assert!(controls(&*pool).drain(LONG).is_empty());
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.held_bytes, statistics.allocations), (0, 0, 8_000));
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// A child forked under load holds no blocks, does not reuse the parent's pending blocks, and stays
/// usable. The parent's blocks stay pending.
pub fn forked_child_has_no_pending_blocks(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.into());
    let (pool, token) = (&*pool, ManualCompletion::new());
    let delayed: Vec<_> = SIZES.map(|size| (allocate(pool, size), size)).into();
    delayed.iter().for_each(|&(address, _)| free_after(pool, address, &token));
    let traffic = |seed, stop: &AtomicBool| {
        let mut random = Random(seed);
        while !stop.load(Ordering::Relaxed) {
            let (address, token) = (allocate(pool, random.size(15)), ManualCompletion::new());
            free_after(pool, address, &token);
            token.set_ready();
            deferred::poll();
        }
    };
    fork_during(traffic, || {
        let statistics = deferred::statistics();
        require(
            statistics.is_empty() && statistics.pending_bytes == 0,
            "it counts blocks as pending that the parent holds",
        )?;
        for round in 0..200 {
            let size = SIZES[round % 3];
            let address =
                pool.allocate(layout(size, 1)).map_err(|error| format!("`allocate` failed: {error}"))?;
            let is_new = !delayed.iter().any(|&one| overlap(one, (address, size)));
            require(is_new, "`allocate` returned a block that the parent holds")?;
            if round % 2 == 0 {
                require(try_free(pool, address).is_ok(), "`free` failed for a block of the child")?;
            }
        }
        let is_drained = controls(pool).drain(Duration::from_millis(1)).is_empty();
        require(is_drained, "`drain` waits for blocks that the parent holds")
    });
    assert!(pool.statistics().held_bytes >= SIZES.iter().sum::<usize>() as u64);
    token.set_ready();
    assert!(controls(pool).drain(LONG).is_empty());
}
