//! The driver as programs see it: it exports every function that `umf-cuda-sys` declares, and
//! returns errors for invalid arguments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::ffi::c_void;

use cuda_sys::*;

fn open() -> Api {
    let library = std::env::current_exe().unwrap().with_file_name("libcuda_soft.so");
    // SAFETY: the driver of this project.
    unsafe { Api::load_from(library) }.unwrap()
}

/// Opens the driver, and makes the primary context of a device current.
fn started() -> (Api, CUcontext) {
    let api = open();
    let mut context = CUcontext::NULL;
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuInit(0).unwrap();
        api.cuDevicePrimaryCtxRetain(&raw mut context, 0).unwrap();
        api.cuCtxPushCurrent(context).unwrap();
    }
    (api, context)
}

#[test]
fn library_exports_every_declared_function() {
    let library = std::env::current_exe().unwrap().with_file_name("libcuda_soft.so");
    // SAFETY: the driver of this project.
    let library = unsafe { libloading::Library::new(library) }.unwrap();
    for (name, symbol) in NAMES {
        // SAFETY: looked up, and not called.
        assert!(unsafe { library.get::<*mut c_void>(*symbol) }.is_ok(), "{name} ({symbol})");
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let (api, _) = started();
    let refused = |answer: Result<(), Failure>| answer.unwrap_err().result();
    let junk = std::ptr::without_provenance_mut::<c_void>(0x1234);
    let (mut address, mut handle, mut device) = (0, 0, 0);
    // SAFETY: the driver looks invalid handles up in tables, and does not dereference them.
    unsafe {
        assert_eq!(refused(api.cuMemFree(0x1234)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(refused(api.cuMemFreeHost(junk)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(refused(api.cuMemRelease(77)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(refused(api.cuMemUnmap(0x20_0000, 0x20_0000)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(refused(api.cuMemAddressFree(0x20_0000, 0x20_0000)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(refused(api.cuStreamSynchronize(CUstream(junk))), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(refused(api.cuEventQuery(CUevent(junk))), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(refused(api.cuCtxPushCurrent(CUcontext::NULL)), CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(refused(api.cuCtxPushCurrent(CUcontext(junk))), CUDA_ERROR_CONTEXT_IS_DESTROYED);
        assert_eq!(refused(api.cuDeviceGet(&raw mut device, 99)), CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(refused(api.cuMemAlloc(&raw mut address, 1 << 46)), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(refused(api.cuMemAlloc(&raw mut address, 0)), CUDA_ERROR_INVALID_VALUE);
        for bytes in [[0; 64], [0xff; 64]] {
            let opened = api.cuIpcOpenMemHandle(&raw mut address, CUipcMemHandle { reserved: bytes }, 1);
            assert_eq!(refused(opened), CUDA_ERROR_INVALID_VALUE);
        }
        // Reserved addresses without a mapping.
        let mut reserved = 0;
        api.cuMemAddressReserve(&raw mut reserved, 0x20_0000, 0, 0, 0).unwrap();
        assert_eq!(refused(api.cuMemsetD8(reserved + 64, 0, 64)), CUDA_ERROR_INVALID_VALUE);
        api.cuMemAddressFree(reserved, 0x20_0000).unwrap();
        // Standard input is not device memory.
        let fd = std::ptr::without_provenance_mut(0);
        let form = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let opened = api.cuMemImportFromShareableHandle(&raw mut handle, fd, form);
        assert_eq!(refused(opened), CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!((address, handle), (0, 0));
}

#[test]
fn copies_fills_and_events_work() {
    let (api, context) = started();
    let (mut one, mut other, mut stream, mut event) = (0, 0, CUstream::NULL, CUevent::NULL);
    let (source, mut target) = ([7_u8; 5000], [0_u8; 5000]);
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuMemAlloc(&raw mut one, 5000).unwrap();
        api.cuMemAlloc(&raw mut other, 5000).unwrap();
        api.cuStreamCreate(&raw mut stream, 0).unwrap();
        api.cuEventCreate(&raw mut event, 0).unwrap();
        api.cuEventQuery(event).unwrap();
        api.cuMemcpyHtoD(one, source.as_ptr().cast(), 5000).unwrap();
        api.cuMemcpyAsync(other, one, 5000, stream).unwrap();
        api.cuMemsetD8Async(other + 100, 9, 50, stream).unwrap();
        api.cuEventRecord(event, stream).unwrap();
        api.cuEventSynchronize(event).unwrap();
        api.cuEventQuery(event).unwrap();
        api.cuMemcpyDtoH(target.as_mut_ptr().cast(), other, 5000).unwrap();
        // A copy beyond an allocation fails.
        assert!(api.cuMemcpyDtoD(other, one, 3 << 20).is_err());
        api.cuStreamDestroy(stream).unwrap();
        api.cuEventDestroy(event).unwrap();
        api.cuMemFree(one).unwrap();
        api.cuMemFree(other).unwrap();
        let mut current = CUcontext::NULL;
        api.cuCtxPopCurrent(&raw mut current).unwrap();
        assert_eq!(current, context);
        api.cuDevicePrimaryCtxRelease(0).unwrap();
    }
    let mut expected = [7_u8; 5000];
    expected[100..150].fill(9);
    assert_eq!(target, expected);
}

#[test]
fn results_have_names() {
    let api = open();
    assert_eq!(api.text_of(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY: CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(api.text_of(CUresult(12345)), "");
    let mut text = std::ptr::null();
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuGetErrorName(CUDA_ERROR_NOT_READY, &raw mut text).unwrap();
        assert_eq!(std::ffi::CStr::from_ptr(text).to_str().unwrap(), "CUDA_ERROR_NOT_READY");
        api.cuGetErrorString(CUDA_ERROR_NOT_READY, &raw mut text).unwrap();
        assert!(!text.is_null());
        assert!(api.cuGetErrorName(CUresult(12345), &raw mut text).is_err());
    }
}

#[test]
fn library_without_cuda_functions_is_an_error() {
    // SAFETY: the C library, which is loaded already.
    let refused = unsafe { Api::load_from("libc.so.6") }.unwrap_err().to_string();
    assert!(refused.contains("no CUDA driver"), "{refused}");
}
