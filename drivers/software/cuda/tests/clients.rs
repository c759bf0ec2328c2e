//! The sequences of calls that cuda.core and numba-cuda make, traced with `CUDA_SOFT_LOG=calls`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod driver;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_sys::*;
use driver::{arguments, block, error, from_hex, hex, library, open, query, read, run_child, started};

const PAGE: usize = 2 << 20;

/// Returns the address of a function, and the status of the search.
fn look_up(api: &Api, name: &CStr, version: i32) -> (*const c_void, CUdriverProcAddressQueryResult) {
    let (mut address, mut status) = (std::ptr::null(), CU_GET_PROC_ADDRESS_SUCCESS);
    // SAFETY: arguments as the driver interface requires.
    unsafe { api.cuGetProcAddress(name.as_ptr(), &raw mut address, version, 0, &raw mut status) }.unwrap();
    (address, status)
}

/// cuda.bindings looks up every function with the version of its prototype.
#[test]
fn functions_are_found_by_name_and_version() {
    let api = open();
    assert!(!look_up(&api, c"cuInit", 2000).0.is_null());
    assert_eq!(look_up(&api, c"cuMemPoolCreate", 11010).1, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    assert_eq!(look_up(&api, c"cuTexRefCreate", 2000).1, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    // The runtime looks up the empty name.
    assert_eq!(look_up(&api, c"", 0).1, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    let (mut address, mut version) = (std::ptr::null(), 0);
    type First = unsafe extern "C" fn(*const std::ffi::c_char, *mut *const c_void, i32, u64) -> CUresult;
    // SAFETY: arguments as the driver interface requires; the first version has this prototype.
    unsafe {
        api.cuDriverGetVersion(&raw mut version).unwrap();
        let newer =
            api.cuGetProcAddress(c"cuInit".as_ptr(), &raw mut address, version + 10, 0, std::ptr::null_mut());
        assert_eq!(error(newer), CUDA_ERROR_INVALID_VALUE);
        let first = std::mem::transmute::<*const c_void, First>(look_up(&api, c"cuGetProcAddress", 11030).0);
        assert_eq!(first(c"cuInit".as_ptr(), &raw mut address, 11030, 0), CUDA_SUCCESS);
        assert_eq!(first(c"cuNothing".as_ptr(), &raw mut address, 11030, 0), CUDA_ERROR_NOT_FOUND);
        let id = CUuuid { bytes: [7; 16] };
        let table = api.cuGetExportTable(&raw mut address, &raw const id);
        assert_eq!(error(table), CUDA_ERROR_NOT_SUPPORTED);
        assert!(address.is_null());
    }
}

/// The functions that print and return that they are not supported.
const UNSUPPORTED: [&str; 12] = [
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLinkCreate",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuStreamBeginCapture",
    "cuGraphCreate",
];

#[test]
fn kernels_and_graphs_are_not_supported() {
    let (api, _) = started();
    for name in UNSUPPORTED {
        let (address, _) = look_up(&api, &CString::new(name).unwrap(), 13000);
        // SAFETY: these functions ignore their arguments.
        let answer = unsafe {
            std::mem::transmute::<*const c_void, Option<unsafe extern "C" fn() -> CUresult>>(address)
        };
        // SAFETY: as above.
        assert_eq!(unsafe { answer.unwrap()() }, CUDA_ERROR_NOT_SUPPORTED, "{name}");
    }
}

/// cuda.core's `Device`, and `detect` of numba-cuda.
#[test]
fn devices_are_described() {
    let (api, context) = started();
    let (mut count, mut device, mut value, mut can) = (0, 0, 0, 0);
    let (mut total, mut free) = (0, 0);
    let (mut text, mut uuid) = ([0; 64], CUuuid::default());
    let (mut least, mut greatest) = (1, 1);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuDeviceGetCount(&raw mut count).unwrap();
        api.cuDeviceGet(&raw mut device, 1).unwrap();
        assert_eq!((count, device), (2, 1));
        api.cuDeviceGetName(text.as_mut_ptr(), 64, 1).unwrap();
        assert_eq!(CStr::from_ptr(text.as_ptr()).to_str().unwrap(), "umf software device 1");
        api.cuDeviceGetUuid(&raw mut uuid, 1).unwrap();
        assert_eq!(uuid.bytes[15], 1);
        api.cuDeviceGetAttribute(&raw mut value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0).unwrap();
        assert_eq!(value, 9);
        api.cuDeviceCanAccessPeer(&raw mut can, 0, 1).unwrap();
        assert_eq!(can, 1);
        api.cuDeviceTotalMem(&raw mut total, 0).unwrap();
        api.cuMemGetInfo(&raw mut free, &raw mut total).unwrap();
        assert!(free <= total);
        api.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest).unwrap();
        assert_eq!((least, greatest), (0, -5));
        api.cuCtxGetDevice(&raw mut device).unwrap();
        assert_eq!(device, 0);
        let (mut own, mut popped, mut current) = (CUcontext::NULL, CUcontext::NULL, CUcontext::NULL);
        api.cuCtxCreate(&raw mut own, 1, 1).unwrap();
        api.cuCtxEnablePeerAccess(context, 0).unwrap();
        api.cuCtxPushCurrent(context).unwrap();
        api.cuCtxPopCurrent(&raw mut popped).unwrap();
        api.cuCtxDestroy(own).unwrap();
        api.cuCtxGetCurrent(&raw mut current).unwrap();
        assert_eq!((popped, current), (context, context));
    }
}

/// A reset frees what a context owns, and keeps the context.
#[test]
fn reset_keeps_the_primary_context() {
    let api = open();
    let (mut context, mut again, mut address) = (CUcontext::NULL, CUcontext::NULL, 0);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuInit(0).unwrap();
        api.cuDevicePrimaryCtxRetain(&raw mut context, 1).unwrap();
        api.cuCtxSetCurrent(context).unwrap();
        api.cuMemAlloc(&raw mut address, 100).unwrap();
        api.cuDevicePrimaryCtxReset(1).unwrap();
        assert_eq!(error(api.cuMemFree(address)), CUDA_ERROR_INVALID_VALUE);
        api.cuDevicePrimaryCtxRetain(&raw mut again, 1).unwrap();
        assert_eq!(again, context);
        api.cuMemAlloc(&raw mut address, 100).unwrap();
        // numba-cuda frees memory after it has popped the context.
        api.cuCtxSetCurrent(CUcontext::NULL).unwrap();
        api.cuMemFree(address).unwrap();
        api.cuDevicePrimaryCtxRelease(1).unwrap();
        api.cuDevicePrimaryCtxRelease(1).unwrap();
    }
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn host_function(data: *mut c_void) {
    CALLS.fetch_add(data.addr(), Ordering::SeqCst);
}

unsafe extern "C" fn callback(_stream: CUstream, status: CUresult, data: *mut c_void) {
    assert_eq!(status, CUDA_SUCCESS);
    CALLS.fetch_add(data.addr(), Ordering::SeqCst);
}

unsafe extern "C" fn pause(_data: *mut c_void) {
    std::thread::sleep(Duration::from_millis(30));
}

fn default_stream(number: usize) -> CUstream {
    CUstream(std::ptr::without_provenance_mut(number))
}

/// numba-cuda's streams and callbacks, and the default streams of cuda.core.
#[test]
fn streams_have_properties_and_call_functions() {
    let (api, context) = started();
    let (mut stream, mut urgent, mut found) = (CUstream::NULL, CUstream::NULL, CUcontext::NULL);
    let (mut priority, mut flags) = (9, 9);
    let ten = std::ptr::without_provenance_mut(10);
    let mut status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    let (mut id, mut count, mut graph) = (9, 9, std::ptr::null_mut());
    let (mut dependencies, mut edges) = (std::ptr::null(), std::ptr::null());
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuStreamCreate(&raw mut stream, 0).unwrap();
        api.cuStreamCreateWithPriority(&raw mut urgent, CU_STREAM_NON_BLOCKING, -99).unwrap();
        api.cuStreamGetPriority(urgent, &raw mut priority).unwrap();
        api.cuStreamGetFlags(urgent, &raw mut flags).unwrap();
        assert_eq!((priority, flags), (-5, CU_STREAM_NON_BLOCKING));
        for stream in [stream, CUstream::NULL, default_stream(1), default_stream(2)] {
            api.cuStreamGetCtx(stream, &raw mut found).unwrap();
            assert_eq!(found, context);
            api.cuStreamIsCapturing(stream, &raw mut status).unwrap();
            assert_eq!(status, CU_STREAM_CAPTURE_STATUS_NONE);
            let (id, graph, edges) = (&raw mut id, &raw mut graph, &raw mut edges);
            let (dependencies, count) = (&raw mut dependencies, &raw mut count);
            api.cuStreamGetCaptureInfo(stream, &raw mut status, id, graph, dependencies, edges, count)
                .unwrap();
            let before = CALLS.load(Ordering::SeqCst);
            api.cuLaunchHostFunc(stream, Some(host_function), ten).unwrap();
            api.cuStreamAddCallback(stream, Some(callback), ten, 0).unwrap();
            api.cuStreamSynchronize(stream).unwrap();
            assert_eq!(CALLS.load(Ordering::SeqCst), before + 20);
        }
        api.cuStreamQuery(stream).unwrap();
        assert_eq!(error(api.cuLaunchHostFunc(stream, None, ten)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(error(api.cuStreamCreate(&raw mut stream, 8)), CUDA_ERROR_INVALID_VALUE);
    }
}

/// Work in the default stream waits for that in blocking streams, and the other way round. Streams
/// wait for events of other streams.
#[test]
fn streams_are_ordered_by_default_stream_and_events() {
    let (api, _) = started();
    let (mut blocking, mut free, mut event, mut end) =
        (CUstream::NULL, CUstream::NULL, CUevent::NULL, CUevent::NULL);
    let (mut address, mut milliseconds) = (0, -1.0);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuStreamCreate(&raw mut blocking, 0).unwrap();
        api.cuStreamCreate(&raw mut free, CU_STREAM_NON_BLOCKING).unwrap();
        api.cuEventCreate(&raw mut event, 0).unwrap();
        api.cuEventCreate(&raw mut end, 0).unwrap();
        api.cuMemAlloc(&raw mut address, 64).unwrap();
        api.cuLaunchHostFunc(blocking, Some(pause), std::ptr::null_mut()).unwrap();
        api.cuMemsetD8Async(address, 1, 64, blocking).unwrap();
        assert_eq!(read(&api, address, 64), [1; 64]);
        api.cuLaunchHostFunc(CUstream::NULL, Some(pause), std::ptr::null_mut()).unwrap();
        api.cuMemsetD8Async(address, 2, 64, CUstream::NULL).unwrap();
        api.cuEventRecord(event, blocking).unwrap();
        api.cuStreamWaitEvent(free, event, 0).unwrap();
        api.cuMemsetD8Async(address, 3, 32, free).unwrap();
        api.cuEventRecord(end, free).unwrap();
        api.cuEventSynchronize(end).unwrap();
        api.cuEventQuery(event).unwrap();
        api.cuEventElapsedTime(&raw mut milliseconds, event, end).unwrap();
        assert!(milliseconds >= 0.0);
        let expected: Vec<u8> = [[3; 32], [2; 32]].concat();
        assert_eq!(read(&api, address, 64), expected);
        api.cuCtxSynchronize().unwrap();
        api.cuStreamDestroy(free).unwrap();
        api.cuEventDestroy(event).unwrap();
    }
}

/// Copies and fills of both clients. A copy of pageable memory has executed when it returns:
/// numba-cuda then frees the memory.
#[test]
fn memory_is_copied_and_filled_in_every_way() {
    let (api, _) = started();
    let (mut one, mut other, mut stream) = (0, 0, CUstream::NULL);
    let (source, mut target) = ([0x1234_5678_u32; 16], [0_u32; 16]);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemAlloc(&raw mut one, 64).unwrap();
        api.cuMemAlloc(&raw mut other, 64).unwrap();
        api.cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING).unwrap();
        api.cuLaunchHostFunc(stream, Some(pause), std::ptr::null_mut()).unwrap();
        api.cuMemcpyHtoDAsync(one, source.as_ptr().cast(), 64, stream).unwrap();
        api.cuMemcpyDtoDAsync(other, one, 64, stream).unwrap();
        api.cuMemcpyDtoHAsync(target.as_mut_ptr().cast(), other, 64, stream).unwrap();
        assert_eq!(target, source);
        api.cuMemsetD16Async(one, 0x0102, 8, stream).unwrap();
        api.cuMemsetD32Async(one + 16, 0x0304_0506, 2, stream).unwrap();
        api.cuMemcpyAsync(other, one, 24, stream).unwrap();
        api.cuMemcpyWithAttributesAsync(other + 24, one, 8, std::ptr::null(), stream).unwrap();
        let (to, from, sizes) = ([other + 32, other + 40], [one + 16, one], [8, 4]);
        let batch = |stream| {
            let (attributes, places) = (std::ptr::null(), std::ptr::null());
            let (to, from) = (to.as_ptr(), from.as_ptr());
            api.cuMemcpyBatchAsync(to, from, sizes.as_ptr(), 2, attributes, places, 0, stream)
        };
        batch(stream).unwrap();
        assert_eq!(error(batch(CUstream::NULL)), CUDA_ERROR_INVALID_VALUE);
        api.cuStreamSynchronize(stream).unwrap();
        let bytes = read(&api, other, 44);
        assert_eq!(bytes[14..20], [2, 1, 6, 5, 4, 3]);
        assert_eq!((&bytes[24..28], &bytes[32..36]), (&[2, 1, 2, 1][..], &[6, 5, 4, 3][..]));
        api.cuMemsetD8(one, 0, 64).unwrap();
        api.cuMemcpyDtoD(other, one, 8).unwrap();
        assert_eq!(read(&api, other, 8), [0; 8]);
        // The address of a fill is a multiple of the value's size.
        assert_eq!(error(api.cuMemsetD32Async(one + 2, 0, 1, stream)), CUDA_ERROR_INVALID_VALUE);
    }
}

/// numba-cuda's pinned and mapped arrays.
#[test]
fn host_memory_is_pinned_and_registered() {
    let (api, _) = started();
    let (mut one, mut other, mut managed, mut device) = (std::ptr::null_mut(), std::ptr::null_mut(), 0, 0);
    let mut own = vec![5_u8; 4096];
    let start = own.as_mut_ptr().cast::<c_void>();
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemAllocHost(&raw mut one, 100).unwrap();
        api.cuMemHostAlloc(&raw mut other, 100, CU_MEMHOSTALLOC_DEVICEMAP).unwrap();
        api.cuMemAllocManaged(&raw mut managed, 100, CU_MEM_ATTACH_GLOBAL).unwrap();
        api.cuMemHostRegister(start, 4096, CU_MEMHOSTREGISTER_DEVICEMAP).unwrap();
        let again = api.cuMemHostRegister(start.wrapping_byte_add(100), 10, 0);
        assert_eq!(error(again), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        for memory in [one, other, start] {
            api.cuMemHostGetDevicePointer(&raw mut device, memory, 0).unwrap();
            assert_eq!(device, memory.addr() as u64);
            api.cuMemsetD8(device, 9, 50).unwrap();
            assert_eq!(memory.cast::<u8>().read(), 9);
        }
        let unknown = api.cuMemHostGetDevicePointer(&raw mut device, (&raw mut device).cast(), 0);
        assert_eq!(error(unknown), CUDA_ERROR_INVALID_VALUE);
        api.cuMemHostUnregister(start).unwrap();
        assert_eq!(error(api.cuMemHostUnregister(start)), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        api.cuMemFreeHost(one).unwrap();
        api.cuMemFreeHost(other).unwrap();
        api.cuMemFree(managed).unwrap();
    }
}

/// cuda.core asks for several attributes at once, also of memory that the driver does not know.
#[test]
fn addresses_have_attributes() {
    let (api, context) = started();
    let (mut address, mut base, mut size) = (0, 0, 0);
    let mut attributes = [
        CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
    ];
    let ask = |address: CUdeviceptr, attributes: &mut [CUpointer_attribute; 7]| {
        let mut values = [0_u64; 7];
        let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast());
        // SAFETY: each value has room for every attribute.
        unsafe { api.cuPointerGetAttributes(7, attributes.as_mut_ptr(), places.as_mut_ptr(), address) }
            .unwrap();
        values
    };
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemAlloc(&raw mut address, 1000).unwrap();
        api.cuMemGetAddressRange(&raw mut base, &raw mut size, address + 10).unwrap();
        assert_eq!((base, size), (address, 1000));
        let device = u64::from(CU_MEMORYTYPE_DEVICE.0);
        assert_eq!(
            ask(address + 10, &mut attributes),
            [context.0.addr() as u64, device, 0, 0, address, 1000, 0]
        );
        let stack = (&raw const size).addr() as u64;
        // -2 is no device.
        assert_eq!(ask(stack, &mut attributes), [0, 0, u64::from((-2_i32).cast_unsigned()), 0, 0, 0, 0]);
        for number in (1..=21).filter(|number| ![4, 5].contains(number)) {
            let mut value = 0_u64;
            let attribute = CUpointer_attribute(number);
            api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address).unwrap();
        }
        let mut value = 0_u64;
        for number in [4, 5, 22] {
            let attribute = CUpointer_attribute(number);
            assert!(api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address).is_err());
        }
        api.cuMemFree(address).unwrap();
    }
}

/// cuda.core's `VirtualMemoryResource`.
#[test]
fn mapped_memory_is_retained_by_its_address() {
    let (api, _) = started();
    let location = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
    let form = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let wanted = CUmemAllocationProp {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: form,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationFlags::default(),
    };
    let (mut granularity, mut address, mut next) = (0, 0, 0);
    let (mut handle, mut retained, mut imported, mut fd) = (0, 0, 0, -1_i32);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        let which = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        api.cuMemGetAllocationGranularity(&raw mut granularity, &raw const wanted, which).unwrap();
        assert_eq!(granularity, PAGE);
        api.cuMemCreate(&raw mut handle, PAGE, &raw const wanted, 0).unwrap();
        api.cuMemAddressReserve(&raw mut address, PAGE, 0, 0, 0).unwrap();
        api.cuMemAddressFree(address, PAGE).unwrap();
        // The preferred addresses are free.
        api.cuMemAddressReserve(&raw mut next, PAGE, 0, address, 0).unwrap();
        assert_eq!(next, address);
        api.cuMemMap(address, PAGE, 0, handle, 0).unwrap();
        let access = CUmemAccessDesc { location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        api.cuMemSetAccess(address, PAGE, &raw const access, 1).unwrap();
        let pointer = std::ptr::without_provenance_mut(address as usize);
        api.cuMemRetainAllocationHandle(&raw mut retained, pointer).unwrap();
        assert_eq!(retained, handle);
        api.cuMemExportToShareableHandle((&raw mut fd).cast(), handle, form, 0).unwrap();
        let shareable = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap());
        api.cuMemImportFromShareableHandle(&raw mut imported, shareable, form).unwrap();
        libc::close(fd);
        api.cuMemRelease(imported).unwrap();
        // Two references: the third release fails. The mapping keeps the memory and its handle.
        api.cuMemRelease(handle).unwrap();
        api.cuMemRelease(handle).unwrap();
        assert_eq!(error(api.cuMemRelease(handle)), CUDA_ERROR_INVALID_VALUE);
        api.cuMemRetainAllocationHandle(&raw mut retained, pointer).unwrap();
        assert_eq!(retained, handle);
        api.cuMemRelease(handle).unwrap();
        api.cuMemUnmap(address, PAGE).unwrap();
        let gone = api.cuMemRetainAllocationHandle(&raw mut retained, pointer);
        assert_eq!(error(gone), CUDA_ERROR_INVALID_VALUE);
        let dma_buf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let none = api.cuMemGetHandleForAddressRange((&raw mut fd).cast(), address, PAGE, dma_buf, 0);
        assert_eq!(error(none), CUDA_ERROR_INVALID_VALUE);
        api.cuMemAddressFree(address, PAGE).unwrap();
    }
}

/// cuda.core's `ManagedBuffer`.
#[test]
fn managed_memory_keeps_advice() {
    let (api, _) = started();
    let (mut address, mut value) = (0, 0_i32);
    let device = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
    let host = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_HOST, id: 0 };
    let (places, null) = ([0_usize], CUstream::NULL);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemAllocManaged(&raw mut address, 4096, CU_MEM_ATTACH_GLOBAL).unwrap();
        let mut ask = |attribute| {
            api.cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, address, 4096).map(|()| value)
        };
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), Ok(-2));
        api.cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device).unwrap();
        api.cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, host).unwrap();
        api.cuMemAdvise(address, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, host).unwrap();
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), Ok(1));
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY), Ok(-1));
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), Ok(1));
        api.cuMemPrefetchAsync(address, 4096, device, 0, null).unwrap();
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), Ok(1));
        let (addresses, sizes, locations) = ([address], [4096], [host]);
        let (first, size, place) = (addresses.as_ptr(), sizes.as_ptr(), places.as_ptr());
        api.cuMemPrefetchBatchAsync(first, size, 1, locations.as_ptr(), place, 1, 0, null).unwrap();
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), Ok(-1));
        api.cuMemDiscardBatchAsync(first, size, 1, 0, null).unwrap();
        api.cuMemDiscardAndPrefetchBatchAsync(first, size, 1, &raw const device, place, 1, 0, null).unwrap();
        assert_eq!(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID), Ok(1));
        let beyond = api.cuMemAdvise(address, 4097, CU_MEM_ADVISE_SET_READ_MOSTLY, host);
        assert_eq!(error(beyond), CUDA_ERROR_INVALID_VALUE);
        api.cuMemFree(address).unwrap();
    }
}

/// cuda.core's events with `ipc_enabled`, and numba-cuda's `get_ipc_handle`.
#[test]
fn event_and_memory_handles_are_opened_by_another_process() {
    let (api, _) = started();
    let test = "event_and_memory_handles_are_opened_by_another_process";
    let (mut event, mut address, mut stream) = (CUevent::NULL, 0, CUstream::NULL);
    if let Some(arguments) = arguments() {
        let memory = CUipcMemHandle { reserved: from_hex(&arguments[1]) };
        let handle = CUipcEventHandle { reserved: from_hex(&arguments[0]) };
        // SAFETY: arguments as the driver interface requires.
        unsafe {
            api.cuIpcOpenEventHandle(&raw mut event, handle).unwrap();
            api.cuIpcOpenMemHandle(&raw mut address, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).unwrap();
            api.cuStreamCreate(&raw mut stream, 0).unwrap();
            api.cuStreamWaitEvent(stream, event, 0).unwrap();
            api.cuStreamSynchronize(stream).unwrap();
            assert_eq!(read(&api, address, 64), [4; 64]);
            api.cuMemsetD8Async(address, 5, 64, stream).unwrap();
            api.cuEventRecord(event, stream).unwrap();
            api.cuEventSynchronize(event).unwrap();
            // An opened event is not exported again.
            let mut again = handle;
            assert_eq!(error(api.cuIpcGetEventHandle(&raw mut again, event)), CUDA_ERROR_INVALID_VALUE);
            api.cuIpcCloseMemHandle(address).unwrap();
            api.cuEventDestroy(event).unwrap();
        }
        return;
    }
    let (mut handle, mut memory) =
        (CUipcEventHandle { reserved: [0; 64] }, CUipcMemHandle { reserved: [0; 64] });
    let mut timed = CUevent::NULL;
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        assert_eq!(error(api.cuEventCreate(&raw mut timed, CU_EVENT_INTERPROCESS)), CUDA_ERROR_INVALID_VALUE);
        api.cuEventCreate(&raw mut timed, 0).unwrap();
        assert_eq!(error(api.cuIpcGetEventHandle(&raw mut handle, timed)), CUDA_ERROR_INVALID_VALUE);
        api.cuEventCreate(&raw mut event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING).unwrap();
        api.cuEventQuery(event).unwrap();
        api.cuMemAlloc(&raw mut address, 64).unwrap();
        api.cuIpcGetMemHandle(&raw mut memory, address).unwrap();
        api.cuIpcGetEventHandle(&raw mut handle, event).unwrap();
        api.cuLaunchHostFunc(CUstream::NULL, Some(pause), std::ptr::null_mut()).unwrap();
        api.cuMemsetD8Async(address, 4, 64, CUstream::NULL).unwrap();
        api.cuEventRecord(event, CUstream::NULL).unwrap();
        assert_eq!(error(api.cuEventQuery(event)), CUDA_ERROR_NOT_READY);
        run_child(test, &[hex(&handle.reserved), hex(&memory.reserved)]);
        api.cuEventSynchronize(event).unwrap();
        assert_eq!(read(&api, address, 64), [5; 64]);
        // The bytes are not trusted, and the own process does not open its events.
        let mut open = |reserved| api.cuIpcOpenEventHandle(&raw mut timed, CUipcEventHandle { reserved });
        assert_eq!(error(open(handle.reserved)), CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(error(open(memory.reserved)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(error(open([0xff; 64])), CUDA_ERROR_INVALID_VALUE);
        let mut elsewhere = handle.reserved;
        elsewhere[8..12].copy_from_slice(&1_u32.to_le_bytes());
        assert!(open(elsewhere).is_err());
    }
}

/// The process that recorded a shared event is gone: waiting is an error, and does not hang.
#[test]
fn event_of_killed_recorder_is_an_error() {
    let (api, _) = started();
    let (mut event, mut handle) = (CUevent::NULL, CUipcEventHandle { reserved: [0; 64] });
    if let Some(arguments) = arguments() {
        unsafe extern "C" fn die(_data: *mut c_void) {
            std::process::exit(0);
        }
        // SAFETY: arguments as the driver interface requires.
        unsafe {
            let opened = CUipcEventHandle { reserved: from_hex(&arguments[0]) };
            api.cuIpcOpenEventHandle(&raw mut event, opened).unwrap();
            println!("1 passed");
            api.cuLaunchHostFunc(CUstream::NULL, Some(die), std::ptr::null_mut()).unwrap();
            api.cuEventRecord(event, CUstream::NULL).unwrap();
            api.cuStreamSynchronize(CUstream::NULL).unwrap();
        }
        return;
    }
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuEventCreate(&raw mut event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING).unwrap();
        api.cuIpcGetEventHandle(&raw mut handle, event).unwrap();
        run_child("event_of_killed_recorder_is_an_error", &[hex(&handle.reserved)]);
        assert_eq!(error(api.cuEventQuery(event)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(error(api.cuEventSynchronize(event)), CUDA_ERROR_INVALID_HANDLE);
        // The stream that waits for it fails, and with it the events that are recorded there. Other
        // streams and the default stream, which comes after it, execute. The context is one of its
        // own, since other tests synchronize the primary one.
        let (mut context, mut stream, mut later) = (CUcontext::NULL, CUstream::NULL, CUevent::NULL);
        api.cuCtxCreate(&raw mut context, 0, 0).unwrap();
        api.cuStreamCreate(&raw mut stream, 0).unwrap();
        api.cuEventCreate(&raw mut later, 0).unwrap();
        let blocked = block(&api, stream);
        api.cuStreamWaitEvent(stream, event, 0).unwrap();
        api.cuEventRecord(later, stream).unwrap();
        let mut address = 0;
        api.cuMemAlloc(&raw mut address, 4096).unwrap();
        api.cuMemsetD8Async(address, 1, 4096, CUstream::NULL).unwrap();
        drop(blocked);
        assert_eq!(error(api.cuEventSynchronize(later)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(error(api.cuStreamSynchronize(stream)), CUDA_ERROR_INVALID_HANDLE);
        api.cuStreamSynchronize(CUstream::NULL).unwrap();
        assert_eq!(read(&api, address, 4096), [1; 4096]);
        assert_eq!(error(api.cuCtxSynchronize()), CUDA_ERROR_INVALID_HANDLE);
        api.cuCtxDestroy(context).unwrap();
    }
}

/// The commands of a destroyed context do not execute: events recorded there are errors, also those
/// of several processes.
#[test]
fn event_of_destroyed_context_is_an_error() {
    let (api, first) = started();
    let (mut context, mut stream, mut gate) = (CUcontext::NULL, CUstream::NULL, CUstream::NULL);
    let [mut event, mut shared, mut gated] = [CUevent::NULL; 3];
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuStreamCreate(&raw mut gate, CU_STREAM_NON_BLOCKING).unwrap();
        let blocked = block(&api, gate);
        api.cuEventCreate(&raw mut gated, 0).unwrap();
        api.cuEventRecord(gated, gate).unwrap();
        api.cuCtxCreate(&raw mut context, 0, 0).unwrap();
        api.cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING).unwrap();
        api.cuEventCreate(&raw mut event, 0).unwrap();
        api.cuEventCreate(&raw mut shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING).unwrap();
        api.cuStreamWaitEvent(stream, gated, 0).unwrap();
        api.cuEventRecord(event, stream).unwrap();
        api.cuEventRecord(shared, stream).unwrap();
        api.cuCtxDestroy(context).unwrap();
        api.cuCtxSetCurrent(first).unwrap();
        for event in [event, shared] {
            assert_eq!(error(api.cuEventQuery(event)), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(error(api.cuEventSynchronize(event)), CUDA_ERROR_INVALID_HANDLE);
            // It can be recorded again.
            api.cuEventRecord(event, CUstream::NULL).unwrap();
            api.cuEventSynchronize(event).unwrap();
        }
        drop(blocked);
    }
}

/// A call of a stream that waits for the stream would wait for itself.
#[test]
fn call_of_a_stream_cannot_wait_for_it() {
    type Argument = (Api, CUstream, std::sync::mpsc::Sender<[CUresult; 3]>);
    unsafe extern "C" fn wait(argument: *mut c_void) {
        // SAFETY: the test passed the pointer of a box.
        let argument = unsafe { Box::from_raw(argument.cast::<Argument>()) };
        let (api, stream, sender) = *argument;
        // SAFETY: the test's own stream.
        let results = unsafe {
            [
                error(api.cuStreamSynchronize(stream)),
                error(api.cuStreamDestroy(stream)),
                // No context is current in this thread.
                error(api.cuCtxSynchronize()),
            ]
        };
        sender.send(results).unwrap();
    }
    let (api, _) = started();
    let mut stream = CUstream::NULL;
    let (sender, receiver) = std::sync::mpsc::channel();
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuStreamCreate(&raw mut stream, 0).unwrap();
        let argument: Box<Argument> = Box::new((open(), stream, sender));
        api.cuLaunchHostFunc(stream, Some(wait), Box::into_raw(argument).cast()).unwrap();
        let results = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(results, [CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_CONTEXT]);
        api.cuStreamDestroy(stream).unwrap();
    }
}

/// A process exits although the per-thread default stream of its main thread has work.
#[test]
fn exit_does_not_wait_for_streams() {
    unsafe extern "C" fn sleep(_data: *mut c_void) {
        std::thread::sleep(Duration::from_secs(600));
    }
    if arguments().is_none() {
        return run_child("exit_does_not_wait_for_streams", &[]);
    }
    // SAFETY: a forked child without other threads, which opens the driver, and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(30);
            let (api, _) = started();
            let stream = default_stream(CU_STREAM_PER_THREAD);
            api.cuLaunchHostFunc(stream, Some(sleep), std::ptr::null_mut()).unwrap();
            libc::exit(7);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
    }
}

/// The reader of standard error has ended: what the driver prints is lost, and nothing else.
#[test]
fn closed_standard_error_is_ignored() {
    let name = "closed_standard_error_is_ignored";
    if arguments().is_none() {
        return run_child(name, &[]);
    }
    if std::env::var_os("CUDA_SOFT_LOG").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name, "--nocapture"]).env("CUDA_SOFT_LOG", "calls");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(child.stderr(writer).status().unwrap().success());
        return;
    }
    kernels_and_graphs_are_not_supported();
}

/// Each shared event has an fd, which counts.
#[test]
fn fds_of_shared_events_are_counted() {
    // It counts objects of the process.
    if arguments().is_none() {
        return run_child("fds_of_shared_events_are_counted", &[]);
    }
    let (api, _) = started();
    let (before, mut event) = (query(c"fds"), CUevent::NULL);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuEventCreate(&raw mut event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING).unwrap();
        assert_eq!(query(c"fds"), before + 1);
        api.cuEventDestroy(event).unwrap();
    }
    assert_eq!(query(c"fds"), before);
}

/// Returns the functions that a library exports: the names in its table of dynamic symbols.
fn exported(library: &[u8]) -> BTreeSet<String> {
    let number = |at: usize, size: usize| {
        library[at..at + size].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    // ELF64: the offset of the sections, the size of one, and their number.
    let (sections, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
    let section = |place: usize| sections + place * size;
    let of_symbols = |place: &usize| number(section(*place) + 4, 4) == 11;
    let symbols = section((0..count).find(of_symbols).unwrap());
    let (start, bytes) = (number(symbols + 0x18, 8), number(symbols + 0x20, 8));
    let strings = number(section(number(symbols + 0x28, 4)) + 0x18, 8);
    let is_defined = |symbol: &usize| number(symbol + 6, 2) != 0;
    (start..start + bytes)
        .step_by(24)
        .filter(is_defined)
        .map(|symbol| {
            let name = CStr::from_bytes_until_nul(&library[strings + number(symbol, 4)..]).unwrap();
            name.to_str().unwrap().to_owned()
        })
        .collect()
}

/// Each exported function of the interface is found by name, and a test calls it.
#[test]
fn every_exported_function_is_called_by_a_test() {
    let api = open();
    let tests = [include_str!("clients.rs"), include_str!("pools.rs"), include_str!("interface.rs")].concat();
    let exported = exported(&std::fs::read(library()).unwrap());
    let functions: Vec<_> =
        exported.iter().filter(|name| name.starts_with("cu") && !name.starts_with("cudaSoft")).collect();
    assert!(functions.len() > 90, "{functions:?}");
    for symbol in functions {
        let name = symbol.split_once("_v").map_or(symbol.as_str(), |(name, _)| name);
        let is_called = tests.contains(&format!(".{name}(")) || UNSUPPORTED.contains(&name);
        assert!(is_called, "no test calls {name}");
        let (address, _) = look_up(&api, &CString::new(name).unwrap(), 13020);
        let (address_of_12, _) = look_up(&api, &CString::new(name).unwrap(), 11030);
        assert!(!address.is_null() || !address_of_12.is_null(), "{name} is not found by its name");
    }
}
