//! [`PoolRegistry`]: the live pools of one kind. For code that does not own them: exit hooks of threads,
//! fork hooks, and other pools that need memory.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use umf_sync::chunks::Zeroable;
use umf_sync::fork::{ForkGuard, Outer};
use umf_sync::in_flight::InFlight;

use umf_core::Result;
use umf_sync::table::Table;

#[derive(Debug)]
struct PoolEntry<P> {
    pool: AtomicPtr<P>,
    in_flight: InFlight,
}

// SAFETY: all fields are atomics; a zeroed entry is a free one.
unsafe impl<P> Zeroable for PoolEntry<P> {}

/// The live pools of one kind. For a `static`.
#[derive(Debug)]
pub struct PoolRegistry<P: 'static> {
    entries: Table<PoolEntry<P>, 64>,
    /// No entry from here on was ever used.
    end: AtomicU32,
}

impl<P: Sync> PoolRegistry<P> {
    /// Returns an empty registry for up to `limit` pools.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { entries: Table::new(limit), end: AtomicU32::new(0) }
    }

    fn entries(&self) -> impl Iterator<Item = (u32, &PoolEntry<P>)> {
        let end = self.end.load(Ordering::SeqCst);
        (0..end).filter_map(|number| Some((number, self.entries.get(number)?)))
    }

    fn find(&self, pool: NonNull<P>) -> Option<(u32, &PoolEntry<P>)> {
        self.entries().find(|(_, entry)| entry.pool.load(Ordering::Relaxed) == pool.as_ptr())
    }

    /// Adds a pool.
    ///
    /// # Errors
    /// [`umf_core::Error::TooMany`] past the limit, [`umf_core::Error::OutOfMemory`].
    ///
    /// # Safety
    /// The pool does not move and stays alive until [`PoolRegistry::leave`] has returned.
    pub unsafe fn enter(&self, pool: NonNull<P>) -> Result<()> {
        let (number, entry) = self.entries.allocate()?;
        entry.pool.store(pool.as_ptr(), Ordering::SeqCst);
        self.end.fetch_max(number + 1, Ordering::SeqCst);
        Ok(())
    }

    /// Removes a pool, if it is present, and waits for the threads that use it.
    pub fn leave(&self, pool: NonNull<P>) {
        if let Some((number, entry)) = self.find(pool) {
            entry.pool.store(ptr::null_mut(), Ordering::SeqCst);
            entry.in_flight.wait();
            self.entries.release(number);
        }
    }

    /// Calls `visit` with a pool, unless it was removed. `visit` must not drop the pool.
    pub fn with<T>(&self, pool: NonNull<P>, visit: impl FnOnce(&P) -> T) -> Option<T> {
        let (_, entry) = self.find(pool)?;
        // Before the section: `visit` acquires locks in it, and `leave` waits for it.
        let _no_fork = ForkGuard::<Outer>::new();
        let _section = entry.in_flight.enter();
        let found = entry.pool.load(Ordering::SeqCst);
        // SAFETY: the pool stays until `leave` returns, which waits for this section.
        (found == pool.as_ptr()).then(|| visit(unsafe { pool.as_ref() }))
    }

    /// Calls `visit` with each pool. `visit` must not drop a pool.
    pub fn for_each(&self, mut visit: impl FnMut(&P)) {
        for (_, entry) in self.entries() {
            if entry.pool.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let _no_fork = ForkGuard::<Outer>::new();
            // Before the pointer is loaded: `leave` clears it before it waits.
            let _section = entry.in_flight.enter();
            // SAFETY: the pool stays until `leave` returns, which waits for this section.
            if let Some(pool) = unsafe { entry.pool.load(Ordering::SeqCst).as_ref() } {
                visit(pool);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

    #[test]
    fn removed_pool_is_not_visited() {
        static POOLS: PoolRegistry<AtomicBool> = PoolRegistry::new(8);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        POOLS.for_each(|is_there| assert!(is_there.load(Ordering::Relaxed)));
                    }
                });
            }
            let other = AtomicBool::new(true);
            // SAFETY: stays until it leaves, below.
            unsafe { POOLS.enter(NonNull::from(&other)) }.unwrap();
            for _ in 0..2_000 {
                let pool = AtomicBool::new(true);
                // SAFETY: stays until it leaves, on the next line but one.
                unsafe { POOLS.enter(NonNull::from(&pool)) }.unwrap();
                assert_eq!(POOLS.with(NonNull::from(&pool), |_| 7), Some(7));
                POOLS.leave(NonNull::from(&pool));
                pool.store(false, Ordering::Relaxed);
                assert_eq!(POOLS.with(NonNull::from(&pool), |_| 7), None);
            }
            stop.store(true, Ordering::Relaxed);
            POOLS.leave(NonNull::from(&other));
        });
        // Entries are used again.
        let pool = AtomicBool::new(true);
        for _ in 0..100 {
            // SAFETY: stays until it leaves, on the next line.
            unsafe { POOLS.enter(NonNull::from(&pool)) }.unwrap();
            POOLS.leave(NonNull::from(&pool));
        }
    }
}
