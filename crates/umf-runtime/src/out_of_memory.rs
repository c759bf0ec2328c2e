//! Asking the application when a pool cannot allocate: see [`umf_core::out_of_memory`].

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::Upstream;
use umf_core::out_of_memory::{ATTEMPTS, OnOutOfMemory, OutOfMemoryAction, OutOfMemoryEvent};
use umf_core::{Error, Layout, Pool, Result};
use umf_sync::Lock;

use crate::tracker::OwnerGuard;

/// Whom an upstream asks. The value is guarded by [`SLOTS`].
#[derive(Default)]
pub(crate) struct CallbackSlot {
    is_set: AtomicBool,
    value: UnsafeCell<Option<Arc<dyn OnOutOfMemory>>>,
}

// SAFETY: the cell is touched with `SLOTS` held alone; what it holds is `Send` and `Sync`.
unsafe impl Sync for CallbackSlot {}

impl fmt::Debug for CallbackSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "whom to ask is set: {}", self.is_set.load(Ordering::Relaxed))
    }
}

/// One lock for all, which comes through forks. Under it nothing is called, and no memory is taken or freed.
static SLOTS: Lock<()> = Lock::new(());

impl CallbackSlot {
    fn set(&self, value: Option<Arc<dyn OnOutOfMemory>>) {
        let former = {
            let _slots = SLOTS.lock();
            self.is_set.store(value.is_some(), Ordering::Relaxed);
            // SAFETY: the lock is held.
            core::mem::replace(unsafe { &mut *self.value.get() }, value)
        };
        drop(former);
    }

    fn get(&self) -> Option<Arc<dyn OnOutOfMemory>> {
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
    /// Sets whom [`Upstream::retry_on_out_of_memory`] asks. Calls that are going on may still ask who was set before.
    pub fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) {
        self.slot().set(callback);
    }

    /// Runs `allocate`, and again as long as memory is lacking and the application says so. For pools, around their slow path, when
    /// no lock is held.
    ///
    /// # Errors
    /// Those of `allocate`, the last time that it was run.
    #[inline]
    pub fn retry_on_out_of_memory<T>(
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
            if attempt > ATTEMPTS || self.ask(pool, layout, error, attempt) == OutOfMemoryAction::GiveUp {
                return result;
            }
        }
    }

    #[cold]
    fn ask(&self, pool: &dyn Pool, layout: Layout, error: Error, attempt: u32) -> OutOfMemoryAction {
        let lacks_memory =
            matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. } | Error::HeldLimit { .. });
        if !lacks_memory {
            return OutOfMemoryAction::GiveUp;
        }
        let Some(callback) = self.slot().get() else { return OutOfMemoryAction::GiveUp };
        let Some(_asking) = Asking::begin() else { return OutOfMemoryAction::GiveUp };
        // The one that the application knows: it may check this one.
        let owner = self.id().guard();
        let pool = owner.as_ref().and_then(OwnerGuard::pool).unwrap_or(pool);
        let shortage = OutOfMemoryEvent::new(pool, layout, error, attempt);
        // A pool may be the global allocator, which must not unwind.
        catch_unwind(AssertUnwindSafe(|| callback.out_of_memory(&shortage))).unwrap_or_else(|payload| {
            // Dropping it may panic again.
            core::mem::forget(payload);
            tracing::error!(pool = pool.name(), size = layout.size(), "what was asked for memory panicked");
            OutOfMemoryAction::GiveUp
        })
    }
}
