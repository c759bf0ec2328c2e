//! The callback of an allocation that would fail for lack of memory: see
//! [`umf_core::out_of_memory`].

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

/// The callback of an upstream. The value is guarded by [`SLOTS`].
#[derive(Default)]
pub(crate) struct CallbackSlot {
    is_set: AtomicBool,
    value: UnsafeCell<Option<Arc<dyn OnOutOfMemory>>>,
}

// SAFETY: the cell is touched with `SLOTS` held alone; what it holds is `Send` and `Sync`.
unsafe impl Sync for CallbackSlot {}

impl fmt::Debug for CallbackSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "callback is set: {}", self.is_set.load(Ordering::Relaxed))
    }
}

/// The lock of all slots, which survives forks. No foreign code runs and no memory is allocated
/// under it.
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
    /// The thread is in a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as being in a callback until this is dropped.
struct CallbackScope;

impl CallbackScope {
    fn begin() -> Option<Self> {
        (!IN_CALLBACK.replace(true)).then_some(Self)
    }
}

impl Drop for CallbackScope {
    fn drop(&mut self) {
        IN_CALLBACK.set(false);
    }
}

impl Upstream {
    /// Sets the callback of [`Upstream::retry_on_out_of_memory`]. Calls that have begun may still
    /// use the former one.
    pub fn set_on_out_of_memory(&self, callback: Option<Arc<dyn OnOutOfMemory>>) {
        self.slot().set(callback);
    }

    /// Runs `allocate`, and runs it again as long as it fails for lack of memory and the callback
    /// returns [`OutOfMemoryAction::Retry`]. For pools, around their slow path, without a lock.
    ///
    /// # Errors
    /// That of the last run of `allocate`.
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
            if attempt > ATTEMPTS || self.call_back(pool, layout, error, attempt) == OutOfMemoryAction::GiveUp
            {
                return result;
            }
        }
    }

    #[cold]
    fn call_back(&self, pool: &dyn Pool, layout: Layout, error: Error, attempt: u32) -> OutOfMemoryAction {
        let lacks_memory =
            matches!(error, Error::OutOfMemory { .. } | Error::LimitReached { .. } | Error::HeldLimit { .. });
        if !lacks_memory {
            return OutOfMemoryAction::GiveUp;
        }
        let Some(callback) = self.slot().get() else { return OutOfMemoryAction::GiveUp };
        let Some(_scope) = CallbackScope::begin() else { return OutOfMemoryAction::GiveUp };
        // The pool that the application knows: a checking adaptor, if there is one.
        let owner = self.id().guard();
        let pool = owner.as_ref().and_then(OwnerGuard::pool).unwrap_or(pool);
        let event = OutOfMemoryEvent::new(pool, layout, error, attempt);
        // A pool may be the global allocator, which must not unwind.
        catch_unwind(AssertUnwindSafe(|| callback.out_of_memory(&event))).unwrap_or_else(|payload| {
            // Dropping it may panic again.
            core::mem::forget(payload);
            tracing::error!(
                pool = pool.name(),
                size = layout.size(),
                "the out-of-memory callback panicked; the allocation fails"
            );
            OutOfMemoryAction::GiveUp
        })
    }
}
