//! [`StreamEvent`]: what was submitted to a stream, as a completion.

use std::sync::{Arc, Mutex, PoisonError};

use cuda_sys::*;
use umf_core::{Completion, Progress, Result};

use crate::context::Context;
use crate::driver::error;
use crate::provider::CudaProvider;

/// Everything that was submitted to a stream before it was made. Blocks that are freed with it ([`umf_core::DeferredFree::free_after`]) are
/// handed out again once all of that is done; nobody waits for it.
///
/// One may stand for any number of blocks. Thread-safe.
#[derive(Debug)]
pub struct StreamEvent {
    event: CUevent,
    events: Arc<Events>,
}

/// Events of a context that nobody uses now.
#[derive(Debug)]
pub(crate) struct Events {
    context: Arc<Context>,
    free: Mutex<Vec<CUevent>>,
}

/// How many events are kept.
const KEPT: usize = 64;

impl Events {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context, free: Mutex::default() })
    }
}

impl CudaProvider {
    /// Stands for what was submitted to a stream (a `CUstream`, null for the default one) until now.
    ///
    /// ```no_run
    /// # use umf_core::DeferredFree;
    /// # unsafe fn example(pool: &dyn DeferredFree, provider: &umf_provider_cuda::CudaProvider, stream: *mut core::ffi::c_void,
    /// #     block: umf_core::Address) -> umf_core::Result<()> {
    /// // Kernels that use the block were launched in `stream`.
    /// unsafe { pool.free_after(block, provider.after(stream)?) }?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`umf_core::Error::Driver`].
    ///
    /// # Safety
    /// It is a live stream of the provider's context, or null.
    pub unsafe fn after(&self, stream: *mut core::ffi::c_void) -> Result<Arc<StreamEvent>> {
        let current = self.context.enter()?;
        let known = self.events.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match known {
            Some(event) => event,
            None => {
                let mut event = CUevent::NULL;
                // SAFETY: a place for the answer.
                unsafe { current.api().cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING) }
                    .map_err(error)?;
                event
            }
        };
        let made = StreamEvent { event, events: Arc::clone(&self.events) };
        // SAFETY: an event of ours, and a stream by the caller's promise.
        unsafe { current.api().cuEventRecord(event, CUstream(stream)) }.map_err(error)?;
        Ok(Arc::new(made))
    }
}

impl Completion for StreamEvent {
    fn progress(&self) -> Progress {
        let Ok(current) = self.events.context.enter() else { return Progress::Lost };
        // SAFETY: the event lives as long as `self`.
        match unsafe { current.api().cuEventQuery(self.event) } {
            Ok(()) => Progress::Ready,
            Err(failure) if failure.result() == CUDA_ERROR_NOT_READY => Progress::Pending,
            Err(_) => Progress::Lost,
        }
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        if self.events.context.driver().is_inherited() {
            return;
        }
        let mut free = self.events.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            return free.push(self.event);
        }
        drop(free);
        let context = &self.events.context;
        let _current = context.enter().ok();
        // SAFETY: made in `after`, and nobody asks about it any more.
        let _ = unsafe { context.driver().api().cuEventDestroy(self.event) };
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.context.driver().is_inherited() {
            return;
        }
        let _current = self.context.enter().ok();
        for event in self.free.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: nobody has them any more.
            let _ = unsafe { self.context.driver().api().cuEventDestroy(event) };
        }
    }
}
