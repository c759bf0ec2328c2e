//! Critical sections: a heap belongs to one thread until another thread revokes its section.
//! Threads free each other's blocks, trim and end at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use umf_core::{Address, Completion, DeferredFree, Error, Layout, Pool, Progress};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider};
use umf_testkit::{LeaseHolder, race};

const SIZES: [usize; 4] = [64, 5_000, 70_000, 1 << 20];

fn allocate(pool: &SlabPool, size: usize) -> Address {
    Layout::new(size, 8).and_then(|layout| pool.allocate(layout)).expect("memory")
}

fn free(pool: &SlabPool, address: Address) -> umf_core::Result<()> {
    // SAFETY: no thread uses the memory of these tests' blocks; a second free is an error.
    unsafe { pool.free(address) }
}

/// The owner of a slab and another thread free the same block at the same time. One of the two
/// frees succeeds. Both frees of a small block may succeed: then the block is still not handed out
/// twice, and the second free is counted as a late double free.
#[test]
fn one_of_owner_and_other_thread_frees_a_block() {
    const POOLS: usize = 150;
    // Four per doubling: 64, 80, 96, 112, 128, and so on, up to 1 MiB.
    let sizes: Vec<usize> = (0..56).map(|n| (4 + n % 4) << (4 + n / 4)).collect();
    for _ in 0..POOLS {
        let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
        let blocks: Vec<Address> = sizes.iter().map(|&size| allocate(&pool, size)).collect();
        let won = [const { AtomicU64::new(0) }; 2];
        let both: Vec<(usize, Address)> = sizes.iter().copied().zip(blocks).collect();
        race(&both, |&(size, address)| match free(&pool, address) {
            Ok(()) => {
                won[usize::from(size >= 64 << 10)].fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::NotAllocated { .. } | Error::ForeignAddress { .. }) => {}
            Err(error) => panic!("{error}"),
        });
        // The second free is detected when it reaches the owner.
        pool.trim(0).unwrap();
        let statistics = pool.statistics();
        let large = sizes.iter().filter(|&&size| size >= 64 << 10).count();
        let [won_small, won_large] = won.map(AtomicU64::into_inner);
        assert_eq!(won_large, large as u64);
        assert_eq!(won_small - statistics.late_double_frees, (sizes.len() - large) as u64);
        assert_eq!(statistics.live_blocks, 0);
        let mut again: Vec<Address> =
            sizes.iter().flat_map(|&size| [size; 3]).map(|size| allocate(&pool, size)).collect();
        let count = again.len();
        again.sort_unstable();
        again.dedup();
        assert_eq!(again.len(), count, "a block was handed out twice");
        again.into_iter().for_each(|address| free(&pool, address).unwrap());
        assert_eq!((pool.statistics().live_blocks, pool.statistics().live_bytes), (0, 0));
        pool.trim(0).unwrap();
        assert_eq!(pool.statistics().reserved_bytes, 0);
    }
}

/// Large blocks that are biased towards a thread, and whose free is deferred: they are reclaimed
/// for all threads, and the lookaside cache no longer finds their spans.
#[test]
fn deferred_free_ends_the_bias() {
    type Free<'a> = &'a dyn Fn(&SlabPool, Address, usize);
    struct Ready(AtomicBool);
    impl Completion for Ready {
        fn progress(&self) -> Progress {
            if self.0.load(Ordering::Relaxed) { Progress::Ready } else { Progress::Pending }
        }
    }
    let free_exported = |pool: &SlabPool, address: Address, size: usize| {
        let borrower = LeaseHolder::new();
        pool.mark_exported(address).unwrap();
        borrower.open(address, size);
        free(pool, address).unwrap();
        borrower.close_all();
        umf_runtime::deferred::poll();
    };
    let free_after = |pool: &SlabPool, address: Address, _: usize| {
        let ready = Arc::new(Ready(AtomicBool::new(false)));
        // SAFETY: no thread uses the memory of these tests' blocks.
        unsafe { pool.free_after(address, ready.clone()) }.unwrap();
        ready.0.store(true, Ordering::Relaxed);
        umf_runtime::deferred::poll();
    };
    let free_later: [Free<'_>; 2] = [&free_exported, &free_after];
    for free_later in free_later {
        let pool = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new()).unwrap();
        let mut sizes = [64 << 10, 512 << 10, 1 << 20, 2 << 20];
        for turn in 0..8 {
            let blocks = sizes.map(|size| (allocate(&pool, size), size));
            blocks.iter().for_each(|&(address, _)| free(&pool, address).unwrap());
            let blocks = sizes.map(|size| (allocate(&pool, size), size));
            blocks.iter().for_each(|&(address, size)| free_later(&pool, address, size));
            assert_eq!(pool.statistics().live_blocks, 0, "turn {turn}");
            pool.trim(0).unwrap();
            assert_eq!(pool.statistics().reserved_bytes, 0, "turn {turn}");
            sizes.rotate_left(1);
        }
    }
}

/// A trim empties the heaps of other threads while these are idle.
#[test]
fn trim_empties_heaps_of_idle_threads() {
    let provider = AddressOnlyProvider::new(4096);
    let pool = SlabPool::new(provider.clone(), SlabSettings::new()).unwrap();
    let (done, wait) = mpsc::channel::<()>();
    let (go, stop) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let pool = &*pool;
        scope.spawn(move || {
            for size in SIZES {
                let blocks: Vec<_> = (0..20).map(|_| allocate(pool, size)).collect();
                blocks.into_iter().for_each(|address| free(pool, address).expect("it is live"));
            }
            done.send(()).expect("the other thread waits");
            stop.recv().expect("the other thread sends");
            // The thread does not hand out a block that the trim took from its heap.
            let address = allocate(pool, 64);
            free(pool, address).expect("it is live");
        });
        wait.recv().unwrap();
        assert!(provider.live_bytes() > 0);
        pool.trim(0).unwrap();
        assert_eq!(provider.live_regions(), 0, "the trim left blocks in the heap of the idle thread");
        go.send(()).unwrap();
    });
}

/// At the memory limit, an allocation uses the cached blocks of an idle thread.
#[test]
fn allocation_at_a_limit_takes_from_idle_threads() {
    let pool =
        SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::new().memory_limit(8 << 20)).unwrap();
    let (done, wait) = mpsc::channel::<()>();
    let (go, stop) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let idle = &*pool;
        scope.spawn(move || {
            let blocks: Vec<_> = (0..7).map(|_| allocate(idle, 1 << 20)).collect();
            blocks.into_iter().for_each(|address| free(idle, address).expect("it is live"));
            done.send(()).expect("the other thread waits");
            stop.recv().expect("the other thread sends");
        });
        wait.recv().unwrap();
        let large: Vec<_> = (0..8).map(|_| allocate(&pool, 1 << 20)).collect();
        assert!(Layout::new(1 << 20, 8).and_then(|layout| pool.allocate(layout)).is_err());
        large.into_iter().for_each(|address| free(&pool, address).unwrap());
        go.send(()).unwrap();
    });
}

/// Threads free each other's blocks and trim in loops. Every byte has one owner.
#[test]
fn blocks_have_one_owner_during_trims() {
    let provider = MmapProvider::private();
    let pool = SlabPool::new(provider.clone(), SlabSettings::new().capacity(0)).unwrap();
    let shelf: Mutex<Vec<(Address, usize, u8)>> = Mutex::default();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        let (pool, shelf, stop) = (&*pool, &shelf, &stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                pool.trim(0).expect("the provider takes everything back");
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..3_u8)
            .map(|thread| {
                scope.spawn(move || {
                    let mut live: Vec<(Address, usize, u8)> = Vec::new();
                    let mut random = u64::from(thread) + 7;
                    for round in 0..6_000_usize {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let size = SIZES[random as usize % 3] + random as usize % 512;
                        let mark = thread * 80 + (round % 80) as u8;
                        let address = allocate(pool, size);
                        // SAFETY: the block is ours, host memory of at least that size.
                        unsafe { address.as_ptr().expect("host memory").write_bytes(mark, size) };
                        live.push((address, size, mark));
                        // Half of the frees are of blocks that another thread allocated.
                        if random & 1 << 40 == 0 {
                            std::mem::swap(&mut live, &mut shelf.lock().unwrap());
                        }
                        if live.len() > 40 {
                            let (address, size, mark) = live.swap_remove(random as usize >> 20 & 31);
                            let pointer = address.as_ptr().expect("host memory");
                            // SAFETY: the block is ours, and was written in full.
                            let bytes = unsafe { core::slice::from_raw_parts(pointer, size) };
                            assert!(bytes.iter().all(|&byte| byte == mark), "{address} has two owners");
                            free(pool, address).expect("it is live");
                        }
                    }
                    live.into_iter().for_each(|(address, ..)| free(pool, address).expect("it is live"));
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0, "threads failed");
    });
    for (address, ..) in shelf.into_inner().unwrap() {
        free(&pool, address).unwrap();
    }
    assert_eq!(pool.statistics().live_blocks, 0);
    pool.trim(0).unwrap();
    assert_eq!(provider.live_regions(), 0);
    drop(pool);
    assert_eq!(Arc::strong_count(&provider), 1);
}

/// A block whose bytes all have one value.
struct Owned {
    address: Address,
    size: usize,
    mark: u8,
}

impl Owned {
    fn new(pool: &SlabPool, size: usize, mark: u8) -> Self {
        let address =
            Layout::new(size, 1 << (size % 7)).and_then(|layout| pool.allocate(layout)).expect("memory");
        assert!(address.is_aligned_to(1 << (size % 7)));
        // SAFETY: the block is ours, host memory of at least that size.
        unsafe { address.as_ptr().expect("host memory").write_bytes(mark, size) };
        Self { address, size, mark }
    }

    fn free(self, pool: &SlabPool) {
        // SAFETY: the block is ours, and was written in full.
        let bytes =
            unsafe { core::slice::from_raw_parts(self.address.as_ptr().expect("host memory"), self.size) };
        assert!(bytes.iter().all(|&byte| byte == self.mark), "{} has two owners", self.address);
        // SAFETY: no thread uses the block any more.
        unsafe { pool.free(self.address) }.expect("the block is live");
    }
}

#[test]
fn blocks_have_one_owner_while_threads_start_trim_and_end() {
    let provider = MmapProvider::private();
    let settings = SlabSettings::new().capacity(1).thread_cache_size(1 << 20);
    let pool = SlabPool::new(provider.clone(), settings).unwrap();
    let shelf: Mutex<Vec<Owned>> = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        let trimming = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                pool.trim(1 << 20).unwrap();
                std::thread::yield_now();
            }
        });
        for generation in 0..30_u64 {
            let work = |seed: u64| {
                let (pool, shelf) = (&pool, &shelf);
                move || {
                    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    for _ in 0..1_500 {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let size = (random >> 40) as usize % (16 << ((random >> 33) % 14)) + 1;
                        let block = Owned::new(pool, size, (random >> 24) as u8);
                        let mut shelf = shelf.lock().unwrap();
                        shelf.push(block);
                        if shelf.len() > 150 {
                            let place = (random >> 30) as usize % shelf.len();
                            let other = shelf.swap_remove(place);
                            drop(shelf);
                            other.free(pool);
                        }
                    }
                }
            };
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(work(generation * 4 + n))).collect();
            let failed = threads.into_iter().filter_map(|thread| thread.join().err()).count();
            assert_eq!(failed, 0, "threads failed");
        }
        stop.store(true, Ordering::Relaxed);
        trimming.join().unwrap();
    });
    for block in shelf.into_inner().unwrap() {
        block.free(&pool);
    }
    assert_eq!((pool.statistics().live_blocks, pool.statistics().live_bytes), (0, 0));
    pool.trim(0).unwrap();
    assert_eq!(provider.live_regions(), 0);
    drop(pool);
    assert_eq!(Arc::strong_count(&provider), 1);
}
