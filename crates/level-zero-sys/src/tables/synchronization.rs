//! Events and fences.

use crate::base::{ze_ipc_event_counter_based_handle_t, ze_ipc_event_pool_handle_t};
use crate::event::{
    ze_event_counter_based_desc_t, ze_event_counter_based_flags_t, ze_event_desc_t, ze_event_pool_desc_t,
    ze_event_pool_flags_t, ze_event_query_kernel_timestamps_results_ext_properties_t, ze_event_scope_flags_t,
    ze_kernel_timestamp_result_t,
};
use crate::handles::{
    ze_command_queue_handle_t, ze_context_handle_t, ze_device_handle_t, ze_event_handle_t,
    ze_event_pool_handle_t, ze_fence_handle_t,
};
use crate::queue::ze_fence_desc_t;

tables! {
    /// Pools of events.
    ze_event_pool_dditable_t from zeGetEventPoolProcAddrTable {
        0 pfnCreate = zeEventPoolCreate(hContext: ze_context_handle_t, desc: *const ze_event_pool_desc_t,
            numDevices: u32, phDevices: *mut ze_device_handle_t, phEventPool: *mut ze_event_pool_handle_t);
        0 pfnDestroy = zeEventPoolDestroy(hEventPool: ze_event_pool_handle_t);
        0 pfnGetIpcHandle = zeEventPoolGetIpcHandle(hEventPool: ze_event_pool_handle_t,
            phIpc: *mut ze_ipc_event_pool_handle_t);
        0 pfnOpenIpcHandle = zeEventPoolOpenIpcHandle(hContext: ze_context_handle_t,
            hIpc: ze_ipc_event_pool_handle_t, phEventPool: *mut ze_event_pool_handle_t);
        0 pfnCloseIpcHandle = zeEventPoolCloseIpcHandle(hEventPool: ze_event_pool_handle_t);
        6 pfnPutIpcHandle = zeEventPoolPutIpcHandle(hContext: ze_context_handle_t,
            hIpc: ze_ipc_event_pool_handle_t);
        9 pfnGetContextHandle = zeEventPoolGetContextHandle(hEventPool: ze_event_pool_handle_t,
            phContext: *mut ze_context_handle_t);
        9 pfnGetFlags = zeEventPoolGetFlags(hEventPool: ze_event_pool_handle_t, pFlags: *mut ze_event_pool_flags_t);
    }
    /// Events.
    ze_event_dditable_t from zeGetEventProcAddrTable {
        0 pfnCreate = zeEventCreate(hEventPool: ze_event_pool_handle_t, desc: *const ze_event_desc_t,
            phEvent: *mut ze_event_handle_t);
        0 pfnDestroy = zeEventDestroy(hEvent: ze_event_handle_t);
        0 pfnHostSignal = zeEventHostSignal(hEvent: ze_event_handle_t);
        0 pfnHostSynchronize = zeEventHostSynchronize(hEvent: ze_event_handle_t, timeout: u64);
        0 pfnQueryStatus = zeEventQueryStatus(hEvent: ze_event_handle_t);
        0 pfnHostReset = zeEventHostReset(hEvent: ze_event_handle_t);
        0 pfnQueryKernelTimestamp = zeEventQueryKernelTimestamp(hEvent: ze_event_handle_t,
            dstptr: *mut ze_kernel_timestamp_result_t);
        6 pfnQueryKernelTimestampsExt = zeEventQueryKernelTimestampsExt(hEvent: ze_event_handle_t,
            hDevice: ze_device_handle_t, pCount: *mut u32,
            pResults: *mut ze_event_query_kernel_timestamps_results_ext_properties_t);
        9 pfnGetEventPool = zeEventGetEventPool(hEvent: ze_event_handle_t,
            phEventPool: *mut ze_event_pool_handle_t);
        9 pfnGetSignalScope = zeEventGetSignalScope(hEvent: ze_event_handle_t,
            pSignalScope: *mut ze_event_scope_flags_t);
        9 pfnGetWaitScope = zeEventGetWaitScope(hEvent: ze_event_handle_t, pWaitScope: *mut ze_event_scope_flags_t);
        15 pfnCounterBasedCreate = zeEventCounterBasedCreate(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, desc: *const ze_event_counter_based_desc_t,
            phEvent: *mut ze_event_handle_t);
        15 pfnCounterBasedGetIpcHandle = zeEventCounterBasedGetIpcHandle(hEvent: ze_event_handle_t,
            phIpc: *mut ze_ipc_event_counter_based_handle_t);
        15 pfnCounterBasedOpenIpcHandle = zeEventCounterBasedOpenIpcHandle(hContext: ze_context_handle_t,
            hIpc: ze_ipc_event_counter_based_handle_t, phEvent: *mut ze_event_handle_t);
        15 pfnCounterBasedCloseIpcHandle = zeEventCounterBasedCloseIpcHandle(hEvent: ze_event_handle_t);
        15 pfnCounterBasedGetDeviceAddress = zeEventCounterBasedGetDeviceAddress(hEvent: ze_event_handle_t,
            completionValue: *mut u64, deviceAddress: *mut u64);
        17 pfnGetCounterBasedFlags = zeEventGetCounterBasedFlags(hEvent: ze_event_handle_t,
            pFlags: *mut ze_event_counter_based_flags_t);
    }
    /// Events, experimental.
    ze_event_exp_dditable_t from zeGetEventExpProcAddrTable {
        2 pfnQueryTimestampsExp = zeEventQueryTimestampsExp(hEvent: ze_event_handle_t,
            hDevice: ze_device_handle_t, pCount: *mut u32, pTimestamps: *mut ze_kernel_timestamp_result_t);
    }
    /// Fences.
    ze_fence_dditable_t from zeGetFenceProcAddrTable {
        0 pfnCreate = zeFenceCreate(hCommandQueue: ze_command_queue_handle_t, desc: *const ze_fence_desc_t,
            phFence: *mut ze_fence_handle_t);
        0 pfnDestroy = zeFenceDestroy(hFence: ze_fence_handle_t);
        0 pfnHostSynchronize = zeFenceHostSynchronize(hFence: ze_fence_handle_t, timeout: u64);
        0 pfnQueryStatus = zeFenceQueryStatus(hFence: ze_fence_handle_t);
        0 pfnReset = zeFenceReset(hFence: ze_fence_handle_t);
    }
}
