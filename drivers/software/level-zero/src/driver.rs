//! The driver itself: starting it, what it says of itself, and what tests ask of it that no other
//! driver has: faults, and how much there is of everything. Tests find those functions by name with
//! `zeDriverGetExtensionFunctionAddress`, or as symbols of the library.

use std::ffi::{CStr, c_char, c_void};

use level_zero_sys::*;
use soft_device::{get, put, text};

use crate::state::{Context, State, counted, entry, guarded, handle};

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
        let state = State::start()?;
        Ok(state.core.faults.play("zeInit", &state.core.health)?)
    })
}

pub(crate) unsafe extern "C" fn init_drivers(
    count: *mut u32,
    drivers: *mut ze_driver_handle_t,
    desc: *mut ze_init_driver_type_desc_t,
) -> ze_result_t {
    guarded(|| {
        // SAFETY: pointers of the application.
        let types = unsafe { get(desc.cast_const()) }?.flags;
        if types == 0 {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        let state = State::start()?;
        state.core.faults.play("zeInitDrivers", &state.core.health)?;
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
        // SAFETY: pointers of the application.
        unsafe { counted(count, drivers, [state.driver].into_iter()) }
    })
}

pub(crate) unsafe extern "C" fn get_api_version(
    driver: ze_driver_handle_t,
    version: *mut ze_api_version_t,
) -> ze_result_t {
    entry("zeDriverGetApiVersion", |state| {
        state.driver(driver)?;
        // SAFETY: a pointer of the application.
        Ok(unsafe { put(version, state.settings.api) }?)
    })
}

pub(crate) unsafe extern "C" fn get_properties(
    driver: ze_driver_handle_t,
    properties: *mut ze_driver_properties_t,
) -> ze_result_t {
    entry("zeDriverGetProperties", |state| {
        state.driver(driver)?;
        // SAFETY: pointers of the application.
        unsafe {
            let mut told = get(properties)?;
            told.uuid.id = *b"umf soft driver\0";
            told.driverVersion = 1;
            let policies = chain::find_mut::<ze_driver_memory_free_ext_properties_t>(told.pNext);
            if let Ok(mut told) = get(policies) {
                told.freePolicies = ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_BLOCKING_FREE
                    | ZE_DRIVER_MEMORY_FREE_POLICY_EXT_FLAG_DEFER_FREE;
                put(policies, told)?;
            }
            Ok(put(properties, told)?)
        }
    })
}

/// What this driver has beside the core.
const EXTENSIONS: [&str; 5] = [
    ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME,
    ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME,
    ZE_MEMORY_FREE_POLICIES_EXT_NAME,
    ZE_CACHELINE_SIZE_EXT_NAME,
    ZE_DEVICE_MEMORY_PROPERTIES_EXT_NAME,
];

/// Text in a field of fixed length, with a zero at its end.
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
        // SAFETY: pointers of the application.
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
        // SAFETY: a text of the application.
        let name = unsafe { CStr::from_ptr(name) };
        let found = own_function(name).or_else(|| crate::tables::function(state, name));
        // SAFETY: a pointer of the application.
        unsafe {
            put(address, std::ptr::null_mut())?;
            Ok(put(address, found.ok_or(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)?)?)
        }
    })
}

/// The context that is there without being made. It is made when it is first asked for, and never
/// destroyed.
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

/// The number of an answer by its name in the specification.
pub(crate) fn answer(name: &str) -> Option<u32> {
    layout::constants()
        .find(|(known, _)| *known == name && name.starts_with("ZE_RESULT_"))
        .map(|(_, number)| number)
}

/// The functions of this driver alone, by their names.
fn own_function(name: &CStr) -> Option<*mut c_void> {
    match name.to_bytes() {
        b"zeSoftSetFaults" => Some(zeSoftSetFaults as *mut c_void),
        b"zeSoftQuery" => Some(zeSoftQuery as *mut c_void),
        _ => None,
    }
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
        let set = State::get()?.core.faults.set(faults, answer);
        set.map_err(|_| ZE_RESULT_ERROR_INVALID_ARGUMENT.into())
    })
}

/// How much there is of something: `allocations`, `memory` (bytes of all devices), `fds` (that the
/// driver holds), `exports` (handles that are out), `residents` (allocations made resident, counted
/// for each device), `contexts`, `queues`, `lists`, `fences`, `event-pools`, `events`.
///
/// Answers `ZE_RESULT_ERROR_INVALID_ARGUMENT` for any other name.
///
/// # Safety
/// `what` is null or a text that ends with a zero; `value` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeSoftQuery(what: *const c_char, value: *mut u64) -> ze_result_t {
    guarded(|| {
        let state = State::get()?;
        // SAFETY: the caller's promise.
        let what = unsafe { text(what) }?;
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
        // SAFETY: the caller's promise.
        Ok(unsafe { put(value, found) }?)
    })
}
