//! Asking the application when a pool cannot allocate.
//!
//! A pool that lacks memory first uses what it has: it gives back what is free and tries again. Then it asks its
//! [`OutOfMemory`], if one is set ([`crate::Controls::set_out_of_memory`]), without any lock, in the thread that allocates. That may free
//! blocks, trim this pool or others, wait for what is held ([`crate::Controls::drain`]), and says whether to try again.
//!
//! ```
//! use umf_core::shortage::{Relief, Shortage};
//!
//! let callback = |shortage: &Shortage<'_>| match shortage.attempt {
//!     // Another attempt makes sense if something came of it.
//!     1 if shortage.pool.trim(0).is_ok_and(|bytes| bytes > 0) => Relief::Retry,
//!     _ => Relief::GiveUp,
//! };
//! # fn set(pool: &dyn umf_core::Controls, callback: impl Fn(&Shortage<'_>) -> Relief + Send + Sync + 'static) {
//! pool.set_out_of_memory(Some(std::sync::Arc::new(callback)));
//! # }
//! # let _ = callback;
//! ```

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::statistics::PoolStatistics;
use crate::tracker::OwnerGuard;
use crate::{Error, Layout, Pool, Result, Upstream};
use umf_sync::Lock;

/// How often the application is asked for one allocation.
pub const ATTEMPTS: u32 = 16;

/// An allocation that failed, and what the pool has.
#[non_exhaustive]
pub struct Shortage<'a> {
    /// The pool.
    pub pool: &'a dyn Pool,
    /// What it was asked for.
    pub layout: Layout,
    /// Why it failed: [`Error::OutOfMemory`], [`Error::LimitReached`] or [`Error::HeldLimit`].
    pub error: Error,
    /// What the pool has now.
    pub statistics: PoolStatistics,
    /// How often it was asked for this allocation, this time included: from 1 to [`ATTEMPTS`].
    pub attempt: u32,
}

impl fmt::Debug for Shortage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shortage")
            .field("pool", &self.pool.name())
            .field("layout", &self.layout)
            .field("error", &self.error)
            .field("statistics", &self.statistics)
            .field("attempt", &self.attempt)
            .finish()
    }
}

/// What is to be done about a [`Shortage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relief {
    /// Try again: something was freed.
    Retry,
    /// The allocation fails.
    GiveUp,
}

/// Is asked when a pool cannot allocate.
///
/// Any closure is one. It is called in the thread that allocates, without any lock of the pool, by several threads at a time. It may
/// use this pool and others as it likes; if an allocation fails in it, nobody is asked for that one. A panic in it is
/// caught, and counts as [`Relief::GiveUp`]. It must not be what keeps the pool alive (an `Arc` of it).
pub trait OutOfMemory: Send + Sync {
    /// Frees what it can, and says whether to try again. Asked [`ATTEMPTS`] times for one allocation at most.
    fn out_of_memory(&self, shortage: &Shortage<'_>) -> Relief;
}

impl fmt::Debug for dyn OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutOfMemory")
    }
}

impl<F: Fn(&Shortage<'_>) -> Relief + Send + Sync> OutOfMemory for F {
    fn out_of_memory(&self, shortage: &Shortage<'_>) -> Relief {
        self(shortage)
    }
}

/// Whom an upstream asks. The value is guarded by [`SLOTS`].
#[derive(Default)]
pub(crate) struct Slot {
    is_set: AtomicBool,
    value: UnsafeCell<Option<Arc<dyn OutOfMemory>>>,
}

// SAFETY: the cell is touched with `SLOTS` held alone; what it holds is `Send` and `Sync`.
unsafe impl Sync for Slot {}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "whom to ask is set: {}", self.is_set.load(Ordering::Relaxed))
    }
}

/// One lock for all, which comes through forks. Under it nothing is called, and no memory is taken or freed.
static SLOTS: Lock<()> = Lock::new(());

impl Slot {
    fn set(&self, value: Option<Arc<dyn OutOfMemory>>) {
        let former = {
            let _slots = SLOTS.lock();
            self.is_set.store(value.is_some(), Ordering::Relaxed);
            // SAFETY: the lock is held.
            core::mem::replace(unsafe { &mut *self.value.get() }, value)
        };
        drop(former);
    }

    fn get(&self) -> Option<Arc<dyn OutOfMemory>> {
        if !self.is_set.load(Ordering::Relaxed) {
            return None;
        }
        let _slots = SLOTS.lock();
        // SAFETY: the lock is held.
        unsafe { &*self.value.get() }.clone()
    }
}

thread_local! {
    /// The thread is asking already.
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

/// The thread asks until this is dropped.
struct Asking;

impl Asking {
    fn begin() -> Option<Self> {
        (!ASKS.replace(true)).then_some(Self)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKS.set(false);
    }
}

impl Upstream {
    /// Sets whom [`Upstream::relieving`] asks. Calls that are going on may still ask who was set before.
    pub fn set_out_of_memory(&self, callback: Option<Arc<dyn OutOfMemory>>) {
        self.slot().set(callback);
    }

    /// Runs `allocate`, and again as long as memory is lacking and the application says so. For pools, around their slow path, when
    /// no lock is held.
    ///
    /// # Errors
    /// Those of `allocate`, the last time that it was run.
    #[inline]
    pub fn relieving<T>(
        &self,
        pool: &dyn Pool,
        layout: Layout,
        mut allocate: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut attempt = 0;
        loop {
            let result = allocate();
            let Err(error) = result else { return result };
            attempt += 1;
            if attempt > ATTEMPTS || self.ask(pool, layout, error, attempt) == Relief::GiveUp {
                return result;
            }
        }
    }

    #[cold]
    fn ask(&self, pool: &dyn Pool, layout: Layout, error: Error, attempt: u32) -> Relief {
        let lacks_memory =
            matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. } | Error::HeldLimit { .. });
        if !lacks_memory {
            return Relief::GiveUp;
        }
        let Some(callback) = self.slot().get() else { return Relief::GiveUp };
        let Some(_asking) = Asking::begin() else { return Relief::GiveUp };
        // The one that the application knows: it may check this one.
        let owner = self.id().guard();
        let pool = owner.as_ref().and_then(OwnerGuard::pool).unwrap_or(pool);
        let shortage = Shortage { pool, layout, error, statistics: pool.statistics(), attempt };
        // A pool may be the global allocator, which must not unwind.
        catch_unwind(AssertUnwindSafe(|| callback.out_of_memory(&shortage))).unwrap_or_else(|payload| {
            // Dropping it may panic again.
            core::mem::forget(payload);
            tracing::error!(pool = pool.name(), size = layout.size(), "what was asked for memory panicked");
            Relief::GiveUp
        })
    }
}
