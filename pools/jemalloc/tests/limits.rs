//! The bound on what a pool takes from its provider.

#![allow(clippy::unwrap_used, reason = "tests")]

use umf_core::{Layout, Pool};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::pool::Pages;

/// Half of the limit is had in one piece once everything else was freed, whatever is kept of that.
#[test]
fn a_block_that_fits_is_had_once_everything_is_free() {
    let settings = JemallocSettings::default().arenas(1).memory_limit(24 << 20);
    let pool = JemallocPool::with_settings(Pages::private(), settings).unwrap();
    let layout = |size| Layout::new(size, 16).unwrap();
    let blocks: Vec<_> = core::iter::from_fn(|| pool.allocate(layout(300_000)).ok()).collect();
    assert!(blocks.len() > 60, "{}", blocks.len());
    for address in blocks {
        // SAFETY: the block is this test's, and nobody uses it.
        unsafe { pool.free(address) }.unwrap();
    }
    pool.allocate(layout(12 << 20)).unwrap();
}
