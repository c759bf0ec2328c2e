//! What the library does at forks.

use umf_sync::fork::{self, Hooks};

use crate::busy::Busy;
use crate::{heap, shared};

/// The thread that forks is busy until the pool knows that it is in a child: handlers of others run in
/// between, and may allocate.
static AT_FORK: Hooks = Hooks {
    prepare: || {
        Busy::begin_fork();
        shared::before_fork();
    },
    parent: || {
        shared::after_fork();
        Busy::end_fork();
    },
    child: || {
        shared::after_fork_in_child();
        // Shared memory is the parent's.
        heap::retire_shared();
        Busy::end_fork();
    },
};

/// From now on forks are known. Called after a pool is made.
pub(crate) fn take_part() {
    // Where nothing more can take part in forks, there is no pool either.
    let _ = fork::add_hooks(&AT_FORK);
}
