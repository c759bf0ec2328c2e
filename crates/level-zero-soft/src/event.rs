//! Events and their pools.

use std::os::fd::{AsFd, IntoRawFd};
use std::sync::Arc;

use level_zero_sys::*;

use crate::entry::{Done, Refusal, entry};
use crate::export::Bytes;
use crate::pointer::{array, counted, get, put, put_if_wanted};
use crate::queue::timeout;
use crate::state::{State, handle, number};
use soft_device::{Event, EventSlots};

pub(crate) struct EventPool {
    id: u64,
    context: ze_context_handle_t,
    flags: ze_event_pool_flags_t,
    slots: Arc<EventSlots>,
    /// Of another process.
    is_opened: bool,
}

pub(crate) struct EventObject {
    event: Event,
    pool: ze_event_pool_handle_t,
    has_times: bool,
    signal: ze_event_scope_flags_t,
    wait: ze_event_scope_flags_t,
}

/// The events that a command waits for, and the one that it signals, if any.
///
/// # Safety
/// The array is null or has so many handles.
pub(crate) unsafe fn resolve(
    state: &State,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> Done<(Vec<Event>, Option<Event>)> {
    // SAFETY: the caller's promise.
    let wait = unsafe { array(wait.cast_const(), waits, ZE_RESULT_ERROR_INVALID_SIZE) }?;
    let wait: Done<Vec<_>> = wait.into_iter().map(|event| signalled_by(state, event)).collect();
    let signal = if signal.is_null() { None } else { Some(signalled_by(state, signal)?) };
    Ok((wait?, signal))
}

pub(crate) fn signalled_by(state: &State, event: ze_event_handle_t) -> Done<Event> {
    Ok(state.events.get(number(event.0))?.event.clone())
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
            let slots = EventSlots::new(desc.count as usize, state.charge_fd()?)?;
            let id = state.id();
            let made = EventPool { id, context, flags: desc.flags, slots, is_opened: false };
            put(pool, ze_event_pool_handle_t(handle(state.pools.insert(made))))
        }
    })
}

pub(crate) unsafe extern "C" fn pool_destroy(pool: ze_event_pool_handle_t) -> ze_result_t {
    entry("zeEventPoolDestroy", |state| {
        if state.pools.get(number(pool.0))?.is_opened {
            return Err(Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the pool was opened: close it"));
        }
        let pool = state.pools.remove(number(pool.0))?;
        state.exports.forget(pool.id);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn pool_get_ipc_handle(
    pool: ze_event_pool_handle_t,
    ipc: *mut ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    entry("zeEventPoolGetIpcHandle", |state| {
        let pool = state.pools.get(number(pool.0))?;
        if pool.is_opened || pool.flags & ZE_EVENT_POOL_FLAG_IPC == 0 {
            return Err(Refusal::new(
                ZE_RESULT_ERROR_INVALID_ARGUMENT,
                "the pool was not made for other processes",
            ));
        }
        // SAFETY: a pointer of the application.
        unsafe { put(ipc, ze_ipc_event_pool_handle_t::default()) }?;
        let bytes = if state.settings.api.0 < make_version(1, 6) {
            let file = pool.slots.export()?;
            Bytes::new(file.into_raw_fd(), ZE_MEMORY_TYPE_HOST, state.way()?)
        } else {
            state.exports.get(pool.id, ZE_MEMORY_TYPE_HOST, || {
                let charge = state.charge_fd()?;
                Ok((pool.slots.export()?, state.way()?, charge))
            })?
        };
        // SAFETY: as above.
        unsafe { put(ipc, ze_ipc_event_pool_handle_t { data: bytes.encode().map(u8::cast_signed) }) }
    })
}

fn decode(ipc: &ze_ipc_event_pool_handle_t) -> Done<Bytes> {
    Bytes::decode(&ipc.data.map(i8::cast_unsigned)).ok_or_else(|| {
        Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the bytes are no handle of this driver")
    })
}

pub(crate) unsafe extern "C" fn pool_put_ipc_handle(
    context: ze_context_handle_t,
    ipc: ze_ipc_event_pool_handle_t,
) -> ze_result_t {
    entry("zeEventPoolPutIpcHandle", |state| {
        state.contexts.get(number(context.0))?;
        state.exports.put(decode(&ipc)?.fd)
    })
}

pub(crate) unsafe extern "C" fn pool_open_ipc_handle(
    context: ze_context_handle_t,
    ipc: ze_ipc_event_pool_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    entry("zeEventPoolOpenIpcHandle", |state| {
        state.context(context)?;
        // SAFETY: a pointer of the application.
        unsafe { put(pool, ze_event_pool_handle_t::NULL) }?;
        let bytes = decode(&ipc)?;
        let slots = EventSlots::opened(bytes.fetch()?.as_fd(), bytes.fd)?;
        let flags =
            ZE_EVENT_POOL_FLAG_IPC | ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP;
        let opened = EventPool { id: state.id(), context, flags, slots, is_opened: true };
        // SAFETY: as above.
        unsafe { put(pool, ze_event_pool_handle_t(handle(state.pools.insert(opened)))) }
    })
}

pub(crate) unsafe extern "C" fn pool_close_ipc_handle(pool: ze_event_pool_handle_t) -> ze_result_t {
    entry("zeEventPoolCloseIpcHandle", |state| {
        if !state.pools.get(number(pool.0))?.is_opened {
            return Err(Refusal::new(
                ZE_RESULT_ERROR_INVALID_ARGUMENT,
                "the pool was not opened: destroy it",
            ));
        }
        Ok(state.pools.remove(number(pool.0)).map(drop)?)
    })
}

pub(crate) unsafe extern "C" fn pool_get_context(
    pool: ze_event_pool_handle_t,
    context: *mut ze_context_handle_t,
) -> ze_result_t {
    entry("zeEventPoolGetContextHandle", |state| {
        let pool = state.pools.get(number(pool.0))?;
        // SAFETY: a pointer of the application.
        unsafe { put(context, pool.context) }
    })
}

pub(crate) unsafe extern "C" fn pool_get_flags(
    pool: ze_event_pool_handle_t,
    flags: *mut ze_event_pool_flags_t,
) -> ze_result_t {
    entry("zeEventPoolGetFlags", |state| {
        let pool = state.pools.get(number(pool.0))?;
        // SAFETY: a pointer of the application.
        unsafe { put(flags, pool.flags) }
    })
}

pub(crate) unsafe extern "C" fn create(
    pool: ze_event_pool_handle_t,
    desc: *const ze_event_desc_t,
    event: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeEventCreate", |state| {
        let there = state.pools.get(number(pool.0))?;
        // SAFETY: pointers of the application.
        unsafe {
            let desc = get(desc)?;
            put(event, ze_event_handle_t::NULL)?;
            let known = ZE_EVENT_SCOPE_FLAG_SUBDEVICE | ZE_EVENT_SCOPE_FLAG_DEVICE | ZE_EVENT_SCOPE_FLAG_HOST;
            if (desc.signal | desc.wait) & !known != 0 {
                return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
            }
            let slot = there.slots.event(desc.index as usize).ok_or_else(|| {
                Refusal::new(ZE_RESULT_ERROR_INVALID_ARGUMENT, "the pool has no event of that index")
            })?;
            let timed = ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP | ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP;
            let made = EventObject {
                event: slot,
                pool,
                has_times: there.flags & timed != 0,
                signal: desc.signal,
                wait: desc.wait,
            };
            put(event, ze_event_handle_t(handle(state.events.insert(made))))
        }
    })
}

pub(crate) unsafe extern "C" fn destroy(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventDestroy", |state| Ok(state.events.remove(number(event.0)).map(drop)?))
}

pub(crate) unsafe extern "C" fn host_signal(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventHostSignal", |state| {
        signalled_by(state, event)?.signal();
        Ok(())
    })
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
        if event.is_signalled() { Ok(()) } else { Err(ZE_RESULT_NOT_READY.into()) }
    })
}

pub(crate) unsafe extern "C" fn host_reset(event: ze_event_handle_t) -> ze_result_t {
    entry("zeEventHostReset", |state| {
        signalled_by(state, event)?.reset();
        Ok(())
    })
}

/// The times of an event that is signalled.
fn times(state: &State, event: ze_event_handle_t) -> Done<ze_kernel_timestamp_result_t> {
    let event = state.events.get(number(event.0))?;
    if !event.has_times {
        return Err(Refusal::new(
            ZE_RESULT_ERROR_INVALID_ARGUMENT,
            "the event's pool was not made for timestamps",
        ));
    }
    if !event.event.is_signalled() {
        return Err(ZE_RESULT_NOT_READY.into());
    }
    let times = event.event.times();
    let data = ze_kernel_timestamp_data_t { kernelStart: times.start, kernelEnd: times.end };
    Ok(ze_kernel_timestamp_result_t { global: data, context: data })
}

pub(crate) unsafe extern "C" fn query_kernel_timestamp(
    event: ze_event_handle_t,
    to: *mut ze_kernel_timestamp_result_t,
) -> ze_result_t {
    entry("zeEventQueryKernelTimestamp", |state| {
        let times = times(state, event)?;
        // SAFETY: a pointer of the application.
        unsafe { put(to, times) }
    })
}

pub(crate) unsafe extern "C" fn query_timestamps(
    event: ze_event_handle_t,
    device: ze_device_handle_t,
    count: *mut u32,
    to: *mut ze_kernel_timestamp_result_t,
) -> ze_result_t {
    entry("zeEventQueryTimestampsExp", |state| {
        state.device(device)?;
        let times = times(state, event)?;
        // SAFETY: pointers of the application.
        unsafe { counted(count, to, [times].into_iter()) }
    })
}

pub(crate) unsafe extern "C" fn query_kernel_timestamps_ext(
    event: ze_event_handle_t,
    device: ze_device_handle_t,
    count: *mut u32,
    results: *mut ze_event_query_kernel_timestamps_results_ext_properties_t,
) -> ze_result_t {
    entry("zeEventQueryKernelTimestampsExt", |state| {
        state.device(device)?;
        let times = times(state, event)?;
        // SAFETY: pointers of the application.
        unsafe {
            let room = get(count)?;
            if room == 0 || room > 1 {
                put(count, 1)?;
            }
            if let (true, Ok(results)) = (room > 0, get(results)) {
                let data = ze_synchronized_timestamp_data_ext_t {
                    kernelStart: times.global.kernelStart,
                    kernelEnd: times.global.kernelEnd,
                };
                let synchronized = ze_synchronized_timestamp_result_ext_t { global: data, context: data };
                put_if_wanted(results.pKernelTimestampsBuffer, times);
                put_if_wanted(results.pSynchronizedTimestampsBuffer, synchronized);
            }
            Ok(())
        }
    })
}

pub(crate) unsafe extern "C" fn get_event_pool(
    event: ze_event_handle_t,
    pool: *mut ze_event_pool_handle_t,
) -> ze_result_t {
    entry("zeEventGetEventPool", |state| {
        let event = state.events.get(number(event.0))?;
        // SAFETY: a pointer of the application.
        unsafe { put(pool, event.pool) }
    })
}

pub(crate) unsafe extern "C" fn get_signal_scope(
    event: ze_event_handle_t,
    scope: *mut ze_event_scope_flags_t,
) -> ze_result_t {
    entry("zeEventGetSignalScope", |state| {
        let event = state.events.get(number(event.0))?;
        // SAFETY: a pointer of the application.
        unsafe { put(scope, event.signal) }
    })
}

pub(crate) unsafe extern "C" fn get_wait_scope(
    event: ze_event_handle_t,
    scope: *mut ze_event_scope_flags_t,
) -> ze_result_t {
    entry("zeEventGetWaitScope", |state| {
        let event = state.events.get(number(event.0))?;
        // SAFETY: a pointer of the application.
        unsafe { put(scope, event.wait) }
    })
}
