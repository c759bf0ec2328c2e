//! Queues and command lists.

use core::ffi::c_void;

use crate::base::ze_bool_t;
use crate::handles::{
    ze_command_list_handle_t, ze_command_queue_handle_t, ze_context_handle_t, ze_device_handle_t,
    ze_event_handle_t, ze_fence_handle_t,
};
use crate::list::{
    ze_command_list_desc_t, ze_command_list_flags_t, ze_copy_region_t, ze_host_function_callback_t,
    ze_memory_advice_t,
};
use crate::queue::{
    ze_command_queue_desc_t, ze_command_queue_flags_t, ze_command_queue_mode_t, ze_command_queue_priority_t,
};

tables! {
    /// Queues.
    ze_command_queue_dditable_t from zeGetCommandQueueProcAddrTable {
        0 pfnCreate = zeCommandQueueCreate(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            desc: *const ze_command_queue_desc_t, phCommandQueue: *mut ze_command_queue_handle_t);
        0 pfnDestroy = zeCommandQueueDestroy(hCommandQueue: ze_command_queue_handle_t);
        0 pfnExecuteCommandLists = zeCommandQueueExecuteCommandLists(hCommandQueue: ze_command_queue_handle_t,
            numCommandLists: u32, phCommandLists: *mut ze_command_list_handle_t, hFence: ze_fence_handle_t);
        0 pfnSynchronize = zeCommandQueueSynchronize(hCommandQueue: ze_command_queue_handle_t, timeout: u64);
        9 pfnGetOrdinal = zeCommandQueueGetOrdinal(hCommandQueue: ze_command_queue_handle_t, pOrdinal: *mut u32);
        9 pfnGetIndex = zeCommandQueueGetIndex(hCommandQueue: ze_command_queue_handle_t, pIndex: *mut u32);
        17 pfnGetFlags = zeCommandQueueGetFlags(hCmdQueue: ze_command_queue_handle_t,
            pFlags: *mut ze_command_queue_flags_t);
        17 pfnGetMode = zeCommandQueueGetMode(hCmdQueue: ze_command_queue_handle_t,
            pMode: *mut ze_command_queue_mode_t);
        17 pfnGetPriority = zeCommandQueueGetPriority(hCmdQueue: ze_command_queue_handle_t,
            pPriority: *mut ze_command_queue_priority_t);
    }
    /// Command lists.
    ze_command_list_dditable_t from zeGetCommandListProcAddrTable {
        0 pfnCreate = zeCommandListCreate(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            desc: *const ze_command_list_desc_t, phCommandList: *mut ze_command_list_handle_t);
        0 pfnCreateImmediate = zeCommandListCreateImmediate(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, altdesc: *const ze_command_queue_desc_t,
            phCommandList: *mut ze_command_list_handle_t);
        0 pfnDestroy = zeCommandListDestroy(hCommandList: ze_command_list_handle_t);
        0 pfnClose = zeCommandListClose(hCommandList: ze_command_list_handle_t);
        0 pfnReset = zeCommandListReset(hCommandList: ze_command_list_handle_t);
        0 pfnAppendWriteGlobalTimestamp = zeCommandListAppendWriteGlobalTimestamp(hCommandList: ze_command_list_handle_t,
            dstptr: *mut u64, hSignalEvent: ze_event_handle_t, numWaitEvents: u32,
            phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendBarrier = zeCommandListAppendBarrier(hCommandList: ze_command_list_handle_t,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryRangesBarrier = zeCommandListAppendMemoryRangesBarrier(hCommandList: ze_command_list_handle_t,
            numRanges: u32, pRangeSizes: *const usize, pRanges: *mut *const c_void,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryCopy = zeCommandListAppendMemoryCopy(hCommandList: ze_command_list_handle_t,
            dstptr: *mut c_void, srcptr: *const c_void, size: usize, hSignalEvent: ze_event_handle_t,
            numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryFill = zeCommandListAppendMemoryFill(hCommandList: ze_command_list_handle_t,
            ptr: *mut c_void, pattern: *const c_void, pattern_size: usize, size: usize,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryCopyRegion = zeCommandListAppendMemoryCopyRegion(hCommandList: ze_command_list_handle_t,
            dstptr: *mut c_void, dstRegion: *const ze_copy_region_t, dstPitch: u32, dstSlicePitch: u32,
            srcptr: *const c_void, srcRegion: *const ze_copy_region_t, srcPitch: u32, srcSlicePitch: u32,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryCopyFromContext = zeCommandListAppendMemoryCopyFromContext(hCommandList: ze_command_list_handle_t,
            dstptr: *mut c_void, hContextSrc: ze_context_handle_t, srcptr: *const c_void, size: usize,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendImageCopy = zeCommandListAppendImageCopy;
        0 pfnAppendImageCopyRegion = zeCommandListAppendImageCopyRegion;
        0 pfnAppendImageCopyToMemory = zeCommandListAppendImageCopyToMemory;
        0 pfnAppendImageCopyFromMemory = zeCommandListAppendImageCopyFromMemory;
        0 pfnAppendMemoryPrefetch = zeCommandListAppendMemoryPrefetch(hCommandList: ze_command_list_handle_t,
            ptr: *const c_void, size: usize);
        0 pfnAppendMemAdvise = zeCommandListAppendMemAdvise(hCommandList: ze_command_list_handle_t,
            hDevice: ze_device_handle_t, ptr: *const c_void, size: usize, advice: ze_memory_advice_t);
        0 pfnAppendSignalEvent = zeCommandListAppendSignalEvent(hCommandList: ze_command_list_handle_t,
            hEvent: ze_event_handle_t);
        0 pfnAppendWaitOnEvents = zeCommandListAppendWaitOnEvents(hCommandList: ze_command_list_handle_t,
            numEvents: u32, phEvents: *mut ze_event_handle_t);
        0 pfnAppendEventReset = zeCommandListAppendEventReset(hCommandList: ze_command_list_handle_t,
            hEvent: ze_event_handle_t);
        0 pfnAppendQueryKernelTimestamps = zeCommandListAppendQueryKernelTimestamps(hCommandList: ze_command_list_handle_t,
            numEvents: u32, phEvents: *mut ze_event_handle_t, dstptr: *mut c_void, pOffsets: *const usize,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendLaunchKernel = zeCommandListAppendLaunchKernel;
        0 pfnAppendLaunchCooperativeKernel = zeCommandListAppendLaunchCooperativeKernel;
        0 pfnAppendLaunchKernelIndirect = zeCommandListAppendLaunchKernelIndirect;
        0 pfnAppendLaunchMultipleKernelsIndirect = zeCommandListAppendLaunchMultipleKernelsIndirect;
        3 pfnAppendImageCopyToMemoryExt = zeCommandListAppendImageCopyToMemoryExt;
        3 pfnAppendImageCopyFromMemoryExt = zeCommandListAppendImageCopyFromMemoryExt;
        6 pfnHostSynchronize = zeCommandListHostSynchronize(hCommandList: ze_command_list_handle_t, timeout: u64);
        9 pfnGetDeviceHandle = zeCommandListGetDeviceHandle(hCommandList: ze_command_list_handle_t,
            phDevice: *mut ze_device_handle_t);
        9 pfnGetContextHandle = zeCommandListGetContextHandle(hCommandList: ze_command_list_handle_t,
            phContext: *mut ze_context_handle_t);
        9 pfnGetOrdinal = zeCommandListGetOrdinal(hCommandList: ze_command_list_handle_t, pOrdinal: *mut u32);
        9 pfnImmediateGetIndex = zeCommandListImmediateGetIndex(hCommandListImmediate: ze_command_list_handle_t,
            pIndex: *mut u32);
        9 pfnIsImmediate = zeCommandListIsImmediate(hCommandList: ze_command_list_handle_t,
            pIsImmediate: *mut ze_bool_t);
        12 pfnAppendSignalExternalSemaphoreExt = zeCommandListAppendSignalExternalSemaphoreExt;
        12 pfnAppendWaitExternalSemaphoreExt = zeCommandListAppendWaitExternalSemaphoreExt;
        14 pfnAppendLaunchKernelWithParameters = zeCommandListAppendLaunchKernelWithParameters;
        14 pfnAppendLaunchKernelWithArguments = zeCommandListAppendLaunchKernelWithArguments;
        16 pfnAppendMemoryCopyWithParameters = zeCommandListAppendMemoryCopyWithParameters(hCommandList: ze_command_list_handle_t,
            dstptr: *mut c_void, srcptr: *const c_void, size: usize, pNext: *const c_void,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        16 pfnAppendMemoryFillWithParameters = zeCommandListAppendMemoryFillWithParameters(hCommandList: ze_command_list_handle_t,
            ptr: *mut c_void, pattern: *const c_void, pattern_size: usize, size: usize, pNext: *const c_void,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        16 pfnImmediateAppendCommandListsWithParameters = zeCommandListImmediateAppendCommandListsWithParameters(hCommandListImmediate: ze_command_list_handle_t,
            numCommandLists: u32, phCommandLists: *mut ze_command_list_handle_t, pNext: *const c_void,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        17 pfnGetFlags = zeCommandListGetFlags(hCommandList: ze_command_list_handle_t,
            pFlags: *mut ze_command_list_flags_t);
        17 pfnImmediateGetFlags = zeCommandListImmediateGetFlags(hCommandList: ze_command_list_handle_t,
            pFlags: *mut ze_command_queue_flags_t);
        17 pfnImmediateGetMode = zeCommandListImmediateGetMode(hCommandList: ze_command_list_handle_t,
            pMode: *mut ze_command_queue_mode_t);
        17 pfnImmediateGetPriority = zeCommandListImmediateGetPriority(hCommandList: ze_command_list_handle_t,
            pPriority: *mut ze_command_queue_priority_t);
        17 pfnBeginGraphCaptureExt = zeCommandListBeginGraphCaptureExt;
        17 pfnBeginCaptureIntoGraphExt = zeCommandListBeginCaptureIntoGraphExt;
        17 pfnIsGraphCaptureEnabledExt = zeCommandListIsGraphCaptureEnabledExt;
        17 pfnEndGraphCaptureExt = zeCommandListEndGraphCaptureExt;
        17 pfnGetGraphExt = zeCommandListGetGraphExt;
        17 pfnAppendGraphExt = zeCommandListAppendGraphExt;
        17 pfnAppendHostFunction = zeCommandListAppendHostFunction(hCommandList: ze_command_list_handle_t,
            pfnHostFunction: ze_host_function_callback_t, pUserData: *mut c_void, pNext: *const c_void,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
    }
    /// Command lists, experimental.
    ze_command_list_exp_dditable_t from zeGetCommandListExpProcAddrTable {
        9 pfnCreateCloneExp = zeCommandListCreateCloneExp(hCommandList: ze_command_list_handle_t,
            phClonedCommandList: *mut ze_command_list_handle_t);
        9 pfnImmediateAppendCommandListsExp = zeCommandListImmediateAppendCommandListsExp(hCommandListImmediate: ze_command_list_handle_t,
            numCommandLists: u32, phCommandLists: *mut ze_command_list_handle_t, hSignalEvent: ze_event_handle_t,
            numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        9 pfnGetNextCommandIdExp = zeCommandListGetNextCommandIdExp;
        9 pfnUpdateMutableCommandsExp = zeCommandListUpdateMutableCommandsExp;
        9 pfnUpdateMutableCommandSignalEventExp = zeCommandListUpdateMutableCommandSignalEventExp;
        9 pfnUpdateMutableCommandWaitEventsExp = zeCommandListUpdateMutableCommandWaitEventsExp;
        10 pfnGetNextCommandIdWithKernelsExp = zeCommandListGetNextCommandIdWithKernelsExp;
        10 pfnUpdateMutableCommandKernelsExp = zeCommandListUpdateMutableCommandKernelsExp;
        17 pfnIsMutableExp = zeCommandListIsMutableExp;
    }
}
