//! Contexts, and which memory is resident.

use level_zero_sys::*;

use crate::entry::entry;
use crate::pointer::{get, put};
use crate::state::{Device, State, handle, number};

/// What memory, queues and events belong to.
#[derive(Debug)]
pub(crate) struct Context;

pub(crate) unsafe extern "C" fn create(
    driver: ze_driver_handle_t,
    desc: *const ze_context_desc_t,
    context: *mut ze_context_handle_t,
) -> ze_result_t {
    entry("zeContextCreate", |state| {
        state.driver(driver)?;
        state.health().check()?;
        // SAFETY: pointers of the application.
        unsafe {
            get(desc)?;
            // Before anything is made.
            put(context, ze_context_handle_t::NULL)?;
            put(context, ze_context_handle_t(handle(state.contexts.insert(Context))))
        }
    })
}

/// Everything that was allocated in it goes too.
pub(crate) unsafe extern "C" fn destroy(context: ze_context_handle_t) -> ze_result_t {
    entry("zeContextDestroy", |state| {
        state.contexts.remove(number(context.0))?;
        for start in state.addresses.all(|range| range.owner.context == context) {
            if let Some(range) = state.addresses.remove(start, |range| range.owner.context == context) {
                state.exports.forget(range.owner.id);
            }
        }
        if state.contexts.len() == 0 {
            state.stop_serving();
        }
        Ok(())
    })
}

/// Changes where an allocation is resident.
fn residency(
    state: &State,
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    pointer: usize,
    size: usize,
    is_resident: bool,
) -> crate::entry::Done {
    state.context(context)?;
    let device = state.device(device)?;
    if pointer == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    if size == 0 {
        return Err(ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    let (start, range) = state.addresses.find(pointer).ok_or(ZE_RESULT_ERROR_INVALID_ARGUMENT)?;
    if range.owner.context != context || pointer - start > range.size || size > range.size - (pointer - start)
    {
        return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    range.owner.set_resident(&device, is_resident);
    Ok(())
}

pub(crate) unsafe extern "C" fn make_memory_resident(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    pointer: *mut std::ffi::c_void,
    size: usize,
) -> ze_result_t {
    entry("zeContextMakeMemoryResident", |state| {
        may_reach(state, device, pointer.addr())?;
        residency(state, context, device, pointer.addr(), size, true)
    })
}

pub(crate) unsafe extern "C" fn evict_memory(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    pointer: *mut std::ffi::c_void,
    size: usize,
) -> ze_result_t {
    entry("zeContextEvictMemory", |state| residency(state, context, device, pointer.addr(), size, false))
}

/// Memory of a device that is no peer cannot be made resident.
fn may_reach(state: &State, device: ze_device_handle_t, pointer: usize) -> crate::entry::Done {
    let device: std::sync::Arc<Device> = state.device(device)?;
    match state.addresses.find(pointer) {
        Some((_, range)) => range.owner.check_peer(state, &device),
        None => Ok(()),
    }
}
