//! An environment that has jemalloc write into blocks: over memory that nobody may touch there is no pool then.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::Command;

use umf_core::{Error, Layout, Pool};
use umf_pool_jemalloc::JemallocPool;
use umf_testkit::pool::{Numbers, Pages};

#[test]
fn filling_is_refused_over_memory_that_must_not_be_touched() {
    const CHILD: &str = "TESTS_FILLING";
    if std::env::var_os(CHILD).is_none() {
        for conf in ["junk:true", "zero:true", "junk:free,retain:false"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "filling_is_refused_over_memory_that_must_not_be_touched"]);
            let output = child.env(CHILD, "1").env("_RJEM_MALLOC_CONF", conf).output().unwrap();
            assert!(output.status.success(), "{conf}: {}", String::from_utf8_lossy(&output.stdout));
        }
        return;
    }
    for refused in [JemallocPool::new(Numbers::new(4096)), JemallocPool::new(Pages::untouchable())] {
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
    }
    // Memory of the host may be written.
    let pool = JemallocPool::new(Pages::private()).unwrap();
    for size in [1, 100, 10_000, 1 << 20] {
        let block = pool.allocate(Layout::new(size, 1).unwrap()).unwrap();
        // SAFETY: the test's own.
        unsafe { pool.free(block) }.unwrap();
    }
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 0);
}
