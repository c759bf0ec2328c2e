//! What CUDA memory does beyond the conformance suite: contexts, errors, streams, handles. On the driver in software alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

#[path = "behaviour/flags.rs"]
mod flags;
mod machine;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_sys::{CU_STREAM_NON_BLOCKING, CUcontext, CUstream};
use machine::{builder, count, driver, faults, is_real, library, skip};
use umf_core::{
    Access, Completion, DeferredFree, Error, Import, ImportRequest, Layout, NativeExport, Pool, Progress,
    Property, PropertyValue, Provider, Region,
};
use umf_pool_slab::{SlabPool, SlabSettings};
use umf_provider_cuda::{CudaImport, CudaMemory, CudaProvider};

const MIB: usize = 1 << 20;

/// One test at a time: they count what the driver has, and have it fail.
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
    // SAFETY: a place for the answer.
    unsafe { driver().api().cuCtxGetCurrent(&raw mut context) }.unwrap();
    context
}

fn own_context(device: i32) -> CUcontext {
    let mut context = CUcontext::NULL;
    // SAFETY: a place for the answer. It is not left current.
    unsafe {
        driver().api().cuCtxCreate(&raw mut context, 0, device).unwrap();
        driver().api().cuCtxPopCurrent(&raw mut context).unwrap();
    }
    context
}

const ALL: [CudaMemory; 4] = [CudaMemory::Virtual, CudaMemory::Device, CudaMemory::Host, CudaMemory::Managed];

/// What the driver has of everything.
fn census() -> Vec<(&'static str, u64)> {
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

/// Everything that a provider does, once; errors are answers here.
fn life(memory: CudaMemory) -> Result<(), Error> {
    let provider = builder(memory).build()?;
    let region = provider.allocate(layout(3 * MIB))?;
    let used = (|| {
        if let Some(transfer) = provider.transfer() {
            // SAFETY: the region is live and this test's own.
            unsafe { transfer.write(region.base(), b"words") }?;
        }
        // SAFETY: the default stream.
        let event = unsafe { provider.after(std::ptr::null_mut()) }?;
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
            // SAFETY: not used; released again only if it was not.
            unsafe { import.release(imported) }.inspect_err(|_| {
                faults("");
                // SAFETY: as above.
                unsafe { import.release(imported) }.unwrap();
            })?;
        }
        Ok(())
    })();
    // SAFETY: the test's own region; freed again only if it was not.
    let freed = unsafe { provider.free(region) }.inspect_err(|_| {
        faults("");
        free(&provider, region);
    });
    used.and(freed)
}

#[test]
fn no_call_leaves_another_context_current_and_every_failure_leaves_nothing() {
    let _alone = alone();
    if is_real() {
        return skip("no_call_leaves_another_context_current", "a GPU's driver does not fail on demand");
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
        life(memory).unwrap();
        let before = census();
        for function in functions {
            // Far enough for each call that there is in a life.
            for number in 1..9 {
                faults(&format!("{function}:{number}=CUDA_ERROR_OPERATING_SYSTEM"));
                let outcome = life(memory);
                faults("");
                assert_eq!(current(), application, "{memory}: {function} {number}");
                assert_eq!(census(), before, "{memory}: {function} {number}: {outcome:?}");
                if let Err(error) = outcome {
                    let text = error.to_string();
                    assert!(text.contains("CUDA_ERROR_OPERATING_SYSTEM"), "{text}");
                    assert!(text.contains(function), "{function}: {text}");
                }
            }
        }
    }
    let mut popped = CUcontext::NULL;
    // SAFETY: what was pushed above; nothing is left in it.
    unsafe {
        driver().api().cuCtxPopCurrent(&raw mut popped).unwrap();
        driver().api().cuCtxDestroy(application).unwrap();
    }
}

#[test]
fn failures_say_what_happened_and_what_to_do() {
    let _alone = alone();
    if is_real() {
        return skip("failures_say_what_happened", "a GPU's driver does not fail on demand");
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
    let words = umf_provider_cuda::Driver::lacks(Some("/nowhere/libcuda.so.1".as_ref())).unwrap();
    assert!(words.contains("/nowhere/libcuda.so.1"), "{words}");
    // More than the device has.
    let error = provider.allocate(layout(17 << 30)).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let region = provider.allocate(layout(1)).unwrap();
    free(&provider, region);
}

#[test]
fn the_applications_context_is_used_and_its_end_is_told() {
    let _alone = alone();
    if is_real() {
        return skip("the_applications_context_is_used", "it counts what the driver in software has");
    }
    for memory in ALL {
        let before = census();
        let context = own_context(1);
        // SAFETY: a context; what happens when it goes is what is tested.
        let provider = unsafe { builder(memory).context(context.0) }.build().unwrap();
        assert_eq!((provider.device(), provider.context()), (1, context.0));
        let region = provider.allocate(layout(MIB)).unwrap();
        let properties = Provider::properties(&*provider).unwrap();
        let told = properties.property(&region, Property::Context);
        assert_eq!(told, Ok(PropertyValue::Handle(context.0.addr())));
        assert_eq!(properties.property(&region, Property::Node), Ok(PropertyValue::Number(1)));
        // SAFETY: a context.
        unsafe { driver().api().cuCtxDestroy(context) }.unwrap();
        let error = provider.allocate(layout(MIB)).unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_CONTEXT_IS_DESTROYED"), "{memory}: {error}");
        // Its memory went with it: freeing has nothing left to do.
        free(&provider, region);
        drop(provider);
        assert_eq!(census(), before, "{memory}");
    }
}

#[test]
fn blocks_freed_in_a_stream_are_used_again_once_it_is_done() {
    let _alone = alone();
    if is_real() {
        return skip("blocks_freed_in_a_stream", "it needs work that ends when the test says so");
    }
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        let provider = builder(memory).build().unwrap();
        let pool = SlabPool::new(Arc::clone(&provider) as Arc<dyn Provider>, SlabSettings::new()).unwrap();
        let api = driver().api();
        let context = CUcontext(provider.context());
        let (mut stream, mut source) = (CUstream::NULL, 0);
        // SAFETY: as the interface has it.
        unsafe {
            api.cuCtxPushCurrent(context).unwrap();
            api.cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING).unwrap();
            api.cuMemAlloc(&raw mut source, 64 * MIB).unwrap();
        }
        let block = pool.allocate(Layout::new(4096, 1).unwrap()).unwrap();
        // Work in the stream: many copies, of which the last is into the block.
        // SAFETY: live memory, here and below.
        unsafe {
            for _ in 0..20 {
                api.cuMemcpyAsync(source, source + (32 * MIB) as u64, 32 * MIB, stream).unwrap();
            }
            api.cuMemcpyAsync(block.value(), source, 4096, stream).unwrap();
        }
        // SAFETY: a live stream of the context.
        let event = unsafe { provider.after(stream.0) }.unwrap();
        let was_pending = event.progress() == Progress::Pending;
        // SAFETY: the test's own block, in use until the event.
        unsafe { pool.free_after(block, Arc::clone(&event) as Arc<dyn Completion>) }.unwrap();
        if was_pending && event.progress() == Progress::Pending {
            let other = pool.allocate(Layout::new(4096, 1).unwrap()).unwrap();
            assert!(other != block || event.progress() == Progress::Ready, "handed out while it is in use");
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
            assert!(begin.elapsed() < Duration::from_secs(60), "a block that is ready is not used again");
        }
        drop(pool);
        let mut popped = CUcontext::NULL;
        // SAFETY: as the interface has it.
        unsafe {
            api.cuMemFree(source).unwrap();
            api.cuStreamDestroy(stream).unwrap();
            api.cuCtxPopCurrent(&raw mut popped).unwrap();
        }
    }
}

#[test]
fn a_lost_device_is_told_and_loses_its_completions() {
    if is_real() {
        return skip("a_lost_device_is_told", "a GPU's driver does not fail on demand");
    }
    // In a process of its own: nothing works there afterwards.
    const CHILD: &str = "TESTS_CUDA_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_lost_device_is_told_and_loses_its_completions", "--nocapture"])
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
    let event = unsafe { provider.after(std::ptr::null_mut()) }.unwrap();
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
fn handles_that_are_none_are_refused_and_leave_nothing() {
    let _alone = alone();
    if is_real() {
        return skip("handles_that_are_none_are_refused", "it counts what the driver in software has");
    }
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        let provider = builder(memory).build().unwrap();
        let region = provider.allocate(layout(2 * MIB)).unwrap();
        let exported = Provider::export(&*provider).unwrap().export(&region).unwrap();
        let import = CudaImport::new(Some(library()));
        // So that its context is there.
        let imported = import.import(request(&exported, region.size())).unwrap();
        // SAFETY: released once.
        unsafe { import.release(imported) }.unwrap();
        let before = census();
        let changes: [(&str, Change<'_>); 9] = [
            ("without a form", &|request| request.allocation_id = 0),
            ("of an unknown form", &|request| request.allocation_id |= 0xf0 << 56),
            ("of another device", &|request| request.allocation_id ^= 1),
            ("of another form", &|request| request.allocation_id ^= 1 << 56),
            ("with other bytes", &|request| request.native[0] ^= 1),
            ("with bytes cut off", &|request| request.native_len -= 1),
            ("with more bytes than there are", &|request| request.native_len = 65),
            ("from further on", &|request| request.offset = 1 << 40),
            ("larger than it is", &|request| request.size += 1),
        ];
        for (what, change) in changes {
            let mut changed = request(&exported, region.size());
            change(&mut changed);
            let outcome = import.import(changed);
            assert!(outcome.is_err(), "{memory}: a handle {what} was opened: {outcome:?}");
            assert_eq!(census(), before, "{memory}: a handle {what}");
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
fn memory_of_this_process_that_is_opened_outlives_its_region() {
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
fn peers_are_given_access_or_refused() {
    let _alone = alone();
    if driver().devices().unwrap() < 2 {
        return skip("peers_are_given_access", "there is one device");
    }
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        assert!(builder(memory).peers([0]).build().is_err(), "a device was its own peer");
        assert!(builder(memory).peers([77]).build().is_err(), "a device that is not there was a peer");
        let provider = match builder(memory).peers([1]).build() {
            Ok(provider) => provider,
            Err(error) => return skip("peers_are_given_access", &error.to_string()),
        };
        let region = provider.allocate(layout(1)).unwrap();
        // SAFETY: live memory, a place for the answer, a context that is retained as long.
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
fn dma_bufs_are_made_where_the_driver_has_them() {
    let _alone = alone();
    for memory in [CudaMemory::Virtual, CudaMemory::Device] {
        let provider = builder(memory).build().unwrap();
        let region = provider.allocate(layout(2 * MIB)).unwrap();
        match provider.dma_buf(&region) {
            Ok(_fd) => {}
            Err(error) => skip("dma_bufs_are_made", &error.to_string()),
        }
        free(&provider, region);
        assert!(matches!(provider.dma_buf(&region), Err(Error::ForeignAddress { .. })));
    }
}

#[test]
fn touching_device_memory_is_a_fault() {
    if is_real() {
        return skip("touching_device_memory", "what becomes of that on a GPU is the driver's business");
    }
    const CHILD: &str = "TESTS_CUDA_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "touching_device_memory_is_a_fault", "--nocapture"])
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
    // SAFETY: none: this is what must end the process.
    unsafe { region.base().as_ptr().unwrap().write_volatile(1) };
}
