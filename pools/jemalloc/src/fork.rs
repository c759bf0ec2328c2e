//! How a pool comes through a fork.
//!
//! A fork takes the locks of umf first, then jemalloc's, then those of the pools' rooms. So a thread may call jemalloc under a lock
//! of umf, as all do in a program whose own allocator jemalloc is; and jemalloc's hooks, which are called under its locks, may take a
//! room's. Nobody calls anything under a room's lock, and hooks take no other.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use umf_core::fork::ForkAware;
use umf_core::lock::Lock;

use crate::{JemallocPool, je};

/// What is registered later is locked earlier. jemalloc registers when it begins: in a constructor without a priority, if not before.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        let take_part = |prepare: extern "C" fn(), after: extern "C" fn()| {
            // SAFETY: the handlers are functions of this crate that stay loaded with it; they only take and let go of locks. Without
            // memory for them forks are as if this had not been called.
            let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(after), Some(after)) };
        };
        take_part(lock_rooms, unlock_rooms);
        je::begin();
        take_part(je::lock_first_calls, je::unlock_first_calls);
        umf_core::fork::generation();
    }
    at_load
};

/// The pool's place in the list of all.
#[derive(Debug)]
pub(crate) struct Link(AtomicPtr<JemallocPool>);

impl Link {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }
}

/// The first of all pools. Changes under [`CHANGING`], by one store, so that it can be walked whenever it was interrupted.
static POOLS: AtomicPtr<JemallocPool> = AtomicPtr::new(null_mut());
static CHANGING: Lock<()> = Lock::new(());

/// A fork takes the locks of this pool's rooms from here on.
///
/// # Safety
/// The pool stays where it is until it [`leave`]s.
pub(crate) unsafe fn enter(pool: &JemallocPool) {
    let _changing = CHANGING.lock();
    pool.at_fork.0.store(POOLS.load(Ordering::Relaxed), Ordering::Relaxed);
    POOLS.store(core::ptr::from_ref(pool).cast_mut(), Ordering::Release);
}

pub(crate) fn leave(pool: &JemallocPool) {
    let _changing = CHANGING.lock();
    let mut place = &POOLS;
    // SAFETY: a pool that is in the list stays until it leaves, which takes the lock.
    while let Some(next) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        if core::ptr::eq(next, pool) {
            place.store(pool.at_fork.0.load(Ordering::Relaxed), Ordering::Release);
            return;
        }
        place = &next.at_fork.0;
    }
}

/// # Safety
/// Nobody leaves meanwhile.
unsafe fn each(look: impl Fn(&JemallocPool)) {
    let mut place = &POOLS;
    // SAFETY: a pool that is in the list stays until it leaves.
    while let Some(pool) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        look(pool);
        place = &pool.at_fork.0;
    }
}

extern "C" fn lock_rooms() {
    CHANGING.lock_for_fork();
    let lock = |pool: &JemallocPool| {
        for arena in pool.all_arenas() {
            arena.room.lock_for_fork();
        }
    };
    // SAFETY: nobody else changes the list: this thread has its lock, or interrupted itself and is the only one.
    unsafe { each(lock) };
}

extern "C" fn unlock_rooms() {
    let unlock = |pool: &JemallocPool| {
        for arena in pool.all_arenas() {
            // SAFETY: `lock_rooms` took it in this thread, or in the one of which this is the copy.
            unsafe { arena.room.unlock_after_fork() };
        }
    };
    // SAFETY: as in `lock_rooms`.
    unsafe { each(unlock) };
    // SAFETY: as above.
    unsafe { CHANGING.unlock_after_fork() };
}

/// The pool as what [`umf_core::fork::register`] takes.
pub(crate) fn erased(pool: &JemallocPool) -> NonNull<dyn ForkAware> {
    let pool: &dyn ForkAware = pool;
    // SAFETY: only the lifetime changes; the pool unregisters itself before it goes.
    unsafe { core::mem::transmute::<NonNull<dyn ForkAware>, NonNull<dyn ForkAware>>(NonNull::from(pool)) }
}

impl ForkAware for JemallocPool {
    fn prepare(&self) {
        self.regions.lock_for_fork();
        self.blocks.table().lock_for_fork();
    }

    fn parent(&self) {
        // SAFETY: `prepare` took them in this thread, or in the one of which this is the copy; here and below.
        unsafe { self.blocks.table().unlock_after_fork() };
        // SAFETY: as above.
        unsafe { self.regions.unlock_after_fork() };
    }

    fn child(&self) {
        self.parent();
        // Their blocks, and regions and ranges on their way, are lost to the child.
        self.caches.lose_others();
    }
}
