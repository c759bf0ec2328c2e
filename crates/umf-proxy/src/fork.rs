//! Forks: the thread that forks holds the pool's locks from before until after, and handlers of others run in between.

use core::sync::atomic::AtomicBool;

use umf_core::fork::{self, ForkAware};

use crate::busy::Busy;
use crate::heap;

struct Forking;

impl ForkAware for Forking {
    fn prepare(&self) {
        Busy::begin_fork();
    }

    fn parent(&self) {
        Busy::end_fork();
    }

    fn child(&self) {
        // Shared memory is the parent's.
        heap::retire_shared();
        Busy::end_fork();
    }
}

/// From now on a thread that forks is busy meanwhile. Called after a pool is made, so that it is before that takes its locks.
pub(crate) fn take_part() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    // Where nothing more can take part in forks, there is no pool either.
    let _ = fork::register_static(&Forking, &IS_REGISTERED);
}
