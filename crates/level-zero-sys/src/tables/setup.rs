//! Drivers, devices and contexts.

use core::ffi::{c_char, c_void};

use crate::base::ze_bool_t;
use crate::device::{
    ze_command_queue_group_properties_t, ze_device_cache_properties_t, ze_device_compute_properties_t,
    ze_device_external_memory_properties_t, ze_device_image_properties_t,
    ze_device_memory_access_properties_t, ze_device_memory_properties_t, ze_device_module_properties_t,
    ze_device_p2p_properties_t, ze_device_properties_t,
};
use crate::device_ext::{
    ze_cache_ext_region_t, ze_device_vector_width_properties_ext_t, ze_pci_ext_properties_t,
};
use crate::driver::{
    ze_driver_extension_properties_t, ze_driver_ipc_properties_t, ze_driver_properties_t,
    ze_init_driver_type_desc_t, ze_init_flags_t,
};
use crate::handles::{ze_context_handle_t, ze_device_handle_t, ze_driver_handle_t};
use crate::queue::ze_context_desc_t;
use crate::version::ze_api_version_t;

tables! {
    /// Starting drivers.
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
        0 pfnGetIpcProperties = zeDriverGetIpcProperties(hDriver: ze_driver_handle_t,
            pIpcProperties: *mut ze_driver_ipc_properties_t);
        0 pfnGetExtensionProperties = zeDriverGetExtensionProperties(hDriver: ze_driver_handle_t,
            pCount: *mut u32, pExtensionProperties: *mut ze_driver_extension_properties_t);
        1 pfnGetExtensionFunctionAddress = zeDriverGetExtensionFunctionAddress(hDriver: ze_driver_handle_t,
            name: *const c_char, ppFunctionAddress: *mut *mut c_void);
        6 pfnGetLastErrorDescription = zeDriverGetLastErrorDescription(hDriver: ze_driver_handle_t,
            ppString: *mut *const c_char);
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
        0 pfnGetStatus = zeDeviceGetStatus(hDevice: ze_device_handle_t);
        1 pfnGetGlobalTimestamps = zeDeviceGetGlobalTimestamps(hDevice: ze_device_handle_t,
            hostTimestamp: *mut u64, deviceTimestamp: *mut u64);
        2 pfnReserveCacheExt = zeDeviceReserveCacheExt(hDevice: ze_device_handle_t, cacheLevel: usize,
            cacheReservationSize: usize);
        2 pfnSetCacheAdviceExt = zeDeviceSetCacheAdviceExt(hDevice: ze_device_handle_t, ptr: *mut c_void,
            regionSize: usize, cacheRegion: ze_cache_ext_region_t);
        3 pfnPciGetPropertiesExt = zeDevicePciGetPropertiesExt(hDevice: ze_device_handle_t,
            pPciProperties: *mut ze_pci_ext_properties_t);
        7 pfnGetRootDevice = zeDeviceGetRootDevice(hDevice: ze_device_handle_t,
            phRootDevice: *mut ze_device_handle_t);
        12 pfnImportExternalSemaphoreExt = zeDeviceImportExternalSemaphoreExt;
        12 pfnReleaseExternalSemaphoreExt = zeDeviceReleaseExternalSemaphoreExt;
        13 pfnGetVectorWidthPropertiesExt = zeDeviceGetVectorWidthPropertiesExt(hDevice: ze_device_handle_t,
            pCount: *mut u32, pVectorWidthProperties: *mut ze_device_vector_width_properties_ext_t);
        14 pfnSynchronize = zeDeviceSynchronize(hDevice: ze_device_handle_t);
        15 pfnGetAggregatedCopyOffloadIncrementValue = zeDeviceGetAggregatedCopyOffloadIncrementValue(hDevice: ze_device_handle_t,
            incrementValue: *mut u32);
        16 pfnGetRuntimeRequirements = zeDeviceGetRuntimeRequirements;
        16 pfnGetRuntimeRequirementsKey = zeDeviceGetRuntimeRequirementsKey;
        16 pfnValidateRuntimeRequirements = zeDeviceValidateRuntimeRequirements;
        17 pfnGetCounterBasedEventMaxValue = zeDeviceGetCounterBasedEventMaxValue(hDevice: ze_device_handle_t,
            maxValue: *mut u64);
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
        0 pfnGetStatus = zeContextGetStatus(hContext: ze_context_handle_t);
        0 pfnSystemBarrier = zeContextSystemBarrier(hContext: ze_context_handle_t, hDevice: ze_device_handle_t);
        0 pfnMakeMemoryResident = zeContextMakeMemoryResident(hContext: ze_context_handle_t,
            hDevice: ze_device_handle_t, ptr: *mut c_void, size: usize);
        0 pfnEvictMemory = zeContextEvictMemory(hContext: ze_context_handle_t, hDevice: ze_device_handle_t,
            ptr: *mut c_void, size: usize);
        0 pfnMakeImageResident = zeContextMakeImageResident;
        0 pfnEvictImage = zeContextEvictImage;
        1 pfnCreateEx = zeContextCreateEx(hDriver: ze_driver_handle_t, desc: *const ze_context_desc_t,
            numDevices: u32, phDevices: *mut ze_device_handle_t, phContext: *mut ze_context_handle_t);
    }
}
