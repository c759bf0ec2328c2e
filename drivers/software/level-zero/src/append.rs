//! Functions that append commands to command lists.

use std::ffi::c_void;

use level_zero_sys::*;
use soft_device::{MemoryRange, Span, Work};

use crate::memory::Allocation;
use crate::queue::{List, resolve};
use crate::state::{DriverState, ZeResult, array, entry, number};

/// The operation of a command, by the application's addresses.
#[derive(Clone)]
pub(crate) enum Operation {
    /// No operation: the command only waits and signals.
    Nothing,
    Copy {
        to: usize,
        from: usize,
        size: usize,
    },
    Fill {
        to: usize,
        size: usize,
        pattern: Vec<u8>,
    },
}

impl Operation {
    /// Returns the operation on the memory that is at its addresses now.
    ///
    /// # Errors
    /// The list's device cannot access the memory, or there is none.
    pub(crate) fn work(&self, state: &DriverState, list: &List) -> ZeResult<Work> {
        Ok(match self {
            Self::Nothing => Work::Nothing,
            Self::Copy { to, from, size } => {
                Work::Copy { from: span(state, list, *from, *size)?, to: span(state, list, *to, *size)? }
            }
            Self::Fill { to, size, pattern } => {
                Work::Fill { to: span(state, list, *to, *size)?, pattern: pattern.clone() }
            }
        })
    }
}

/// The events of a command: the one to signal, and the array of those to wait for.
type EventHandles = (ze_event_handle_t, u32, *mut ze_event_handle_t);

/// Appends a command with its events.
///
/// # Safety
/// The array of events is null or has the given length.
unsafe fn append(
    function: &'static str,
    list: ze_command_list_handle_t,
    (signal, waits, wait): EventHandles,
    operation: impl FnOnce(&List) -> ZeResult<Operation>,
) -> ze_result_t {
    entry(function, |state| {
        let list = state.lists.get(number(list.0))?;
        list.device.health.check()?;
        let operation = operation(&list)?;
        // SAFETY: the caller upholds the contract.
        let events = unsafe { resolve(state, signal, waits, wait) }?;
        list.append(state, operation, events)
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

pub(crate) unsafe extern "C" fn memory_copy(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    signal: ze_event_handle_t,
    waits: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let operation = Operation::Copy { to: to.expose_provenance(), from: from.expose_provenance(), size };
    // SAFETY: the application passes valid or null pointers, as the interface requires.
    unsafe { append("zeCommandListAppendMemoryCopy", list, (signal, waits, wait), |_| Ok(operation)) }
}

/// # Safety
/// The pattern is null or valid for its length.
unsafe fn fill(
    list: &List,
    to: *mut c_void,
    (pattern, length): (*const c_void, usize),
    size: usize,
) -> ZeResult<Operation> {
    if pattern.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    if !length.is_power_of_two() || length > list.pattern() || !size.is_multiple_of(length) {
        return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    // SAFETY: the caller upholds the contract; the length is at most a few thousand bytes.
    let pattern =
        unsafe { array(pattern.cast::<u8>(), length as u32, ZE_RESULT_ERROR_INVALID_NULL_POINTER) }?;
    Ok(Operation::Fill { to: to.expose_provenance(), size, pattern })
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
        append("zeCommandListAppendMemoryFill", list, (signal, waits, wait), |list| {
            fill(list, to, (pattern, length), size)
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
    unsafe { append("zeCommandListAppendBarrier", list, (signal, waits, wait), |_| Ok(Operation::Nothing)) }
}

pub(crate) unsafe extern "C" fn memory_prefetch(
    list: ze_command_list_handle_t,
    pointer: *const c_void,
    size: usize,
) -> ze_result_t {
    entry("zeCommandListAppendMemoryPrefetch", |state| {
        let list = state.lists.get(number(list.0))?;
        list.check_open()?;
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
        list.check_open()?;
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
        let event = state.events.get(number(event.0))?;
        list.append(state, Operation::Nothing, (Vec::new(), Some(event)))
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
        let events = unsafe { resolve(state, ze_event_handle_t::NULL, count, events) }?;
        list.append(state, Operation::Nothing, events)
    })
}
