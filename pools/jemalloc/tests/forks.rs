//! Forks while jemalloc is in its extent hooks: a fork takes jemalloc's locks before the pool's,
//! whichever was initialised first.

#![allow(clippy::unwrap_used, reason = "tests")]

use core::sync::atomic::{AtomicBool, Ordering};

use umf_core::{Layout, Pool};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_testkit::pool::MmapProvider;

#[test]
fn forks_succeed_while_extent_hooks_run() {
    let pool =
        JemallocPool::with_settings(MmapProvider::private(), JemallocSettings::default().arenas(1)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Sizes that caches do not keep, so that jemalloc splits and merges extents all the
                // time. It calls the hooks for that under its locks.
                for round in 0_usize.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let sizes = (0..10).map(|block| 40_000 + (round * 7919 + block * 104_729) % 300_000);
                    let layouts = sizes.map(|size| Layout::new(size, 1).unwrap());
                    let blocks: Vec<_> = layouts.map(|layout| pool.allocate(layout).unwrap()).collect();
                    for block in blocks {
                        // SAFETY: the block is live, and no thread uses it.
                        unsafe { pool.free(block) }.unwrap();
                    }
                    if round % 64 == 0 {
                        pool.trim(0).unwrap();
                    }
                }
            });
        }
        let mut bad = None;
        for round in 0..400 {
            // SAFETY: the child uses the pool, which works after a fork, and exits without
            // unwinding.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: sets a timer, so that a child that hangs ends.
                unsafe { libc::alarm(20) };
                let mut code = 0;
                for size in [16, 1000, 100_000, 3_000_000] {
                    match Layout::new(size, 1).and_then(|layout| pool.allocate(layout)) {
                        // SAFETY: the child's own block, of host memory.
                        Ok(block) => unsafe {
                            block.as_ptr().unwrap().write_bytes(1, size);
                            code |= i32::from(pool.free(block).is_err());
                        },
                        Err(_) => code |= 2,
                    }
                }
                code |= if pool.trim(0).is_err() { 4 } else { 0 };
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            if (waited, status) != (pid, 0) {
                bad = Some((round, status));
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(bad, None, "fork number and wait status");
    });
}
