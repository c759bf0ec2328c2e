//! Parcels against a plain reference; and that what one thread frees is there for others, and for nobody twice.

#![allow(clippy::unwrap_used, reason = "tests")]

use core::sync::atomic::AtomicU8;
use std::collections::BTreeSet;
use std::sync::{Barrier, mpsc};

use proptest::prelude::*;
use umf_core::{Address, Error, Layout, Pool};
use umf_testkit::pool::Numbers;

use super::*;
use crate::metadata::Arena;
use crate::{SlabPool, SlabSettings};

const SIZES: [usize; 6] = [24, 700, 4000, 50_000, 70_000, 1 << 20];

fn allocate(pool: &SlabPool, size: usize) -> Address {
    pool.allocate(Layout::new(size, 8).unwrap()).unwrap()
}

fn free(pool: &SlabPool, address: Address) -> umf_core::Result<()> {
    // SAFETY: nobody uses the memory of these tests' blocks; a second free is an error.
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
    /// Takes out the blocks of classes below.
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
    /// A parcel has what was put in and not taken out, in order, and says how much that is.
    #[test]
    fn a_parcel_is_a_list(steps in prop::collection::vec(step(), 0..400), most in 1_usize..4000) {
        let arena = Arena::new();
        let (_, place) = arena.allocate(Parcel::BYTES).unwrap();
        // SAFETY: the run is the test's own, and long enough.
        let mut parcel = unsafe { Parcel::new(place) };
        let state = AtomicU8::new(0);
        let mut list: Vec<(usize, u64, usize)> = Vec::new();
        // Classes from 4 on are of large blocks.
        let bytes = |list: &[(usize, u64, usize)], is_large| -> usize {
            list.iter().filter(|(class, ..)| (*class >= 4) == is_large).map(|(.., size)| size).sum()
        };
        for (number, step) in (0_u64..).zip(steps) {
            match step {
                Step::Push { class, size } => {
                    let (class, is_large) = (usize::from(class), class >= 4);
                    let fits = list.len() < ROOM && bytes(&list, is_large) + size <= most;
                    prop_assert_eq!(parcel.fits(size, is_large, most), fits);
                    if fits {
                        parcel.push(class, Entry::new(number, NonNull::from(&state)), size, is_large);
                        list.push((class, number, size));
                    }
                }
                Step::Offer(below) => {
                    let sizes: Vec<(u64, usize)> = list.iter().map(|&(_, number, size)| (number, size)).collect();
                    parcel.offer(|class, entry| {
                        let (_, size) = sizes.iter().find(|(number, _)| *number == entry.address).unwrap();
                        (class < usize::from(below)).then_some((*size, class >= 4))
                    });
                    list.retain(|(class, ..)| *class >= usize::from(below));
                }
                Step::Drain => {
                    let mut drained = Vec::new();
                    parcel.drain(|class, entries| {
                        drained.extend(entries.iter().map(|entry| (class, entry.address)));
                    });
                    let all: Vec<_> = list.drain(..).map(|(class, number, _)| (class, number)).collect();
                    prop_assert_eq!(drained, all);
                }
            }
            prop_assert_eq!(parcel.is_empty(), list.is_empty());
            prop_assert_eq!(parcel.bytes() as usize, bytes(&list, false) + bytes(&list, true));
        }
    }
}

/// One thread allocates and another one frees, again and again: what there is goes round, and does not become more.
#[test]
fn what_one_thread_frees_another_one_gets() {
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
    let (to, from) = mpsc::sync_channel::<Vec<Address>>(1);
    let (met, done) = (Barrier::new(2), Barrier::new(2));
    let mut reserved = Vec::new();
    let mut travelled = 0;
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
                travelled += blocks.iter().filter(|address| known.contains(*address)).count();
            }
            known.extend(blocks.iter().copied());
            to.send(blocks).unwrap();
            met.wait();
            reserved.push(pool.statistics().reserved_bytes);
            done.wait();
        }
        drop(to);
    });
    assert!(travelled > 40 * 120 * 9 / 10, "{travelled} blocks came back");
    assert_eq!(reserved[30], reserved[59], "{reserved:?}");
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.live_bytes), (0, 0));
    assert_eq!((statistics.allocations, statistics.frees), (60 * 120, 60 * 120));
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}

/// What is on its way is free: freeing it again is an error, whoever does.
#[test]
fn what_is_on_its_way_is_not_live() {
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
    for size in SIZES {
        // (Three: the first one ends that the lives are this thread's.)
        let blocks: Vec<Address> = (0..3).map(|_| allocate(&pool, size)).collect();
        on_another_thread(|| {
            for &address in &blocks {
                free(&pool, address).unwrap();
            }
            for &address in &blocks {
                assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })), "{size}");
            }
            let waits = pool.cache().is_some_and(|(_, cache)| cache.outbox().0.take().is_some());
            assert!(waits, "blocks of {size} bytes are not packed");
        });
        for &address in &blocks {
            assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })), "{size}");
            assert!(pool.block_at(address).is_err());
        }
    }
}

/// As much waits as the settings say, and the rest goes where everybody's is.
#[test]
fn no_more_waits_than_may() {
    for shared in [0_usize, 1 << 20, 16 << 20] {
        let settings = SlabSettings::new().shared_cache_size(shared);
        let pool = SlabPool::new(Numbers::new(4096), settings).unwrap();
        for size in SIZES {
            let blocks: Vec<Address> =
                (0..3000.min((256 << 20) / size)).map(|_| allocate(&pool, size)).collect();
            on_another_thread(|| {
                for address in blocks {
                    free(&pool, address).unwrap();
                    assert!(pool.depot.bytes() <= shared as u64 && u64::from(pool.depot.count()) <= MOST);
                }
            });
            assert_eq!(pool.statistics().live_blocks, 0);
        }
        pool.trim(0).unwrap();
        assert_eq!((pool.statistics().reserved_bytes, pool.depot.count()), (0, 0));
    }
}

/// A thread that ends, or that has nothing to free for a while, keeps nothing packed.
#[test]
fn nothing_is_stranded_in_a_parcel() {
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
    for size in SIZES {
        let blocks: Vec<Address> = (0..5).map(|_| allocate(&pool, size)).collect();
        on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    }
    assert!(
        (0..umf_sync::thread::end())
            .filter_map(|index| pool.caches.get(index))
            .all(|cache| cache.outbox().take().is_none()),
        "what the threads packed went as they ended"
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
        assert_eq!(pool.statistics().reserved_bytes, 0, "the other thread did nothing, and nothing is left");
        go.send(()).unwrap();
    });
}

/// Of large blocks that one thread takes and another one frees, no life has to be taken from the first; of those that a thread has
/// freed before, and only then passes on, few.
#[test]
fn lives_of_blocks_that_are_passed_on_are_nobodys() {
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
    let (own, _) = {
        free(&pool, allocate(&pool, 24)).unwrap();
        pool.cache().unwrap()
    };
    let revoked = || pool.caches.get(own).unwrap().trust().revoked();
    let take = || (0..100).map(|number| allocate(&pool, SIZES[4 + number % 2])).collect::<Vec<_>>();
    for _ in 0..20 {
        let blocks = take();
        on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    }
    assert_eq!(revoked(), 0);
    for _ in 0..20 {
        take().into_iter().for_each(|address| free(&pool, address).unwrap());
        let blocks = take();
        on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    }
    // Those of the first round, which nobody could know.
    assert!((1..=100).contains(&revoked()), "{}", revoked());
    assert_eq!(pool.statistics().live_blocks, 0);
}

/// What a thread keeps of large blocks when it ends is there for the next one; and as much as the pool has a quarter of may wait.
#[test]
fn large_blocks_of_a_thread_that_ended_are_used_by_the_next() {
    const MANY: usize = 400;
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
    let live: Vec<Address> = (0..1100).map(|_| allocate(&pool, 1 << 20)).collect();
    let reserved = pool.statistics().reserved_bytes;
    assert_eq!(pool.most_shared(), reserved / 4);
    let taken = || (0..MANY).map(|number| allocate(&pool, (1 + number % 2) << 18)).collect::<Vec<_>>();
    let first = on_another_thread(|| {
        let blocks = taken();
        blocks.iter().for_each(|&address| free(&pool, address).unwrap());
        blocks
    });
    assert!(pool.depot.count() > 0 && pool.depot.bytes() > 64 << 20);
    let reserved = pool.statistics().reserved_bytes;
    on_another_thread(|| {
        let blocks = taken();
        let known = blocks.iter().filter(|address| first.contains(*address)).count();
        assert!(known > MANY * 9 / 10, "{known} of {MANY}");
        assert_eq!(pool.statistics().reserved_bytes, reserved);
        blocks.iter().for_each(|&address| free(&pool, address).unwrap());
    });
    live.into_iter().for_each(|address| free(&pool, address).unwrap());
    pool.trim(0).unwrap();
    assert_eq!((pool.statistics().reserved_bytes, pool.depot.count()), (0, 0));
}

/// Blocks that are too large for a parcel go elsewhere when their thread ends, and no empty parcel waits.
#[test]
fn parcels_that_wait_are_not_empty() {
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new().thread_cache_size(2 << 20)).unwrap();
    on_another_thread(|| {
        let blocks: Vec<Address> = [70_000, 1 << 20, 100_000].map(|size| allocate(&pool, size)).to_vec();
        blocks.iter().for_each(|&address| free(&pool, address).unwrap());
    });
    let mut waiting = 0;
    while let Some(parcel) = pool.depot.take() {
        assert!(!parcel.is_empty());
        waiting += 1;
    }
    assert_eq!(waiting, 1, "the two smaller ones");
}

/// What nobody takes from the depot is given back by age.
#[test]
fn what_nobody_takes_comes_of_age() {
    let pool = SlabPool::new(Numbers::new(4096), SlabSettings::new()).unwrap();
    let blocks: Vec<Address> = (0..1000).map(|number| allocate(&pool, SIZES[number % 3])).collect();
    on_another_thread(|| blocks.iter().for_each(|&address| free(&pool, address).unwrap()));
    assert!(pool.depot.count() > 0);
    pool.expire();
    assert!(pool.depot.count() > 0, "it came since the last look");
    pool.expire();
    assert_eq!(pool.depot.count(), 0);
}
