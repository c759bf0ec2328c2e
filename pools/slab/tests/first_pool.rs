//! A process forks while another thread creates the first pool of the process. The child creates a
//! pool too.
//!
//! A separate program with one test, so that no other code has used umf before.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Barrier;

use umf_core::{Layout, Pool};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_testkit::pool::AddressOnlyProvider;

/// Creates and uses a pool. Returns 0 on success. If it hangs, the alarm ends the process, which
/// its parent detects.
fn use_a_pool() -> i32 {
    let made = SlabPool::new(AddressOnlyProvider::new(4096), SlabSettings::default());
    let Ok(pool) = made else { return 1 };
    let Ok(layout) = Layout::new(64, 8) else { return 2 };
    let Ok(block) = pool.allocate(layout) else { return 3 };
    // SAFETY: the block is this function's, and its provider has no memory.
    i32::from(unsafe { pool.free(block) }.is_err()) * 4
}

/// Runs `body` in a forked child, which ends within 20 seconds. Returns its wait status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `body`, and exits without returning to the test.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: sets a timer that ends a child that hangs.
        unsafe { libc::alarm(20) };
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn child_forked_during_the_first_pool_makes_its_own() {
    for round in 0..1_000_u32 {
        let status = in_child(|| {
            let begin = Barrier::new(2);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    begin.wait();
                    use_a_pool()
                });
                begin.wait();
                for _ in 0..round * 17 % 4000 {
                    std::hint::spin_loop();
                }
                let status = in_child(use_a_pool);
                let code = other.join().unwrap_or(98);
                if status == 0 { code } else { 50 }
            })
        });
        assert_eq!(status, 0, "round {round}: 0x3200 means that the child of the child hung or failed");
    }
}
