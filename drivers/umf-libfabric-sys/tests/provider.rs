//! A provider that libfabric loads (`examples/empty_provider.rs`).
//!
//! `TESTS_LIBFABRIC` names another library than the system's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::ffi::{CStr, OsString};
use std::process::Command;
use std::ptr::{null, null_mut};

use libfabric_sys::*;

const CHILD: &str = "TESTS_LIBFABRIC_CHILD";

/// Runs in a process of its own: the library reads `FI_PROVIDER_PATH` once.
#[test]
fn provider_is_listed_and_opened() {
    let path = std::env::var_os("TESTS_LIBFABRIC").unwrap_or_else(|| OsString::from(LIBRARY));
    // SAFETY: the system's library, or the one that the user of the test names.
    let library = match unsafe { Library::open(&path) } {
        Ok(library) => library,
        Err(error) => return println!("umf-skip: provider_is_listed_and_opened: {error}"),
    };
    if std::env::var_os(CHILD).is_some() {
        return use_provider(&library);
    }
    let program = std::env::current_exe().unwrap();
    let built = program.ancestors().nth(2).unwrap().join("examples/libempty_provider.so");
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(&built, folder.path().join("libempty-fi.so")).unwrap();
    let mut child = Command::new(program);
    child.args(["--exact", "provider_is_listed_and_opened", "--nocapture"]);
    let child = child.env(CHILD, "1").env("FI_PROVIDER_PATH", folder.path()).output().unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("listed and opened"), "{output}");
}

fn use_provider(library: &Library) {
    let hints = library.fi_allocinfo();
    let (mut list, mut fabric, mut domain) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the calls have the arguments that the interface requires.
    unsafe {
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"empty".as_ptr());
        let version = library.version();
        assert_eq!(library.fi_getinfo(version, null(), null(), 0, hints, &raw mut list), FI_SUCCESS);
        assert!((*list).next.is_null());
        let attributes = (*list).fabric_attr;
        assert_eq!(CStr::from_ptr((*attributes).prov_name), c"empty");
        assert_eq!((*attributes).api_version, version);
        if version >= make_version(2, 5) {
            let added: *mut fi_domain_attr_2_5 = (*list).domain_attr.cast();
            assert_eq!((*added).max_err_cntr_value, 1000);
        }
        (*(*hints).ep_attr).r#type = FI_EP_DGRAM;
        let mut none = null_mut();
        assert_eq!(library.fi_getinfo(version, null(), null(), 0, hints, &raw mut none), -FI_ENODATA);

        assert_eq!(library.fi_fabric(attributes, &raw mut fabric, null_mut()), FI_SUCCESS);
        assert_eq!((*fabric).api_version, version);
        assert_eq!(fi_domain(fabric, list, &raw mut domain, null_mut()), -FI_ENOSYS);
        assert_eq!(fi_close(fabric.cast()), FI_SUCCESS);
        library.fi_freeinfo(list);
        library.fi_freeinfo(hints);
    }
    println!("listed and opened");
}
