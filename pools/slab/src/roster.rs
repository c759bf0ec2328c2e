//! The living slab pools: what a thread that ends gives its blocks back to, and what a forked child
//! goes on with.

use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_core::Result;
use umf_runtime::registry::Registry;
use umf_sync::fork::{self, Hooks};
use umf_sync::thread::{self, ThreadIndex};

use crate::SlabPool;
use crate::pool::CLOSING;

const LIMIT: u32 = 1 << 14;

pub(crate) static POOLS: Registry<SlabPool> = Registry::new(LIMIT);

static AT_FORK: Hooks = Hooks { child: || POOLS.visit(SlabPool::lose_other_threads), ..Hooks::NONE };

/// Enters a pool.
///
/// # Errors
/// Those of [`Registry::enter`], [`thread::on_exit`] and [`fork::add_hooks`].
///
/// # Safety
/// As for [`Registry::enter`].
pub(crate) unsafe fn enter(pool: NonNull<SlabPool>) -> Result<()> {
    thread::on_exit(flush)?;
    fork::add_hooks(&AT_FORK)?;
    // SAFETY: passed on to the caller.
    unsafe { POOLS.enter(pool) }
}

thread_local! {
    static IS_THREAD_ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has given back what it kept, or does so now. Subscribers of events
/// may not work any more.
pub(crate) fn is_thread_ending() -> bool {
    IS_THREAD_ENDING.get()
}

/// A thread ends: every pool takes back what it keeps.
fn flush(index: ThreadIndex) {
    IS_THREAD_ENDING.set(true);
    POOLS.visit(|pool| pool.flush_thread(index));
}

impl SlabPool {
    /// In a forked child: what other threads were doing outside of locks is lost: blocks in their
    /// caches, and a slab or region on its way between two lists. Nothing that the child reaches
    /// refers to either. Their slabs are not lost.
    fn lose_other_threads(&self) {
        if self.gates.load(Ordering::Relaxed) & CLOSING != 0 {
            // A thread of the parent was dropping it: nothing allocates from it here.
            return;
        }
        self.policy.forked();
        let own = thread::current().map(ThreadIndex::get);
        for index in (0..thread::end()).filter(|&index| own != Some(index)) {
            let Some(cache) = self.caches.get(index) else { continue };
            cache.lost.store(true, Ordering::Relaxed);
            cache.away.store(true, Ordering::Relaxed);
            for class in cache.used().filter(|&class| !self.is_large(class)) {
                // (Taken by what the fork interrupted, if a signal handler forks: then they stay that
                // thread's, and lost.)
                if let Some(mut central) = self.centrals[class].try_lock() {
                    central.leave_home(self.slabs(class), index);
                }
            }
        }
    }
}
