//! Threads that allocate, free each other's blocks, trim and end, all at once; every byte has one
//! owner.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use umf_core::{Address, Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::MmapProvider;

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
