//! Forks of a process whose global allocator is a pool, with an importer and an exporter at work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: umf::GlobalPool = umf::GlobalPool::new();

#[test]
fn global_pool_works_in_forked_children() {
    let pool = umf::Pool::shared().unwrap();
    let blocks: Vec<_> = (0..8).map(|_| pool.allocate(1 << 16).unwrap()).collect();
    let handles: Vec<_> = blocks.iter().map(|block| block.handle().unwrap()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = umf_testkit::SetOnDrop(&stop);
        // Another thread is always in the middle of allocating, opening or exporting.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let opened: Vec<_> = handles.iter().map(|handle| umf::open(handle).unwrap()).collect();
                drop(opened);
                umf::importer().unwrap().evict_idle();
                drop(pool.allocate(100).unwrap().handle());
            }
        });
        for round in 0..300 {
            // SAFETY: the child allocates, opens, and ends without running destructors.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let words: Vec<String> = (0..50).map(|n| format!("{round} {n}")).collect();
                let opened = umf::open(&handles[round % handles.len()]).is_ok();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!(opened && words.len() == 50))) };
            }
            let (mut status, start) = (0, Instant::now());
            // SAFETY: waits for the child made above.
            while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > Duration::from_secs(20) {
                    // SAFETY: ends the child made above, which is not reaped yet.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                    panic!("the child of round {round} hangs");
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            assert_eq!(status, 0, "round {round}");
        }
    });
}
