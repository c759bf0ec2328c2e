//! The `umf` command over Level Zero: with the software driver behind the system's loader, and
//! without a driver.

// Clippy does not treat functions that tests share as tests.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Returns the path of the driver that cargo built beside this test.
fn driver() -> PathBuf {
    let beside = std::env::current_exe().unwrap().with_file_name("libze_soft.so");
    assert!(beside.exists(), "{} is not there", beside.display());
    beside
}

fn umf(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZE_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .stdin(Stdio::null())
        .current_dir(std::env::temp_dir())
        .env("HOME", "/nonexistent")
        .env("ZE_ENABLE_ALT_DRIVERS", driver())
        .envs(variables.iter().copied());
    command.output().unwrap()
}

/// Returns the finding of `umf info` about a library or a driver.
fn finding(key: &str, variables: &[(&str, &str)]) -> Value {
    let Output { status, stdout, stderr } = umf(&["info", "--json"], variables);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let report: Value = serde_json::from_slice(&stdout).unwrap();
    report["devices"][key].clone()
}

/// Returns whether the system lacks a loader, and prints a skip line if so.
fn lacks_loader(test: &str) -> bool {
    let is_lacking = finding("libze_loader.so.1", &[])["state"] != "ok";
    if is_lacking {
        println!("umf-skip: {test}: no libze_loader.so.1 (Debian: libze1)");
    }
    is_lacking
}

#[test]
fn ranks_share_device_memory_with_each_handle_type() {
    if lacks_loader("ranks_share_device_memory_with_each_handle_type") {
        return;
    }
    for (style, handles, carried) in [
        ("classic", "fd", "a descriptor and 64 bytes of the driver's"),
        ("classic", "auto", "a descriptor"),
        ("opaque-pidfd", "fd", "a descriptor and 64 bytes of the driver's"),
        ("opaque", "opaque", "64 bytes of the driver's"),
        ("opaque-socket", "opaque", "64 bytes of the driver's"),
    ] {
        let variables = [("ZE_SOFT_IPC", style), ("UMF_PROVIDER_LEVEL_ZERO_HANDLES", handles)];
        let arguments = ["demo", "--provider", "level-zero", "--blocks", "12", "--size", "70000", "--json"];
        let Output { status, stdout, stderr } = umf(&arguments, &variables);
        let stderr_text = String::from_utf8_lossy(&stderr);
        if style == "opaque-pidfd" && stderr_text.contains("pidfd_getfd") {
            println!("umf-skip: {style}: the kernel refuses pidfd_getfd here");
            continue;
        }
        assert!(status.success(), "{style}, {handles}: {status}: {stderr_text}");
        let outcome: Value = serde_json::from_slice(&stdout).unwrap();
        assert_eq!((&outcome["ranks"], &outcome["opens"]), (&4.into(), &144.into()));
        assert_eq!((&outcome["stale_refused"], &outcome["provider"]), (&12.into(), &"level-zero".into()));
        assert_eq!(outcome["left_behind"].as_array().unwrap().len(), 0, "{outcome}");
        // A loader without the newer interface limits the choice.
        let found = outcome["carried"].as_str().unwrap();
        assert!(
            found == carried || handles == "auto" && found.starts_with(carried),
            "{style}, {handles}: {found}"
        );
    }
}

#[test]
fn unsupported_settings_are_refused() {
    if lacks_loader("unsupported_settings_are_refused") {
        return;
    }
    let demo = ["demo", "--provider", "level-zero", "--ranks", "2", "--blocks", "1"];
    for (variables, part) in [
        (vec![("UMF_PROVIDER_LEVEL_ZERO_HANDLES", "opaque")], "its handles are an fd of this process"),
        (vec![("UMF_PROVIDER_LEVEL_ZERO_DEVICE", "2")], "below the number of devices"),
        (vec![("UMF_PROVIDER_LEVEL_ZERO_DEVICE_DRIVER", "9")], "below the number of"),
        (vec![("UMF_PROVIDER_LEVEL_ZERO_NUMA", "local")], "of kind \"host\""),
        (vec![("UMF_PROVIDER_LEVEL_ZERO_MEMORY", "host")], "cannot be exported"),
        (vec![("ZE_SOFT_MEMORY", "128K"), ("UMF_POOL_DEFAULTS_SLAB_MIN_SIZE", "256KiB")], "out of memory"),
    ] {
        let output = umf(&demo, &variables);
        let stderr = String::from_utf8_lossy(&output.stderr);
        // Invalid settings have exit code 2.
        let code = if part.starts_with("of kind") { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{variables:?}: {stderr}");
        assert!(stderr.contains(part), "{variables:?}: {stderr}");
    }
    let other = umf(&["demo", "--provider", "nowhere"], &[]);
    let stderr = String::from_utf8_lossy(&other.stderr);
    assert!(stderr.contains("no provider \"nowhere\""), "{stderr}");
}

#[test]
fn missing_driver_is_named_with_remedy() {
    let nowhere = [("ZE_ENABLE_ALT_DRIVERS", "/nowhere/libze_none.so")];
    let output = umf(&["demo", "--provider", "level-zero"], &nowhere);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    let what = if lacks_loader("missing_driver_is_named_with_remedy: the driver") {
        "its loader libze_loader.so.1 cannot be opened (install it, Debian: libze1)"
    } else {
        assert_eq!(finding("level-zero", &nowhere)["state"], "missing");
        "its loader finds no driver"
    };
    assert!(stderr.contains(what), "{stderr}");
}

#[test]
fn info_lists_devices() {
    if lacks_loader("info_lists_devices") {
        return;
    }
    let found = finding("level-zero", &[("ZE_SOFT_DEVICES", "3"), ("ZE_SOFT_SUBDEVICES", "2")]);
    assert_eq!(found["state"], "ok", "{found}");
    let devices = found["value"][0]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 3);
    assert_eq!((&devices[0]["memory"], &devices[0]["parts"]), (&(1_u64 << 30).into(), &2.into()));
}
