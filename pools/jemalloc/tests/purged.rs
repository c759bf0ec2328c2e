//! Purging: free pages lose their content, pages of live blocks do not.

#![allow(clippy::unwrap_used, reason = "tests")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use umf_core::{
    Address, DeferredFree, Layout, MemoryKind, Pool, Provider, ProviderKind, Purge, Region, Result,
    Visibility,
};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::LeaseHolder;
use umf_testkit::pool::{MmapProvider, Random};

/// A provider that overwrites the pages that it purges.
struct Purging {
    pages: Arc<MmapProvider>,
    purged: AtomicU64,
    /// A pool from which purging allocates.
    asks: OnceLock<Weak<JemallocPool>>,
}

impl Purging {
    fn new() -> Arc<Self> {
        Arc::new(Self { pages: MmapProvider::private(), purged: AtomicU64::new(0), asks: OnceLock::new() })
    }
}

// SAFETY: passed on to the pages.
unsafe impl Provider for Purging {
    fn kind(&self) -> ProviderKind {
        self.pages.kind()
    }
    fn name(&self) -> &str {
        "purging"
    }
    fn memory_kind(&self) -> MemoryKind {
        self.pages.memory_kind()
    }
    fn visibility(&self) -> Visibility {
        Visibility::Private
    }
    fn page_size(&self) -> usize {
        // As of memory in large pages.
        16 << 10
    }
    fn allocate(&self, layout: Layout) -> Result<Region> {
        self.pages.allocate(layout.pad_to(16 << 10)?.align_to(16 << 10)?)
    }
    unsafe fn free(&self, region: Region) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.pages.free(region) }
    }
    fn purge(&self) -> Option<&dyn Purge> {
        Some(self)
    }
}

impl Purge for Purging {
    unsafe fn purge_lazy(&self, base: Address, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.purge_forced(base, size) }
    }

    unsafe fn purge_forced(&self, base: Address, size: usize) -> Result<()> {
        assert!(base.is_aligned_to(16 << 10) && size.is_multiple_of(16 << 10) && size > 0);
        assert!(self.pages.contains(base, size), "no part of a region");
        // SAFETY: the content is not needed; this provider makes it wrong, not zero.
        unsafe { base.as_ptr().unwrap().write_bytes(0xee, size) };
        self.purged.fetch_add(size as u64, Ordering::Relaxed);
        if let Some(pool) = self.asks.get().and_then(Weak::upgrade) {
            for size in [100, 50_000] {
                Filled::new(&pool, size, 3).free(&pool);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Filled(Address, usize, u8);

impl Filled {
    fn new(pool: &JemallocPool, size: usize, value: u8) -> Self {
        let address = pool.allocate(Layout::new(size, 1).unwrap()).unwrap();
        let size = pool.block_at(address).unwrap().size;
        // SAFETY: the block is this test's, of that size.
        unsafe { address.as_ptr().unwrap().write_bytes(value, size) };
        Self(address, size, value)
    }

    fn free(self, pool: &JemallocPool) {
        // SAFETY: the block is this test's, and was written in full.
        let bytes = unsafe { core::slice::from_raw_parts(self.0.as_ptr().unwrap(), self.1) };
        assert!(bytes.iter().all(|&byte| byte == self.2), "{} lost its content", self.0);
        // SAFETY: the block is the test's, and no thread uses it any more.
        unsafe { pool.free(self.0) }.unwrap();
    }
}

#[test]
fn purging_keeps_the_content_of_live_blocks() {
    let provider = Purging::new();
    let pool = JemallocPool::with_settings(provider.clone(), JemallocSettings::default().arenas(2)).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3_u8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random(u64::from(seed));
                let mut live = Vec::new();
                for round in 0..4_000_u32 {
                    let size = 1 << random.below(18);
                    live.push(Filled::new(pool, size + random.below(size), seed * 64 + (round % 60) as u8));
                    if live.len() > 60 {
                        live.swap_remove(random.below(60)).free(pool);
                    }
                    if round % 200 == 0 {
                        pool.trim(0).unwrap();
                    }
                }
                live.into_iter().for_each(|block| block.free(pool));
            });
        }
    });
    assert!(provider.purged.load(Ordering::Relaxed) > 0, "nothing was ever given back by its pages");
    drop(pool);
    assert_eq!(provider.pages.live_regions(), 0);
}

/// A block that another process has open keeps its content after the pool is dropped, until it is
/// closed.
#[test]
fn leased_blocks_keep_their_content_without_their_pool() {
    let provider = Purging::new();
    let borrower = LeaseHolder::new();
    for is_freed in [true, false] {
        let pool = JemallocPool::new(provider.clone()).unwrap();
        let blocks = [1000, 50_000, 2 << 20].map(|size| Filled::new(&pool, size, 7));
        for Filled(address, size, _) in blocks {
            pool.mark_exported(address).unwrap();
            borrower.open(address, size);
            if is_freed {
                // SAFETY: the block is live, and no thread uses it.
                unsafe { pool.free(address) }.unwrap();
            }
        }
        drop(pool);
        for Filled(address, size, value) in blocks {
            // SAFETY: held, so that it is still mapped.
            let bytes = unsafe { core::slice::from_raw_parts(address.as_ptr().unwrap(), size) };
            assert!(bytes.iter().all(|&byte| byte == value), "{address} lost its content");
        }
        borrower.close_all();
        umf_runtime::deferred::poll();
        assert_eq!(provider.pages.live_regions(), 0);
    }
}

/// A provider may use the pool while it purges, since the pool purges after jemalloc has returned.
#[test]
fn purging_may_allocate_from_the_pool() {
    let provider = Purging::new();
    let pool = JemallocPool::with_settings(provider.clone(), JemallocSettings::default().arenas(1)).unwrap();
    provider.asks.set(Arc::downgrade(&pool)).unwrap();
    let blocks: Vec<_> = (0..40).map(|value| Filled::new(&pool, 100_000, value)).collect();
    let (even, odd): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.2 % 2 == 0);
    even.into_iter().for_each(|block| block.free(&pool));
    pool.trim(0).unwrap();
    assert!(provider.purged.load(Ordering::Relaxed) > 0);
    odd.into_iter().for_each(|block| block.free(&pool));
    pool.trim(0).unwrap();
    assert_eq!((pool.statistics().live_blocks, provider.pages.live_regions()), (0, 0));
}
