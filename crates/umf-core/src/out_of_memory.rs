//! The callback of an allocation that would fail for lack of memory.
//!
//! A pool without memory first trims itself and tries again. Then it calls its [`OnOutOfMemory`],
//! if one is set ([`crate::Controls::set_on_out_of_memory`]), in the allocating thread and without
//! a lock. The callback may free blocks, trim pools, or wait for deferred frees
//! ([`crate::Controls::drain`]). It returns whether to try again.
//!
//! ```
//! use umf_core::out_of_memory::{OutOfMemoryAction, OutOfMemoryEvent};
//!
//! let callback = |event: &OutOfMemoryEvent<'_>| match event.attempt {
//!     // Retry only if the trim released memory.
//!     1 if event.pool.trim(0).is_ok_and(|bytes| bytes > 0) => OutOfMemoryAction::Retry,
//!     _ => OutOfMemoryAction::GiveUp,
//! };
//! # fn set(pool: &dyn umf_core::Controls, callback: impl Fn(&OutOfMemoryEvent<'_>) -> OutOfMemoryAction + Send + Sync + 'static) -> umf_core::Result<()> {
//! pool.set_on_out_of_memory(Some(std::sync::Arc::new(callback)))
//! # }
//! # let _ = callback;
//! ```

use core::fmt;

use crate::statistics::PoolStatistics;
use crate::{Error, Layout, Pool};

/// The most calls of the callback for one allocation.
pub const ATTEMPTS: u32 = 16;

/// A failed allocation, and the state of the pool.
#[non_exhaustive]
pub struct OutOfMemoryEvent<'a> {
    /// The pool.
    pub pool: &'a dyn Pool,
    /// The requested layout.
    pub layout: Layout,
    /// Why it failed: [`Error::OutOfMemory`], [`Error::LimitReached`] or [`Error::HeldLimit`].
    pub error: Error,
    /// The counters of the pool.
    pub statistics: PoolStatistics,
    /// The number of this call for the allocation, from 1 to [`ATTEMPTS`].
    pub attempt: u32,
}

impl<'a> OutOfMemoryEvent<'a> {
    /// Makes the event with the current statistics of `pool`. For pools.
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

/// What a pool does after an [`OutOfMemoryEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutOfMemoryAction {
    /// Tries the allocation again.
    Retry,
    /// Fails the allocation.
    GiveUp,
}

/// A callback for allocations that would fail for lack of memory. Any closure of this signature is
/// one.
///
/// The allocating thread calls it without a lock of the pool; several threads may call it at the
/// same time. It may use this pool and others. An allocation that fails inside the callback does
/// not call it again. A panic is caught and counts as [`OutOfMemoryAction::GiveUp`]. The callback
/// must not own the pool (an `Arc` of it).
pub trait OnOutOfMemory: Send + Sync {
    /// Frees memory if it can, and returns whether to try again. Called at most [`ATTEMPTS`] times
    /// for one allocation.
    fn out_of_memory(&self, event: &OutOfMemoryEvent<'_>) -> OutOfMemoryAction;
}

impl fmt::Debug for dyn OnOutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnOutOfMemory")
    }
}

impl<F: Fn(&OutOfMemoryEvent<'_>) -> OutOfMemoryAction + Send + Sync> OnOutOfMemory for F {
    fn out_of_memory(&self, event: &OutOfMemoryEvent<'_>) -> OutOfMemoryAction {
        self(event)
    }
}
