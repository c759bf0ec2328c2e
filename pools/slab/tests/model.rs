//! Compares the pool with a model: a map of live blocks.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::prelude::*;
use umf_core::map::PieceState;
use umf_core::{Address, BlockSpan, DeferredFree, Error, Inspect, Layout, Pool, Reserve};
use umf_pool_slab::{SharedLimit, SlabPool, SlabSettings};
use umf_testkit::LeaseHolder;
use umf_testkit::pool::{AddressOnlyProvider, ManualCompletion};

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        size: usize,
        align: usize,
    },
    Free(usize),
    /// Frees in another thread, which then ends.
    FreeElsewhere(usize),
    /// Allocates in the worker thread, which owns the slab.
    AllocateInWorker(usize),
    /// Frees some blocks in the worker thread.
    FreeInWorker {
        index: usize,
        count: usize,
    },
    /// Looks up an address in a live block.
    LookUp {
        index: usize,
        offset: u64,
    },
    /// Frees a block that another process has open, until a [`Step::Close`].
    FreeLeased(usize),
    Close(usize),
    /// Frees with a new completion, or with that of the free before. [`Step::Complete`] makes it
    /// ready.
    FreeAfter {
        index: usize,
        elsewhere: bool,
        shares: bool,
    },
    Complete(usize),
    /// Loses a completion, which may become ready later.
    Lose(usize),
    Poll,
    Reserve(usize),
    Purge,
    FreeInvalid {
        index: usize,
        offset: u64,
    },
    Trim(usize),
    FailAfter(u64),
    Recover,
}

fn step() -> impl Strategy<Value = Step> {
    let size = (0_u32..23, any::<u64>()).prop_map(|(bits, random)| (random as usize & ((2 << bits) - 1)) + 1);
    prop_oneof![
        20 => (size, 0_u32..22).prop_map(|(size, bits)| Step::Allocate { size, align: 1 << bits }),
        14 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeElsewhere),
        4 => (1_usize..5000).prop_map(Step::AllocateInWorker),
        4 => (any::<usize>(), 1_usize..70).prop_map(|(index, count)| Step::FreeInWorker { index, count }),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(index, offset)| Step::LookUp { index, offset }),
        4 => any::<usize>().prop_map(Step::FreeLeased),
        3 => any::<usize>().prop_map(Step::Close),
        4 => (any::<usize>(), any::<bool>(), any::<bool>())
            .prop_map(|(index, elsewhere, shares)| Step::FreeAfter { index, elsewhere, shares }),
        2 => any::<usize>().prop_map(Step::Complete),
        1 => any::<usize>().prop_map(Step::Lose),
        1 => Just(Step::Poll),
        1 => (0_usize..80 << 20).prop_map(Step::Reserve),
        1 => Just(Step::Purge),
        4 => (any::<usize>(), 1_u64..100_000).prop_map(|(index, offset)| Step::FreeInvalid { index, offset }),
        1 => prop_oneof![Just(0_usize), 0_usize..32 << 20].prop_map(Step::Trim),
        1 => (0_u64..4).prop_map(Step::FailAfter),
        1 => Just(Step::Recover),
    ]
}

fn settings() -> impl Strategy<Value = SlabSettings> {
    let sizes = prop_oneof![Just(0_usize), Just(20_000), Just(2 << 20), Just(16 << 20)];
    let slabs = prop_oneof![Just(64_usize << 10), Just(1 << 20)];
    let cached = prop_oneof![Just(0_usize), Just(300_000), Just(8 << 20)];
    let most = prop_oneof![3 => Just(0_u64), 1 => Just(1), 1 => Just(3 << 20)];
    let age = prop_oneof![Just(Duration::ZERO), Just(Duration::from_millis(1))];
    let values = (3_u32..13, sizes, 0_u32..5, slabs, cached, most, age);
    values.prop_map(|(bits, poolable, capacity, slab, cached, most, age)| {
        SlabSettings::new()
            .max_cached(most)
            .release_after(age)
            .thread_cache_blocks(most as u32 % 100)
            .shared_cache_blocks(most as u32 % 70)
            .min_block_size(1 << bits)
            .max_poolable_size(poolable)
            .capacity(capacity)
            .slab_min_size(slab)
            .thread_cache_size(cached)
    })
}

type Task = Box<dyn FnOnce() + Send>;

/// A thread that runs until this is dropped.
struct Worker {
    tasks: Option<mpsc::Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new() -> Self {
        let (tasks, todo) = mpsc::channel::<Task>();
        let thread = std::thread::spawn(move || todo.into_iter().for_each(|task| task()));
        Self { tasks: Some(tasks), thread: Some(thread) }
    }

    /// Runs `run` in the thread, and waits for it.
    fn run<R: Send + 'static>(&self, run: impl FnOnce() -> R + Send + 'static) -> R {
        let (done, result) = mpsc::channel();
        let task = Box::new(move || done.send(run()).expect("the caller waits"));
        self.tasks.as_ref().expect("the thread runs").send(task).expect("the thread runs");
        result.recv().expect("the task does not panic")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.tasks.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Ends of blocks by their starts.
type Blocks = BTreeMap<u64, u64>;

fn bytes(blocks: &Blocks) -> u64 {
    blocks.iter().map(|(start, end)| end - start).sum()
}

fn nth(blocks: &Blocks, index: usize) -> Option<(u64, u64)> {
    blocks.iter().nth(index % blocks.len().max(1)).map(|(&start, &end)| (start, end))
}

fn overlaps(blocks: &Blocks, (start, end): (u64, u64)) -> bool {
    blocks.range(..end).next_back().is_some_and(|(_, &other)| other > start)
}

/// Checks that the pool's map, its statistics and the model agree.
fn check_map(pool: &SlabPool, live: &Blocks) -> Result<(), TestCaseError> {
    let (map, statistics) = (pool.map().expect("a map"), pool.statistics());
    let totals = map.totals();
    let mut mapped = Blocks::new();
    for region in &map.regions {
        let mut end = 0;
        for piece in &region.pieces {
            prop_assert!(piece.offset >= end && piece.size() > 0);
            end = piece.offset + piece.size();
            for block in (0..piece.count).filter(|_| piece.state == PieceState::Live) {
                let start = region.base.to_bits() + piece.offset + block * piece.block_size;
                mapped.insert(start, start + piece.block_size);
            }
        }
        prop_assert!(end <= region.size);
    }
    prop_assert_eq!(&mapped, live);
    for size in &totals.sizes {
        let alike = live.iter().filter(|&(start, end)| end - start == size.block_size).count();
        prop_assert_eq!(size.live, alike as u64);
        prop_assert!(size.requested <= size.live * size.block_size);
    }
    let Some(unusable) = totals.reserved.checked_sub(totals.live + totals.held + totals.cached + totals.free)
    else {
        return Err(TestCaseError::fail("more bytes are in use than reserved"));
    };
    prop_assert_eq!(totals.unusable, unusable);
    prop_assert!(totals.sizes.iter().map(|size| size.waste).sum::<u64>() <= unusable);
    prop_assert_eq!(totals.reserved, statistics.reserved_bytes);
    prop_assert_eq!(map.regions.len() as u64, statistics.regions);
    prop_assert_eq!(map.peak_reserved, statistics.peak_reserved_bytes);
    prop_assert_eq!((totals.live, totals.held), (statistics.live_bytes, statistics.held_bytes));
    // The estimate is rounded down for each size.
    let rounded = statistics.requested_bytes.checked_sub(totals.requested);
    prop_assert!(rounded.is_some_and(|bytes| bytes <= totals.sizes.len() as u64));
    prop_assert_eq!(
        (totals.free, totals.largest_free),
        (statistics.free_bytes, statistics.largest_free_bytes)
    );
    prop_assert_eq!(statistics.cached_bytes, totals.reserved - totals.live - totals.held);
    Ok(())
}

const LIMIT: u64 = 64 << 20;

/// Returns the number of cases: ten million operations in all with `UMF_TESTS_LONG=1` (`tests/run
/// --long`), otherwise some ten thousand.
fn cases() -> ProptestConfig {
    let long = std::env::var_os("UMF_TESTS_LONG").is_some_and(|value| value == "1");
    ProptestConfig::with_cases(if long { LONG } else { 150 })
}

/// The number of cases, with half of [`STEPS`] steps on average, for ten million steps.
const LONG: u32 = 10_000_000 / (STEPS as u32 / 2);
const STEPS: usize = 600;

/// Serializes the tests: a poll reclaims deferred frees of all pools of the process, so it would
/// affect the statistics of another test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn pool_agrees_with_a_model(
        settings in settings(),
        page in prop_oneof![Just(256_usize), Just(4096), Just(64 << 10), Just(2 << 20)],
        steps in prop::collection::vec(step(), 1..=STEPS),
        max_held in prop_oneof![Just(0_u64), Just(100_000), Just(4 << 20)],
        ends_leased in any::<bool>(),
    ) {
        let _alone = alone();
        let provider = AddressOnlyProvider::new(page);
        let limit = Arc::new(SharedLimit::new(2 * LIMIT));
        let settings = settings.memory_limit(LIMIT).shared_limit(Arc::clone(&limit)).max_held(max_held);
        let borrower = LeaseHolder::new();
        let pool = SlabPool::new(provider.clone(), settings).unwrap();
        let worker = Worker::new();
        let mut tokens: Vec<Arc<ManualCompletion>> = Vec::new();
        let mut delayed: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        // Live blocks; freed blocks that another process has open; and closed blocks, which the
        // pool may have reclaimed or not.
        let (mut live, mut open, mut closed) = (Blocks::new(), Blocks::new(), Blocks::new());
        for step in steps {
            match step {
                Step::Allocate { size, align } => match pool.allocate(Layout::new(size, align).unwrap()) {
                    Ok(address) => {
                        prop_assert!(address.is_aligned_to(align));
                        let block = pool.block_at(address).unwrap();
                        prop_assert!(block.address == address && block.size >= size);
                        prop_assert!(provider.contains(address, block.size));
                        let (start, end) = (address.to_bits(), address.to_bits() + block.size as u64);
                        prop_assert!(!overlaps(&live, (start, end)) && !overlaps(&open, (start, end)));
                        prop_assert!(delayed.iter().all(|(&other, &(other_end, _))| other_end <= start || end <= other));
                        closed.retain(|&other, &mut other_end| other_end <= start || end <= other);
                        live.insert(start, end);
                    }
                    Err(Error::HeldLimit { held, limit }) => {
                        prop_assert_eq!((held, limit), (bytes(&open), max_held));
                        prop_assert!(held >= limit && limit > 0);
                        closed.clear();
                    }
                    Err(error) => {
                        let expected = matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. });
                        prop_assert!(expected, "{:?}", error);
                    }
                },
                Step::Free(index) => if let Some((start, _)) = nth(&live, index) {
                    let address = Address::from_bits(start);
                    // SAFETY: no thread uses the block.
                    prop_assert_eq!(unsafe { pool.free(address) }, Ok(()));
                    // SAFETY: no live block begins there: an error is expected.
                    let second = unsafe { pool.free(address) };
                    let expected = matches!(second, Err(Error::NotAllocated { .. } | Error::ForeignAddress { .. }));
                    prop_assert!(expected, "{:?}", second);
                    live.remove(&start);
                },
                Step::FreeElsewhere(index) => if let Some((start, _)) = nth(&live, index) {
                    // SAFETY: no thread uses the block.
                    let free = || unsafe { pool.free(Address::from_bits(start)) };
                    let freed = std::thread::scope(|scope| scope.spawn(free).join()).unwrap();
                    prop_assert_eq!(freed, Ok(()));
                    live.remove(&start);
                },
                Step::AllocateInWorker(size) => {
                    let worker_pool = Arc::clone(&pool);
                    let allocated = worker.run(move || worker_pool.allocate(Layout::new(size, 8).unwrap()));
                    if let Ok(address) = allocated {
                        let block = pool.block_at(address).unwrap();
                        let (start, end) = (address.to_bits(), address.to_bits() + block.size as u64);
                        prop_assert!(!overlaps(&live, (start, end)) && !overlaps(&open, (start, end)));
                        prop_assert!(delayed.iter().all(|(&other, &(other_end, _))| other_end <= start || end <= other));
                        closed.retain(|&other, &mut other_end| other_end <= start || end <= other);
                        live.insert(start, end);
                    } else if matches!(allocated, Err(Error::HeldLimit { .. })) {
                        closed.clear();
                    }
                }
                Step::FreeInWorker { index, count } => {
                    for step in 0..count {
                        let Some((start, _)) = nth(&live, index.wrapping_add(step)) else { break };
                        let (worker_pool, address) = (Arc::clone(&pool), Address::from_bits(start));
                        // SAFETY: no thread uses the block, and freeing it twice is an error.
                        let freed = worker.run(move || unsafe { (worker_pool.free(address), worker_pool.free(address)) });
                        let expected = matches!(freed, (Ok(()), Err(Error::NotAllocated { .. } | Error::ForeignAddress { .. })));
                        prop_assert!(expected, "{:?}", freed);
                        live.remove(&start);
                    }
                }
                Step::LookUp { index, offset } => if let Some((start, end)) = nth(&live, index) {
                    let block = BlockSpan { address: Address::from_bits(start), size: (end - start) as usize };
                    let inside = Address::from_bits(start + offset % (end - start));
                    prop_assert_eq!(pool.block_at(inside), Ok(block));
                },
                Step::FreeLeased(index) => if let Some((start, end)) = nth(&live, index) {
                    let address = Address::from_bits(start);
                    pool.mark_exported(address).unwrap();
                    borrower.open(address, (end - start) as usize);
                    // SAFETY: no thread of this process uses the block, and freeing it twice is an
                    // error.
                    let frees = unsafe { (pool.free(address), pool.free(address)) };
                    prop_assert_eq!(frees, (Ok(()), Err(Error::NotAllocated { address })));
                    live.remove(&start);
                    open.insert(start, end);
                },
                Step::Close(index) => if let Some((start, end)) = nth(&open, index) {
                    borrower.close(Address::from_bits(start));
                    open.remove(&start);
                    closed.insert(start, end);
                },
                Step::FreeAfter { index, elsewhere, shares } => if let Some((start, end)) = nth(&live, index) {
                    if tokens.is_empty() || !shares {
                        tokens.push(ManualCompletion::new());
                    }
                    let token = tokens.len() - 1;
                    let address = Address::from_bits(start);
                    let completion = || tokens[token].clone();
                    // SAFETY: no thread uses the block, and freeing it twice is an error.
                    let free = || unsafe { (pool.free_after(address, completion()), pool.free_after(address, completion()), pool.free(address)) };
                    let freed = if elsewhere { std::thread::scope(|scope| scope.spawn(free).join()).unwrap() } else { free() };
                    let again = Err(Error::NotAllocated { address });
                    live.remove(&start);
                    if tokens[token].is_ready() {
                        let foreign = Err(Error::ForeignAddress { address, owner: "this slab pool" });
                        prop_assert!(freed.0.is_ok() && (freed.1 == again || freed.1 == foreign), "{:?}", freed);
                    } else {
                        prop_assert_eq!(freed, (Ok(()), again, again));
                        delayed.insert(start, (end, token));
                    }
                },
                Step::Complete(index) => if !tokens.is_empty() {
                    let token = index % tokens.len();
                    tokens[token].set_ready();
                    delayed.retain(|&start, &mut (end, of)| {
                        if of == token {
                            closed.insert(start, end);
                        }
                        of != token
                    });
                },
                Step::Lose(index) => if !tokens.is_empty() {
                    let token = &tokens[index % tokens.len()];
                    if !token.is_ready() {
                        token.set_lost();
                    }
                },
                Step::Poll => {
                    umf_runtime::deferred::poll();
                    closed.clear();
                    check_map(&pool, &live)?;
                }
                Step::Reserve(bytes) => {
                    let before = pool.statistics().reserved_bytes;
                    match pool.reserve(bytes) {
                        Ok(added) => {
                            let now = pool.statistics().reserved_bytes;
                            prop_assert!(now >= bytes as u64 && now >= before + added as u64);
                        }
                        Err(error) => {
                            let expected = matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. } | Error::HeldLimit { .. } | Error::NotSupported { .. });
                            prop_assert!(expected, "{:?}", error);
                            prop_assert!(pool.statistics().reserved_bytes <= before);
                        }
                    }
                }
                Step::Purge => {
                    let before = pool.statistics().reserved_bytes;
                    let released = pool.purge().unwrap();
                    closed.clear();
                    prop_assert_eq!(pool.statistics().reserved_bytes, before - released as u64);
                }
                Step::FreeInvalid { index, offset } => if let Some((start, _)) = nth(&live, index) {
                    let invalid = start + offset;
                    if live.contains_key(&invalid) {
                        continue;
                    }
                    // SAFETY: no live block begins there: an error is expected.
                    let result = unsafe { pool.free(Address::from_bits(invalid)) };
                    let inside = live.range(..invalid).next_back().is_some_and(|(_, &end)| invalid < end);
                    let interior = matches!(result, Err(Error::InteriorAddress { .. }));
                    prop_assert_eq!(interior, inside, "{:?}", result);
                    prop_assert!(result.is_err());
                },
                Step::Trim(keep) => {
                    let before = pool.statistics().reserved_bytes;
                    let released = pool.trim(keep).unwrap();
                    closed.clear();
                    prop_assert_eq!(pool.statistics().reserved_bytes, before - released as u64);
                    if keep == 0 && live.is_empty() && open.is_empty() && delayed.is_empty() {
                        prop_assert_eq!(provider.live_regions(), 0);
                    }
                }
                Step::FailAfter(n) => provider.fail_after(Some(n)),
                Step::Recover => provider.fail_after(None),
            }
            let statistics = pool.statistics();
            prop_assert_eq!(statistics.live_blocks, live.len() as u64);
            prop_assert_eq!(statistics.live_bytes, bytes(&live));
            let least = bytes(&open) + delayed.iter().map(|(start, (end, _))| end - start).sum::<u64>();
            prop_assert!(statistics.held_bytes >= least && statistics.held_bytes <= least + bytes(&closed));
            prop_assert!(delayed.iter().all(|(&start, &(end, _))| provider.contains(Address::from_bits(start), (end - start) as usize)));
            prop_assert!(open.iter().all(|(&start, end)| provider.contains(Address::from_bits(start), (end - start) as usize)));
            prop_assert_eq!(statistics.reserved_bytes, provider.live_bytes() as u64);
            prop_assert_eq!(statistics.regions, provider.live_regions() as u64);
            prop_assert_eq!(limit.used(), statistics.reserved_bytes);
            prop_assert!(statistics.reserved_bytes <= LIMIT && statistics.peak_reserved_bytes <= LIMIT);
            prop_assert!(statistics.reserved_bytes >= statistics.live_bytes + statistics.held_bytes);
        }
        check_map(&pool, &live)?;
        for &start in live.keys() {
            // SAFETY: no thread uses the block.
            prop_assert_eq!(unsafe { pool.free(Address::from_bits(start)) }, Ok(()));
        }
        drop(worker);
        if ends_leased {
            drop(pool);
            prop_assert!(open.iter().all(|(&start, end)| provider.contains(Address::from_bits(start), (end - start) as usize)));
            prop_assert!(delayed.iter().all(|(&start, (end, _))| provider.contains(Address::from_bits(start), (end - start) as usize)));
            borrower.close_all();
            tokens.iter().for_each(|token| token.set_ready());
            umf_runtime::deferred::poll();
        } else {
            borrower.close_all();
            tokens.iter().for_each(|token| token.set_ready());
            pool.trim(0).unwrap();
        }
        prop_assert_eq!((provider.live_regions(), limit.used()), (0, 0));
    }
}

#[test]
fn dropped_pool_returns_its_part_of_the_shared_limit() {
    let _alone = alone();
    let limit = Arc::new(SharedLimit::new(8 << 20));
    let make = || {
        SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().shared_limit(Arc::clone(&limit)))
            .unwrap()
    };
    let block = Layout::new(1 << 20, 8).unwrap();
    for _ in 0..20 {
        let (one, two) = (make(), make());
        let mut n = 0;
        while one.allocate(block).is_ok() {
            n += 1;
        }
        assert_eq!(n, 8, "the limit can be used to the last byte");
        assert!(matches!(two.allocate(block), Err(Error::LimitReached { what: "shared memory", .. })));
        drop(one);
        assert!(two.allocate(block).is_ok());
    }
    assert_eq!(limit.used(), 0);
}
