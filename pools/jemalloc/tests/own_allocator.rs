//! A program whose global allocator is jemalloc. A thread that allocates may hold any lock of umf,
//! and the extent hooks of the pools run under the locks of jemalloc.

#![allow(clippy::unwrap_used, reason = "tests")]

use core::alloc::{GlobalAlloc, Layout as Sized};
use core::sync::atomic::{AtomicBool, Ordering};

use tikv_jemalloc_sys as je;
use umf_core::{Layout, Pool};
use umf_pool_jemalloc::{JemallocPool, JemallocSettings};
use umf_sync::Lock;
use umf_testkit::pool::MmapProvider;

struct Jemalloc;

// SAFETY: blocks are jemalloc's, of the requested size and alignment.
unsafe impl GlobalAlloc for Jemalloc {
    unsafe fn alloc(&self, layout: Sized) -> *mut u8 {
        // SAFETY: the size is not 0, as the caller says.
        unsafe { je::mallocx(layout.size(), je::MALLOCX_ALIGN(layout.align())).cast() }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Sized) {
        // SAFETY: `alloc` returned it, as the caller says.
        unsafe { je::sdallocx(block.cast(), layout.size(), je::MALLOCX_ALIGN(layout.align())) };
    }
}

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A lock under which memory is allocated, as under locks of umf.
static MAP: Lock<Vec<Vec<u8>>> = Lock::new(Vec::new());

#[test]
fn forks_succeed_while_threads_allocate_under_locks() {
    let pool =
        JemallocPool::with_settings(MmapProvider::private(), JemallocSettings::default().arenas(1)).unwrap();
    // SAFETY: sets a timer that kills a test that hangs.
    unsafe { libc::alarm(120) };
    let stop = AtomicBool::new(false);
    let is_bad = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut map = MAP.lock();
                for number in 0..200 {
                    map.push(vec![1; 1000 * (number + 1)]);
                }
                map.clear();
                drop(map);
                std::thread::sleep(core::time::Duration::from_micros(50));
            }
        });
        scope.spawn(|| {
            for round in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let size = 40_000 + (round * 7919) % 300_000;
                let block = pool.allocate(Layout::new(size, 1).unwrap()).unwrap();
                // SAFETY: the block is live, and no thread uses it.
                unsafe { pool.free(block) }.unwrap();
                if round % 16 == 0 {
                    pool.trim(0).unwrap();
                }
            }
        });
        let is_bad = (0..300).any(|_| {
            // SAFETY: the child allocates, which works after a fork here, and exits without
            // unwinding.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: sets a timer, so that a child that hangs ends.
                unsafe { libc::alarm(60) };
                MAP.lock().push(vec![1; 1000]);
                let block = pool.allocate(Layout::new(100_000, 1).unwrap());
                // SAFETY: the child's own block.
                let is_freed = block.is_ok_and(|block| unsafe { pool.free(block) }.is_ok());
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_freed)) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            (waited, status) != (pid, 0)
        });
        stop.store(true, Ordering::Relaxed);
        is_bad
    });
    assert!(!is_bad, "a child hung or failed");
}
