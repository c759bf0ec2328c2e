//! Asking the application when a pool cannot allocate.
//!
//! A pool that lacks memory first uses what it has: it gives back what is free and tries again. Then it asks its
//! [`OnOutOfMemory`], if one is set ([`crate::Controls::set_on_out_of_memory`]), without any lock, in the thread that allocates. That may free
//! blocks, trim this pool or others, wait for what is held ([`crate::Controls::drain`]), and says whether to try again.
//!
//! ```
//! use umf_core::out_of_memory::{OutOfMemoryAction, OutOfMemoryEvent};
//!
//! let callback = |shortage: &OutOfMemoryEvent<'_>| match shortage.attempt {
//!     // Another attempt makes sense if something came of it.
//!     1 if shortage.pool.trim(0).is_ok_and(|bytes| bytes > 0) => OutOfMemoryAction::Retry,
//!     _ => OutOfMemoryAction::GiveUp,
//! };
//! # fn set(pool: &dyn umf_core::Controls, callback: impl Fn(&OutOfMemoryEvent<'_>) -> OutOfMemoryAction + Send + Sync + 'static) {
//! pool.set_on_out_of_memory(Some(std::sync::Arc::new(callback)));
//! # }
//! # let _ = callback;
//! ```

use core::fmt;

use crate::statistics::PoolStatistics;
use crate::{Error, Layout, Pool};

/// How often the application is asked for one allocation.
pub const ATTEMPTS: u32 = 16;

/// An allocation that failed, and what the pool has.
#[non_exhaustive]
pub struct OutOfMemoryEvent<'a> {
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

impl<'a> OutOfMemoryEvent<'a> {
    /// What `pool` reports. For pools.
    #[must_use]
    pub fn new(pool: &'a dyn Pool, layout: Layout, error: Error, attempt: u32) -> Self {
        Self { pool, layout, error, statistics: pool.statistics(), attempt }
    }
}

impl fmt::Debug for OutOfMemoryEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutOfMemoryEvent")
            .field("pool", &self.pool.name())
            .field("layout", &self.layout)
            .field("error", &self.error)
            .field("statistics", &self.statistics)
            .field("attempt", &self.attempt)
            .finish()
    }
}

/// What is to be done about a [`OutOfMemoryEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutOfMemoryAction {
    /// Try again: something was freed.
    Retry,
    /// The allocation fails.
    GiveUp,
}

/// Is asked when a pool cannot allocate.
///
/// Any closure is one. It is called in the thread that allocates, without any lock of the pool, by several threads at a time. It may
/// use this pool and others as it likes; if an allocation fails in it, nobody is asked for that one. A panic in it is
/// caught, and counts as [`OutOfMemoryAction::GiveUp`]. It must not be what keeps the pool alive (an `Arc` of it).
pub trait OnOutOfMemory: Send + Sync {
    /// Frees what it can, and says whether to try again. Asked [`ATTEMPTS`] times for one allocation at most.
    fn out_of_memory(&self, shortage: &OutOfMemoryEvent<'_>) -> OutOfMemoryAction;
}

impl fmt::Debug for dyn OnOutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnOutOfMemory")
    }
}

impl<F: Fn(&OutOfMemoryEvent<'_>) -> OutOfMemoryAction + Send + Sync> OnOutOfMemory for F {
    fn out_of_memory(&self, shortage: &OutOfMemoryEvent<'_>) -> OutOfMemoryAction {
        self(shortage)
    }
}
