//! The memory limit of a pool.

#![allow(clippy::unwrap_used, reason = "tests")]

use umf_core::{Layout, Pool};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::pool::MmapProvider;

/// Half of the limit can be allocated in one block after everything else was freed, whatever the
/// caches keep.
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
