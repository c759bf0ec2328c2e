//! Functions of the driver: initialization, properties, and the two functions that only tests call.
//! Tests find those with `zeDriverGetExtensionFunctionAddress`, or as symbols of the library.

use std::ffi::{CStr, c_char, c_void};

use level_zero_sys::*;
use soft_device::{read_argument, read_text, write_result};

use crate::state::{Context, DriverState, counted, entry, guarded, handle};

pub(crate) unsafe extern "C" fn init(flags: ze_init_flags_t) -> ze_result_t {
    guarded(|| {
        let known = ZE_INIT_FLAG_GPU_ONLY | ZE_INIT_FLAG_VPU_ONLY;
        if flags & !known != 0 {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        if flags == ZE_INIT_FLAG_VPU_ONLY {
            // The devices of this driver are GPUs.
            return Err(ZE_RESULT_ERROR_UNINITIALIZED.into());
        }
        let state = DriverState::start()?;
        Ok(state.core.faults.apply("zeInit", &state.core.health)?)
    })
}

pub(crate) unsafe extern "C" fn init_drivers(
    count: *mut u32,
    drivers: *mut ze_driver_handle_t,
    desc: *mut ze_init_driver_type_desc_t,
) -> ze_result_t {
    guarded(|| {
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        let types = unsafe { read_argument(desc.cast_const()) }?.flags;
        if types == 0 {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        let state = DriverState::start()?;
        state.core.faults.apply("zeInitDrivers", &state.core.health)?;
        let is_wanted = types & ZE_INIT_DRIVER_TYPE_FLAG_GPU != 0;
        // SAFETY: as above.
        unsafe { counted(count, drivers, is_wanted.then_some(state.driver).into_iter()) }
    })
}

pub(crate) unsafe extern "C" fn get_drivers(
    count: *mut u32,
    drivers: *mut ze_driver_handle_t,
) -> ze_result_t {
    entry("zeDriverGet", |state| {
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe { counted(count, drivers, [state.driver].into_iter()) }
    })
}

pub(crate) unsafe extern "C" fn get_api_version(
    driver: ze_driver_handle_t,
    version: *mut ze_api_version_t,
) -> ze_result_t {
    entry("zeDriverGetApiVersion", |state| {
        state.driver(driver)?;
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(version, state.settings.api) }?)
    })
}

pub(crate) unsafe extern "C" fn get_properties(
    driver: ze_driver_handle_t,
    properties: *mut ze_driver_properties_t,
) -> ze_result_t {
    entry("zeDriverGetProperties", |state| {
        state.driver(driver)?;
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe {
            let mut filled = read_argument(properties)?;
            filled.uuid.id = *b"umf soft driver\0";
            filled.driverVersion = 1;
            let policies = chain::find_mut::<ze_driver_memory_free_ext_properties_t>(filled.pNext);
            if let Ok(mut filled) = read_argument(policies) {
                filled.freePolicies = ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE
                    | ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE;
                write_result(policies, filled)?;
            }
            Ok(write_result(properties, filled)?)
        }
    })
}

/// The supported extensions.
const EXTENSIONS: [&str; 5] = [
    ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME,
    ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME,
    ZE_MEMORY_FREE_POLICIES_EXT_NAME,
    ZE_CACHELINE_SIZE_EXT_NAME,
    ZE_DEVICE_MEMORY_PROPERTIES_EXT_NAME,
];

/// Returns text as a zero-terminated array of fixed length.
pub(crate) fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let length = text.len().min(N - 1);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field
}

pub(crate) unsafe extern "C" fn get_extension_properties(
    driver: ze_driver_handle_t,
    count: *mut u32,
    properties: *mut ze_driver_extension_properties_t,
) -> ze_result_t {
    entry("zeDriverGetExtensionProperties", |state| {
        state.driver(driver)?;
        let extensions = EXTENSIONS
            .iter()
            .map(|name| ze_driver_extension_properties_t { name: field(name), version: make_version(1, 0) });
        // SAFETY: the application passes valid or null pointers, as the interface requires.
        unsafe { counted(count, properties, extensions) }
    })
}

pub(crate) unsafe extern "C" fn get_extension_function_address(
    driver: ze_driver_handle_t,
    name: *const c_char,
    address: *mut *mut c_void,
) -> ze_result_t {
    entry("zeDriverGetExtensionFunctionAddress", |state| {
        state.driver(driver)?;
        if name.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        // SAFETY: a C string of the application.
        let name = unsafe { CStr::from_ptr(name) };
        let found = test_function(name).or_else(|| crate::tables::function(state, name));
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe {
            write_result(address, std::ptr::null_mut())?;
            Ok(write_result(address, found.ok_or(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)?)?)
        }
    })
}

/// Returns the default context, created on first use and never destroyed.
pub(crate) unsafe extern "C" fn get_default_context(driver: ze_driver_handle_t) -> ze_context_handle_t {
    let mut context = ze_context_handle_t::NULL;
    entry("zeDriverGetDefaultContext", |state| {
        state.driver(driver)?;
        let made = state.default_context.get_or_init(|| state.contexts.insert(Context));
        context = ze_context_handle_t(handle(*made));
        Ok(())
    });
    context
}

/// Returns the number of a result by its name in the specification.
pub(crate) fn answer(name: &str) -> Option<u32> {
    layout::constants()
        .find(|(known, _)| *known == name && name.starts_with("ZE_RESULT_"))
        .map(|(_, number)| number)
}

/// Returns a function that only this driver has, by name.
fn test_function(name: &CStr) -> Option<*mut c_void> {
    match name.to_bytes() {
        b"zeSoftSetFaults" => Some(zeSoftSetFaults as *mut c_void),
        b"zeSoftQuery" => Some(zeSoftQuery as *mut c_void),
        _ => None,
    }
}

/// Replaces the injected faults, in the syntax of `ZE_SOFT_FAULTS`. An empty text removes them.
///
/// Returns `ZE_RESULT_ERROR_INVALID_ARGUMENT` for an invalid text.
///
/// # Safety
/// `faults` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeSoftSetFaults(faults: *const c_char) -> ze_result_t {
    guarded(|| {
        // SAFETY: the caller upholds the contract.
        let faults = unsafe { read_text(faults) }?;
        let set = DriverState::get()?.core.faults.set(faults, answer);
        set.map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
    })
}

/// Returns the current number of `allocations`, `memory` (bytes of all devices), `fds` (that the
/// driver holds), `exports` (unreleased handles), `residents` (resident allocations, per device),
/// `contexts`, `queues`, `lists`, `fences`, `event-pools` or `events`.
///
/// Returns `ZE_RESULT_ERROR_INVALID_ARGUMENT` for any other name.
///
/// # Safety
/// `what` is null or a C string; `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeSoftQuery(what: *const c_char, value: *mut u64) -> ze_result_t {
    guarded(|| {
        let state = DriverState::get()?;
        // SAFETY: the caller upholds the contract.
        let what = unsafe { read_text(what) }?;
        let found = match what {
            "allocations" => state.core.addresses.all(|_| true).len() as u64,
            "memory" => {
                let roots = state.roots.iter().filter_map(|root| state.devices.get(root.0.addr()).ok());
                roots.map(|root| root.memory[0].used()).sum()
            }
            "fds" => state.core.fds.used(),
            "exports" => state.exports.len() as u64,
            "residents" => {
                state.core.addresses.all(|_| true).iter().map(|range| range.owner.residents() as u64).sum()
            }
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
        // SAFETY: the caller upholds the contract.
        Ok(unsafe { write_result(value, found) }?)
    })
}
