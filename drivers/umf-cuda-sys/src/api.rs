//! [`Api`]: the functions of the driver, loaded at run time, and their prototypes.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUdriverProcAddressQueryResult, CUevent, CUhostFn,
    CUipcEventHandle, CUipcMemHandle, CUmem_advise, CUmem_range_attribute, CUmemAccess_flags,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemPool_attribute, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemRangeHandleType, CUmemoryPool, CUpointer_attribute, CUresult, CUstream,
    CUstreamCallback, CUstreamCaptureStatus, CUuuid,
};

/// The name of the driver's library in the system's search path.
pub const LIBRARY: &str = "libcuda.so.1";

/// The error of loading a driver.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library cannot be opened.
    #[error("cannot open the CUDA driver {}: {reason}; install NVIDIA's driver, or set the path of one", path.display())]
    Library {
        /// The path that was opened.
        path: PathBuf,
        /// The dynamic linker's error.
        reason: String,
    },
    /// The library is not a CUDA driver.
    #[error("{} has no function {function}: it is no CUDA driver", path.display())]
    Other {
        /// The path that was opened.
        path: PathBuf,
        /// The missing function.
        function: &'static str,
    },
}

/// The functions of a driver. The library is never unloaded: a driver has threads, and its objects
/// outlive the `Api`.
#[derive(Debug)]
pub struct Api {
    functions: Functions,
    path: PathBuf,
    _library: ManuallyDrop<Library>,
}

impl Api {
    /// Opens `libcuda.so.1`.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Safety
    /// The library of that name in the system's search path is a CUDA driver. Opening a library
    /// executes its code.
    pub unsafe fn load() -> Result<Self, OpenError> {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::load_from(LIBRARY) }
    }

    /// Opens the driver at `path`.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Safety
    /// As [`Api::load`], for that library.
    pub unsafe fn load_from(path: impl AsRef<OsStr>) -> Result<Self, OpenError> {
        let path = Path::new(path.as_ref());
        // SAFETY: the caller upholds the contract.
        let library = unsafe { Library::new(path) }
            .map_err(|error| OpenError::Library { path: path.to_owned(), reason: error.to_string() })?;
        let find = |symbol: &'static CStr| {
            // SAFETY: the symbol is only looked up as an address.
            unsafe { library.get::<*mut c_void>(symbol.to_bytes_with_nul()) }
                .map_or(core::ptr::null_mut(), |symbol| *symbol)
        };
        // SAFETY: the caller guarantees that the library is a CUDA driver, so that each symbol has
        // the interface's prototype. The library is never unloaded.
        let functions = unsafe { Functions::from_symbols(find) };
        if functions.cuInit.is_none() {
            return Err(OpenError::Other { path: path.to_owned(), function: "cuInit" });
        }
        Ok(Self { functions, path: path.to_owned(), _library: ManuallyDrop::new(library) })
    }

    /// Returns the functions of the library.
    #[must_use]
    pub const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns the path of the library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the driver's name and text for a result, empty if it has none.
    #[must_use]
    pub fn text_of(&self, result: CUresult) -> String {
        let ask = |function: Option<unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult>| {
            let mut text = core::ptr::null();
            // SAFETY: the pointer is valid for a write. The driver writes null or a pointer to a
            // text of the library, which is never unloaded.
            unsafe {
                function?(result, &raw mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (ask(self.functions.cuGetErrorName), ask(self.functions.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name}: {text}"),
            (name, text) => name.or(text).unwrap_or_default(),
        }
    }
}

functions! {
    cuInit = cuInit(flags: c_uint);
    cuDriverGetVersion = cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName = cuGetErrorName(error: CUresult, text: *mut *const c_char);
    cuGetErrorString = cuGetErrorString(error: CUresult, text: *mut *const c_char);
    cuGetProcAddress = cuGetProcAddress_v2(
        name: *const c_char, address: *mut *const c_void, version: c_int, flags: u64,
        status: *mut CUdriverProcAddressQueryResult,
    );
    cuGetExportTable = cuGetExportTable(table: *mut *const c_void, id: *const CUuuid);

    cuDeviceGet = cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetCount = cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName = cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDeviceGetUuid = cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
    cuDeviceTotalMem = cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute = cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceCanAccessPeer = cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxReset = cuDevicePrimaryCtxReset_v2(device: CUdevice);

    cuCtxCreate = cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    cuCtxDestroy = cuCtxDestroy_v2(context: CUcontext);
    cuCtxGetCurrent = cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxSetCurrent = cuCtxSetCurrent(context: CUcontext);
    cuCtxPushCurrent = cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent = cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxGetDevice = cuCtxGetDevice(device: *mut CUdevice);
    cuCtxEnablePeerAccess = cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    cuCtxSynchronize = cuCtxSynchronize();
    cuCtxGetStreamPriorityRange = cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);

    cuMemGetInfo = cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc = cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    cuMemFree = cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc = cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
    cuMemFreeHost = cuMemFreeHost(address: *mut c_void);
    cuMemAllocHost = cuMemAllocHost_v2(address: *mut *mut c_void, size: usize);
    cuMemHostRegister = cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint);
    cuMemHostUnregister = cuMemHostUnregister(address: *mut c_void);
    cuMemHostGetDevicePointer = cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, address: *mut c_void, flags: c_uint);
    cuMemAllocManaged = cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint);
    cuMemGetAddressRange = cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
    cuPointerGetAttribute = cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
    cuPointerGetAttributes = cuPointerGetAttributes(
        count: c_uint, attributes: *mut CUpointer_attribute, values: *mut *mut c_void, address: CUdeviceptr,
    );
    cuMemGetHandleForAddressRange = cuMemGetHandleForAddressRange(
        handle: *mut c_void, address: CUdeviceptr, size: usize, kind: CUmemRangeHandleType, flags: u64,
    );

    cuIpcGetMemHandle = cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
    cuIpcOpenMemHandle = cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcCloseMemHandle = cuIpcCloseMemHandle(address: CUdeviceptr);
    cuIpcGetEventHandle = cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
    cuIpcOpenEventHandle = cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);

    cuDeviceGetDefaultMemPool = cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuDeviceGetMemPool = cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    cuDeviceSetMemPool = cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool);
    cuMemGetMemPool = cuMemGetMemPool(
        pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType,
    );
    cuMemPoolCreate = cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    cuMemPoolDestroy = cuMemPoolDestroy(pool: CUmemoryPool);
    cuMemPoolTrimTo = cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    cuMemPoolGetAttribute = cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolSetAttribute = cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void);
    cuMemPoolSetAccess = cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    cuMemPoolGetAccess = cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation);
    cuMemAllocAsync = cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream);
    cuMemAllocFromPoolAsync = cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
    );
    cuMemFreeAsync = cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuMemPoolExportToShareableHandle = cuMemPoolExportToShareableHandle(
        shareable: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType, flags: u64,
    );
    cuMemPoolImportFromShareableHandle = cuMemPoolImportFromShareableHandle(
        pool: *mut CUmemoryPool, shareable: *mut c_void, kind: CUmemAllocationHandleType, flags: u64,
    );
    cuMemPoolExportPointer = cuMemPoolExportPointer(exported: *mut CUmemPoolPtrExportData, address: CUdeviceptr);
    cuMemPoolImportPointer = cuMemPoolImportPointer(
        address: *mut CUdeviceptr, pool: CUmemoryPool, exported: *mut CUmemPoolPtrExportData,
    );

    cuMemAddressReserve = cuMemAddressReserve(
        address: *mut CUdeviceptr, size: usize, alignment: usize, wanted: CUdeviceptr, flags: u64,
    );
    cuMemAddressFree = cuMemAddressFree(address: CUdeviceptr, size: usize);
    cuMemCreate = cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, properties: *const CUmemAllocationProp, flags: u64,
    );
    cuMemRelease = cuMemRelease(handle: CUmemGenericAllocationHandle);
    cuMemRetainAllocationHandle = cuMemRetainAllocationHandle(
        handle: *mut CUmemGenericAllocationHandle, address: *mut c_void,
    );
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
    cuMemcpyHtoDAsync = cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    cuMemcpyDtoHAsync = cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
    cuMemcpyDtoDAsync = cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream);
    cuMemcpyBatchAsync = cuMemcpyBatchAsync_v2(
        to: *const CUdeviceptr, from: *const CUdeviceptr, sizes: *const usize, count: usize,
        attributes: *const c_void, places: *const usize, attribute_count: usize, stream: CUstream,
    );
    cuMemcpyWithAttributesAsync = cuMemcpyWithAttributesAsync(
        to: CUdeviceptr, from: CUdeviceptr, size: usize, attributes: *const c_void, stream: CUstream,
    );
    cuMemAdvise = cuMemAdvise_v2(address: CUdeviceptr, size: usize, wanted: CUmem_advise, location: CUmemLocation);
    cuMemRangeGetAttribute = cuMemRangeGetAttribute(
        value: *mut c_void, value_size: usize, attribute: CUmem_range_attribute, address: CUdeviceptr, size: usize,
    );
    cuMemPrefetchAsync = cuMemPrefetchAsync_v2(
        address: CUdeviceptr, size: usize, location: CUmemLocation, flags: c_uint, stream: CUstream,
    );
    cuMemPrefetchBatchAsync = cuMemPrefetchBatchAsync(
        addresses: *const CUdeviceptr, sizes: *const usize, count: usize, locations: *const CUmemLocation,
        places: *const usize, location_count: usize, flags: u64, stream: CUstream,
    );
    cuMemDiscardBatchAsync = cuMemDiscardBatchAsync(
        addresses: *const CUdeviceptr, sizes: *const usize, count: usize, flags: u64, stream: CUstream,
    );
    cuMemDiscardAndPrefetchBatchAsync = cuMemDiscardAndPrefetchBatchAsync(
        addresses: *const CUdeviceptr, sizes: *const usize, count: usize, locations: *const CUmemLocation,
        places: *const usize, location_count: usize, flags: u64, stream: CUstream,
    );
    cuMemsetD8 = cuMemsetD8_v2(to: CUdeviceptr, value: u8, size: usize);
    cuMemsetD8Async = cuMemsetD8Async(to: CUdeviceptr, value: u8, size: usize, stream: CUstream);
    cuMemsetD16Async = cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream);
    cuMemsetD32Async = cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream);

    cuStreamCreate = cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamCreateWithPriority = cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy = cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize = cuStreamSynchronize(stream: CUstream);
    cuStreamQuery = cuStreamQuery(stream: CUstream);
    cuStreamGetCtx = cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    cuStreamGetFlags = cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    cuStreamGetPriority = cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    cuStreamIsCapturing = cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    cuStreamGetCaptureInfo = cuStreamGetCaptureInfo_v3(
        stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut *mut c_void,
        dependencies: *mut *const c_void, edges: *mut *const c_void, count: *mut usize,
    );
    cuStreamWaitEvent = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuLaunchHostFunc = cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
    cuStreamAddCallback = cuStreamAddCallback(stream: CUstream, function: CUstreamCallback, data: *mut c_void, flags: c_uint);
    cuEventCreate = cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy = cuEventDestroy_v2(event: CUevent);
    cuEventRecord = cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery = cuEventQuery(event: CUevent);
    cuEventSynchronize = cuEventSynchronize(event: CUevent);
    cuEventElapsedTime = cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
}
