//! How pools survive a fork, and the end of threads.
//!
//! A fork closes umf's outer gate, takes jemalloc's locks, and closes umf's leaf gate. So a thread may call
//! jemalloc inside of a lock of umf, as all do in a program whose own allocator jemalloc is; and
//! jemalloc's hooks, which are called inside of its locks, may take a room's, which passes the leaf
//! gate. Nothing is called inside of a room's lock, and hooks take no other.

use core::ptr::NonNull;

use umf_core::Result;
use umf_runtime::registry::PoolRegistry;
use umf_sync::fork::{self, Hooks};
use umf_sync::thread::{self, ThreadIndex};

use crate::{JemallocPool, je};

/// Handlers that are registered later run earlier. jemalloc registers its own when it begins: in a
/// constructor without a priority, if not before.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        // Registers the handlers that close both gates.
        fork::generation();
        je::begin();
        // (Without memory for it forks are as if this had not been called.)
        let _ = fork::close_outer_gate_earlier();
    }
    at_load
};

pub(crate) static POOLS: PoolRegistry<JemallocPool> = PoolRegistry::new(1 << 14);

static AT_FORK: Hooks = Hooks { child: || POOLS.for_each(|pool| pool.caches.lose_others()), ..Hooks::NONE };

/// Enters a pool.
///
/// # Errors
/// Those of [`PoolRegistry::enter`], [`thread::on_exit`] and [`fork::add_hooks`].
///
/// # Safety
/// As for [`PoolRegistry::enter`].
pub(crate) unsafe fn enter(pool: NonNull<JemallocPool>) -> Result<()> {
    thread::on_exit(thread_ends)?;
    fork::add_hooks(&AT_FORK)?;
    // SAFETY: passed on to the caller.
    unsafe { POOLS.enter(pool) }
}

/// What a thread keeps goes back to the pools that there are.
fn thread_ends(index: ThreadIndex) {
    je::thread_ends();
    POOLS.for_each(|pool| pool.forget_thread(index));
}
