//! The functions of the driver by name and version, for clients that ask for them, and functions
//! that this driver has to have but does not support.

use std::ffi::{c_char, c_int, c_void};

use cuda_sys::*;
use soft_device::{print_line, read_text, write_result};

use crate::state::{CudaResult, DEFAULT_VERSION, DriverState, entry, guarded};

/// An exported function.
struct EntryPoint {
    /// The name in the interface.
    name: &'static str,
    /// The first version with this prototype, and the first one with a newer prototype.
    since: c_int,
    until: c_int,
    address: *const c_void,
}

// SAFETY: the address is that of a function.
unsafe impl Sync for EntryPoint {}

/// The bound of a prototype that no version has replaced.
const NEWEST: c_int = c_int::MAX;

/// Declares the table: name, first version, first version with a newer prototype, function.
macro_rules! entry_points {
    ($($name:ident, $since:expr, $until:expr, $function:ident;)*) => {
        /// All functions.
        static ENTRY_POINTS: &[EntryPoint] = &[$(EntryPoint {
            name: stringify!($name),
            since: $since,
            until: $until,
            address: crate::$function as *const c_void,
        }),*];
    };
}

/// Declares functions that print that they are not supported, and return that.
macro_rules! unsupported {
    ($($function:ident, $name:literal;)*) => {$(
        #[doc = concat!("Prints that `", $name, "` is not supported, and returns that.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $function() -> CUresult {
            entry($name, |_| {
                print_line(format_args!(concat!(
                    "libcuda_soft: ", $name, " is not supported: this driver has memory, streams and events, and ",
                    "executes no kernels and no graphs; run the program on a GPU"
                )));
                Err(CUDA_ERROR_NOT_SUPPORTED.into())
            })
        }
    )*};
}

unsupported! {
    cuModuleLoad, "cuModuleLoad";
    cuModuleLoadData, "cuModuleLoadData";
    cuModuleLoadDataEx, "cuModuleLoadDataEx";
    cuModuleLoadFatBinary, "cuModuleLoadFatBinary";
    cuLibraryLoadData, "cuLibraryLoadData";
    cuLibraryLoadFromFile, "cuLibraryLoadFromFile";
    cuLinkCreate_v2, "cuLinkCreate";
    cuLaunchKernel, "cuLaunchKernel";
    cuLaunchKernelEx, "cuLaunchKernelEx";
    cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel";
    cuStreamBeginCapture_v2, "cuStreamBeginCapture";
    cuGraphCreate, "cuGraphCreate";
}

entry_points! {
    cuCtxCreate, 3020, 11040, cuCtxCreate_v2;
    cuCtxDestroy, 4000, NEWEST, cuCtxDestroy_v2;
    cuCtxEnablePeerAccess, 4000, NEWEST, cuCtxEnablePeerAccess;
    cuCtxGetCurrent, 4000, NEWEST, cuCtxGetCurrent;
    cuCtxGetDevice, 2000, 13000, cuCtxGetDevice;
    cuCtxGetStreamPriorityRange, 5050, NEWEST, cuCtxGetStreamPriorityRange;
    cuCtxPopCurrent, 4000, NEWEST, cuCtxPopCurrent_v2;
    cuCtxPushCurrent, 4000, NEWEST, cuCtxPushCurrent_v2;
    cuCtxSetCurrent, 4000, NEWEST, cuCtxSetCurrent;
    cuCtxSynchronize, 2000, 13000, cuCtxSynchronize;
    cuDeviceCanAccessPeer, 4000, NEWEST, cuDeviceCanAccessPeer;
    cuDeviceGet, 2000, NEWEST, cuDeviceGet;
    cuDeviceGetAttribute, 2000, NEWEST, cuDeviceGetAttribute;
    cuDeviceGetCount, 2000, NEWEST, cuDeviceGetCount;
    cuDeviceGetDefaultMemPool, 11020, NEWEST, cuDeviceGetDefaultMemPool;
    cuDeviceGetMemPool, 11020, NEWEST, cuDeviceGetMemPool;
    cuDeviceGetName, 2000, NEWEST, cuDeviceGetName;
    cuDeviceGetUuid, 9020, NEWEST, cuDeviceGetUuid_v2;
    cuDevicePrimaryCtxRelease, 7000, NEWEST, cuDevicePrimaryCtxRelease_v2;
    cuDevicePrimaryCtxReset, 7000, NEWEST, cuDevicePrimaryCtxReset_v2;
    cuDevicePrimaryCtxRetain, 7000, NEWEST, cuDevicePrimaryCtxRetain;
    cuDeviceSetMemPool, 11020, NEWEST, cuDeviceSetMemPool;
    cuDeviceTotalMem, 3020, NEWEST, cuDeviceTotalMem_v2;
    cuDriverGetVersion, 2020, NEWEST, cuDriverGetVersion;
    cuEventCreate, 2000, NEWEST, cuEventCreate;
    cuEventDestroy, 4000, NEWEST, cuEventDestroy_v2;
    cuEventElapsedTime, 2000, NEWEST, cuEventElapsedTime;
    cuEventQuery, 2000, NEWEST, cuEventQuery;
    cuEventRecord, 2000, NEWEST, cuEventRecord;
    cuEventSynchronize, 2000, NEWEST, cuEventSynchronize;
    cuGetErrorName, 6000, NEWEST, cuGetErrorName;
    cuGetErrorString, 6000, NEWEST, cuGetErrorString;
    cuGetExportTable, 3000, NEWEST, cuGetExportTable;
    cuGetProcAddress, 11030, 12000, cuGetProcAddress;
    cuGetProcAddress, 12000, NEWEST, cuGetProcAddress_v2;
    cuGraphCreate, 10000, NEWEST, cuGraphCreate;
    cuInit, 2000, NEWEST, cuInit;
    cuIpcCloseMemHandle, 4010, NEWEST, cuIpcCloseMemHandle;
    cuIpcGetEventHandle, 4010, NEWEST, cuIpcGetEventHandle;
    cuIpcGetMemHandle, 4010, NEWEST, cuIpcGetMemHandle;
    cuIpcOpenEventHandle, 4010, NEWEST, cuIpcOpenEventHandle;
    cuIpcOpenMemHandle, 4010, NEWEST, cuIpcOpenMemHandle_v2;
    cuLaunchCooperativeKernel, 9000, NEWEST, cuLaunchCooperativeKernel;
    cuLaunchHostFunc, 10000, 13020, cuLaunchHostFunc;
    cuLaunchKernel, 4000, NEWEST, cuLaunchKernel;
    cuLaunchKernelEx, 11060, NEWEST, cuLaunchKernelEx;
    cuLibraryLoadData, 12000, NEWEST, cuLibraryLoadData;
    cuLibraryLoadFromFile, 12000, NEWEST, cuLibraryLoadFromFile;
    cuLinkCreate, 6050, NEWEST, cuLinkCreate_v2;
    cuMemAddressFree, 10020, NEWEST, cuMemAddressFree;
    cuMemAddressReserve, 10020, NEWEST, cuMemAddressReserve;
    cuMemAdvise, 12020, NEWEST, cuMemAdvise_v2;
    cuMemAlloc, 3020, NEWEST, cuMemAlloc_v2;
    cuMemAllocAsync, 11020, NEWEST, cuMemAllocAsync;
    cuMemAllocFromPoolAsync, 11020, NEWEST, cuMemAllocFromPoolAsync;
    cuMemAllocHost, 3020, NEWEST, cuMemAllocHost_v2;
    cuMemAllocManaged, 6000, NEWEST, cuMemAllocManaged;
    cuMemCreate, 10020, NEWEST, cuMemCreate;
    cuMemDiscardAndPrefetchBatchAsync, 13000, NEWEST, cuMemDiscardAndPrefetchBatchAsync;
    cuMemDiscardBatchAsync, 13000, NEWEST, cuMemDiscardBatchAsync;
    cuMemExportToShareableHandle, 10020, NEWEST, cuMemExportToShareableHandle;
    cuMemFree, 3020, NEWEST, cuMemFree_v2;
    cuMemFreeAsync, 11020, NEWEST, cuMemFreeAsync;
    cuMemFreeHost, 2000, NEWEST, cuMemFreeHost;
    cuMemGetAddressRange, 3020, NEWEST, cuMemGetAddressRange_v2;
    cuMemGetAllocationGranularity, 10020, NEWEST, cuMemGetAllocationGranularity;
    cuMemGetHandleForAddressRange, 11070, NEWEST, cuMemGetHandleForAddressRange;
    cuMemGetInfo, 3020, NEWEST, cuMemGetInfo_v2;
    cuMemGetMemPool, 13000, NEWEST, cuMemGetMemPool;
    cuMemHostAlloc, 2020, NEWEST, cuMemHostAlloc;
    cuMemHostGetDevicePointer, 3020, NEWEST, cuMemHostGetDevicePointer_v2;
    cuMemHostRegister, 6050, NEWEST, cuMemHostRegister_v2;
    cuMemHostUnregister, 4000, NEWEST, cuMemHostUnregister;
    cuMemImportFromShareableHandle, 10020, NEWEST, cuMemImportFromShareableHandle;
    cuMemMap, 10020, NEWEST, cuMemMap;
    cuMemPoolCreate, 11020, NEWEST, cuMemPoolCreate;
    cuMemPoolDestroy, 11020, NEWEST, cuMemPoolDestroy;
    cuMemPoolExportPointer, 11020, NEWEST, cuMemPoolExportPointer;
    cuMemPoolExportToShareableHandle, 11020, NEWEST, cuMemPoolExportToShareableHandle;
    cuMemPoolGetAccess, 11020, NEWEST, cuMemPoolGetAccess;
    cuMemPoolGetAttribute, 11020, NEWEST, cuMemPoolGetAttribute;
    cuMemPoolImportFromShareableHandle, 11020, NEWEST, cuMemPoolImportFromShareableHandle;
    cuMemPoolImportPointer, 11020, NEWEST, cuMemPoolImportPointer;
    cuMemPoolSetAccess, 11020, NEWEST, cuMemPoolSetAccess;
    cuMemPoolSetAttribute, 11020, NEWEST, cuMemPoolSetAttribute;
    cuMemPoolTrimTo, 11020, NEWEST, cuMemPoolTrimTo;
    cuMemPrefetchAsync, 12020, NEWEST, cuMemPrefetchAsync_v2;
    cuMemPrefetchBatchAsync, 13000, NEWEST, cuMemPrefetchBatchAsync;
    cuMemRangeGetAttribute, 8000, NEWEST, cuMemRangeGetAttribute;
    cuMemRelease, 10020, NEWEST, cuMemRelease;
    cuMemRetainAllocationHandle, 11000, NEWEST, cuMemRetainAllocationHandle;
    cuMemSetAccess, 10020, NEWEST, cuMemSetAccess;
    cuMemUnmap, 10020, NEWEST, cuMemUnmap;
    cuMemcpyAsync, 4000, NEWEST, cuMemcpyAsync;
    cuMemcpyBatchAsync, 13000, NEWEST, cuMemcpyBatchAsync_v2;
    cuMemcpyDtoD, 3020, NEWEST, cuMemcpyDtoD_v2;
    cuMemcpyDtoDAsync, 3020, NEWEST, cuMemcpyDtoDAsync_v2;
    cuMemcpyDtoH, 3020, NEWEST, cuMemcpyDtoH_v2;
    cuMemcpyDtoHAsync, 3020, NEWEST, cuMemcpyDtoHAsync_v2;
    cuMemcpyHtoD, 3020, NEWEST, cuMemcpyHtoD_v2;
    cuMemcpyHtoDAsync, 3020, NEWEST, cuMemcpyHtoDAsync_v2;
    cuMemcpyWithAttributesAsync, 13020, NEWEST, cuMemcpyWithAttributesAsync;
    cuMemsetD16Async, 3020, NEWEST, cuMemsetD16Async;
    cuMemsetD32Async, 3020, NEWEST, cuMemsetD32Async;
    cuMemsetD8, 3020, NEWEST, cuMemsetD8_v2;
    cuMemsetD8Async, 3020, NEWEST, cuMemsetD8Async;
    cuModuleLoad, 2000, NEWEST, cuModuleLoad;
    cuModuleLoadData, 2000, NEWEST, cuModuleLoadData;
    cuModuleLoadDataEx, 2010, NEWEST, cuModuleLoadDataEx;
    cuModuleLoadFatBinary, 2000, NEWEST, cuModuleLoadFatBinary;
    cuPointerGetAttribute, 4000, NEWEST, cuPointerGetAttribute;
    cuPointerGetAttributes, 7000, NEWEST, cuPointerGetAttributes;
    cuStreamAddCallback, 5000, NEWEST, cuStreamAddCallback;
    cuStreamBeginCapture, 10010, NEWEST, cuStreamBeginCapture_v2;
    cuStreamCreate, 2000, NEWEST, cuStreamCreate;
    cuStreamCreateWithPriority, 5050, NEWEST, cuStreamCreateWithPriority;
    cuStreamDestroy, 4000, NEWEST, cuStreamDestroy_v2;
    cuStreamGetCaptureInfo, 12030, NEWEST, cuStreamGetCaptureInfo_v3;
    cuStreamGetCtx, 9020, 12050, cuStreamGetCtx;
    cuStreamGetFlags, 5050, NEWEST, cuStreamGetFlags;
    cuStreamGetPriority, 5050, NEWEST, cuStreamGetPriority;
    cuStreamIsCapturing, 10000, NEWEST, cuStreamIsCapturing;
    cuStreamQuery, 2000, NEWEST, cuStreamQuery;
    cuStreamSynchronize, 2000, NEWEST, cuStreamSynchronize;
    cuStreamWaitEvent, 3020, NEWEST, cuStreamWaitEvent;
}

/// Looks a function up as `cuGetProcAddress` does.
fn find(name: &str, version: c_int) -> Result<*const c_void, CUdriverProcAddressQueryResult> {
    let mut of_name = ENTRY_POINTS.iter().filter(|entry_point| entry_point.name == name).peekable();
    let is_newer = of_name.peek().is_some_and(|first| version < first.since);
    let found = of_name.find(|entry_point| (entry_point.since..entry_point.until).contains(&version));
    found.map(|entry_point| entry_point.address).ok_or(match is_newer {
        true => CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        false => CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
    })
}

/// Returns the version of the interface.
pub(crate) fn version() -> c_int {
    DriverState::get().map_or(DEFAULT_VERSION, |state| state.settings.version)
}

/// Writes the address of a function, null if this driver lacks it.
///
/// # Safety
/// The pointers are null, or valid: `name` for a C string, `address` for a write.
unsafe fn look_up(
    name: *const c_char,
    address: *mut *const c_void,
    wanted: c_int,
    flags: u64,
) -> CudaResult<CUdriverProcAddressQueryResult> {
    // SAFETY: the caller upholds the contract.
    unsafe {
        write_result(address, std::ptr::null())?;
        let name = read_text(name)?;
        // Legacy or per-thread default stream: this driver has no functions for the latter, and
        // clients then get those for the former.
        if flags > 2 || wanted > version() {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        match find(name, wanted) {
            Ok(found) => {
                write_result(address, found)?;
                Ok(CU_GET_PROC_ADDRESS_SUCCESS)
            }
            Err(status) => Ok(status),
        }
    }
}

/// Returns the address of a function. Before version 12, a missing function is an error.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    address: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the caller upholds the contract.
    guarded(|| match unsafe { look_up(name, address, version, flags) }? {
        CU_GET_PROC_ADDRESS_SUCCESS => Ok(()),
        _ => Err(CUDA_ERROR_NOT_FOUND.into()),
    })
}

/// Returns the address of a function and the status of the search.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    address: *mut *const c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the caller upholds the contract. The status may be null.
    guarded(|| unsafe {
        let found = look_up(name, address, version, flags)?;
        let _ = write_result(status, found);
        Ok(())
    })
}

/// Returns that tables are not supported: those of NVIDIA's driver are not documented. The CUDA
/// runtime then reports the same error.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) -> CUresult {
    let _ = id;
    guarded(|| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        unsafe { write_result(table, std::ptr::null()) }?;
        Err(CUDA_ERROR_NOT_SUPPORTED.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_selects_prototype() {
        assert!(find("cuCtxCreate", 3020).is_ok());
        assert_eq!(find("cuCtxCreate", 2000), Err(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
        // Version 11.4 has another prototype, which this driver lacks.
        assert_eq!(find("cuCtxCreate", 11040), Err(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
        assert_ne!(find("cuGetProcAddress", 11030), find("cuGetProcAddress", 12000));
        assert_eq!(find("cuNothing", 12000), Err(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
    }
}
