//! How a pool's locks come through a fork.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use umf_core::fork::ForkAware;
use umf_core::thread;

use crate::SlabPool;
use crate::pool::CLOSING;

/// The pool as what [`umf_core::fork::register`] takes.
pub(crate) fn erased(pool: &SlabPool) -> NonNull<dyn ForkAware> {
    let pool: &dyn ForkAware = pool;
    // SAFETY: only the lifetime changes; the pool unregisters itself before it goes.
    unsafe { core::mem::transmute::<NonNull<dyn ForkAware>, NonNull<dyn ForkAware>>(NonNull::from(pool)) }
}

impl SlabPool {
    /// # Safety
    /// [`ForkAware::prepare`] ran in this thread, or in the one of which it is the forked copy.
    unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on to the caller, here and below.
        unsafe { self.watch.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.spans.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.states.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.arena.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.large.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.depot.unlock_after_fork() };
        for central in &self.centrals[..self.classes.count()] {
            // SAFETY: as above.
            unsafe { central.unlock_after_fork() };
        }
        // SAFETY: as above.
        unsafe { self.outsiders.unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.ahead.unlock_after_fork() };
    }
}

// What other threads were doing outside of these locks is lost to a child: blocks in their caches, and a slab
// or region on its way between two lists. Nothing that the child reaches refers to either. Their slabs are not.
impl ForkAware for SlabPool {
    fn prepare(&self) {
        // Nobody reaches into this thread's cache then. These two come before all others; a class's may be held while the
        // arena's is taken; no other two are held at one time.
        self.ahead.lock_for_fork();
        self.outsiders.lock_for_fork();
        for central in &self.centrals[..self.classes.count()] {
            central.lock_for_fork();
        }
        self.depot.lock_for_fork();
        self.large.lock_for_fork();
        self.arena.lock_for_fork();
        self.states.lock_for_fork();
        self.spans.lock_for_fork();
        self.watch.lock_for_fork();
    }

    fn parent(&self) {
        // SAFETY: `prepare` ran in this thread.
        unsafe { self.unlock_after_fork() };
    }

    fn child(&self) {
        // SAFETY: `prepare` ran in the thread of which this is the copy.
        unsafe { self.unlock_after_fork() };
        if self.gates.load(Ordering::Relaxed) & CLOSING != 0 {
            // A thread of the parent was dropping it: nothing allocates from it here.
            return;
        }
        self.policy.forked();
        let own = thread::current().map(thread::ThreadIndex::get);
        for index in (0..thread::end()).filter(|&index| own != Some(index)) {
            let Some(cache) = self.caches.get(index) else { continue };
            cache.lost.store(true, Ordering::Relaxed);
            cache.away.store(true, Ordering::Relaxed);
            for class in cache.used().filter(|&class| !self.is_large(class)) {
                // (Taken by what was interrupted, if a handler of signals forked: then they stay that thread's, and lost.)
                if let Some(mut central) = self.centrals[class].try_lock() {
                    central.leave_home(self.slabs(class), index);
                }
            }
        }
    }
}
