//! The function tables that the loader requests, and the function of each member.

use std::ffi::{CStr, c_void};

use level_zero_sys::*;

use crate::state::{DriverState, guarded, read_settings};
use crate::{append, device, driver, ipc, memory, queue};

/// Stands for all functions that this driver lacks. It takes no parameters: in the supported
/// calling conventions the caller cleans up the arguments, so that extra ones are harmless.
unsafe extern "C" fn unsupported() -> ze_result_t {
    ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
}

/// Fills a table of the caller with the members of its version, at most of this driver's version.
///
/// # Safety
/// `table` is null or valid for writes of the members of that version.
unsafe fn fill_table<T: Table>(version: ze_api_version_t, table: *mut T, mut full: T) -> ze_result_t {
    guarded(|| {
        if table.is_null() {
            return Err(ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
        }
        if version.0 >> 16 != ZE_API_VERSION_CURRENT.0 >> 16 {
            return Err(ZE_RESULT_ERROR_UNSUPPORTED_VERSION.into());
        }
        // The loader calls this before initialization, which reports invalid settings.
        let api =
            read_settings(soft_device::variable).map_or(ZE_API_VERSION_CURRENT, |(_, settings)| settings.api);
        full.fill_absent(unsupported);
        // SAFETY: the caller upholds the contract.
        unsafe { full.fill(table, version.min(api)) };
        Ok(())
    })
}

macro_rules! exports {
    ($($get:ident => $table:ident { $($member:ident: $function:path,)* })*) => {
        $(
            /// Fills a table for the loader.
            ///
            /// # Safety
            /// `table` is null or valid for writes of the members of `version`.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $get(version: ze_api_version_t, table: *mut $table) -> ze_result_t {
                #[allow(clippy::needless_update, reason = "some tables have nothing else")]
                let full = $table { $($member: Some($function),)* ..Default::default() };
                // SAFETY: the caller upholds the contract.
                unsafe { fill_table(version, table, full) }
            }
        )*

        /// Returns a function by its name in the specification, if the driver's version has it.
        pub(crate) fn function(state: &DriverState, name: &CStr) -> Option<*mut c_void> {
            $(
                let known = &$table::MEMBERS[..$table::known_at(state.settings.api)];
                if let Some(index) = known.iter().position(|member| member.function == name) {
                    let mut table = $table::default();
                    // SAFETY: the table has the members of the current version.
                    unsafe { $get(ZE_API_VERSION_CURRENT, &raw mut table) };
                    return table.pointer(index).filter(|found| *found != unsupported as *mut c_void);
                }
            )*
            None
        }
    };
}

exports! {
    zeGetGlobalProcAddrTable => ze_global_dditable_t {
        pfnInit: driver::init,
        pfnInitDrivers: driver::init_drivers,
    }
    zeGetDriverProcAddrTable => ze_driver_dditable_t {
        pfnGet: driver::get_drivers,
        pfnGetApiVersion: driver::get_api_version,
        pfnGetProperties: driver::get_properties,
        pfnGetExtensionProperties: driver::get_extension_properties,
        pfnGetExtensionFunctionAddress: driver::get_extension_function_address,
        pfnGetDefaultContext: driver::get_default_context,
    }
    zeGetDeviceProcAddrTable => ze_device_dditable_t {
        pfnGet: device::get_devices,
        pfnGetSubDevices: device::get_sub_devices,
        pfnGetProperties: device::get_properties,
        pfnGetComputeProperties: device::get_compute_properties,
        pfnGetModuleProperties: device::get_module_properties,
        pfnGetCommandQueueGroupProperties: device::get_command_queue_group_properties,
        pfnGetMemoryProperties: device::get_memory_properties,
        pfnGetMemoryAccessProperties: device::get_memory_access_properties,
        pfnGetCacheProperties: device::get_cache_properties,
        pfnGetImageProperties: device::get_image_properties,
        pfnGetExternalMemoryProperties: device::get_external_memory_properties,
        pfnGetP2PProperties: device::get_p2p_properties,
        pfnCanAccessPeer: device::can_access_peer,
        pfnGetGlobalTimestamps: device::get_global_timestamps,
        pfnGetRootDevice: device::get_root_device,
    }
    zeGetContextProcAddrTable => ze_context_dditable_t {
        pfnCreate: memory::create_context,
        pfnDestroy: memory::destroy_context,
        pfnMakeMemoryResident: memory::make_memory_resident,
        pfnEvictMemory: memory::evict_memory,
    }
    zeGetCommandQueueProcAddrTable => ze_command_queue_dditable_t {
        pfnCreate: queue::create_queue,
        pfnDestroy: queue::destroy_queue,
        pfnExecuteCommandLists: queue::execute,
    }
    zeGetCommandListProcAddrTable => ze_command_list_dditable_t {
        pfnCreate: queue::create_list,
        pfnCreateImmediate: queue::create_immediate,
        pfnDestroy: queue::destroy_list,
        pfnClose: queue::close_list,
        pfnReset: queue::reset_list,
        pfnAppendBarrier: append::barrier,
        pfnAppendMemoryCopy: append::memory_copy,
        pfnAppendMemoryFill: append::memory_fill,
        pfnAppendMemoryPrefetch: append::memory_prefetch,
        pfnAppendMemAdvise: append::mem_advise,
        pfnAppendSignalEvent: append::signal_event,
        pfnAppendWaitOnEvents: append::wait_on_events,
        pfnHostSynchronize: queue::synchronize_list,
    }
    zeGetCommandListExpProcAddrTable => ze_command_list_exp_dditable_t {}
    zeGetMemProcAddrTable => ze_mem_dditable_t {
        pfnAllocShared: memory::alloc_shared,
        pfnAllocDevice: memory::alloc_device,
        pfnAllocHost: memory::alloc_host,
        pfnFree: memory::free,
        pfnGetAllocProperties: memory::get_alloc_properties,
        pfnGetAddressRange: memory::get_address_range,
        pfnGetIpcHandle: ipc::get_ipc_handle,
        pfnOpenIpcHandle: ipc::open_ipc_handle,
        pfnCloseIpcHandle: ipc::close_ipc_handle,
        pfnFreeExt: memory::free_ext,
        pfnPutIpcHandle: ipc::put_ipc_handle,
    }
    zeGetMemExpProcAddrTable => ze_mem_exp_dditable_t {
        pfnGetIpcHandleFromFileDescriptorExp: ipc::get_handle_from_fd,
        pfnGetFileDescriptorFromIpcHandleExp: ipc::get_fd_from_handle,
    }
    zeGetPhysicalMemProcAddrTable => ze_physical_mem_dditable_t {}
    zeGetVirtualMemProcAddrTable => ze_virtual_mem_dditable_t {
        pfnQueryPageSize: memory::query_page_size,
    }
    zeGetEventPoolProcAddrTable => ze_event_pool_dditable_t {
        pfnCreate: queue::create_pool,
        pfnDestroy: queue::destroy_pool,
    }
    zeGetEventProcAddrTable => ze_event_dditable_t {
        pfnCreate: queue::create_event,
        pfnDestroy: queue::destroy_event,
        pfnHostSynchronize: queue::synchronize_event,
        pfnQueryStatus: queue::query_event,
        pfnHostReset: queue::reset_event,
        pfnQueryKernelTimestamp: queue::query_kernel_timestamp,
    }
    zeGetEventExpProcAddrTable => ze_event_exp_dditable_t {}
    zeGetFenceProcAddrTable => ze_fence_dditable_t {
        pfnCreate: queue::create_fence,
        pfnDestroy: queue::destroy_fence,
        pfnQueryStatus: queue::query_fence,
        pfnReset: queue::reset_fence,
    }
    zeGetDriverExpProcAddrTable => ze_driver_exp_dditable_t {}
    zeGetDeviceExpProcAddrTable => ze_device_exp_dditable_t {}
    zeGetImageProcAddrTable => ze_image_dditable_t {}
    zeGetImageExpProcAddrTable => ze_image_exp_dditable_t {}
    zeGetModuleProcAddrTable => ze_module_dditable_t {}
    zeGetModuleBuildLogProcAddrTable => ze_module_build_log_dditable_t {}
    zeGetKernelProcAddrTable => ze_kernel_dditable_t {}
    zeGetKernelExpProcAddrTable => ze_kernel_exp_dditable_t {}
    zeGetSamplerProcAddrTable => ze_sampler_dditable_t {}
}

/// Empty tables of tools and system management: older loaders reject a driver without them.
macro_rules! empty_tables {
    ($($get:ident)*) => {
        $(
            /// Leaves a table empty.
            ///
            /// # Safety
            /// The function has no requirements.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $get(_version: ze_api_version_t, _table: *mut c_void) -> ze_result_t {
                ZE_RESULT_SUCCESS
            }
        )*
    };
}

empty_tables! {
    zetGetDeviceProcAddrTable zetGetContextProcAddrTable zetGetCommandListProcAddrTable zetGetKernelProcAddrTable
    zetGetModuleProcAddrTable zetGetDebugProcAddrTable zetGetMetricProcAddrTable zetGetMetricGroupProcAddrTable
    zetGetMetricGroupExpProcAddrTable zetGetMetricQueryProcAddrTable zetGetMetricQueryPoolProcAddrTable
    zetGetMetricStreamerProcAddrTable zetGetTracerExpProcAddrTable
    zesGetDeviceProcAddrTable zesGetDriverProcAddrTable zesGetDiagnosticsProcAddrTable zesGetEngineProcAddrTable
    zesGetFabricPortProcAddrTable zesGetFanProcAddrTable zesGetFirmwareProcAddrTable zesGetFrequencyProcAddrTable
    zesGetLedProcAddrTable zesGetMemoryProcAddrTable zesGetPerformanceFactorProcAddrTable zesGetPowerProcAddrTable
    zesGetPsuProcAddrTable zesGetRasProcAddrTable zesGetSchedulerProcAddrTable zesGetStandbyProcAddrTable
    zesGetTemperatureProcAddrTable
}
