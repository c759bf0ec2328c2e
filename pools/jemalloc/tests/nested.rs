//! A jemalloc pool over a jemalloc pool. The extent hooks of the outer one cannot call jemalloc for
//! memory.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use umf_core::{Address, Layout, MemoryKind, Pool, Provider, ProviderKind, Region, Result, Visibility};
use umf_pool_jemalloc::JemallocPool;
use umf_testkit::pool::{MmapProvider, Random};

/// Regions are blocks of a pool.
struct OfPool(Arc<JemallocPool>);

// SAFETY: blocks are the caller's until they are freed, and lie in regions of which this promise
// holds.
unsafe impl Provider for OfPool {
    fn kind(&self) -> ProviderKind {
        self.0.provider().kind()
    }
    fn name(&self) -> &str {
        "of a pool"
    }
    fn memory_kind(&self) -> MemoryKind {
        self.0.provider().memory_kind()
    }
    fn visibility(&self) -> Visibility {
        Visibility::Private
    }
    fn page_size(&self) -> usize {
        // Less than a page of jemalloc.
        64
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        let address = self.0.allocate(layout)?;
        Ok(Region::new(address, layout.size()))
    }
    unsafe fn free(&self, region: Region) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.0.free(region.base()) }
    }
}

fn fill(pool: &JemallocPool, random: &mut Random, value: u8) -> (Address, usize, u8) {
    let size = 1 << random.below(21);
    let address = pool.allocate(Layout::new(size, 1 << random.below(13)).unwrap()).unwrap();
    // SAFETY: the test's own block, of host memory.
    unsafe { address.as_ptr().unwrap().write_bytes(value, size) };
    (address, size, value)
}

fn free(pool: &JemallocPool, (address, size, value): (Address, usize, u8)) {
    // SAFETY: as above.
    let bytes = unsafe { core::slice::from_raw_parts(address.as_ptr().unwrap(), size) };
    assert!(bytes.iter().all(|&byte| byte == value), "another thread wrote into {address}");
    // SAFETY: the block is the test's, and no thread uses it any more.
    unsafe { pool.free(address) }.unwrap();
}

#[test]
fn pool_over_a_pool_works() {
    let pages = MmapProvider::private();
    let outer = JemallocPool::new(pages.clone()).unwrap();
    let middle = JemallocPool::new(Arc::new(OfPool(outer.clone()))).unwrap();
    let inner = JemallocPool::new(Arc::new(OfPool(middle.clone()))).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let pools = [&outer, &middle, &inner];
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut live = Vec::new();
                for round in 0..3_000_u32 {
                    let pool = pools[random.below(3)];
                    live.push((pool, fill(pool, &mut random, (round % 251) as u8)));
                    if live.len() > 40 {
                        let (pool, block) = live.swap_remove(random.below(40));
                        free(pool, block);
                    }
                    if round % 500 == 0 {
                        pool.trim(0).unwrap();
                    }
                }
                live.into_iter().for_each(|(pool, block)| free(pool, block));
            });
        }
    });
    assert!(middle.statistics().live_blocks > 0 && outer.statistics().live_blocks > 0);
    drop(inner);
    assert_eq!(middle.statistics().live_blocks, 0);
    drop(middle);
    assert_eq!(outer.statistics().live_blocks, 0);
    drop(outer);
    assert_eq!(pages.live_regions(), 0);
}
