//! C programs that are independent of this project, over the system's loader: with and without its
//! validation layer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod driver;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use driver::{clean, describe, library, skip};
use level_zero_sys::Api;

/// Builds a program and returns its path. Returns `None`, after it has reported why, if the machine
/// cannot build or run it.
fn program(test: &str, name: &str, folder: &Path) -> Option<PathBuf> {
    let include = std::env::var_os("TESTS_ZE_INCLUDE").map_or("/usr/include".into(), PathBuf::from);
    if !include.join("level_zero/ze_api.h").exists() {
        skip(test, "no header of Level Zero (Debian: apt-get install libze-dev)");
        return None;
    }
    // SAFETY: the system's loader.
    if let Err(error) = unsafe { Api::load() } {
        skip(test, &error.to_string());
        return None;
    }
    if Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_err() {
        skip(test, "no C compiler (Debian: apt-get install gcc libc6-dev)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let binary = folder.join(name);
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(include);
    compile.arg(source).arg("-o").arg(&binary).args(["-l:libze_loader.so.1", "-ldl"]);
    assert!(compile.status().unwrap().success(), "cannot build {name}");
    Some(binary)
}

fn run(program: &Path, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(program).args(arguments).stdin(Stdio::null());
    clean(&mut command).env("ZE_ENABLE_ALT_DRIVERS", library()).envs(settings.iter().copied());
    // The address range in which the programs count mappings.
    command.env("ZE_SOFT_ADDRESSES", "0x100000000000-0x110000000000");
    command.output().unwrap()
}

const VALIDATED: [(&str, &str); 2] =
    [("ZE_ENABLE_VALIDATION_LAYER", "1"), ("ZE_ENABLE_PARAMETER_VALIDATION", "1")];

/// Runs a program with and without the validation layer. Requires that it succeeds and writes no
/// errors.
fn passes(test: &str, name: &str, arguments: &[&str], settings: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let Some(binary) = program(test, name, folder.path()) else { return };
    for layers in [&[][..], &VALIDATED] {
        let settings = [settings, layers].concat();
        let output = run(&binary, arguments, &settings);
        let text = describe(&output);
        assert!(output.status.success(), "{name} {arguments:?} {settings:?}: {text}");
        assert_eq!(output.stdout, b"done\n", "{text}");
        assert!(output.stderr.is_empty(), "{text}");
    }
}

#[test]
fn copies_work_in_both_directions() {
    passes("copies_work_in_both_directions", "copy", &[], &[]);
}

#[test]
fn invalid_calls_are_errors() {
    for ipc in ["classic", "opaque-pidfd"] {
        passes("invalid_calls_are_errors", "errors", &[], &[("ZE_SOFT_IPC", ipc)]);
    }
}

#[test]
fn events_order_commands_of_two_queues() {
    passes("events_order_commands_of_two_queues", "events", &[], &[]);
}

/// The client transfers the fd of a classic handle. It passes an opaque handle on unchanged
/// (`raw`), or transfers an fd as for a classic one (`local`).
#[test]
fn processes_share_memory() {
    for (ipc, client) in [
        ("classic", "local"),
        ("opaque", "raw"),
        ("opaque", "local"),
        ("opaque-pidfd", "raw"),
        ("opaque-pidfd", "local"),
        ("opaque-socket", "raw"),
        ("opaque-socket", "local"),
    ] {
        passes("processes_share_memory", "ipc", &[client, "50"], &[("ZE_SOFT_IPC", ipc)]);
    }
}

/// Many handles leave no fds and no mappings in either process, which the program counts. With
/// `UMF_TESTS_LONG`, ten thousand handles.
#[test]
fn many_handles_leak_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let test = "many_handles_leak_nothing";
    let Some(binary) = program(test, "ipc", folder.path()) else { return };
    let rounds = if std::env::var_os("UMF_TESTS_LONG").is_some() { "10000" } else { "500" };
    for (ipc, client) in [("classic", "local"), ("opaque-pidfd", "raw")] {
        let output = run(&binary, &[client, rounds], &[("ZE_SOFT_IPC", ipc)]);
        assert!(output.status.success(), "{ipc}: {}", describe(&output));
    }
}

/// A classic handle without a transferred fd contains the number of an unrelated fd: opening it is
/// an error.
#[test]
fn classic_handle_of_another_process_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let test = "classic_handle_of_another_process_is_an_error";
    let Some(binary) = program(test, "ipc", folder.path()) else { return };
    let output = run(&binary, &["raw", "1"], &[("ZE_SOFT_IPC", "classic")]);
    assert!(!output.status.success(), "{}", describe(&output));
}

/// The CPU cannot access memory of a device.
#[test]
fn cpu_access_to_device_memory_is_a_segmentation_fault() {
    let folder = tempfile::tempdir().unwrap();
    let Some(binary) = program("cpu_access_to_device_memory_is_a_segmentation_fault", "touch", folder.path())
    else {
        return;
    };
    for what in ["read", "write"] {
        let mut command = Command::new(&binary);
        clean(&mut command).arg(what).env("ZE_ENABLE_ALT_DRIVERS", library());
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), Some(11), "{}", describe(&output));
        assert_eq!(output.stdout, b"allocated\n", "{what}");
    }
}

/// An invalid setting is named on standard error, and the loader has no driver.
#[test]
fn invalid_setting_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some(binary) = program("invalid_setting_is_named", "copy", folder.path()) else { return };
    let output = run(&binary, &[], &[("ZE_SOFT_DEVICES", "none")]);
    let text = describe(&output);
    assert!(!output.status.success() && text.contains("ZE_SOFT_DEVICES=none: a number"), "{text}");
}
