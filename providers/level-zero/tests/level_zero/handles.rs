//! Exports and imports: the payload of each handle format, and the release of driver handles.

use umf_core::{Access, Error, Import, ImportRequest, Provider};
use umf_provider_level_zero::{HandleFormat, LevelZeroImport, release_unused};

use super::driver::{User, run_in_child};
use super::{allocate, built, device, free};

const STYLES: [&str; 4] = ["classic", "opaque", "opaque-pidfd", "opaque-socket"];

#[test]
fn each_format_has_its_payload_with_every_driver_style() {
    let test = "handles::each_format_has_its_payload_with_every_driver_style";
    // `run_in_child` runs the body in a child process, which stops after its own style.
    for style in STYLES {
        run_in_child(test, &[("ZE_SOFT_IPC", style)], || {
            for (handles, has_fd, native) in [
                (HandleFormat::Auto, true, 0),
                (HandleFormat::FdFunctions, true, 0),
                (HandleFormat::Fd, true, 64),
                (HandleFormat::Opaque, false, 64),
            ] {
                let provider = built(device().handles(handles));
                let region = allocate(&provider, 100).unwrap();
                let exports = Provider::export(&*provider).unwrap();
                if handles == HandleFormat::Opaque && std::env::var("ZE_SOFT_IPC").unwrap() == "classic" {
                    // The fd number in the handle would refer to another fd in the importer.
                    let refused = exports.export(&region).unwrap_err().to_string();
                    assert!(refused.contains("an fd of this process; use auto or fd"), "{refused}");
                    free(&provider, region).unwrap();
                    continue;
                }
                let export = exports.export(&region).unwrap();
                assert_eq!(
                    (export.fd.is_some(), export.native.as_slice().len()),
                    (has_fd, native),
                    "{handles:?}"
                );
                assert!(export.allocation_id > 0);
                let found = if handles == HandleFormat::Auto { HandleFormat::FdFunctions } else { handles };
                assert_eq!(provider.handles(), found);
                exports.unexport(&region, export).unwrap();
                free(&provider, region).unwrap();
            }
        });
        if std::env::var_os("TESTS_DRIVER_CHILD").is_some() {
            return;
        }
    }
}

#[test]
fn each_unexport_releases_one_handle() {
    run_in_child("handles::each_unexport_releases_one_handle", &[("ZE_SOFT_IPC", "opaque")], || {
        let user = User::direct();
        for handles in [HandleFormat::FdFunctions, HandleFormat::Fd, HandleFormat::Opaque] {
            let provider = built(device().handles(handles));
            let region = allocate(&provider, 100).unwrap();
            let exports = Provider::export(&*provider).unwrap();
            let (first, second) = (exports.export(&region).unwrap(), exports.export(&region).unwrap());
            assert_eq!(user.count(c"exports"), 1, "one handle, asked for twice");
            exports.unexport(&region, first).unwrap();
            assert_eq!(user.count(c"exports"), 1);
            let again = second.clone();
            exports.unexport(&region, second).unwrap();
            assert_eq!(user.count(c"exports"), 0);
            let twice = exports.unexport(&region, again).unwrap_err();
            assert!(matches!(twice, Error::InvalidArgument { .. }), "{twice}");
            free(&provider, region).unwrap();
        }
    });
}

#[test]
fn unexport_closes_fd_if_driver_cannot_put_handles() {
    let settings = [("ZE_SOFT_API", "1.5"), ("ZE_SOFT_IPC", "opaque")];
    run_in_child("handles::unexport_closes_fd_if_driver_cannot_put_handles", &settings, || {
        for handles in [HandleFormat::Auto, HandleFormat::Fd, HandleFormat::Opaque] {
            let provider = built(device().handles(handles));
            let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let region = allocate(&provider, 100).unwrap();
            let exports = Provider::export(&*provider).unwrap();
            // The first export may open the socket on which the driver serves fds.
            exports.unexport(&region, exports.export(&region).unwrap()).unwrap();
            let before = fds();
            for _ in 0..20 {
                let export = exports.export(&region).unwrap();
                assert!(fds() > before);
                exports.unexport(&region, export).unwrap();
                assert_eq!(fds(), before, "{handles:?}");
            }
            free(&provider, region).unwrap();
        }
    });
}

#[test]
fn allocation_opened_twice_is_closed_once() {
    for opens in ["once", "each"] {
        run_in_child("handles::allocation_opened_twice_is_closed_once", &[("ZE_SOFT_OPEN", opens)], || {
            let user = User::direct();
            let provider = built(device());
            let region = allocate(&provider, 100).unwrap();
            super::put(&provider, &region, b"twice");
            let exports = Provider::export(&*provider).unwrap();
            let imports = provider.import().unwrap();
            let export = exports.export(&region).unwrap();
            let open = || {
                let fd = export.fd.as_ref().unwrap().try_clone().unwrap();
                imports.import(ImportRequest::new(Some(fd), 0, region.size(), Access::ReadWrite)).unwrap()
            };
            let before = user.count(c"allocations");
            let (one, other) = (open(), open());
            let is_once = std::env::var("ZE_SOFT_OPEN").unwrap() == "once";
            assert_eq!(one.base == other.base, is_once);
            // SAFETY: released once each, here and below.
            unsafe { imports.release(one) }.unwrap();
            let mut bytes = [0; 5];
            // SAFETY: it is open still.
            unsafe { imports.transfer().unwrap().read(other.base, &mut bytes) }.unwrap();
            assert_eq!(&bytes, b"twice");
            // SAFETY: as above.
            unsafe { imports.release(other) }.unwrap();
            // SAFETY: an error is expected: it is closed.
            assert!(unsafe { imports.release(other) }.is_err());
            assert_eq!(user.count(c"allocations"), before);
            exports.unexport(&region, export).unwrap();
            free(&provider, region).unwrap();
        });
        if std::env::var_os("TESTS_DRIVER_CHILD").is_some() {
            return;
        }
    }
}

/// Contexts and command lists that are kept for later use are destroyed on request, but not while a
/// provider or an open import uses them.
#[test]
fn release_unused_destroys_idle_objects_only() {
    run_in_child("handles::release_unused_destroys_idle_objects_only", &[], || {
        let user = User::direct();
        let others = (user.count(c"contexts"), user.count(c"lists"));
        let count = || (user.count(c"contexts") - others.0, user.count(c"lists") - others.1);
        let provider = built(device());
        let region = allocate(&provider, 100).unwrap();
        super::put(&provider, &region, b"kept");
        let exports = Provider::export(&*provider).unwrap();
        let export = exports.export(&region).unwrap();
        let imports = LevelZeroImport::new(super::soft());
        let fd = export.fd.as_ref().unwrap().try_clone().unwrap();
        let request = ImportRequest::new(Some(fd), 0, region.size(), Access::ReadWrite);
        let import = imports.import(request).unwrap();
        exports.unexport(&region, export).unwrap();
        free(&provider, region).unwrap();
        drop(provider);

        let mut bytes = [0; 4];
        for _ in 0..2 {
            // SAFETY: it is open.
            unsafe { imports.transfer().unwrap().read(import.base, &mut bytes) }.unwrap();
            assert_eq!((&bytes, count()), (b"kept", (1, 1)));
            release_unused();
        }
        // SAFETY: it is released once.
        unsafe { imports.release(import) }.unwrap();
        assert_eq!(count(), (1, 1));
        release_unused();
        assert_eq!(count(), (0, 0));

        let provider = built(device());
        let region = allocate(&provider, 100).unwrap();
        super::put(&provider, &region, b"again");
        release_unused();
        assert_eq!(super::get(&provider, &region, 5), b"again");
        free(&provider, region).unwrap();
        drop(provider);
        release_unused();
        assert_eq!(count(), (0, 0));
    });
}
