//! A free finds a lease although the lease counts of its process are spread over several rows.
//!
//! One thread opens a mapping and another thread closes it, so that the threads' rows have been
//! written in different orders. When an importer gives up its lease table, it clears the rows one
//! by one. A free at that moment must still see a lease that the same process has taken through
//! another table.
//!
//! Each round frees a block that has an open mapping, while another thread makes an importer give
//! up its table. The pool must not reuse the block before the mapping is closed.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use umf::host::{HostImport, HostProvider};
use umf::ipc::ExporterSettings;
use umf::pools::{SlabPool, SlabSettings};
use umf::{Address, Exporter, Handle, Importer, Mapping, Visibility};
use umf_core::Layout;
use umf_runtime::deferred;

/// Rounds of each test.
const ROUNDS: u64 = 12_000;
/// Blocks that are allocated after a free: more than the pool's caches hold of one size.
const BLOCKS_AFTER_FREE: usize = 40;
/// Maximum delay from the start of an eviction to the free. An eviction takes less.
const MAX_FREE_DELAY_NS: u64 = 120_000;
/// Maximum delay from the start of an eviction to the open, which takes long itself.
const MAX_OPEN_DELAY_NS: u64 = 15_000;
/// Difference between the delays of successive rounds, so that they cover the whole range.
const DELAY_STEP_NS: u64 = 7919;

/// A producer in the process of its importers.
struct Producer {
    pool: Arc<SlabPool>,
    exporter: Exporter,
    layout: Layout,
}

impl Producer {
    fn new() -> Self {
        let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
        Self {
            pool: SlabPool::new(provider, SlabSettings::new()).unwrap(),
            exporter: Exporter::new(ExporterSettings::default()).unwrap(),
            layout: Layout::new(4096, 8).unwrap(),
        }
    }

    fn allocate(&self) -> Address {
        umf_core::pool::allocate(&*self.pool, self.layout).unwrap()
    }

    fn allocate_exported(&self) -> (Address, Handle) {
        let address = self.allocate();
        // SAFETY: the test holds no reference into the block.
        (address, unsafe { self.exporter.handle(address) }.unwrap())
    }

    fn free(&self, address: Address) {
        // SAFETY: the block is live, and no pointer into it is used afterwards.
        unsafe { umf_core::pool::free(&*self.pool, address) }.unwrap();
    }

    /// Returns whether the pool reuses a freed block.
    fn reuses(&self, freed: Address) -> bool {
        let blocks: Vec<_> = (0..BLOCKS_AFTER_FREE).map(|_| self.allocate()).collect();
        let found = blocks.contains(&freed);
        blocks.into_iter().for_each(|block| self.free(block));
        found
    }
}

fn importer() -> Importer {
    Importer::builder().import(Arc::new(HostImport::new())).build().unwrap()
}

/// A thread that runs jobs in order. It has no lease row unless a job opens a handle.
struct Helper<'scope> {
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send + 'scope>>,
}

impl<'scope> Helper<'scope> {
    fn start(scope: &'scope std::thread::Scope<'scope, '_>) -> Self {
        let (jobs, queue) = mpsc::channel::<Box<dyn FnOnce() + Send + 'scope>>();
        scope.spawn(move || queue.into_iter().for_each(|job| job()));
        Self { jobs }
    }

    /// Queues a job. Returns a channel for its result.
    fn run<R: Send + 'scope>(&self, job: impl FnOnce() -> R + Send + 'scope) -> mpsc::Receiver<R> {
        let (done, result) = mpsc::channel();
        self.jobs.send(Box::new(move || drop(done.send(job())))).unwrap();
        result
    }
}

/// Opens a mapping in the calling thread and closes it in another.
fn skew<'scope>(importer: &'scope Importer, handle: &Handle, helper: &Helper<'scope>) {
    let mapping = importer.open(handle).unwrap();
    helper.run(move || drop(mapping)).recv().unwrap();
}

/// Starts `evict_idle` in the helper's thread. Returns when it is about to run.
fn start_eviction<'scope>(importer: &'scope Importer, helper: &Helper<'scope>) -> mpsc::Receiver<usize> {
    let running = Arc::new(AtomicBool::new(false));
    let evicted = {
        let running = Arc::clone(&running);
        helper.run(move || {
            running.store(true, Ordering::Release);
            importer.evict_idle()
        })
    };
    while !running.load(Ordering::Acquire) {
        std::hint::spin_loop();
        std::thread::yield_now();
    }
    evicted
}

/// Spins for the delay of a round, which is below `max`.
fn delay(round: u64, max: u64) {
    let start = Instant::now();
    let wait = Duration::from_nanos(round * DELAY_STEP_NS % max);
    while start.elapsed() < wait {
        std::hint::spin_loop();
    }
}

/// Frees the block that `mapping` has open, and asserts that the pool does not reuse it.
#[track_caller]
fn free_must_hold(producer: &Producer, address: Address, mapping: &Mapping<'_>, round: u64) {
    producer.free(address);
    assert!(!mapping.is_current(), "round {round}: the mapping of a freed block is current");
    assert!(
        !producer.reuses(address),
        "round {round}: block {address} was reused while a mapping of it is open"
    );
}

/// Two importers have the same export open. The first one has skewed rows and gives up its table.
#[test]
fn free_sees_lease_of_second_importer_while_first_gives_up_its_table() {
    let producer = Producer::new();
    let (first, second) = (importer(), importer());
    std::thread::scope(|scope| {
        let helper = Helper::start(scope);
        for round in 0..ROUNDS {
            let (address, handle) = producer.allocate_exported();
            skew(&first, &handle, &helper);
            let mapping = second.open(&handle).unwrap();
            let evicted = start_eviction(&first, &helper);
            delay(round, MAX_FREE_DELAY_NS);
            free_must_hold(&producer, address, &mapping, round);
            drop(mapping);
            evicted.recv().unwrap();
            deferred::poll();
        }
    });
}

/// One thread makes an importer give up its table, and another thread makes it create a new one, by
/// opening the same handle again.
#[test]
fn free_sees_lease_in_new_table_while_importer_gives_up_old_one() {
    let producer = Producer::new();
    let importer = importer();
    std::thread::scope(|scope| {
        let (helper, opener) = (Helper::start(scope), Helper::start(scope));
        for round in 0..ROUNDS {
            let (address, handle) = producer.allocate_exported();
            skew(&importer, &handle, &helper);
            let evicted = start_eviction(&importer, &helper);
            let importer = &importer;
            let opened = opener.run(move || {
                delay(round, MAX_OPEN_DELAY_NS);
                importer.open(&handle).unwrap()
            });
            let mapping = opened.recv().unwrap();
            free_must_hold(&producer, address, &mapping, round);
            drop(mapping);
            evicted.recv().unwrap();
            deferred::poll();
        }
    });
}
