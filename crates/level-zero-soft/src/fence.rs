//! Fences, which tell that lists of a queue are done.

use std::sync::Arc;

use level_zero_sys::*;

use crate::entry::entry;
use crate::pointer::{get, put};
use crate::state::{handle, number};
use soft_device::{Event, now};

/// A fence of a queue.
pub(crate) struct FenceObject(pub(crate) Arc<Event>);

pub(crate) unsafe extern "C" fn create(
    queue: ze_command_queue_handle_t,
    desc: *const ze_fence_desc_t,
    fence: *mut ze_fence_handle_t,
) -> ze_result_t {
    entry("zeFenceCreate", |state| {
        state.queues.get(number(queue.0))?;
        // SAFETY: pointers of the application.
        unsafe {
            let desc = get(desc)?;
            if desc.flags & !ZE_FENCE_FLAG_SIGNALED != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            put(fence, ze_fence_handle_t::NULL)?;
            let made = FenceObject(Arc::default());
            if desc.flags & ZE_FENCE_FLAG_SIGNALED != 0 {
                made.0.signal(now());
            }
            put(fence, ze_fence_handle_t(handle(state.fences.insert(made))))
        }
    })
}

pub(crate) unsafe extern "C" fn destroy(fence: ze_fence_handle_t) -> ze_result_t {
    entry("zeFenceDestroy", |state| Ok(state.fences.remove(number(fence.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn query_status(fence: ze_fence_handle_t) -> ze_result_t {
    entry("zeFenceQueryStatus", |state| {
        let fence = state.fences.get(number(fence.0))?;
        state.health().check()?;
        fence.0.signalled().map(drop).ok_or(ZE_RESULT_NOT_READY.into())
    })
}

pub(crate) unsafe extern "C" fn reset(fence: ze_fence_handle_t) -> ze_result_t {
    entry("zeFenceReset", |state| {
        state.fences.get(number(fence.0))?.0.reset();
        Ok(())
    })
}
