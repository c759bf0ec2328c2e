//! [`StreamEvent`]: an event of a CUDA stream as a [`Completion`], for blocks that a stream still
//! uses when they are freed.

use std::sync::{Arc, Mutex, PoisonError};

use cuda_sys::*;
use umf_core::{Completion, Progress, Result};

use crate::context::Context;
use crate::driver::driver_error;
use crate::provider::CudaProvider;

/// The completion of the work that was submitted to a stream before the event was recorded.
///
/// A pool reuses blocks freed with it ([`umf_core::DeferredFree::free_after`]) after that work has
/// finished, and does not block. One event can serve any number of blocks. Thread-safe.
#[derive(Debug)]
pub struct StreamEvent {
    event: CUevent,
    pool: Arc<EventPool>,
}

/// The unused events of a context.
#[derive(Debug)]
pub(crate) struct EventPool {
    context: Arc<Context>,
    free: Mutex<Vec<CUevent>>,
}

/// The maximum number of unused events that a pool keeps.
const MAX_FREE_EVENTS: usize = 64;

impl EventPool {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context, free: Mutex::default() })
    }
}

impl CudaProvider {
    /// Records an event in a stream (a `CUstream`, null for the default one). It completes after
    /// the work that was submitted to the stream before.
    ///
    /// ```no_run
    /// # use umf_core::DeferredFree;
    /// # unsafe fn example(pool: &dyn DeferredFree, provider: &umf_provider_cuda::CudaProvider, stream: *mut core::ffi::c_void,
    /// #     block: umf_core::Address) -> umf_core::Result<()> {
    /// // Kernels that use the block were launched in `stream`.
    /// unsafe { pool.free_after(block, provider.record_event(stream)?) }?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`umf_core::Error::Driver`].
    ///
    /// # Safety
    /// `stream` is a live stream of the provider's context, or null.
    pub unsafe fn record_event(&self, stream: *mut core::ffi::c_void) -> Result<Arc<StreamEvent>> {
        let current = self.context.enter()?;
        let unused = self.events.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match unused {
            Some(event) => event,
            None => {
                let mut event = CUevent::NULL;
                // SAFETY: the pointer to the result is valid for writes.
                unsafe { current.api().cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING) }
                    .map_err(driver_error)?;
                event
            }
        };
        let recorded = StreamEvent { event, pool: Arc::clone(&self.events) };
        // SAFETY: the event is live; the stream is live by the caller's contract.
        unsafe { current.api().cuEventRecord(event, CUstream(stream)) }.map_err(driver_error)?;
        Ok(Arc::new(recorded))
    }
}

impl Completion for StreamEvent {
    fn progress(&self) -> Progress {
        let Ok(current) = self.pool.context.enter() else { return Progress::Lost };
        // SAFETY: the event is live as long as `self`.
        match unsafe { current.api().cuEventQuery(self.event) } {
            Ok(()) => Progress::Ready,
            Err(failure) if failure.result() == CUDA_ERROR_NOT_READY => Progress::Pending,
            Err(_) => Progress::Lost,
        }
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        if self.pool.context.driver().is_inherited() {
            return;
        }
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE_EVENTS {
            return free.push(self.event);
        }
        drop(free);
        let context = &self.pool.context;
        let _current = context.enter().ok();
        // SAFETY: created in `record_event`; dropping has exclusive access.
        let _ = unsafe { context.driver().api().cuEventDestroy(self.event) };
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        if self.context.driver().is_inherited() {
            return;
        }
        let _current = self.context.enter().ok();
        for event in self.free.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: an event in the pool belongs to no `StreamEvent`.
            let _ = unsafe { self.context.driver().api().cuEventDestroy(event) };
        }
    }
}
