//! What is in exports, and that each handle is put back once.

use umf_core::{Access, Error, ImportRequest, Provider};
use umf_provider_level_zero::Handles;

use super::driver::{User, with};
use super::{allocate, built, device, free};

const STYLES: [&str; 4] = ["classic", "opaque", "opaque-pidfd", "opaque-socket"];

#[test]
fn each_way_carries_what_it_says_under_every_kind_of_driver() {
    let test = "handles::each_way_carries_what_it_says_under_every_kind_of_driver";
    // (The child has one of them.)
    for style in STYLES {
        with(test, &[("ZE_SOFT_IPC", style)], || {
            for (handles, has_fd, native) in [
                (Handles::Auto, true, 0),
                (Handles::FdFunctions, true, 0),
                (Handles::Fd, true, 64),
                (Handles::Opaque, false, 64),
            ] {
                let provider = built(device().handles(handles));
                let region = allocate(&provider, 100).unwrap();
                let exports = Provider::export(&*provider).unwrap();
                if handles == Handles::Opaque && std::env::var("ZE_SOFT_IPC").unwrap() == "classic" {
                    // In another process its number would mean something else.
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
                let found = if handles == Handles::Auto { Handles::FdFunctions } else { handles };
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
fn handles_are_put_back_as_often_as_they_were_got() {
    with("handles::handles_are_put_back_as_often_as_they_were_got", &[("ZE_SOFT_IPC", "opaque")], || {
        let user = User::direct();
        for handles in [Handles::FdFunctions, Handles::Fd, Handles::Opaque] {
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
fn before_handles_were_put_back_their_fds_are_closed() {
    let settings = [("ZE_SOFT_API", "1.5"), ("ZE_SOFT_IPC", "opaque")];
    with("handles::before_handles_were_put_back_their_fds_are_closed", &settings, || {
        for handles in [Handles::Auto, Handles::Fd, Handles::Opaque] {
            let provider = built(device().handles(handles));
            let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let region = allocate(&provider, 100).unwrap();
            let exports = Provider::export(&*provider).unwrap();
            // The first may open a socket, on which the driver serves from then on.
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
fn one_allocation_opened_twice_is_closed_once() {
    for opens in ["once", "each"] {
        with("handles::one_allocation_opened_twice_is_closed_once", &[("ZE_SOFT_OPEN", opens)], || {
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
