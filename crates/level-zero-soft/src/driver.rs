//! The driver itself.

use std::ffi::{CStr, c_char, c_void};

use level_zero_sys::*;

use crate::context::Context;
use crate::entry::{Refusal, entry, guarded, last_refusal, play};
use crate::pointer::{counted, get, put};
use crate::state::{State, handle};

pub(crate) unsafe extern "C" fn init(flags: ze_init_flags_t) -> ze_result_t {
    guarded("zeInit", || {
        let known = ZE_INIT_FLAG_GPU_ONLY | ZE_INIT_FLAG_VPU_ONLY;
        if flags & !known != 0 {
            return Err(ZE_RESULT_ERROR_INVALID_ENUMERATION.into());
        }
        if flags == ZE_INIT_FLAG_VPU_ONLY {
            return Err(Refusal::new(ZE_RESULT_ERROR_UNINITIALIZED, "this driver's devices are GPUs"));
        }
        play(State::start()?, "zeInit")
    })
}

pub(crate) unsafe extern "C" fn init_drivers(
    count: *mut u32,
    drivers: *mut ze_driver_handle_t,
    desc: *mut ze_init_driver_type_desc_t,
) -> ze_result_t {
    guarded("zeInitDrivers", || {
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
            let handles = chain::find_mut::<ze_driver_ddi_handles_ext_properties_t>(told.pNext);
            if let Ok(mut told) = get(handles) {
                // Handles are numbers: nobody may look behind them.
                told.flags = 0;
                put(handles, told)?;
            }
            put(properties, told)
        }
    })
}

pub(crate) unsafe extern "C" fn get_ipc_properties(
    driver: ze_driver_handle_t,
    properties: *mut ze_driver_ipc_properties_t,
) -> ze_result_t {
    entry("zeDriverGetIpcProperties", |state| {
        state.driver(driver)?;
        // SAFETY: pointers of the application.
        unsafe {
            let mut told = get(properties)?;
            told.flags = ZE_IPC_PROPERTY_FLAG_MEMORY | ZE_IPC_PROPERTY_FLAG_EVENT_POOL;
            put(properties, told)
        }
    })
}

/// What this driver has beside the core.
const EXTENSIONS: [&str; 11] = [
    ZE_RELAXED_ALLOCATION_LIMITS_EXT_NAME,
    ZE_RELAXED_ALLOCATION_LIMITS_EXP_NAME,
    ZE_MEMORY_FREE_POLICIES_EXT_NAME,
    ZE_CACHELINE_SIZE_EXT_NAME,
    ZE_DEVICE_USABLEMEM_SIZE_PROPERTIES_EXT_NAME,
    ZE_DEVICE_MEMORY_PROPERTIES_EXT_NAME,
    ZE_EVENT_QUERY_KERNEL_TIMESTAMPS_EXT_NAME,
    ZE_IPC_MEM_HANDLE_TYPE_EXT_NAME,
    ZE_PCI_PROPERTIES_EXT_NAME,
    ZE_SUB_ALLOCATIONS_EXP_NAME,
    ZE_VIRTUAL_MEM_READONLY_PROPERTIES_EXT_NAME,
];

/// Text in a field of fixed length, with a zero at its end.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from.cast_signed();
    }
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

/// Not through the usual way: it would forget what it is asked for.
pub(crate) unsafe extern "C" fn get_last_error_description(
    driver: ze_driver_handle_t,
    text: *mut *const c_char,
) -> ze_result_t {
    let known = State::get().is_some_and(|state| state.driver == driver);
    match (known, text.is_null()) {
        (false, _) => ZE_RESULT_ERROR_INVALID_NULL_HANDLE,
        (true, true) => ZE_RESULT_ERROR_INVALID_NULL_POINTER,
        (true, false) => {
            // SAFETY: a pointer of the application.
            unsafe { text.write_unaligned(last_refusal()) };
            ZE_RESULT_SUCCESS
        }
    }
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
