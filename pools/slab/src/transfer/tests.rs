//! Compares batches with a model. Tests blocks that one thread frees and another one allocates.

#![allow(clippy::unwrap_used, reason = "tests")]

use core::sync::atomic::AtomicU8;
use std::collections::BTreeSet;
use std::sync::{Barrier, mpsc};

use proptest::prelude::*;
use umf_core::{Address, Error, Layout, Pool};
use umf_testkit::pool::AddressOnlyProvider;

use super::*;
use crate::{SlabPool, SlabSettings};

const SIZES: [usize; 6] = [24, 700, 4000, 50_000, 70_000, 1 << 20];

fn allocate(pool: &SlabPool, size: usize) -> Address {
    pool.allocate(Layout::new(size, 8).unwrap()).unwrap()
}

fn free(pool: &SlabPool, address: Address) -> umf_core::Result<()> {
    // SAFETY: no thread uses the memory of these tests' blocks; a second free is an error.
    unsafe { pool.free(address) }
}

fn on_another_thread<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        class: u8,
        size: usize,
    },
    /// Removes the blocks of the classes below this.
    Offer(u8),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0_u8..8, 1_usize..100).prop_map(|(class, size)| Step::Push { class, size }),
        1 => (0_u8..8).prop_map(Step::Offer),
        1 => Just(Step::Drain),
    ]
}

proptest! {
    /// A batch has the blocks that were added and not removed, in order, and their bytes.
    #[test]
    fn batch_is_a_list(steps in prop::collection::vec(step(), 0..400), max in 1_usize..4000) {
        let arena = Arena::new();
        let (_, place) = arena.allocate(LargeBatch::BYTES).unwrap();
        // SAFETY: the run is the test's own, and long enough.
        let mut batch = unsafe { LargeBatch::new(place) };
        let state = AtomicU8::new(0);
        let mut list: Vec<(usize, u64, usize)> = Vec::new();
        let bytes = |list: &[(usize, u64, usize)]| -> usize { list.iter().map(|(.., size)| size).sum() };
        for (number, step) in (0_u64..).zip(steps) {
            match step {
                Step::Push { class, size } => {
                    let class = usize::from(class);
                    let fits = list.len() < CAPACITY && bytes(&list) + size <= max;
                    prop_assert_eq!(batch.fits(size, max), fits);
                    if fits {
                        batch.push(class, Entry::new(number, NonNull::from(&state)), size);
                        list.push((class, number, size));
                    }
                }
                Step::Offer(below) => {
                    let sizes: Vec<(u64, usize)> = list.iter().map(|&(_, number, size)| (number, size)).collect();
                    batch.offer(|class, entry| {
                        let (_, size) = sizes.iter().find(|(number, _)| *number == entry.address).unwrap();
                        (class < usize::from(below)).then_some(*size)
                    });
                    list.retain(|(class, ..)| *class >= usize::from(below));
                }
                Step::Drain => {
                    let mut drained = Vec::new();
                    batch.drain(|class, entries| {
                        drained.extend(entries.iter().map(|entry| (class, entry.address)));
                    });
                    let all: Vec<_> = list.drain(..).map(|(class, number, _)| (class, number)).collect();
                    prop_assert_eq!(drained, all);
                }
            }
            prop_assert_eq!(batch.is_empty(), list.is_empty());
            prop_assert_eq!(batch.bytes() as usize, bytes(&list));
        }
    }
}

/// One thread allocates and another one frees, in a loop: the pool does not grow.
#[test]
fn blocks_freed_by_one_thread_are_reused_by_another() {
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
    let (to, from) = mpsc::sync_channel::<Vec<Address>>(1);
    let (met, done) = (Barrier::new(2), Barrier::new(2));
    let mut reserved = Vec::new();
    let mut reused = 0;
    std::thread::scope(|scope| {
        let (pool, met, done) = (&*pool, &met, &done);
        scope.spawn(move || {
            while let Ok(blocks) = from.recv() {
                blocks.into_iter().for_each(|address| free(pool, address).unwrap());
                met.wait();
                done.wait();
            }
        });
        let mut known = BTreeSet::new();
        for round in 0..60 {
            let blocks: Vec<Address> =
                (0..120).map(|number| allocate(pool, SIZES[number % SIZES.len()])).collect();
            if round >= 20 {
                reused += blocks.iter().filter(|address| known.contains(*address)).count();
            }
            known.extend(blocks.iter().copied());
            to.send(blocks).unwrap();
            met.wait();
            reserved.push(pool.statistics().reserved_bytes);
            done.wait();
        }
        drop(to);
    });
    assert!(reused > 40 * 120 * 9 / 10, "{reused} blocks were reused");
    assert_eq!(reserved[30], reserved[59], "{reserved:?}");
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.live_bytes), (0, 0));
    assert_eq!((statistics.allocations, statistics.frees), (60 * 120, 60 * 120));
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}

/// A second free of a block in a batch is an error, in any thread. Small and large blocks are in
/// separate batches.
#[test]
fn block_in_a_batch_is_not_live() {
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
    for size in SIZES {
        // Three: the free of the first one revokes the bias.
        let blocks: Vec<Address> = (0..3).map(|_| allocate(&pool, size)).collect();
        on_another_thread(|| {
            for &address in &blocks {
                free(&pool, address).unwrap();
            }
            for &address in &blocks {
                assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })), "{size}");
            }
            let waits = pool.heaps.current().is_some_and(|(_, heap)| match size {
                0..70_000 => heap.open.take_all().pop().is_some(),
                _ => heap.outgoing.take().is_some(),
            });
            assert!(waits, "blocks of {size} bytes are in no batch");
        });
        for &address in &blocks {
            assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })), "{size}");
            assert!(pool.block_at(address).is_err());
        }
    }
}

/// The bytes in waiting batches are limited by the settings.
#[test]
fn waiting_batches_stay_below_the_limit() {
    for shared in [0_usize, 1 << 20, 16 << 20] {
        let settings = SlabSettings::new().shared_cache_size(shared);
        let pool = SlabPool::new(AddressOnlyProvider::new(4096), settings).unwrap();
        for size in SIZES {
            let blocks: Vec<Address> =
                (0..3000.min((256 << 20) / size)).map(|_| allocate(&pool, size)).collect();
            on_another_thread(|| {
                for address in blocks {
                    free(&pool, address).unwrap();
                    assert!(
                        pool.transfer.batch_bytes() <= shared as u64
                            && u64::from(pool.transfer.batches()) <= MAX_BATCHES
                    );
                }
            });
            assert_eq!(pool.statistics().live_blocks, 0);
        }
        pool.trim(0).unwrap();
        assert_eq!((pool.statistics().reserved_bytes, pool.transfer.batches()), (0, 0));
    }
}

/// The batch of a thread is emptied when the thread ends, and when the pool is trimmed.
#[test]
fn batches_of_ended_and_idle_threads_are_emptied() {
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
    for size in SIZES {
        let blocks: Vec<Address> = (0..5).map(|_| allocate(&pool, size)).collect();
        on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    }
    assert!(
        pool.heaps.iter().all(|(_, heap)| heap.outgoing.take().is_none()),
        "the batches of ended threads were not emptied"
    );
    let (go, wait) = mpsc::channel::<()>();
    let (done, ready) = mpsc::channel::<()>();
    let blocks: Vec<Address> = SIZES.iter().map(|&size| allocate(&pool, size)).collect();
    std::thread::scope(|scope| {
        let pool = &*pool;
        scope.spawn(move || {
            blocks.iter().for_each(|&address| free(pool, address).unwrap());
            done.send(()).unwrap();
            wait.recv().unwrap();
        });
        ready.recv().unwrap();
        pool.trim(0).unwrap();
        assert_eq!(pool.statistics().reserved_bytes, 0, "the batch of the idle thread was not emptied");
        go.send(()).unwrap();
    });
}

/// Large blocks that one thread allocates and another one frees are not biased towards the first.
/// Of blocks that a thread frees once and later passes on, few are biased.
#[test]
fn large_blocks_that_are_passed_on_are_not_biased() {
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
    let (index, _) = {
        free(&pool, allocate(&pool, 24)).unwrap();
        pool.heaps.current().unwrap()
    };
    let revoked = || pool.heaps.get(index).unwrap().bias.revoked();
    let allocate_all = || (0..100).map(|number| allocate(&pool, SIZES[4 + number % 2])).collect::<Vec<_>>();
    for _ in 0..20 {
        let blocks = allocate_all();
        on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    }
    assert_eq!(revoked(), 0);
    for _ in 0..20 {
        allocate_all().into_iter().for_each(|address| free(&pool, address).unwrap());
        let blocks = allocate_all();
        on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    }
    // Only blocks of the first round are biased.
    assert!((1..=100).contains(&revoked()), "{}", revoked());
    assert_eq!(pool.statistics().live_blocks, 0);
}

/// Cached large blocks of an ended thread are reused by the next thread. A quarter of the pool's
/// bytes may wait.
#[test]
fn large_blocks_of_an_ended_thread_are_reused_by_the_next() {
    const MANY: usize = 400;
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
    let live: Vec<Address> = (0..1100).map(|_| allocate(&pool, 1 << 20)).collect();
    let reserved = pool.statistics().reserved_bytes;
    assert_eq!(pool.transfer.max_bytes(reserved), reserved / 4);
    let allocate_all = || (0..MANY).map(|number| allocate(&pool, (1 + number % 2) << 18)).collect::<Vec<_>>();
    let first = on_another_thread(|| {
        let blocks = allocate_all();
        blocks.iter().for_each(|&address| free(&pool, address).unwrap());
        blocks
    });
    assert!(pool.transfer.batches() > 0 && pool.transfer.batch_bytes() > 64 << 20);
    let reserved = pool.statistics().reserved_bytes;
    on_another_thread(|| {
        let blocks = allocate_all();
        let known = blocks.iter().filter(|address| first.contains(*address)).count();
        assert!(known > MANY * 9 / 10, "{known} of {MANY}");
        assert_eq!(pool.statistics().reserved_bytes, reserved);
        blocks.iter().for_each(|&address| free(&pool, address).unwrap());
    });
    live.into_iter().for_each(|address| free(&pool, address).unwrap());
    pool.trim(0).unwrap();
    assert_eq!((pool.statistics().reserved_bytes, pool.transfer.batches()), (0, 0));
}

/// When a thread ends, blocks that are too large for a batch go to the shared lists, and no empty
/// batch is sent.
#[test]
fn waiting_batches_are_not_empty() {
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().thread_cache_size(2 << 20))
        .unwrap();
    on_another_thread(|| {
        let blocks: Vec<Address> = [70_000, 1 << 20, 100_000].map(|size| allocate(&pool, size)).to_vec();
        blocks.iter().for_each(|&address| free(&pool, address).unwrap());
    });
    let mut waiting = 0;
    while let Some(batch) = pool.transfer.take() {
        assert!(!batch.is_empty());
        waiting += 1;
    }
    assert_eq!(waiting, 1, "one batch with the two smaller blocks");
}

/// Batches that no thread takes are merged by a decay.
#[test]
fn unused_batches_decay() {
    let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
    let blocks: Vec<Address> = (0..1000).map(|number| allocate(&pool, SIZES[4 + number % 2])).collect();
    on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    assert!(pool.transfer.batches() > 0);
    pool.decay();
    assert!(pool.transfer.batches() > 0, "the batch is newer than the last decay");
    pool.decay();
    assert_eq!(pool.transfer.batches(), 0);
}
