//! Device memory over the software drivers. If the original library is available, both must answer
//! alike.

use std::path::PathBuf;

use umf_provider_level_zero::sys::Api;

use crate::installed::installed;
use crate::programs::{With, alone_with, both_with, has};

/// Returns a software driver that cargo built beside this test.
fn beside(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// Returns the environment of a Level Zero program. Prints a skip line and returns `None` without a
/// loader.
pub fn level_zero(test: &str, handles: &'static str) -> Option<With> {
    let include = std::env::var_os("TESTS_ZE_INCLUDE").map_or("/usr/include".into(), PathBuf::from);
    if !include.join("level_zero/ze_api.h").exists() {
        println!("umf-skip: {test}: no header of Level Zero (Debian: apt-get install libze-dev)");
        return None;
    }
    // SAFETY: loads the system's loader.
    if let Err(error) = unsafe { Api::load() } {
        println!("umf-skip: {test}: {error}");
        return None;
    }
    Some(With {
        flags: vec!["-Wextra".into(), "-I".into(), include.into(), "-l:libze_loader.so.1".into()],
        libraries: None,
        variables: vec![
            ("ZE_ENABLE_ALT_DRIVERS", beside("libze_soft.so").into()),
            ("ZE_SOFT_IPC", handles.into()),
        ],
    })
}

/// Returns the environment of a CUDA program, with the software driver as `libcuda.so.1`.
pub fn cuda(test: &str) -> Option<With> {
    let folder = installed(test)?.prefix.join("drivers");
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join("libcuda.so.1");
    let driver = beside("libcuda_soft.so");
    if std::fs::read_link(&link).ok().as_ref() != Some(&driver) {
        let new = folder.join(format!("new-{:?}", std::thread::current().id()));
        std::os::unix::fs::symlink(driver, &new).unwrap();
        std::fs::rename(new, link).unwrap();
    }
    Some(With {
        flags: vec!["-Wextra".into(), "-DDRIVER_CUDA".into()],
        libraries: Some(folder),
        variables: Vec::new(),
    })
}

fn answers(test: &str, with: &With) {
    let Some(lines) = both_with(test, "devices", &["answers"], with) else { return };
    for line in [
        "umfMemoryProviderAlloc(p, 100, 0, &m) = 0",
        "umfMemoryProviderAllocationSplit(p, low, 8192, 4096) = 5",
        "hello",
        "in == the_context() = 1",
        "is_the_device(on, size, type) = 1",
        "better: umfMemoryProviderFree(p, m, 100) = 3",
        "better: umfMemoryProviderOpenIPCHandle(p, handle, &opened) = 0",
        "better: umfMemoryProviderOpenIPCHandle(p, handle, &opened) = 3",
        "better: umfOpenIPCHandle(handler, handle, &opened) = 0",
        "better: strcmp(text, \"hello\") = 0",
    ] {
        has(&lines, line);
    }
    // Each failure names the program's provider.
    assert!(!lines.iter().any(|line| line == "better: failed == p = 0"), "{lines:#?}");
    // The driver has no allocations left.
    let left: Vec<_> = lines.iter().filter(|line| line.contains("driver_count(\"allocations\")")).collect();
    assert!(left.len() == 9 && left.iter().all(|line| line.ends_with(" = 0")), "{left:#?}");
}

#[test]
fn level_zero_answers_as_the_original_does() {
    let test = "level_zero_answers_as_the_original_does";
    let Some(with) = level_zero(test, "classic") else { return };
    answers(test, &with);
}

/// With two drivers the loader wraps their handles, and no driver recognises host memory as its
/// own.
#[test]
fn level_zero_answers_with_two_drivers() {
    let test = "level_zero_answers_with_two_drivers";
    let Some(mut with) = level_zero(test, "opaque") else { return };
    let Some(installed) = installed(test) else { return };
    let second = installed.prefix.join("libze_second.so");
    std::fs::copy(beside("libze_soft.so"), &second).unwrap();
    let both = format!("{},{}", beside("libze_soft.so").display(), second.display());
    with.variables[0].1 = both.into();
    answers(test, &with);
}

#[test]
fn cuda_answers_as_the_original_does() {
    let test = "cuda_answers_as_the_original_does";
    let Some(with) = cuda(test) else { return };
    answers(test, &with);
}

/// Only a driver that the program has loaded is used.
#[test]
fn without_a_driver_there_is_no_provider() {
    let test = "without_a_driver_there_is_no_provider";
    if let Some(mut with) = level_zero(test, "classic") {
        with.variables.push(("UMF_ZE_LOADER_LIB_NAME", "libno_such_loader.so.1".into()));
        let Some(lines) = both_with(test, "devices", &["absent"], &with) else { return };
        has(&lines, "umfMemoryProviderCreate(OPS(), params, &p) = 7");
        has(&lines, "p != NULL = 0");
    }
    if let Some(with) = cuda(test) {
        let Some(lines) = both_with(test, "devices", &["absent"], &with) else { return };
        has(&lines, "umfCUDAMemoryProviderParamsCreate(&params) = 7");
        has(&lines, "dlopen(\"libcuda.so.1\", RTLD_NOW | RTLD_NOLOAD) != NULL = 0");
    }
}

fn share(test: &str, with: &With, pool: &str) {
    let Some(lines) = both_with(test, "devices", &["ipc", pool], with) else { return };
    for line in [
        "umfOpenIPCHandle(handler, handle, (void **)&first) = 2",
        "better: failed == p = 1",
        "child reads: question",
        "opened twice at one address: 1",
        "parent reads: answer",
        "better: closed once too often: 3",
        "better: opened after it was freed: 3",
        "status 0",
    ] {
        has(&lines, line);
    }
}

#[test]
fn two_processes_share_memory_of_devices() {
    let test = "two_processes_share_memory_of_devices";
    for (handles, pool) in [("classic", "disjoint"), ("opaque-pidfd", "proxy")] {
        if let Some(with) = level_zero(test, handles) {
            share(test, &with, pool);
        }
    }
    for pool in ["disjoint", "proxy"] {
        if let Some(with) = cuda(test) {
            share(test, &with, pool);
        }
    }
}

#[test]
fn threads_and_forked_children_use_devices() {
    let test = "threads_and_forked_children_use_devices";
    for with in [level_zero(test, "classic"), cuda(test)].into_iter().flatten() {
        let Some(lines) = alone_with(test, "devices", &["threads"], &with) else { return };
        assert_eq!(lines, ["wrong in a thread: 0", "wrong in a thread: 0", "left: 0"]);
        let Some(lines) = alone_with(test, "devices", &["forked"], &with) else { return };
        // The parent's driver is unusable in the child, and the parent's memory is unchanged.
        assert_eq!(lines, ["child: 1 1 5", "child destroys: 0", "status 0", "left: 0"]);
    }
}
