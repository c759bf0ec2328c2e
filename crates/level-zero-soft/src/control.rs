//! What tests ask of this driver and no other has: faults, and how much there is of everything. Found by name with
//! `zeDriverGetExtensionFunctionAddress`, or as symbols of the library.

use std::ffi::{CStr, c_char, c_void};

use level_zero_sys::*;

use crate::entry::{Done, guarded};
use crate::pointer::put;
use crate::state::State;

/// The number of an answer by its name in the specification.
pub(crate) fn answer(name: &str) -> Option<u32> {
    layout::constants()
        .find(|(known, _)| *known == name && name.starts_with("ZE_RESULT_"))
        .map(|(_, number)| number)
}

/// The functions of this module, for who asks the driver for them.
pub(crate) fn function(name: &CStr) -> Option<*mut c_void> {
    match name.to_bytes() {
        b"zeSoftSetFaults" => Some(zeSoftSetFaults as *mut c_void),
        b"zeSoftQuery" => Some(zeSoftQuery as *mut c_void),
        _ => None,
    }
}

fn state() -> Done<&'static State> {
    State::get().ok_or_else(|| ZE_RESULT_ERROR_UNINITIALIZED.into())
}

/// # Safety
/// The pointer is null or a text.
unsafe fn text<'a>(pointer: *const c_char) -> Done<&'a str> {
    if pointer.is_null() {
        return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
}

/// Replaces the faults that are played, in the form of `ZE_SOFT_FAULTS`. An empty text ends them.
///
/// Answers `ZE_RESULT_ERROR_INVALID_ARGUMENT` for a text that is none.
///
/// # Safety
/// `faults` is null or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeSoftSetFaults(faults: *const c_char) -> ze_result_t {
    guarded(|| {
        // SAFETY: the caller's promise.
        let faults = unsafe { text(faults) }?;
        state()?.faults.set(faults, answer).map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
    })
}

/// How much there is of something: `allocations`, `memory` (bytes of all devices), `fds` (that the driver holds), `exports`
/// (handles that are out), `residents` (allocations made resident, counted for each device), `contexts`, `queues`, `lists`,
/// `fences`, `event-pools`, `events`.
///
/// Answers `ZE_RESULT_ERROR_INVALID_ARGUMENT` for any other name.
///
/// # Safety
/// `what` is null or a text that ends with a zero; `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeSoftQuery(what: *const c_char, value: *mut u64) -> ze_result_t {
    guarded(|| {
        let state = state()?;
        let residents = || -> usize {
            let all = state.addresses.all(|_| true);
            all.iter()
                .filter_map(|start| state.addresses.find(*start))
                .map(|(_, range)| range.owner.residents())
                .sum()
        };
        // SAFETY: the caller's promise.
        let what = unsafe { text(what) }?;
        let found = match what {
            "allocations" => state.addresses.all(|_| true).len() as u64,
            "memory" => {
                let roots = state.roots.iter().filter_map(|root| state.devices.get(root.0.addr()).ok());
                roots.map(|root| root.memory.used()).sum()
            }
            "fds" => state.fds.used(),
            "exports" => state.exports.len() as u64,
            "residents" => residents() as u64,
            "contexts" => state.contexts.len() as u64,
            "queues" => state.queues.len() as u64,
            "lists" => state.lists.len() as u64,
            "fences" => state.fences.len() as u64,
            "event-pools" => state.pools.len() as u64,
            "events" => state.events.len() as u64,
            _ => {
                return Err(ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
            }
        };
        // SAFETY: the caller's promise.
        unsafe { put(value, found) }
    })
}
