//! The tables of functions. A number before a member is the minor version of the specification that
//! added it. A member that this crate does not call has a name and a position only, so that a
//! driver can fill it.

use core::ffi::{c_char, c_void};

use crate::base::*;
use crate::context::*;
use crate::device::*;

tables! {
    /// Initialization of drivers.
    ze_global_dditable_t from zeGetGlobalProcAddrTable {
        0 pfnInit = zeInit(flags: ze_init_flags_t);
        10 pfnInitDrivers = zeInitDrivers(pCount: *mut u32, phDrivers: *mut ze_driver_handle_t,
            desc: *mut ze_init_driver_type_desc_t);
    }
    /// Drivers.
    ze_driver_dditable_t from zeGetDriverProcAddrTable {
        0 pfnGet = zeDriverGet(pCount: *mut u32, phDrivers: *mut ze_driver_handle_t);
        0 pfnGetApiVersion = zeDriverGetApiVersion(hDriver: ze_driver_handle_t, version: *mut ze_api_version_t);
        0 pfnGetProperties = zeDriverGetProperties(hDriver: ze_driver_handle_t,
            pDriverProperties: *mut ze_driver_properties_t);
        0 pfnGetIpcProperties = zeDriverGetIpcProperties;
        0 pfnGetExtensionProperties = zeDriverGetExtensionProperties(hDriver: ze_driver_handle_t,
            pCount: *mut u32, pExtensionProperties: *mut ze_driver_extension_properties_t);
        1 pfnGetExtensionFunctionAddress = zeDriverGetExtensionFunctionAddress(hDriver: ze_driver_handle_t,
            name: *const c_char, ppFunctionAddress: *mut *mut c_void);
        6 pfnGetLastErrorDescription = zeDriverGetLastErrorDescription;
        13 pfnRTASFormatCompatibilityCheckExt = zeDriverRTASFormatCompatibilityCheckExt;
        14 pfnGetDefaultContext = zeDriverGetDefaultContext(hDriver: ze_driver_handle_t) -> ze_context_handle_t;
    }
    /// Drivers, experimental.
    ze_driver_exp_dditable_t from zeGetDriverExpProcAddrTable {
        7 pfnRTASFormatCompatibilityCheckExp = zeDriverRTASFormatCompatibilityCheckExp;
    }
    /// Devices.
    ze_device_dditable_t from zeGetDeviceProcAddrTable {
        0 pfnGet = zeDeviceGet(hDriver: ze_driver_handle_t, pCount: *mut u32, phDevices: *mut ze_device_handle_t);
        0 pfnGetSubDevices = zeDeviceGetSubDevices(hDevice: ze_device_handle_t, pCount: *mut u32,
            phSubdevices: *mut ze_device_handle_t);
        0 pfnGetProperties = zeDeviceGetProperties(hDevice: ze_device_handle_t,
            pDeviceProperties: *mut ze_device_properties_t);
        0 pfnGetComputeProperties = zeDeviceGetComputeProperties(hDevice: ze_device_handle_t,
            pComputeProperties: *mut ze_device_compute_properties_t);
        0 pfnGetModuleProperties = zeDeviceGetModuleProperties(hDevice: ze_device_handle_t,
            pModuleProperties: *mut ze_device_module_properties_t);
        0 pfnGetCommandQueueGroupProperties = zeDeviceGetCommandQueueGroupProperties(hDevice: ze_device_handle_t,
            pCount: *mut u32, pCommandQueueGroupProperties: *mut ze_command_queue_group_properties_t);
        0 pfnGetMemoryProperties = zeDeviceGetMemoryProperties(hDevice: ze_device_handle_t, pCount: *mut u32,
            pMemProperties: *mut ze_device_memory_properties_t);
        0 pfnGetMemoryAccessProperties = zeDeviceGetMemoryAccessProperties(hDevice: ze_device_handle_t,
            pMemAccessProperties: *mut ze_device_memory_access_properties_t);
        0 pfnGetCacheProperties = zeDeviceGetCacheProperties(hDevice: ze_device_handle_t, pCount: *mut u32,
            pCacheProperties: *mut ze_device_cache_properties_t);
        0 pfnGetImageProperties = zeDeviceGetImageProperties(hDevice: ze_device_handle_t,
            pImageProperties: *mut ze_device_image_properties_t);
        0 pfnGetExternalMemoryProperties = zeDeviceGetExternalMemoryProperties(hDevice: ze_device_handle_t,
            pExternalMemoryProperties: *mut ze_device_external_memory_properties_t);
        0 pfnGetP2PProperties = zeDeviceGetP2PProperties(hDevice: ze_device_handle_t,
            hPeerDevice: ze_device_handle_t, pP2PProperties: *mut ze_device_p2p_properties_t);
        0 pfnCanAccessPeer = zeDeviceCanAccessPeer(hDevice: ze_device_handle_t, hPeerDevice: ze_device_handle_t,
            value: *mut ze_bool_t);
        0 pfnGetStatus = zeDeviceGetStatus;
        1 pfnGetGlobalTimestamps = zeDeviceGetGlobalTimestamps(hDevice: ze_device_handle_t,
            hostTimestamp: *mut u64, deviceTimestamp: *mut u64);
        2 pfnReserveCacheExt = zeDeviceReserveCacheExt;
        2 pfnSetCacheAdviceExt = zeDeviceSetCacheAdviceExt;
        3 pfnPciGetPropertiesExt = zeDevicePciGetPropertiesExt;
        7 pfnGetRootDevice = zeDeviceGetRootDevice(hDevice: ze_device_handle_t,
            phRootDevice: *mut ze_device_handle_t);
        12 pfnImportExternalSemaphoreExt = zeDeviceImportExternalSemaphoreExt;
        12 pfnReleaseExternalSemaphoreExt = zeDeviceReleaseExternalSemaphoreExt;
        13 pfnGetVectorWidthPropertiesExt = zeDeviceGetVectorWidthPropertiesExt;
        14 pfnSynchronize = zeDeviceSynchronize;
        15 pfnGetAggregatedCopyOffloadIncrementValue = zeDeviceGetAggregatedCopyOffloadIncrementValue;
        16 pfnGetRuntimeRequirements = zeDeviceGetRuntimeRequirements;
        16 pfnGetRuntimeRequirementsKey = zeDeviceGetRuntimeRequirementsKey;
        16 pfnValidateRuntimeRequirements = zeDeviceValidateRuntimeRequirements;
        17 pfnGetCounterBasedEventMaxValue = zeDeviceGetCounterBasedEventMaxValue;
    }
    /// Devices, experimental.
    ze_device_exp_dditable_t from zeGetDeviceExpProcAddrTable {
        4 pfnGetFabricVertexExp = zeDeviceGetFabricVertexExp;
    }
    /// Contexts.
    ze_context_dditable_t from zeGetContextProcAddrTable {
        0 pfnCreate = zeContextCreate(hDriver: ze_driver_handle_t, desc: *const ze_context_desc_t,
            phContext: *mut ze_context_handle_t);
        0 pfnDestroy = zeContextDestroy(hContext: ze_context_handle_t);
        0 pfnGetStatus = zeContextGetStatus;
        0 pfnSystemBarrier = zeContextSystemBarrier;
        0 pfnMakeMemoryResident = zeContextMakeMemoryResident(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, ptr: *mut c_void, size: usize);
        0 pfnEvictMemory = zeContextEvictMemory(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            ptr: *mut c_void, size: usize);
        0 pfnMakeImageResident = zeContextMakeImageResident;
        0 pfnEvictImage = zeContextEvictImage;
        1 pfnCreateEx = zeContextCreateEx;
    }
    /// Queues.
    ze_command_queue_dditable_t from zeGetCommandQueueProcAddrTable {
        0 pfnCreate = zeCommandQueueCreate(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            desc: *const ze_command_queue_desc_t, phCommandQueue: *mut ze_command_queue_handle_t);
        0 pfnDestroy = zeCommandQueueDestroy(hCommandQueue: ze_command_queue_handle_t);
        0 pfnExecuteCommandLists = zeCommandQueueExecuteCommandLists(hCommandQueue: ze_command_queue_handle_t,
            numCommandLists: u32, phCommandLists: *mut ze_command_list_handle_t, hFence: ze_fence_handle_t);
        0 pfnSynchronize = zeCommandQueueSynchronize;
        9 pfnGetOrdinal = zeCommandQueueGetOrdinal;
        9 pfnGetIndex = zeCommandQueueGetIndex;
        17 pfnGetFlags = zeCommandQueueGetFlags;
        17 pfnGetMode = zeCommandQueueGetMode;
        17 pfnGetPriority = zeCommandQueueGetPriority;
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
        0 pfnAppendWriteGlobalTimestamp = zeCommandListAppendWriteGlobalTimestamp;
        0 pfnAppendBarrier = zeCommandListAppendBarrier(hCommandList: ze_command_list_handle_t,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryRangesBarrier = zeCommandListAppendMemoryRangesBarrier;
        0 pfnAppendMemoryCopy = zeCommandListAppendMemoryCopy(hCommandList: ze_command_list_handle_t,
            dstptr: *mut c_void, srcptr: *const c_void, size: usize, hSignalEvent: ze_event_handle_t,
            numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryFill = zeCommandListAppendMemoryFill(hCommandList: ze_command_list_handle_t,
            ptr: *mut c_void, pattern: *const c_void, pattern_size: usize, size: usize,
            hSignalEvent: ze_event_handle_t, numWaitEvents: u32, phWaitEvents: *mut ze_event_handle_t);
        0 pfnAppendMemoryCopyRegion = zeCommandListAppendMemoryCopyRegion;
        0 pfnAppendMemoryCopyFromContext = zeCommandListAppendMemoryCopyFromContext;
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
        0 pfnAppendEventReset = zeCommandListAppendEventReset;
        0 pfnAppendQueryKernelTimestamps = zeCommandListAppendQueryKernelTimestamps;
        0 pfnAppendLaunchKernel = zeCommandListAppendLaunchKernel;
        0 pfnAppendLaunchCooperativeKernel = zeCommandListAppendLaunchCooperativeKernel;
        0 pfnAppendLaunchKernelIndirect = zeCommandListAppendLaunchKernelIndirect;
        0 pfnAppendLaunchMultipleKernelsIndirect = zeCommandListAppendLaunchMultipleKernelsIndirect;
        3 pfnAppendImageCopyToMemoryExt = zeCommandListAppendImageCopyToMemoryExt;
        3 pfnAppendImageCopyFromMemoryExt = zeCommandListAppendImageCopyFromMemoryExt;
        6 pfnHostSynchronize = zeCommandListHostSynchronize(hCommandList: ze_command_list_handle_t, timeout: u64);
        9 pfnGetDeviceHandle = zeCommandListGetDeviceHandle;
        9 pfnGetContextHandle = zeCommandListGetContextHandle;
        9 pfnGetOrdinal = zeCommandListGetOrdinal;
        9 pfnImmediateGetIndex = zeCommandListImmediateGetIndex;
        9 pfnIsImmediate = zeCommandListIsImmediate;
        12 pfnAppendSignalExternalSemaphoreExt = zeCommandListAppendSignalExternalSemaphoreExt;
        12 pfnAppendWaitExternalSemaphoreExt = zeCommandListAppendWaitExternalSemaphoreExt;
        14 pfnAppendLaunchKernelWithParameters = zeCommandListAppendLaunchKernelWithParameters;
        14 pfnAppendLaunchKernelWithArguments = zeCommandListAppendLaunchKernelWithArguments;
        16 pfnAppendMemoryCopyWithParameters = zeCommandListAppendMemoryCopyWithParameters;
        16 pfnAppendMemoryFillWithParameters = zeCommandListAppendMemoryFillWithParameters;
        16 pfnImmediateAppendCommandListsWithParameters = zeCommandListImmediateAppendCommandListsWithParameters;
        17 pfnGetFlags = zeCommandListGetFlags;
        17 pfnImmediateGetFlags = zeCommandListImmediateGetFlags;
        17 pfnImmediateGetMode = zeCommandListImmediateGetMode;
        17 pfnImmediateGetPriority = zeCommandListImmediateGetPriority;
        17 pfnBeginGraphCaptureExt = zeCommandListBeginGraphCaptureExt;
        17 pfnBeginCaptureIntoGraphExt = zeCommandListBeginCaptureIntoGraphExt;
        17 pfnIsGraphCaptureEnabledExt = zeCommandListIsGraphCaptureEnabledExt;
        17 pfnEndGraphCaptureExt = zeCommandListEndGraphCaptureExt;
        17 pfnGetGraphExt = zeCommandListGetGraphExt;
        17 pfnAppendGraphExt = zeCommandListAppendGraphExt;
        17 pfnAppendHostFunction = zeCommandListAppendHostFunction;
    }
    /// Command lists, experimental.
    ze_command_list_exp_dditable_t from zeGetCommandListExpProcAddrTable {
        9 pfnCreateCloneExp = zeCommandListCreateCloneExp;
        9 pfnImmediateAppendCommandListsExp = zeCommandListImmediateAppendCommandListsExp;
        9 pfnGetNextCommandIdExp = zeCommandListGetNextCommandIdExp;
        9 pfnUpdateMutableCommandsExp = zeCommandListUpdateMutableCommandsExp;
        9 pfnUpdateMutableCommandSignalEventExp = zeCommandListUpdateMutableCommandSignalEventExp;
        9 pfnUpdateMutableCommandWaitEventsExp = zeCommandListUpdateMutableCommandWaitEventsExp;
        10 pfnGetNextCommandIdWithKernelsExp = zeCommandListGetNextCommandIdWithKernelsExp;
        10 pfnUpdateMutableCommandKernelsExp = zeCommandListUpdateMutableCommandKernelsExp;
        17 pfnIsMutableExp = zeCommandListIsMutableExp;
    }
    /// Allocations, and their IPC handles.
    ze_mem_dditable_t from zeGetMemProcAddrTable {
        0 pfnAllocShared = zeMemAllocShared(hContext: ze_context_handle_t,
            device_desc: *const ze_device_mem_alloc_desc_t, host_desc: *const ze_host_mem_alloc_desc_t,
            size: usize, alignment: usize, hDevice: ze_device_handle_t, pptr: *mut *mut c_void);
        0 pfnAllocDevice = zeMemAllocDevice(hContext: ze_context_handle_t,
            device_desc: *const ze_device_mem_alloc_desc_t, size: usize, alignment: usize,
            hDevice: ze_device_handle_t, pptr: *mut *mut c_void);
        0 pfnAllocHost = zeMemAllocHost(hContext: ze_context_handle_t,
            host_desc: *const ze_host_mem_alloc_desc_t, size: usize, alignment: usize, pptr: *mut *mut c_void);
        0 pfnFree = zeMemFree(hContext: ze_context_handle_t, ptr: *mut c_void);
        0 pfnGetAllocProperties = zeMemGetAllocProperties(hContext: ze_context_handle_t, ptr: *const c_void,
            pMemAllocProperties: *mut ze_memory_allocation_properties_t, phDevice: *mut ze_device_handle_t);
        0 pfnGetAddressRange = zeMemGetAddressRange(hContext: ze_context_handle_t, ptr: *const c_void,
            pBase: *mut *mut c_void, pSize: *mut usize);
        0 pfnGetIpcHandle = zeMemGetIpcHandle(hContext: ze_context_handle_t, ptr: *const c_void,
            pIpcHandle: *mut ze_ipc_mem_handle_t);
        0 pfnOpenIpcHandle = zeMemOpenIpcHandle(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            handle: ze_ipc_mem_handle_t, flags: ze_ipc_memory_flags_t, pptr: *mut *mut c_void);
        0 pfnCloseIpcHandle = zeMemCloseIpcHandle(hContext: ze_context_handle_t, ptr: *const c_void);
        3 pfnFreeExt = zeMemFreeExt(hContext: ze_context_handle_t,
            pMemFreeDesc: *const ze_memory_free_ext_desc_t, ptr: *mut c_void);
        6 pfnPutIpcHandle = zeMemPutIpcHandle(hContext: ze_context_handle_t, handle: ze_ipc_mem_handle_t);
        9 pfnGetPitchFor2dImage = zeMemGetPitchFor2dImage;
        15 pfnGetIpcHandleWithProperties = zeMemGetIpcHandleWithProperties;
    }
    /// Conversion between IPC handles and fds; atomic access.
    ze_mem_exp_dditable_t from zeGetMemExpProcAddrTable {
        6 pfnGetIpcHandleFromFileDescriptorExp = zeMemGetIpcHandleFromFileDescriptorExp(hContext: ze_context_handle_t,
            handle: u64, pIpcHandle: *mut ze_ipc_mem_handle_t);
        6 pfnGetFileDescriptorFromIpcHandleExp = zeMemGetFileDescriptorFromIpcHandleExp(hContext: ze_context_handle_t,
            ipcHandle: ze_ipc_mem_handle_t, pHandle: *mut u64);
        7 pfnSetAtomicAccessAttributeExp = zeMemSetAtomicAccessAttributeExp;
        7 pfnGetAtomicAccessAttributeExp = zeMemGetAtomicAccessAttributeExp;
    }
    /// Physical memory.
    ze_physical_mem_dditable_t from zeGetPhysicalMemProcAddrTable {
        0 pfnCreate = zePhysicalMemCreate;
        0 pfnDestroy = zePhysicalMemDestroy;
        15 pfnGetProperties = zePhysicalMemGetProperties;
    }
    /// Reserved addresses.
    ze_virtual_mem_dditable_t from zeGetVirtualMemProcAddrTable {
        0 pfnReserve = zeVirtualMemReserve;
        0 pfnFree = zeVirtualMemFree;
        0 pfnQueryPageSize = zeVirtualMemQueryPageSize(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, size: usize, pagesize: *mut usize);
        0 pfnMap = zeVirtualMemMap;
        0 pfnUnmap = zeVirtualMemUnmap;
        0 pfnSetAccessAttribute = zeVirtualMemSetAccessAttribute;
        0 pfnGetAccessAttribute = zeVirtualMemGetAccessAttribute;
    }
    /// Pools of events.
    ze_event_pool_dditable_t from zeGetEventPoolProcAddrTable {
        0 pfnCreate = zeEventPoolCreate(hContext: ze_context_handle_t, desc: *const ze_event_pool_desc_t,
            numDevices: u32, phDevices: *mut ze_device_handle_t, phEventPool: *mut ze_event_pool_handle_t);
        0 pfnDestroy = zeEventPoolDestroy(hEventPool: ze_event_pool_handle_t);
        0 pfnGetIpcHandle = zeEventPoolGetIpcHandle;
        0 pfnOpenIpcHandle = zeEventPoolOpenIpcHandle;
        0 pfnCloseIpcHandle = zeEventPoolCloseIpcHandle;
        6 pfnPutIpcHandle = zeEventPoolPutIpcHandle;
        9 pfnGetContextHandle = zeEventPoolGetContextHandle;
        9 pfnGetFlags = zeEventPoolGetFlags;
    }
    /// Events.
    ze_event_dditable_t from zeGetEventProcAddrTable {
        0 pfnCreate = zeEventCreate(hEventPool: ze_event_pool_handle_t, desc: *const ze_event_desc_t,
            phEvent: *mut ze_event_handle_t);
        0 pfnDestroy = zeEventDestroy(hEvent: ze_event_handle_t);
        0 pfnHostSignal = zeEventHostSignal;
        0 pfnHostSynchronize = zeEventHostSynchronize(hEvent: ze_event_handle_t, timeout: u64);
        0 pfnQueryStatus = zeEventQueryStatus(hEvent: ze_event_handle_t);
        0 pfnHostReset = zeEventHostReset(hEvent: ze_event_handle_t);
        0 pfnQueryKernelTimestamp = zeEventQueryKernelTimestamp(hEvent: ze_event_handle_t,
            dstptr: *mut ze_kernel_timestamp_result_t);
        6 pfnQueryKernelTimestampsExt = zeEventQueryKernelTimestampsExt;
        9 pfnGetEventPool = zeEventGetEventPool;
        9 pfnGetSignalScope = zeEventGetSignalScope;
        9 pfnGetWaitScope = zeEventGetWaitScope;
        15 pfnCounterBasedCreate = zeEventCounterBasedCreate;
        15 pfnCounterBasedGetIpcHandle = zeEventCounterBasedGetIpcHandle;
        15 pfnCounterBasedOpenIpcHandle = zeEventCounterBasedOpenIpcHandle;
        15 pfnCounterBasedCloseIpcHandle = zeEventCounterBasedCloseIpcHandle;
        15 pfnCounterBasedGetDeviceAddress = zeEventCounterBasedGetDeviceAddress;
        17 pfnGetCounterBasedFlags = zeEventGetCounterBasedFlags;
    }
    /// Events, experimental.
    ze_event_exp_dditable_t from zeGetEventExpProcAddrTable {
        2 pfnQueryTimestampsExp = zeEventQueryTimestampsExp;
    }
    /// Fences.
    ze_fence_dditable_t from zeGetFenceProcAddrTable {
        0 pfnCreate = zeFenceCreate(hCommandQueue: ze_command_queue_handle_t, desc: *const ze_fence_desc_t,
            phFence: *mut ze_fence_handle_t);
        0 pfnDestroy = zeFenceDestroy(hFence: ze_fence_handle_t);
        0 pfnHostSynchronize = zeFenceHostSynchronize;
        0 pfnQueryStatus = zeFenceQueryStatus(hFence: ze_fence_handle_t);
        0 pfnReset = zeFenceReset(hFence: ze_fence_handle_t);
    }
    /// Images.
    ze_image_dditable_t from zeGetImageProcAddrTable {
        0 pfnGetProperties = zeImageGetProperties;
        0 pfnCreate = zeImageCreate;
        0 pfnDestroy = zeImageDestroy;
        3 pfnGetAllocPropertiesExt = zeImageGetAllocPropertiesExt;
        5 pfnViewCreateExt = zeImageViewCreateExt;
    }
    /// Images, experimental.
    ze_image_exp_dditable_t from zeGetImageExpProcAddrTable {
        2 pfnGetMemoryPropertiesExp = zeImageGetMemoryPropertiesExp;
        2 pfnViewCreateExp = zeImageViewCreateExp;
        9 pfnGetDeviceOffsetExp = zeImageGetDeviceOffsetExp;
    }
    /// Modules.
    ze_module_dditable_t from zeGetModuleProcAddrTable {
        0 pfnCreate = zeModuleCreate;
        0 pfnDestroy = zeModuleDestroy;
        0 pfnDynamicLink = zeModuleDynamicLink;
        0 pfnGetNativeBinary = zeModuleGetNativeBinary;
        0 pfnGetGlobalPointer = zeModuleGetGlobalPointer;
        0 pfnGetKernelNames = zeModuleGetKernelNames;
        0 pfnGetProperties = zeModuleGetProperties;
        0 pfnGetFunctionPointer = zeModuleGetFunctionPointer;
        3 pfnInspectLinkageExt = zeModuleInspectLinkageExt;
    }
    /// Build logs of modules.
    ze_module_build_log_dditable_t from zeGetModuleBuildLogProcAddrTable {
        0 pfnDestroy = zeModuleBuildLogDestroy;
        0 pfnGetString = zeModuleBuildLogGetString;
    }
    /// Kernels.
    ze_kernel_dditable_t from zeGetKernelProcAddrTable {
        0 pfnCreate = zeKernelCreate;
        0 pfnDestroy = zeKernelDestroy;
        0 pfnSetCacheConfig = zeKernelSetCacheConfig;
        0 pfnSetGroupSize = zeKernelSetGroupSize;
        0 pfnSuggestGroupSize = zeKernelSuggestGroupSize;
        0 pfnSuggestMaxCooperativeGroupCount = zeKernelSuggestMaxCooperativeGroupCount;
        0 pfnSetArgumentValue = zeKernelSetArgumentValue;
        0 pfnSetIndirectAccess = zeKernelSetIndirectAccess;
        0 pfnGetIndirectAccess = zeKernelGetIndirectAccess;
        0 pfnGetSourceAttributes = zeKernelGetSourceAttributes;
        0 pfnGetProperties = zeKernelGetProperties;
        0 pfnGetName = zeKernelGetName;
    }
    /// Kernels, experimental.
    ze_kernel_exp_dditable_t from zeGetKernelExpProcAddrTable {
        1 pfnSetGlobalOffsetExp = zeKernelSetGlobalOffsetExp;
        2 pfnSchedulingHintExp = zeKernelSchedulingHintExp;
        11 pfnGetBinaryExp = zeKernelGetBinaryExp;
        14 pfnGetAllocationPropertiesExp = zeKernelGetAllocationPropertiesExp;
    }
    /// Samplers.
    ze_sampler_dditable_t from zeGetSamplerProcAddrTable {
        0 pfnCreate = zeSamplerCreate;
        0 pfnDestroy = zeSamplerDestroy;
    }
}
