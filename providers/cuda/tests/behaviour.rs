//! Behaviour of CUDA memory beyond the conformance suite: contexts, errors, streams, handles. Most
//! tests need the software driver; the others run on a GPU too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod machine;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_sys::{CU_STREAM_NON_BLOCKING, CUcontext, CUstream};
use machine::{builder, count, driver, faults, is_real, library, skip};
use umf_core::{
    Access, Completion, DeferredFree, Error, Import, ImportRequest, Layout, NativeExport, Pool, Progress,
    Property, PropertyValue, Provider, ProviderFactory, Region,
};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_cuda::{CudaHandles, CudaImport, CudaMemory, CudaProvider, CudaSettings};

const MIB: usize = 1 << 20;

/// Serializes the tests: they count the driver's objects and inject faults.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn layout(size: usize) -> Layout {
    Layout::new(size, 1).unwrap()
}

fn request(export: &NativeExport, size: usize) -> ImportRequest {
    let fd = export.fd.as_ref().map(|fd| fd.try_clone().unwrap());
    let mut request = ImportRequest::new(fd, export.offset, size, Access::ReadWrite);
    let native = export.native.as_slice();
    request.native[..native.len()].copy_from_slice(native);
    request.native_len = native.len();
    request.allocation_id = export.allocation_id;
    request
}

fn free(provider: &CudaProvider, region: Region) {
    // SAFETY: the test's own region.
    unsafe { provider.free(region) }.unwrap();
}

fn current() -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: the pointer to the result is valid for writes.
    unsafe { driver().api().cuCtxGetCurrent(&raw mut context) }.unwrap();
    context
}

fn own_context(device: i32) -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: the pointer to the result is valid. The context is popped again.
    unsafe {
        driver().api().cuCtxCreate(&raw mut context, 0, device).unwrap();
        driver().api().cuCtxPopCurrent(&raw mut context).unwrap();
    }
    context
}

const ALL: [CudaMemory; 4] = [CudaMemory::Virtual, CudaMemory::Device, CudaMemory::Host, CudaMemory::Managed];

/// Counts the driver's objects of every kind.
fn object_counts() -> Vec<(&'static str, u64)> {
    [
        "allocations",
        "opened",
        "mapped",
        "memory",
        "fds",
        "physical",
        "reservations",
        "contexts",
        "streams",
        "events",
    ]
    .into_iter()
    .map(|what| (what, count(what)))
    .collect()
}

/// Allocates, copies, records an event, exports, imports and frees. Returns the first error.
fn exercise(memory: CudaMemory) -> Result<(), Error> {
    let provider = builder(memory).build()?;
    let region = provider.allocate(layout(3 * MIB))?;
    let used = (|| {
        if let Some(transfer) = provider.transfer() {
            // SAFETY: the region is live and this test's own.
            unsafe { transfer.write(region.base(), b"words") }?;
        }
        // SAFETY: the default stream.
        let event = unsafe { provider.record_event(std::ptr::null_mut()) }?;
        while event.progress() == Progress::Pending {
            std::thread::yield_now();
        }
        drop(event);
        if let Some(ability) = Provider::export(&*provider) {
            let exported = ability.export(&region)?;
            let import = Provider::import(&*provider).unwrap();
            let imported = import.import(request(&exported, region.size()));
            ability.unexport(&region, exported)?;
            let imported = imported?;
            // SAFETY: the memory is unused; released again only if the first release failed.
            unsafe { import.release(imported) }.inspect_err(|_| {
                faults("");
                // SAFETY: as above.
                unsafe { import.release(imported) }.unwrap();
            })?;
        }
        Ok(())
    })();
    // SAFETY: the test's own region; freed again only if the first free failed.
    let freed = unsafe { provider.free(region) }.inspect_err(|_| {
        faults("");
        free(&provider, region);
    });
    used.and(freed)
}

#[test]
fn failing_calls_restore_the_context_and_leak_nothing() {
    let _alone = alone();
    if is_real() {
        return skip(
            "failing_calls_restore_the_context_and_leak_nothing",
            "a GPU's driver does not fail on demand",
        );
    }
    let application = own_context(0);
    // SAFETY: a context, current until the end of the test.
    unsafe { driver().api().cuCtxPushCurrent(application) }.unwrap();
    let functions = [
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent",
        "cuDeviceGetAttribute",
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemAlloc",
        "cuMemHostAlloc",
        "cuMemAllocManaged",
        "cuIpcGetMemHandle",
        "cuMemGetAddressRange",
        "cuStreamCreate",
        "cuMemcpyAsync",
        "cuStreamSynchronize",
        "cuEventCreate",
        "cuEventRecord",
        "cuMemUnmap",
        "cuMemFree",
        "cuMemFreeHost",
    ];
    for memory in ALL {
        exercise(memory).unwrap();
        let before = object_counts();
        for function in functions {
            // No function is called more often in `exercise`.
            for number in 1..9 {
                faults(&format!("{function}:{number}=CUDA_ERROR_OPERATING_SYSTEM"));
                let outcome = exercise(memory);
                faults("");
                assert_eq!(current(), application, "{memory}: {function} {number}");
                assert_eq!(object_counts(), before, "{memory}: {function} {number}: {outcome:?}");
                if let Err(error) = outcome {
                    let text = error.to_string();
                    assert!(text.contains("CUDA_ERROR_OPERATING_SYSTEM"), "{text}");
                    assert!(text.contains(function), "{function}: {text}");
                }
            }
        }
    }
    let mut popped = CUcontext::NULL;
    // SAFETY: pops the context pushed above, in which no memory is left.
    unsafe {
        driver().api().cuCtxPopCurrent(&raw mut popped).unwrap();
        driver().api().cuCtxDestroy(application).unwrap();
    }
}

#[test]
fn errors_name_the_call_and_the_remedy() {
    let _alone = alone();
    if is_real() {
        return skip("errors_name_the_call_and_the_remedy", "a GPU's driver does not fail on demand");
    }
    let provider = builder(CudaMemory::Virtual).build().unwrap();
    let fails = |fault: &str| {
        faults(fault);
        let error = provider.allocate(layout(1)).unwrap_err();
        faults("");
        error
    };
    let error = fails("cuMemCreate:1=CUDA_ERROR_OUT_OF_MEMORY");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let error = fails("cuMemMap:1=CUDA_ERROR_ILLEGAL_ADDRESS").to_string();
    assert!(error.contains("cuMemMap") && error.contains("end the process"), "{error}");
    let error = fails("cuMemSetAccess:1=CUDA_ERROR_NOT_SUPPORTED");
    assert!(matches!(error, Error::NotSupported { what: "cuMemSetAccess", .. }), "{error}");
    assert!(builder(CudaMemory::Device).device(77).build().is_err());
    let error = CudaProvider::builder().library("/nowhere/libcuda.so.1").build().unwrap_err();
    assert!(error.to_string().contains("driver"), "{error}");
    let words = umf_provider_cuda::Driver::load_error(Some("/nowhere/libcuda.so.1".as_ref())).unwrap();
    assert!(words.contains("/nowhere/libcuda.so.1"), "{words}");
    // More than the device has.
    let error = provider.allocate(layout(17 << 30)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let region = provider.allocate(layout(1)).unwrap();
    free(&provider, region);
}

#[test]
fn destroyed_application_context_is_reported() {
    let _alone = alone();
    if is_real() {
        return skip("destroyed_application_context_is_reported", "it counts what the software driver has");
    }
    for memory in ALL {
        let before = object_counts();
        let context = own_context(1);
        // SAFETY: a live context. The test destroys it early, which the contract allows.
        let provider = unsafe { builder(memory).context(context.0) }.build().unwrap();
        assert_eq!((provider.device(), provider.context()), (1, context.0));
        let region = provider.allocate(layout(MIB)).unwrap();
        let properties = Provider::properties(&*provider).unwrap();
        let value = properties.property(&region, Property::Context);
        assert_eq!(value, Ok(PropertyValue::Handle(context.0.addr())));
        assert_eq!(properties.property(&region, Property::Node), Ok(PropertyValue::Number(1)));
        // SAFETY: a context.
        unsafe { driver().api().cuCtxDestroy(context) }.unwrap();
        let error = provider.allocate(layout(MIB)).unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_CONTEXT_IS_DESTROYED"), "{memory}: {error}");
        // Its memory is freed with it: freeing does nothing.
        free(&provider, region);
        drop(provider);
        assert_eq!(object_counts(), before, "{memory}");
    }
}

#[test]
fn block_freed_after_an_event_is_reused_when_it_completes() {
    let _alone = alone();
    if is_real() {
        return skip(
            "block_freed_after_an_event_is_reused_when_it_completes",
            "it needs work that ends when the test says so",
        );
    }
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        let provider = builder(memory).build().unwrap();
        let pool = SlabPool::new(Arc::clone(&provider) as Arc<dyn Provider>, SlabSettings::new()).unwrap();
        let api = driver().api();
        let context = CUcontext(provider.context());
        let (mut stream, mut source) = (CUstream::NULL, 0);
        // SAFETY: arguments as the driver interface requires.
        unsafe {
            api.cuCtxPushCurrent(context).unwrap();
            api.cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING).unwrap();
            api.cuMemAlloc(&raw mut source, 64 * MIB).unwrap();
        }
        let block = pool.allocate(Layout::new(4096, 1).unwrap()).unwrap();
        // Work in the stream: many copies, the last one into the block.
        // SAFETY: live memory, here and below.
        unsafe {
            for _ in 0..20 {
                api.cuMemcpyAsync(source, source + (32 * MIB) as u64, 32 * MIB, stream).unwrap();
            }
            api.cuMemcpyAsync(block.value(), source, 4096, stream).unwrap();
        }
        // SAFETY: a live stream of the context.
        let event = unsafe { provider.record_event(stream.0) }.unwrap();
        let was_pending = event.progress() == Progress::Pending;
        // SAFETY: the test's own block, in use until the event.
        unsafe { pool.free_after(block, Arc::clone(&event) as Arc<dyn Completion>) }.unwrap();
        if was_pending && event.progress() == Progress::Pending {
            let other = pool.allocate(Layout::new(4096, 1).unwrap()).unwrap();
            assert!(other != block || event.progress() == Progress::Ready, "reused before the event");
            // SAFETY: the test's own block.
            unsafe { pool.free(other) }.unwrap();
        }
        let left = pool.controls().unwrap().drain(Duration::from_secs(60));
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(event.progress(), Progress::Ready);
        let begin = Instant::now();
        loop {
            let again = pool.allocate(Layout::new(4096, 1).unwrap()).unwrap();
            if again == block {
                // SAFETY: the test's own block.
                unsafe { pool.free(again) }.unwrap();
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "a block is not reused after its event");
        }
        drop(pool);
        let mut popped = CUcontext::NULL;
        // SAFETY: arguments as the driver interface requires.
        unsafe {
            api.cuMemFree(source).unwrap();
            api.cuStreamDestroy(stream).unwrap();
            api.cuCtxPopCurrent(&raw mut popped).unwrap();
        }
    }
}

#[test]
fn lost_device_is_reported_and_completions_are_lost() {
    if is_real() {
        return skip(
            "lost_device_is_reported_and_completions_are_lost",
            "a GPU's driver does not fail on demand",
        );
    }
    // In a child process, whose driver is unusable afterwards.
    const CHILD: &str = "TESTS_CUDA_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lost_device_is_reported_and_completions_are_lost", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("the child is done"), "{output:?}");
        return;
    }
    let provider = builder(CudaMemory::Virtual).build().unwrap();
    let region = provider.allocate(layout(1)).unwrap();
    // SAFETY: the default stream.
    let event = unsafe { provider.record_event(std::ptr::null_mut()) }.unwrap();
    faults("cuMemCreate:1=lose");
    let error = provider.allocate(layout(1)).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED") && error.contains("end the process"), "{error}");
    assert_eq!(event.progress(), Progress::Lost);
    // SAFETY: the test's own region.
    assert!(matches!(unsafe { provider.free(region) }, Err(Error::Driver { .. })));
    println!("the child is done");
}

/// One change to a request.
type Change<'a> = &'a dyn Fn(&mut ImportRequest);

#[test]
fn invalid_handles_are_errors_and_leak_nothing() {
    let _alone = alone();
    if is_real() {
        return skip("invalid_handles_are_errors_and_leak_nothing", "it counts what the software driver has");
    }
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        let provider = builder(memory).build().unwrap();
        let region = provider.allocate(layout(2 * MIB)).unwrap();
        let exported = Provider::export(&*provider).unwrap().export(&region).unwrap();
        let import = CudaImport::new(Some(library()));
        // Creates the importer's context, so that the counts below are stable.
        let imported = import.import(request(&exported, region.size())).unwrap();
        // SAFETY: released once.
        unsafe { import.release(imported) }.unwrap();
        let before = object_counts();
        let changes: [(&str, Change<'_>); 9] = [
            ("without a format", &|request| request.allocation_id = 0),
            ("of an unknown format", &|request| request.allocation_id |= 0xf0 << 56),
            ("of another device", &|request| request.allocation_id ^= 1),
            ("of another format", &|request| request.allocation_id ^= 1 << 56),
            ("with changed bytes", &|request| request.native[0] ^= 1),
            ("with bytes cut off", &|request| request.native_len -= 1),
            ("with too many bytes", &|request| request.native_len = 65),
            ("with an offset out of range", &|request| request.offset = 1 << 40),
            ("with a size out of range", &|request| request.size += 1),
        ];
        for (what, change) in changes {
            let mut changed = request(&exported, region.size());
            change(&mut changed);
            let outcome = import.import(changed);
            assert!(outcome.is_err(), "{memory}: a handle {what} was opened: {outcome:?}");
            assert_eq!(object_counts(), before, "{memory}: a handle {what}");
        }
        let mut unseen = request(&exported, region.size());
        unseen.allocation_id ^= 0xff;
        let error = import.import(unseen).unwrap_err().to_string();
        if memory == CudaMemory::Device {
            assert!(error.contains("CUDA_VISIBLE_DEVICES"), "{error}");
        }
        Provider::export(&*provider).unwrap().unexport(&region, exported).unwrap();
        free(&provider, region);
    }
}

#[test]
fn import_of_own_memory_outlives_its_region() {
    let _alone = alone();
    let provider = builder(CudaMemory::Device).build().unwrap();
    let region = provider.allocate(layout(2 * MIB)).unwrap();
    let transfer = provider.transfer().unwrap();
    // SAFETY: live memory of the test's own, here and below.
    unsafe { transfer.write(region.base(), b"stays") }.unwrap();
    let exported = Provider::export(&*provider).unwrap().export(&region).unwrap();
    let import = Provider::import(&*provider).unwrap();
    let imported = import.import(request(&exported, region.size())).unwrap();
    Provider::export(&*provider).unwrap().unexport(&region, exported).unwrap();
    free(&provider, region);
    let mut seen = [0; 5];
    // SAFETY: as above.
    unsafe { import.transfer().unwrap().read(imported.base, &mut seen) }.unwrap();
    assert_eq!(&seen, b"stays");
    // SAFETY: released once.
    unsafe { import.release(imported) }.unwrap();
    // SAFETY: an error is expected.
    assert!(unsafe { import.transfer().unwrap().read(imported.base, &mut seen) }.is_err());
}

#[test]
fn peers_get_access_or_an_error() {
    let _alone = alone();
    if driver().device_count().unwrap() < 2 {
        return skip("peers_get_access_or_an_error", "there is one device");
    }
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        assert!(builder(memory).peers([0]).build().is_err(), "a device was its own peer");
        assert!(builder(memory).peers([77]).build().is_err(), "a device that is not there was a peer");
        let provider = match builder(memory).peers([1]).build() {
            Ok(provider) => provider,
            Err(error) => return skip("peers_get_access_or_an_error", &error.to_string()),
        };
        let region = provider.allocate(layout(1)).unwrap();
        // SAFETY: live memory, a valid pointer to the result, and a retained context.
        unsafe {
            let api = driver().api();
            let (mut context, mut byte) = (CUcontext::NULL, 0_u8);
            api.cuDevicePrimaryCtxRetain(&raw mut context, 1).unwrap();
            api.cuCtxPushCurrent(context).unwrap();
            api.cuMemsetD8(region.base().value(), 9, 4096).unwrap();
            api.cuMemcpyDtoH((&raw mut byte).cast(), region.base().value() + 4095, 1).unwrap();
            assert_eq!(byte, 9);
            api.cuCtxPopCurrent(&raw mut context).unwrap();
            api.cuDevicePrimaryCtxRelease(1).unwrap();
        }
        free(&provider, region);
    }
}

#[test]
fn dma_buf_is_exported_if_supported() {
    let _alone = alone();
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        let provider = builder(memory).build().unwrap();
        let region = provider.allocate(layout(2 * MIB)).unwrap();
        match provider.dma_buf(&region) {
            Ok(_fd) => {}
            Err(error) => skip("dma_buf_is_exported_if_supported", &error.to_string()),
        }
        free(&provider, region);
        assert!(matches!(provider.dma_buf(&region), Err(Error::ForeignAddress { .. })));
    }
}

#[test]
fn cpu_access_to_device_memory_is_a_segmentation_fault() {
    if is_real() {
        return skip(
            "cpu_access_to_device_memory_is_a_segmentation_fault",
            "what becomes of that on a GPU is the driver's business",
        );
    }
    const CHILD: &str = "TESTS_CUDA_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cpu_access_to_device_memory_is_a_segmentation_fault", "--nocapture"])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(11), "{status}");
        return;
    }
    let provider = builder(CudaMemory::Virtual).build().unwrap();
    let region = provider.allocate(layout(1)).unwrap();
    // SAFETY: unsound on purpose: the access has to end the process.
    unsafe { region.base().as_ptr().unwrap().write_volatile(1) };
}

/// The driver rejects unknown flags, which shows that it received them.
#[test]
fn alloc_flags_are_passed_to_the_driver() {
    let _alone = alone();
    for (memory, flags, is_known) in [
        (CudaMemory::Host, 0, true),
        (CudaMemory::Host, 4, true),
        (CudaMemory::Host, 0x100, false),
        (CudaMemory::Managed, 1, true),
        (CudaMemory::Managed, 2, true),
        (CudaMemory::Managed, 0, false),
        // Ignored for this kind.
        (CudaMemory::Device, 0x100, true),
    ] {
        let provider = builder(memory).alloc_flags(flags).build().unwrap();
        match provider.allocate(layout(100)) {
            Ok(region) => {
                assert!(is_known, "{memory} {flags}");
                free(&provider, region);
            }
            Err(Error::Driver { name, .. }) => {
                assert_eq!((name, is_known), ("CUDA_ERROR_INVALID_VALUE", false), "{memory} {flags}");
            }
            Err(error) => panic!("{memory} {flags}: {error}"),
        }
    }
}

/// The setting `handles` is not ignored for memory that has no handles of this format.
#[test]
fn handles_that_memory_does_not_have_are_refused() {
    let _alone = alone();
    let build = |memory, handles| {
        let path = if is_real() { None } else { Some(library()) };
        CudaProvider::build("test", CudaSettings { memory, handles, path, ..CudaSettings::default() })
    };
    for (memory, handles, remedy) in [
        (CudaMemory::Device, CudaHandles::Fd, "use handles = \"auto\", or memory = \"virtual\""),
        (CudaMemory::Host, CudaHandles::Fd, "use memory = \"virtual\" or \"device\""),
        (CudaMemory::Host, CudaHandles::Opaque, "use memory = \"virtual\" or \"device\""),
        (CudaMemory::Managed, CudaHandles::Opaque, "use memory = \"virtual\" or \"device\""),
    ] {
        let error = build(Some(memory), handles).err().unwrap().to_string();
        assert!(error.starts_with("handles") && error.contains(remedy), "{memory:?} {handles:?}: {error}");
    }
    assert!(build(Some(CudaMemory::Device), CudaHandles::Opaque).is_ok());
    assert!(build(None, CudaHandles::Fd).is_ok());
}
