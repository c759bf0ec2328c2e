//! The driver itself.

use std::ffi::{CStr, c_char, c_void};

use level_zero_sys::*;

use crate::context::Context;
use crate::entry::{entry, guarded, play};
use crate::pointer::{counted, get, put};
use crate::state::{State, handle};

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
        play(State::start()?, "zeInit")
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
        play(state, "zeInitDrivers")?;
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
        unsafe { put(version, state.settings.api) }
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
            put(properties, told)
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
pub(crate) fn text<const N: usize>(text: &str) -> [u8; N] {
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
            .map(|name| ze_driver_extension_properties_t { name: text(name), version: make_version(1, 0) });
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
        let found = crate::control::function(name).or_else(|| crate::tables::function(state, name));
        // SAFETY: a pointer of the application.
        unsafe {
            put(address, std::ptr::null_mut())?;
            put(address, found.ok_or(ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)?)
        }
    })
}

/// The context that is there without being made. It is made when it is first asked for, and never destroyed.
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
