//! Events and their pools.

use std::sync::Arc;

use level_zero_sys::*;

use crate::entry::{Done, entry};
use crate::pointer::{array, get, put};
use crate::queue::timeout;
use crate::state::{State, handle, number};
use soft_device::Event;

pub(crate) struct EventPool {
    flags: ze_event_pool_flags_t,
    count: u32,
}

pub(crate) struct EventObject {
    event: Arc<Event>,
    has_times: bool,
}

/// The events that a command waits for, and the one that it signals, if any.
type Events = (Vec<Arc<Event>>, Option<Arc<Event>>);

/// Finds the events of a command.
///
/// # Safety
/// The array is null or has so many handles.
pub(crate) unsafe fn resolve(
    state: &State,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> Done<Events> {
    // SAFETY: the caller's promise.
    let wait = unsafe { array(wait.cast_const(), waits, ZE_RESULT_ERROR_INVALID_SIZE) }?;
    let wait: Done<Vec<_>> = wait.into_iter().map(|event| signalled_by(state, event)).collect();
    let signal = if signal.is_null() { None } else { Some(signalled_by(state, signal)?) };
    Ok((wait?, signal))
}

pub(crate) fn signalled_by(state: &State, event: ze_event_handle_t) -> Done<Arc<Event>> {
    Ok(Arc::clone(&state.events.get(number(event.0))?.event))
}

pub(crate) unsafe extern "C" fn pool_create(
    context: ze_context_handle_t,
    desc: *const ze_event_pool_desc_t,
    count: u32,
    devices: *mut ze_device_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    entry("zeEventPoolCreate", |state| {
        state.context(context)?;
        // SAFETY: pointers of the application.
        unsafe {
            let desc = get(desc)?;
            for device in array(devices.cast_const(), count, ZE_RESULT_ERROR_INVALID_NULL_POINTER)? {
                state.device(device)?;
            }
            put(pool, ze_event_pool_handle_t::NULL)?;
            if desc.count == 0 {
                return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
            }
            let known = ZE_EVENT_POOL_FLAG_HOST_VISIBLE
                | ZE_EVENT_POOL_FLAG_IPC
                | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP
                | ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP;
            if desc.flags & !known != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            let made = state.pools.insert(EventPool { flags: desc.flags, count: desc.count });
            put(pool, ze_event_pool_handle_t(handle(made)))
        }
    })
}

pub(crate) unsafe extern "C" fn pool_destroy(pool: ze_event_pool_handle_t) -> ze_result_t {
    entry("zeEventPoolDestroy", |state| Ok(state.pools.remove(number(pool.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn create(
    pool: ze_event_pool_handle_t,
    desc: *const ze_event_desc_t,
    event: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeEventCreate", |state| {
        let pool = state.pools.get(number(pool.0))?;
        // SAFETY: pointers of the application.
        unsafe {
            let desc = get(desc)?;
            put(event, ze_event_handle_t::NULL)?;
            let known = ZE_EVENT_SCOPE_FLAG_SUBDEVICE | ZE_EVENT_SCOPE_FLAG_DEVICE | ZE_EVENT_SCOPE_FLAG_HOST;
            if (desc.signal | desc.wait) & !known != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            if desc.index >= pool.count {
                return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
            }
            let timed = ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP | ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP;
            let made = EventObject { event: Arc::default(), has_times: pool.flags & timed != 0 };
            put(event, ze_event_handle_t(handle(state.events.insert(made))))
        }
    })
}

pub(crate) unsafe extern "C" fn destroy(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventDestroy", |state| Ok(state.events.remove(number(event.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn host_synchronize(event: ze_event_handle_t, nanoseconds: u64) -> ze_result_t {
    entry("zeEventHostSynchronize", |state| {
        let event = signalled_by(state, event)?;
        Ok(event.wait(timeout(nanoseconds), || state.health().check())?)
    })
}

pub(crate) unsafe extern "C" fn query_status(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventQueryStatus", |state| {
        let event = signalled_by(state, event)?;
        state.health().check()?;
        event.signalled().map(drop).ok_or(ZE_RESULT_NOT_READY.into())
    })
}

pub(crate) unsafe extern "C" fn host_reset(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventHostReset", |state| {
        signalled_by(state, event)?.reset();
        Ok(())
    })
}

/// The times of an event whose pool was made for that. The clocks of device and context are one.
pub(crate) unsafe extern "C" fn query_kernel_timestamp(
    event: ze_event_handle_t,
    to: *mut ze_kernel_timestamp_result_t,
) -> ze_result_t {
    entry("zeEventQueryKernelTimestamp", |state| {
        let event = state.events.get(number(event.0))?;
        if !event.has_times {
            return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        let times = event.event.signalled().ok_or(ZE_RESULT_NOT_READY)?;
        let data = ze_kernel_timestamp_data_t { kernelStart: times.start, kernelEnd: times.end };
        // SAFETY: a pointer of the application.
        unsafe { put(to, ze_kernel_timestamp_result_t { global: data, context: data }) }
    })
}
