//! Cases about several threads.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::ScopedJoinHandle;

use super::{AddressOnlyProvider, MakePool, MmapProvider, Random, allocate, free, trim_if_empty_only};
use umf_core::{Address, Reuse};

fn pointer(address: Address) -> *mut u8 {
    address.as_ptr().expect("host memory has pointers")
}

/// A block filled with one byte.
struct Filled {
    address: Address,
    size: usize,
    value: u8,
}

impl Filled {
    fn new(address: Address, size: usize, value: u8) -> Self {
        // SAFETY: a live block of this test, in host memory of at least that size.
        unsafe { pointer(address).write_bytes(value, size) };
        Self { address, size, value }
    }

    fn check(&self) {
        // SAFETY: a live block of this test that was written in full.
        let bytes = unsafe { core::slice::from_raw_parts(pointer(self.address), self.size) };
        assert!(bytes.iter().all(|&byte| byte == self.value), "another thread wrote into {}", self.address);
    }
}

/// Joins threads. A scope alone does not wait for the destructors of thread-local values.
pub(super) fn join<T>(threads: Vec<ScopedJoinHandle<'_, T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
}

/// Four threads fill, check and free their own blocks. No block is written by another thread.
pub fn concurrent_threads_get_disjoint_blocks(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.clone().into());
    std::thread::scope(|scope| {
        let work = |thread: u8| {
            let pool = &*pool;
            move || {
                let mut random = Random(u64::from(thread) + 10);
                let mut live: Vec<Filled> = Vec::new();
                for round in 0..10_000_usize {
                    if live.len() < 100 {
                        let size = random.size(15);
                        let value = thread * 64 + (round % 61) as u8;
                        live.push(Filled::new(allocate(pool, size), size, value));
                    } else {
                        let block = live.swap_remove(random.below(100));
                        block.check();
                        free(pool, block.address);
                    }
                }
                for block in live {
                    block.check();
                    free(pool, block.address);
                }
            }
        };
        join((0..4).map(|thread| scope.spawn(work(thread))).collect());
    });
    assert_eq!((pool.statistics().live_blocks, pool.statistics().live_bytes), (0, 0));
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

/// Blocks that one thread allocates and another frees are reused, so the pool does not grow.
pub fn remotely_freed_blocks_are_reused(make: MakePool<'_>) {
    let provider = MmapProvider::private();
    let pool = make(provider.clone().into());
    let most = AtomicU64::new(0);
    let (send, receive) = mpsc::sync_channel::<Filled>(200);
    std::thread::scope(|scope| {
        let pool = &*pool;
        let freeing = scope.spawn(move || {
            for block in receive {
                block.check();
                free(pool, block.address);
            }
        });
        let mut random = Random(20);
        for round in 0..40_000_usize {
            let size = random.size(14);
            let block = Filled::new(allocate(pool, size), size, round as u8);
            assert!(send.send(block).is_ok(), "the other thread has ended");
            most.fetch_max(pool_bytes(pool, round), Ordering::Relaxed);
        }
        drop(send);
        join(vec![freeing]);
    });
    // Some blocks are live all the time, so a pool with `Reuse::WhenEmpty` has grown.
    assert!(
        pool.reuse() == Reuse::WhenEmpty || most.load(Ordering::Relaxed) < 256 << 20,
        "{} bytes for at most 3 MiB of blocks",
        most.into_inner()
    );
    assert_eq!(pool.statistics().live_blocks, 0);
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}

fn pool_bytes(pool: &dyn umf_core::Pool, round: usize) -> u64 {
    if round.is_multiple_of(1_000) { pool.statistics().reserved_bytes } else { 0 }
}

/// Two hundred threads, one after another, allocate and end. Later threads reuse their caches, and
/// free the blocks of ended ones.
pub fn ended_threads_leak_nothing(make: MakePool<'_>) {
    let provider = AddressOnlyProvider::new(4096);
    let pool = make(provider.clone().into());
    let mut after_some = 0;
    for round in 0..200_u64 {
        let left = std::thread::scope(|scope| {
            let work = || {
                let mut random = Random(round);
                let blocks: Vec<_> = (0..300).map(|_| allocate(&*pool, random.size(17))).collect();
                let (freed, left) = blocks.split_at(290);
                for &address in freed {
                    free(&*pool, address);
                }
                left.to_vec()
            };
            join(vec![scope.spawn(work)]).remove(0)
        });
        for address in left {
            free(&*pool, address);
        }
        trim_if_empty_only(&*pool);
        if round == 20 {
            after_some = provider.live_bytes();
        }
    }
    let end = provider.live_bytes();
    assert!(end <= after_some * 2 + (8 << 20), "{after_some} bytes after 20 threads, {end} after 200");
    pool.trim(0).expect("the provider frees all regions");
    assert_eq!(provider.live_regions(), 0);
}
