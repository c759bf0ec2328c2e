//! The process ends, and pools are there still: what is live in them is told.

use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use umf_core::leaks::LeakTime;
use umf_os::process::at_exit;

use crate::{SlabPool, roster};

/// From now on pools that want to know what leaks are told at the end of the process.
pub(super) fn prepare() {
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);
    if !IS_PREPARED.swap(true, Ordering::Relaxed) {
        // If it cannot be, ends of pools are told all the same.
        at_exit(end);
    }
}

fn wants_to_know(pool: &SlabPool) -> bool {
    pool.counts_leaks() && pool.is_at_home()
}

extern "C" fn end() {
    let tell = |is_global: bool| {
        // Hooks are the program's, and nothing may unwind from here.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            roster::POOLS.visit(|pool| {
                if pool.watch.is_global == is_global && wants_to_know(pool) {
                    pool.tell_leaks(LeakTime::ProcessEnd);
                }
            });
        }));
    };
    // Nothing is allocated for what may be the global allocator.
    tell(true);
    let mut others = false;
    roster::POOLS.visit(|pool| others |= !pool.watch.is_global && wants_to_know(pool));
    if !others {
        return;
    }
    // In another thread: the thread-local values of this one may be gone, and subscribers of events have such.
    match umf_os::background::spawn(c"umf-leaks", 2 << 20, move || tell(false)) {
        Ok(teller) => teller.join(),
        Err(error) => {
            umf_os::output::write_to_stderr(&format_args!("no thread to tell what was never freed: {error}"))
        }
    }
}

impl SlabPool {
    /// Where the pool is known to others.
    pub(crate) fn watch_end_of_process(&self) {
        if self.counts_leaks() {
            prepare();
        }
    }
}
