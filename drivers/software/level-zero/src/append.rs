//! Functions that append commands to command lists.

use std::ffi::c_void;

use level_zero_sys::*;
use soft_device::{Command, MemoryRange, Span, Work};

use crate::memory::Allocation;
use crate::queue::{List, resolve};
use crate::state::{DriverState, ZeResult, array, entry, number};

/// The events of a command: the one to signal, and the array of those to wait for.
type Events = (ze_event_handle_t, u32, *mut ze_event_handle_t);

/// Appends a command with its events.
///
/// # Safety
/// The array of events is null or has the given length.
unsafe fn append(
    function: &'static str,
    list: ze_command_list_handle_t,
    (signal, waits, wait): Events,
    work: impl FnOnce(&DriverState, &List) -> ZeResult<Work>,
) -> ze_result_t {
    entry(function, |state| {
        let list = state.lists.get(number(list.0))?;
        list.device.health.check()?;
        let work = work(state, &list)?;
        // SAFETY: the caller upholds the contract.
        let (wait, signal) = unsafe { resolve(state, signal, waits, wait) }?;
        list.append(Command { wait, work, signal })
    })
}

/// Returns a range of memory as a list's device accesses it.
fn span(state: &DriverState, list: &List, address: usize, size: usize) -> ZeResult<Span> {
    if address == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    let check = |range: &MemoryRange<Allocation>| range.owner.check_use(state, &list.device);
    state.core.addresses.span(address, size, check)
}

fn copy_work(
    state: &DriverState,
    list: &List,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> ZeResult<Work> {
    let from = span(state, list, from.expose_provenance(), size)?;
    let to = span(state, list, to.expose_provenance(), size)?;
    Ok(Work::Copy { to, from })
}

pub(crate) unsafe extern "C" fn memory_copy(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let work = |state: &DriverState, list: &List| copy_work(state, list, to, from, size);
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    unsafe { append("zeCommandListAppendMemoryCopy", list, (signal, waits, wait), work) }
}

/// # Safety
/// The pattern is null or valid for its length.
unsafe fn fill_work(
    state: &DriverState,
    list: &List,
    to: *mut c_void,
    pattern: (*const c_void, usize),
    size: usize,
) -> ZeResult<Work> {
    let (pattern, length) = pattern;
    if pattern.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    if !length.is_power_of_two() || length > list.pattern() || !size.is_multiple_of(length) {
        return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    // SAFETY: the caller upholds the contract; the length is at most a few thousand bytes.
    let pattern =
        unsafe { array(pattern.cast::<u8>(), length as u32, ZE_RESULT_ERROR_INVALID_NULL_POINTER) }?;
    let to = span(state, list, to.expose_provenance(), size)?;
    Ok(Work::Fill { to, pattern })
}

pub(crate) unsafe extern "C" fn memory_fill(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    pattern: *const c_void,
    length: usize,
    size: usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    unsafe {
        append("zeCommandListAppendMemoryFill", list, (signal, waits, wait), |state, list| {
            fill_work(state, list, to, (pattern, length), size)
        })
    }
}

pub(crate) unsafe extern "C" fn barrier(
    list: ze_command_list_handle_t,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    // Lists execute in order, so that a barrier has no operation.
    unsafe { append("zeCommandListAppendBarrier", list, (signal, waits, wait), |_, _| Ok(Work::Nothing)) }
}

pub(crate) unsafe extern "C" fn memory_prefetch(
    list: ze_command_list_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    entry("zeCommandListAppendMemoryPrefetch", |state| {
        let list = state.lists.get(number(list.0))?;
        span(state, &list, pointer.expose_provenance(), size).map(drop)
    })
}

pub(crate) unsafe extern "C" fn mem_advise(
    list: ze_command_list_handle_t,
    device: ze_device_handle_t,
    pointer: *const c_void,
    size: usize,
    advice: ze_memory_advice_t,
) -> ze_result_t {
    entry("zeCommandListAppendMemAdvise", |state| {
        let list = state.lists.get(number(list.0))?;
        state.device(device)?;
        if advice.name().is_none() {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        span(state, &list, pointer.expose_provenance(), size).map(drop)
    })
}

pub(crate) unsafe extern "C" fn signal_event(
    list: ze_command_list_handle_t,
    event: ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListAppendSignalEvent", |state| {
        let list = state.lists.get(number(list.0))?;
        list.append(Command::marker(Vec::new(), Some(state.events.get(number(event.0))?.to_signal())))
    })
}

pub(crate) unsafe extern "C" fn wait_on_events(
    list: ze_command_list_handle_t,
    count: u32,
    events: *mut ze_event_handle_t,
) -> ze_result_t {
    entry("zeCommandListAppendWaitOnEvents", |state| {
        let list = state.lists.get(number(list.0))?;
        if events.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        let (wait, _) = unsafe { resolve(state, ze_event_handle_t::NULL, count, events) }?;
        list.append(Command::marker(wait, None))
    })
}
