//! A driver that refuses, at every call of its: nothing is lost, and everything works afterwards.

use umf_core::{Access, Import, ImportRequest, Layout, Provider};
use umf_provider_level_zero::{Handles, LevelZeroProvider};

use super::driver::{User, with};
use super::{allocate, built, device, free, get, put};

/// The whole life of a region.
fn life(provider: &LevelZeroProvider) -> umf_core::Result<()> {
    let region = allocate(provider, 100)?;
    let lived = exported(provider, &region);
    match free(provider, region) {
        Ok(()) => lived,
        // It is as it was, and goes the second time.
        Err(error) => free(provider, region).and(Err(error)),
    }
}

fn exported(provider: &LevelZeroProvider, region: &umf_core::Region) -> umf_core::Result<()> {
    let transfer = provider.transfer().unwrap();
    // SAFETY: the region is live, and no reference into it exists.
    unsafe { transfer.fill(region.base(), 100, 7) }?;
    let (exports, imports) = (Provider::export(provider).unwrap(), provider.import().unwrap());
    let export = exports.export(region)?;
    let opened = opened(imports, &export, region.size());
    let back = exports.unexport(region, export);
    opened.and(back)
}

fn opened(imports: &dyn Import, export: &umf_core::NativeExport, size: usize) -> umf_core::Result<()> {
    let fd = export.fd.as_ref().map(|fd| fd.try_clone().unwrap());
    let mut request = ImportRequest::new(fd, export.offset, size, Access::ReadWrite);
    let native = export.native.as_slice();
    request.native[..native.len()].copy_from_slice(native);
    request.native_len = native.len();
    let imported = imports.import(request)?;
    let mut bytes = [0; 100];
    // SAFETY: open until it is released.
    let read = unsafe { imports.transfer().unwrap().read(imported.base, &mut bytes) };
    // SAFETY: not used any more.
    unsafe { imports.release(imported) }?;
    read.map(|()| assert_eq!(bytes, [7; 100]))
}

#[test]
fn nothing_is_lost_whatever_call_fails() {
    with("faults::nothing_is_lost_whatever_call_fails", &[("ZE_SOFT_IPC", "opaque")], || {
        let user = User::direct();
        let set = user.fault_setter();
        for handles in [Handles::FdFunctions, Handles::Fd, Handles::Opaque] {
            let provider = built(device().handles(handles));
            life(&provider).unwrap();
            let left = |what| user.count(what);
            let before = [left(c"allocations"), left(c"memory"), left(c"fds"), left(c"exports")];
            let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let fds_before = fds();
            let mut failed = 0;
            for number in 1..40 {
                let fault =
                    std::ffi::CString::new(format!("*:{number}=ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY")).unwrap();
                assert_eq!(set(&fault), level_zero_sys::ZE_RESULT_SUCCESS);
                let lived = life(&provider);
                set(c"");
                failed += u32::from(lived.is_err());
                let now = [left(c"allocations"), left(c"memory"), left(c"fds"), left(c"exports")];
                // What a close or a putting back failed to give back is the driver's; a memory's end ends its handles.
                assert!(
                    now[0] <= before[0] + 1 && now[3] == before[3],
                    "{handles:?}, call {number}: {before:?} -> {now:?}"
                );
                life(&provider).unwrap();
            }
            assert!(failed > 8, "{handles:?}: {failed} of the calls were there to fail");
            assert_eq!(fds_before, fds(), "{handles:?}");
        }
    });
}

#[test]
fn a_lost_device_is_an_error_and_its_memory_can_be_freed() {
    with("faults::a_lost_device_is_an_error_and_its_memory_can_be_freed", &[], || {
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
