//! The options `junk` and `zero` of jemalloc, which has it write into blocks: a pool over memory
//! that the CPU must not touch cannot be created.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::Command;

use umf_core::{Error, Layout, Pool};
use umf_pool_jemalloc::JemallocPool;
use umf_testkit::pool::{AddressOnlyProvider, MmapProvider};

#[test]
fn junk_and_zero_are_refused_over_untouchable_memory() {
    const CHILD: &str = "TESTS_FILLING";
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
