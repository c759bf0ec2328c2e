//! Remote frees: blocks freed by another thread than the owner of their slab.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, and one reads the environment")]

use core::fmt::{Debug, Write};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Barrier, Mutex, mpsc};

use tracing::field::Field;
use tracing::{Event, Level, Metadata, Subscriber, span};
use umf_core::{Address, DeferredFree, Error, Layout, Pool};
use umf_testkit::pool::{AddressOnlyProvider, ManualCompletion, MmapProvider};
use umf_testkit::{LeaseHolder, race};

use crate::types::LIVE;
use crate::{SlabPool, SlabSettings};

const SIZES: [usize; 4] = [24, 700, 4000, 50_000];

fn pool() -> Arc<SlabPool> {
    SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap()
}

fn allocate(pool: &SlabPool, size: usize) -> Address {
    pool.allocate(Layout::new(size, 8).unwrap()).unwrap()
}

fn free(pool: &SlabPool, address: Address) -> umf_core::Result<()> {
    // SAFETY: no thread uses the memory of these tests' blocks; a second free is an error.
    unsafe { pool.free(address) }
}

fn free_all(pool: &SlabPool, blocks: impl IntoIterator<Item = Address>) {
    blocks.into_iter().for_each(|address| free(pool, address).unwrap());
}

/// Runs `allocate` in a new thread, and `run` with the result while that thread is idle.
fn beside_owner<R: Send>(allocate: impl FnOnce() -> R + Send, run: impl FnOnce(R)) {
    let (allocated, receive) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let owner = scope.spawn(move || {
            allocated.send(allocate()).unwrap();
            let _ = ended.recv();
        });
        run(receive.recv().unwrap());
        drop(end);
        // Joined, so that its heap is emptied before this returns.
        owner.join().unwrap();
    });
}

fn assert_unused(pool: &SlabPool) {
    let statistics = pool.statistics();
    assert_eq!((statistics.live_blocks, statistics.live_bytes), (0, 0));
    assert_eq!(statistics.allocations, statistics.frees);
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}

/// The owner and another thread free one block at the same time. Both may succeed; the block is
/// handed out once, and each second free is counted.
#[test]
fn block_freed_by_owner_and_other_thread_is_handed_out_once() {
    const RACES: usize = 50_000;
    const BLOCKS: usize = 100;
    let pool = pool();
    let mut both = 0;
    for round in 0..RACES / BLOCKS {
        let size = SIZES[round % 3];
        let blocks: Vec<Address> = (0..BLOCKS).map(|_| allocate(&pool, size)).collect();
        let succeeded = AtomicUsize::new(0);
        race(&blocks, |&address| match free(&pool, address) {
            Ok(()) => {
                succeeded.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::NotAllocated { .. }) => {}
            Err(error) => panic!("{error}"),
        });
        let succeeded = succeeded.into_inner();
        assert!((BLOCKS..=2 * BLOCKS).contains(&succeeded));
        both += succeeded - BLOCKS;
        let mut again: Vec<Address> = (0..2 * BLOCKS).map(|_| allocate(&pool, size)).collect();
        assert_eq!(again.iter().collect::<BTreeSet<_>>().len(), again.len(), "handed out twice");
        free_all(&pool, again.drain(..));
        // Drains the remote frees of the other thread.
        let (index, heap) = pool.heaps.current().unwrap();
        pool.drain_own(index, heap);
        let statistics = pool.statistics();
        assert_eq!((statistics.late_double_frees, statistics.live_blocks), (both as u64, 0));
    }
    println!("{both} of {RACES} races had two successful frees");
    assert_unused(&pool);
}

/// Records the texts of warnings.
struct Warnings(Mutex<Vec<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            let _ = write!(text, "{field}={value:?} ");
        });
        self.0.lock().unwrap().push(text);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Late double frees are counted and logged. Several at the same time are logged once, with their
/// number.
#[test]
fn late_double_frees_are_logged_and_counted() {
    const MANY: usize = 3;
    let pool = pool();
    let blocks: Vec<Address> = (0..MANY).map(|_| allocate(&pool, 100)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| free_all(&pool, blocks.iter().copied())).join().unwrap();
    });
    for &address in &blocks {
        assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })));
        // As if the owner's free had read the state before the other thread wrote it.
        let place = pool.back.meta.locate_start(address).unwrap();
        place.state.store(LIVE, Ordering::Release);
        free(&pool, address).unwrap();
    }
    assert_eq!(pool.statistics().late_double_frees, 0);
    let warnings = Arc::new(Warnings(Mutex::default()));
    tracing::subscriber::with_default(Arc::clone(&warnings), || {
        let (index, heap) = pool.heaps.current().unwrap();
        pool.drain_own(index, heap);
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.late_double_frees, statistics.live_blocks), (MANY as u64, 0));
    let warnings = warnings.0.lock().unwrap();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    let names_block = blocks.iter().any(|address| warning.contains(&format!("address={address} ")));
    assert!(names_block && warning.contains("count=3 ") && warning.contains("pool=\"slab\""), "{warning}");
    drop(warnings);
    assert_unused(&pool);
}

/// A late double free is counted although its slab was removed, and another slab may be there.
#[test]
fn late_double_frees_in_removed_slabs_are_counted() {
    for other in [0, 200] {
        let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().capacity(0)).unwrap();
        let address = allocate(&pool, 100);
        beside_owner(
            || free(&pool, address).unwrap(),
            |()| {
                let place = pool.back.meta.locate_start(address).unwrap();
                place.state.store(LIVE, Ordering::Release);
                free(&pool, address).unwrap();
                let (index, heap) = pool.heaps.current().unwrap();
                pool.empty_own(index, heap, false);
                free_all(&pool, (0..other).map(|_| allocate(&pool, 700)).collect::<Vec<_>>());
            },
        );
        pool.trim(0).unwrap();
        assert_eq!(pool.statistics().late_double_frees, 1);
        assert_unused(&pool);
    }
}

#[test]
fn remote_free_of_a_block_that_is_not_live_is_an_error() {
    let pool = pool();
    for size in SIZES {
        let blocks: Vec<Address> = (0..3).map(|_| allocate(&pool, size)).collect();
        beside_owner(
            || free_all(&pool, blocks.iter().copied()),
            |()| {
                for &address in &blocks {
                    assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })));
                    assert!(pool.block_at(address).is_err());
                }
                assert_eq!(pool.statistics().live_blocks, 0);
            },
        );
    }
    assert_eq!(pool.statistics().late_double_frees, 0);
    assert_unused(&pool);
}

/// A trim collects open batches and inboxes, those of idle threads too.
#[test]
fn trim_collects_pending_batches() {
    for many in [1, 61, 62, 63, 2000, 20_000] {
        let pool = pool();
        let allocate_all = || (0..many).map(|number| allocate(&pool, SIZES[number % 3])).collect::<Vec<_>>();
        beside_owner(allocate_all, |blocks| {
            beside_owner(
                || free_all(&pool, blocks),
                |()| {
                    assert_unused(&pool);
                },
            );
        });
        assert_eq!(pool.statistics().late_double_frees, 0);
    }
}

/// Blocks in the inbox of an idle thread are reused by other threads before the pool grows.
#[test]
fn inbox_of_an_idle_owner_is_drained() {
    const MANY: usize = 30_000;
    let pool = pool();
    let allocate_all = || (0..MANY).map(|_| allocate(&pool, 100)).collect::<BTreeSet<_>>();
    beside_owner(allocate_all, |blocks| {
        let reserved = pool.statistics().reserved_bytes;
        free_all(&pool, blocks.iter().copied());
        let again = allocate_all();
        assert_eq!(pool.statistics().reserved_bytes, reserved);
        assert!(again.intersection(&blocks).count() > MANY * 9 / 10);
        free_all(&pool, again);
    });
    assert_unused(&pool);
}

/// Free blocks in slabs of an idle owner are reused by other threads, whether or not their batches
/// still wait.
#[test]
fn free_blocks_of_an_idle_owner_are_reused_by_others() {
    for many in [4000, 16_000, 30_000] {
        let pool = pool();
        let allocate_all = || (0..many).map(|_| allocate(&pool, 1000)).collect::<Vec<_>>();
        beside_owner(allocate_all, |blocks| {
            let reserved = pool.statistics().reserved_bytes;
            let (live, freed): (Vec<_>, Vec<_>) =
                blocks.into_iter().enumerate().partition(|(number, _)| number % 10 == 0);
            let freed: BTreeSet<Address> = freed.into_iter().map(|(_, address)| address).collect();
            free_all(&pool, freed.iter().copied());
            let again: Vec<Address> = freed.iter().map(|_| allocate(&pool, 1000)).collect();
            let reused = again.iter().filter(|address| freed.contains(address)).count();
            assert!(reused > many * 8 / 10, "{reused} of {}", freed.len());
            assert!(pool.statistics().reserved_bytes <= reserved + (1 << 20));
            free_all(&pool, again);
            free_all(&pool, live.into_iter().map(|(_, address)| address));
        });
        assert_unused(&pool);
    }
}

/// Batches for an idle owner count as free memory, and the bytes in batches are bounded.
#[test]
fn pending_batches_count_against_max_cached() {
    const MOST: u64 = 8 << 20;
    for (size, many) in [(50_000, 900), (50_000, 3600), (1000, 3600)] {
        let pool =
            SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().max_cached(MOST)).unwrap();
        let allocate_all = || (0..many).map(|_| allocate(&pool, size)).collect::<Vec<_>>();
        beside_owner(allocate_all, |blocks| {
            free_all(&pool, blocks);
            let cached = pool.statistics().cached_bytes;
            assert!(cached <= MOST + MOST / 2, "{cached}");
        });
        assert_unused(&pool);
    }
}

/// The owner's inbox does not grow without bound while the owner sleeps.
#[test]
fn sender_drains_the_inbox_of_a_sleeping_owner() {
    let pool = pool();
    let allocate_all = || (0..100_000).map(|_| allocate(&pool, 64)).collect::<Vec<_>>();
    beside_owner(allocate_all, |blocks| {
        for address in blocks {
            free(&pool, address).unwrap();
            assert!(pool.heaps.iter().all(|(_, heap)| heap.inbox.pending() <= pool.heaps.max_pending()));
        }
        assert_unused(&pool);
    });
}

/// Threads start, end and free each other's blocks. No block is lost.
#[test]
fn blocks_of_short_lived_threads_are_reused() {
    let pool = pool();
    let shelf: Mutex<VecDeque<Address>> = Mutex::default();
    for generation in 0..60_usize {
        std::thread::scope(|scope| {
            let work = |thread: usize| {
                let (pool, shelf) = (&pool, &shelf);
                move || {
                    for turn in 0..400 {
                        let address = allocate(pool, SIZES[(generation + thread + turn) % 4]);
                        let mut shelf = shelf.lock().unwrap();
                        shelf.push_back(address);
                        let old = if shelf.len() > 500 { shelf.pop_front() } else { None };
                        drop(shelf);
                        free_all(pool, old);
                    }
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
    free_all(&pool, shelf.into_inner().unwrap());
    assert_eq!(pool.statistics().late_double_frees, 0);
    assert_unused(&pool);
}

/// Many threads, each of which frees blocks of others and leaves blocks for others to free.
#[test]
fn many_threads_leave_no_live_blocks() {
    let generations = if std::env::var_os("UMF_TESTS_LONG").is_some() { 120_000 } else { 3000 };
    let pool = pool();
    let shelf: Mutex<VecDeque<Address>> = Mutex::default();
    let mut reserved = [0; 2];
    for generation in 0..generations {
        std::thread::scope(|scope| {
            let work = |thread: usize| {
                let (pool, shelf) = (&pool, &shelf);
                move || {
                    let blocks =
                        (0..20).map(|number| allocate(pool, SIZES[(generation + thread + number) % 3]));
                    let blocks: Vec<Address> = blocks.collect();
                    let mut shelf = shelf.lock().unwrap();
                    shelf.extend(blocks);
                    let surplus = shelf.len().saturating_sub(300);
                    let old: Vec<Address> = shelf.drain(..surplus).collect();
                    drop(shelf);
                    free_all(pool, old);
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        if generation == generations / 3 || generation == generations - 1 {
            let place = usize::from(generation == generations - 1);
            reserved[place] = pool.statistics().reserved_bytes;
        }
    }
    println!("{} threads; the pool had {reserved:?} bytes after a third, and in the end", 4 * generations);
    assert!(reserved[1] <= 2 * reserved[0] + (1 << 20), "{reserved:?}");
    free_all(&pool, shelf.into_inner().unwrap());
    assert_eq!(pool.statistics().late_double_frees, 0);
    assert_unused(&pool);
}

/// More threads than a heap has open batches, and than the fast paths have heaps.
#[test]
fn more_threads_than_open_batches_free_each_others_blocks() {
    const THREADS: usize = 90;
    const EACH: usize = 270;
    let pool = pool();
    let shelves: Vec<Mutex<Vec<Address>>> = (0..THREADS).map(|_| Mutex::default()).collect();
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let work = |thread: usize| {
            let (pool, shelves, barrier) = (&pool, &shelves, &barrier);
            move || {
                for turn in 0..3 {
                    for number in 0..EACH {
                        let address = allocate(pool, SIZES[(thread + turn + number) % 3]);
                        shelves[(thread + number) % THREADS].lock().unwrap().push(address);
                    }
                    barrier.wait();
                    let blocks = core::mem::take(&mut *shelves[thread].lock().unwrap());
                    free_all(pool, blocks);
                    barrier.wait();
                }
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(pool.statistics().late_double_frees, 0);
    assert_unused(&pool);
}

/// A child frees blocks of the parent's other threads, those in batches included.
#[test]
fn child_collects_batches_for_threads_of_its_parent() {
    const MANY: usize = 4000;
    let pool = SlabPool::new(MmapProvider::private(), SlabSettings::new()).unwrap();
    let allocate_all = || (0..MANY).map(|_| allocate(&pool, 100)).collect::<Vec<_>>();
    beside_owner(allocate_all, |blocks| {
        let (before, after) = blocks.split_at(MANY / 2 + 7);
        free_all(&pool, before.iter().copied());
        // SAFETY: the child runs pool code, whose locks support a fork, and ends without
        // unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: sets a timer of this process.
            unsafe { libc::alarm(20) };
            let freed = after.iter().all(|&address| free(&pool, address).is_ok());
            let trimmed = pool.trim(0).is_ok() && pool.statistics().live_blocks == 0;
            let known: BTreeSet<Address> = blocks.iter().copied().collect();
            let again =
                (0..MANY).map(|_| allocate(&pool, 100)).filter(|address| known.contains(address)).count();
            let waits = pool.heaps.iter().any(|(_, heap)| !heap.inbox.is_empty());
            let status = i32::from(!freed) + 2 * i32::from(!trimmed) + 4 * i32::from(waits);
            // The memory of emptied slabs is reused too.
            let status = status + 8 * i32::from(again == 0);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(status) };
        }
        assert_eq!(wait_for(child), 0);
        free_all(&pool, after.iter().copied());
        assert_unused(&pool);
    });
}

/// Waits for a child, and returns its wait status.
fn wait_for(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this test.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// A thread of a child has the number of an ended thread of the parent. A revoking thread waits
/// while it is inside its section.
#[test]
fn revoking_waits_for_a_child_thread_with_a_reused_number() {
    static STATE: AtomicUsize = AtomicUsize::new(0);
    static INDEX: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn stay_inside(pool: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the pool lives as long as the process.
        let pool = unsafe { &*pool.cast::<SlabPool>() };
        allocate(pool, 100);
        let (index, heap) = pool.heaps.current().unwrap();
        INDEX.store(index as usize, Ordering::Relaxed);
        let section = pool.heaps.enter(heap);
        STATE.store(1, Ordering::Release);
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        STATE.store(2, Ordering::Release);
        drop(section);
        core::ptr::null_mut()
    }
    let pool = SlabPool::new(MmapProvider::private(), SlabSettings::new()).unwrap();
    allocate(&pool, 100);
    beside_owner(|| free(&pool, allocate(&pool, 100)).unwrap(), |()| ());
    // SAFETY: the child runs pool code, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (mut thread, data) = (0, Arc::as_ptr(&pool).cast_mut().cast());
        // SAFETY: sets a timer, and starts a thread, of this process.
        unsafe {
            libc::alarm(60);
            libc::pthread_create(&raw mut thread, core::ptr::null(), stay_inside, data);
        }
        while STATE.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let index = INDEX.load(Ordering::Relaxed) as u32;
        let state =
            pool.heaps.with_revoked(index, pool.heaps.get(index).unwrap(), || STATE.load(Ordering::Acquire));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(state != 2)) };
    }
    assert_eq!(wait_for(child), 0, "the revoking thread did not wait");
}

/// Forks while threads free each other's blocks. The child frees their blocks, and allocates more
/// than the pool has free.
#[test]
fn child_forked_during_remote_frees_can_use_the_pool() {
    const CHILDREN: usize = 60;
    let pool = SlabPool::new(MmapProvider::private(), SlabSettings::new()).unwrap();
    let stop = AtomicBool::new(false);
    let shelf: Mutex<VecDeque<Address>> = Mutex::default();
    let mut live = vec![allocate(&pool, 100)];
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        let work = |thread: usize| {
            let (pool, shelf, stop) = (&pool, &shelf, &stop);
            move || {
                let block = allocate(pool, 100);
                let mut turn = thread;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let address = allocate(pool, SIZES[turn % 4]);
                    let mut shelf = shelf.lock().unwrap();
                    shelf.push_back(address);
                    let old = if shelf.len() > 500 { shelf.pop_front() } else { None };
                    drop(shelf);
                    free_all(pool, old);
                }
                block
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
        for number in 0..CHILDREN {
            // Locked, so that the shelf is consistent in the child.
            let shelf = shelf.lock().unwrap();
            // SAFETY: as above: the child runs pool code, and ends without unwinding.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: sets a timer of this process.
                unsafe { libc::alarm(60) };
                let freed = shelf.iter().all(|&address| free(&pool, address).is_ok());
                let more: Vec<Address> = (0..2000).map(|turn| allocate(&pool, SIZES[turn % 4])).collect();
                let freed = freed && more.iter().all(|&address| free(&pool, address).is_ok());
                let twice = more.iter().any(|&address| free(&pool, address).is_ok());
                let trimmed = pool.trim(0).is_ok();
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(i32::from(!freed) + 2 * i32::from(twice) + 4 * i32::from(!trimmed)) };
            }
            drop(shelf);
            assert_eq!(wait_for(child), 0, "child {number}");
        }
        stop.store(true, Ordering::Relaxed);
        live.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    });
    free_all(&pool, live);
    free_all(&pool, shelf.into_inner().unwrap());
    assert_unused(&pool);
}

/// Another thread than the owner frees exported, leased and deferred blocks.
#[test]
fn other_threads_free_exported_and_deferred_blocks() {
    for size in SIZES {
        let pool = pool();
        let allocate_all = || (0..30).map(|_| allocate(&pool, size)).collect::<Vec<_>>();
        beside_owner(allocate_all, |blocks| {
            let (borrower, token) = (LeaseHolder::new(), ManualCompletion::new());
            for (number, &address) in blocks.iter().enumerate() {
                match number % 3 {
                    0 => pool.mark_exported(address).unwrap(),
                    1 => {
                        pool.mark_exported(address).unwrap();
                        borrower.open(address, size);
                    }
                    // SAFETY: no thread uses the block.
                    _ => unsafe { pool.free_after(address, token.clone()) }.unwrap(),
                }
                if number % 3 != 2 {
                    free(&pool, address).unwrap();
                }
                assert!(matches!(free(&pool, address), Err(Error::NotAllocated { .. })), "{number}");
                assert!(pool.mark_exported(address).is_err());
            }
            assert_eq!(pool.statistics().live_blocks, 0);
            let held = pool.statistics().held_bytes;
            assert!(held >= 20 * size as u64, "{held}");
            let others: Vec<Address> = (0..100).map(|_| allocate(&pool, size)).collect();
            let is_held = |address: &Address| {
                blocks.iter().position(|block| block == address).is_some_and(|number| number % 3 != 0)
            };
            assert!(!others.iter().any(is_held), "a held block was handed out");
            borrower.close_all();
            token.set_ready();
            umf_runtime::deferred::poll();
            assert_eq!(pool.statistics().held_bytes, 0);
            free_all(&pool, others);
            assert_unused(&pool);
        });
    }
}
