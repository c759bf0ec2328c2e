//! Faults of the driver, injected at every call: the provider leaks nothing and works afterwards.

use umf_core::{Access, Import, ImportRequest, Layout, Provider};
use umf_provider_level_zero::{HandleFormat, LevelZeroProvider};

use super::driver::{User, run_in_child};
use super::{allocate, built, device, free, get, put};

/// Allocates, fills, exports, imports and frees a region.
fn exercise(provider: &LevelZeroProvider) -> umf_core::Result<()> {
    let region = allocate(provider, 100)?;
    let result = export_and_import(provider, &region);
    match free(provider, region) {
        Ok(()) => result,
        // The region is still live; the fault does not recur.
        Err(error) => free(provider, region).and(Err(error)),
    }
}

fn export_and_import(provider: &LevelZeroProvider, region: &umf_core::Region) -> umf_core::Result<()> {
    let transfer = provider.transfer().unwrap();
    // SAFETY: the region is live, and no reference into it exists.
    unsafe { transfer.fill(region.base(), 100, 7) }?;
    let (exports, imports) = (Provider::export(provider).unwrap(), provider.import().unwrap());
    let export = exports.export(region)?;
    let imported = import_and_read(imports, &export, region.size());
    let unexported = exports.unexport(region, export);
    imported.and(unexported)
}

fn import_and_read(
    imports: &dyn Import,
    export: &umf_core::NativeExport,
    size: usize,
) -> umf_core::Result<()> {
    let fd = export.fd.as_ref().map(|fd| fd.try_clone().unwrap());
    let mut request = ImportRequest::new(fd, export.offset, size, Access::ReadWrite);
    let native = export.native.as_slice();
    request.native[..native.len()].copy_from_slice(native);
    request.native_len = native.len();
    let imported = imports.import(request)?;
    let mut bytes = [0; 100];
    // SAFETY: the import is live until it is released.
    let read = unsafe { imports.transfer().unwrap().read(imported.base, &mut bytes) };
    // SAFETY: the memory is no longer used.
    unsafe { imports.release(imported) }?;
    read.map(|()| assert_eq!(bytes, [7; 100]))
}

#[test]
fn failing_calls_leak_nothing() {
    run_in_child("faults::failing_calls_leak_nothing", &[("ZE_SOFT_IPC", "opaque")], || {
        let user = User::direct();
        let set = user.fault_setter();
        for handles in [HandleFormat::FdFunctions, HandleFormat::Fd, HandleFormat::Opaque] {
            let provider = built(device().handles(handles));
            exercise(&provider).unwrap();
            let left = |what| user.count(what);
            let before = [left(c"allocations"), left(c"memory"), left(c"fds"), left(c"exports")];
            let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let fds_before = fds();
            let mut failed = 0;
            for number in 1..40 {
                let fault =
                    std::ffi::CString::new(format!("*:{number}=ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY")).unwrap();
                assert_eq!(set(&fault), level_zero_sys::ZE_RESULT_SUCCESS);
                let result = exercise(&provider);
                set(c"");
                failed += u32::from(result.is_err());
                let now = [left(c"allocations"), left(c"memory"), left(c"fds"), left(c"exports")];
                // A close that failed leaves one allocation open in the driver. Freeing memory
                // releases its handles.
                assert!(
                    now[0] <= before[0] + 1 && now[3] == before[3],
                    "{handles:?}, call {number}: {before:?} -> {now:?}"
                );
                exercise(&provider).unwrap();
            }
            assert!(failed > 8, "{handles:?}: only {failed} injected faults were reached");
            assert_eq!(fds_before, fds(), "{handles:?}");
        }
    });
}

#[test]
fn lost_device_is_an_error_and_its_memory_can_be_freed() {
    run_in_child("faults::lost_device_is_an_error_and_its_memory_can_be_freed", &[], || {
        let user = User::direct();
        let provider = built(device());
        let region = allocate(&provider, 1 << 20).unwrap();
        put(&provider, &region, b"before");
        assert_eq!(get(&provider, &region, 6), b"before");
        user.faults(c"zeCommandListAppendMemoryCopy:1=lose");
        let mut bytes = [0; 6];
        // SAFETY: the region is live.
        let lost = unsafe { provider.transfer().unwrap().read(region.base(), &mut bytes) }.unwrap_err();
        assert!(lost.to_string().contains("ZE_RESULT_ERROR_DEVICE_LOST"), "{lost}");
        assert!(provider.allocate(Layout::new(1, 1).unwrap()).is_err());
        free(&provider, region).unwrap();
        assert_eq!(user.count(c"memory"), 0);
    });
}
