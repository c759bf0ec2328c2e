//! The memory of a pool: its limit, purging, and jemalloc's options that write into blocks.
//!
//! Purged pages lose their content; pages of live blocks keep it.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::process::Command;
use std::sync::{Arc, OnceLock, Weak};

use umf_core::{
    Address, DeferredFree, Error, Layout, MemoryKind, Pool, Provider, ProviderKind, Purge, Region, Result,
    Visibility,
};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::LeaseHolder;
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider, Random};

/// A provider that overwrites the pages that it purges.
struct Purging {
    pages: Arc<MmapProvider>,
    purged: AtomicU64,
    /// A pool from which purging allocates.
    allocates_from: OnceLock<Weak<JemallocPool>>,
}

impl Purging {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            pages: MmapProvider::private(),
            purged: AtomicU64::new(0),
            allocates_from: OnceLock::new(),
        })
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
        // As a provider of large pages.
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
        // SAFETY: the content is not needed any more. The provider overwrites it, so that a test sees
        // a purged live block.
        unsafe { base.as_ptr().unwrap().write_bytes(0xee, size) };
        self.purged.fetch_add(size as u64, Ordering::Relaxed);
        if let Some(pool) = self.allocates_from.get().and_then(Weak::upgrade) {
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
    assert!(provider.purged.load(Ordering::Relaxed) > 0, "no page was purged");
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
            // SAFETY: the upstream holds the block, so it is still mapped.
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
    provider.allocates_from.set(Arc::downgrade(&pool)).unwrap();
    let blocks: Vec<_> = (0..40).map(|value| Filled::new(&pool, 100_000, value)).collect();
    let (even, odd): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.2 % 2 == 0);
    even.into_iter().for_each(|block| block.free(&pool));
    pool.trim(0).unwrap();
    assert!(provider.purged.load(Ordering::Relaxed) > 0);
    odd.into_iter().for_each(|block| block.free(&pool));
    pool.trim(0).unwrap();
    assert_eq!((pool.statistics().live_blocks, provider.pages.live_regions()), (0, 0));
}

/// Cached memory does not prevent an allocation of half of the limit after all blocks were freed.
#[test]
fn large_block_fits_after_everything_else_is_freed() {
    let settings = JemallocSettings::default().arenas(1).memory_limit(24 << 20);
    let pool = JemallocPool::with_settings(MmapProvider::private(), settings).unwrap();
    let layout = |size| Layout::new(size, 16).unwrap();
    let blocks: Vec<_> = core::iter::from_fn(|| pool.allocate(layout(300_000)).ok()).collect();
    assert!(blocks.len() > 60, "{}", blocks.len());
    for address in blocks {
        // SAFETY: the block is this test's, and no thread uses it.
        unsafe { pool.free(address) }.unwrap();
    }
    pool.allocate(layout(12 << 20)).unwrap();
}

/// The options `junk` and `zero` have jemalloc write into blocks.
#[test]
fn junk_and_zero_are_refused_over_untouchable_memory() {
    const CHILD: &str = "TESTS_JUNK";
    if std::env::var_os(CHILD).is_none() {
        for conf in ["junk:true", "zero:true", "junk:free,retain:false"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "junk_and_zero_are_refused_over_untouchable_memory"]);
            let output = child.env(CHILD, "1").env("_RJEM_MALLOC_CONF", conf).output().unwrap();
            assert!(output.status.success(), "{conf}: {}", String::from_utf8_lossy(&output.stdout));
        }
        return;
    }
    for refused in
        [JemallocPool::new(AddressOnlyProvider::new(4096)), JemallocPool::new(MmapProvider::untouchable())]
    {
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
    }
    // Memory of the host may be written.
    let pool = JemallocPool::new(MmapProvider::private()).unwrap();
    for size in [1, 100, 10_000, 1 << 20] {
        let block = pool.allocate(Layout::new(size, 1).unwrap()).unwrap();
        // SAFETY: the block is live, and no thread uses it.
        unsafe { pool.free(block) }.unwrap();
    }
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}
