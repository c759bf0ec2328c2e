//! The functions.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemRangeHandleType, CUpointer_attribute, CUresult, CUstream, CUuuid,
};

functions! {
    cuInit = cuInit(flags: c_uint);
    cuDriverGetVersion = cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName = cuGetErrorName(error: CUresult, text: *mut *const c_char);
    cuGetErrorString = cuGetErrorString(error: CUresult, text: *mut *const c_char);

    cuDeviceGet = cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetCount = cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName = cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDeviceGetUuid = cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    cuDeviceTotalMem = cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute = cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceCanAccessPeer = cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2(device: CUdevice);

    cuCtxCreate = cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    cuCtxDestroy = cuCtxDestroy_v2(context: CUcontext);
    cuCtxGetCurrent = cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxSetCurrent = cuCtxSetCurrent(context: CUcontext);
    cuCtxPushCurrent = cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent = cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxGetDevice = cuCtxGetDevice(device: *mut CUdevice);
    cuCtxEnablePeerAccess = cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

    cuMemGetInfo = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc = cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    cuMemFree = cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc = cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
    cuMemFreeHost = cuMemFreeHost(address: *mut c_void);
    cuMemAllocManaged = cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint);
    cuMemAllocAsync = cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream);
    cuMemFreeAsync = cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemGetAddressRange = cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
    cuPointerGetAttribute = cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
    cuMemGetHandleForAddressRange = cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: CUdeviceptr, size: usize, kind: CUmemRangeHandleType, flags: u64,
    );

    cuIpcGetMemHandle = cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
    cuIpcOpenMemHandle = cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcCloseMemHandle = cuIpcCloseMemHandle(address: CUdeviceptr);

    cuMemAddressReserve = cuMemAddressReserve(
        address: *mut CUdeviceptr, size: usize, alignment: usize, wanted: CUdeviceptr, flags: u64,
    );
    cuMemAddressFree = cuMemAddressFree(address: CUdeviceptr, size: usize);
    cuMemCreate = cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, properties: *const CUmemAllocationProp, flags: u64,
    );
    cuMemRelease = cuMemRelease(handle: CUmemGenericAllocationHandle);
    cuMemMap = cuMemMap(
        address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64,
    );
    cuMemUnmap = cuMemUnmap(address: CUdeviceptr, size: usize);
    cuMemSetAccess = cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize);
    cuMemGetAllocationGranularity = cuMemGetAllocationGranularity(
        granularity: *mut usize, properties: *const CUmemAllocationProp, which: CUmemAllocationGranularity_flags,
    );
    cuMemExportToShareableHandle = cuMemExportToShareableHandle(
        shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64,
    );
    cuMemImportFromShareableHandle = cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType,
    );

    cuMemcpyHtoD = cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, size: usize);
    cuMemcpyDtoH = cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, size: usize);
    cuMemcpyDtoD = cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize);
    cuMemcpyAsync = cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    cuMemsetD8 = cuMemsetD8_v2(to: CUdeviceptr, value: u8, size: usize);
    cuMemsetD8Async = cuMemsetD8Async(to: CUdeviceptr, value: u8, size: usize, stream: CUstream);

    cuStreamCreate = cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy = cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize = cuStreamSynchronize(stream: CUstream);
    cuEventCreate = cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy = cuEventDestroy_v2(event: CUevent);
    cuEventRecord = cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery = cuEventQuery(event: CUevent);
    cuEventSynchronize = cuEventSynchronize(event: CUevent);
    cuEventElapsedTime = cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
}
