//! How a pool comes through a fork.
//!
//! jemalloc takes its locks before this is called (see `je`), so nobody is in one of its hooks.

use core::ptr::NonNull;

use umf_core::fork::ForkAware;

use crate::JemallocPool;

/// The pool as what [`umf_core::fork::register`] takes.
pub(crate) fn erased(pool: &JemallocPool) -> NonNull<dyn ForkAware> {
    let pool: &dyn ForkAware = pool;
    // SAFETY: only the lifetime changes; the pool unregisters itself before it goes.
    unsafe { core::mem::transmute::<NonNull<dyn ForkAware>, NonNull<dyn ForkAware>>(NonNull::from(pool)) }
}

impl ForkAware for JemallocPool {
    fn prepare(&self) {
        for arena in self.arenas() {
            arena.room.lock_for_fork();
        }
        self.regions.lock_for_fork();
        self.blocks.table().lock_for_fork();
    }

    fn parent(&self) {
        // SAFETY: `prepare` took them in this thread, or in the one of which this is the copy; here and below.
        unsafe { self.blocks.table().unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.regions.unlock_after_fork() };
        // SAFETY: as above.
        self.arenas().iter().for_each(|arena| unsafe { arena.room.unlock_after_fork() });
    }

    fn child(&self) {
        self.parent();
        // Their blocks, and regions on their way, are lost to the child.
        self.caches.lose_others();
    }
}
