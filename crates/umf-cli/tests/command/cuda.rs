//! The `umf` command on CUDA memory, with the software driver in the library path.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Returns a folder in which `libcuda.so.1` is the software driver.
fn driver() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libcuda_soft.so");
    assert!(library.exists(), "{} is not there", library.display());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-soft");
    std::fs::create_dir_all(&folder).unwrap();
    // Several tests may create the same link at once.
    let _ = std::os::unix::fs::symlink(&library, folder.join("libcuda.so.1"));
    assert!(folder.join("libcuda.so.1").exists());
    folder
}

fn umf(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umf"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("UMF_") || name.to_string_lossy().starts_with("CUDA_") {
            command.env_remove(name);
        }
    }
    // Settings of the host must not influence the test.
    command
        .args(arguments)
        .stdin(Stdio::null())
        .current_dir(std::env::temp_dir())
        .env("HOME", "/nonexistent");
    command
}

fn text(mut command: Command) -> (bool, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn demo_shares_device_memory() {
    for memory in ["auto", "virtual", "device"] {
        for exchange in ["auto", "socket"] {
            let mut command = umf(&[
                "demo",
                "--provider",
                "cuda",
                "--ranks",
                "3",
                "--blocks",
                "6",
                "--exchange",
                exchange,
                "--json",
            ]);
            command.env("LD_LIBRARY_PATH", driver()).env("UMF_PROVIDER_CUDA_MEMORY", memory);
            let (done, out, error) = text(command);
            assert!(done, "{memory}: {error}");
            let outcome: Value = serde_json::from_str(&out).unwrap();
            assert_eq!((&outcome["handles"], &outcome["opens"]), (&18.into(), &36.into()), "{memory}");
            assert_eq!(outcome["stale_refused"], 6, "{memory}");
            assert_eq!(outcome["left_behind"].as_array().unwrap().len(), 0, "{memory}: {outcome}");
            let carried = outcome["carried"].as_str().unwrap();
            assert_eq!(carried.contains("descriptor"), memory != "device", "{memory}: {carried}");
        }
    }
}

/// `handles` is obeyed, or refused with a remedy: the device lacks fds, or has fabric handles.
#[test]
fn handles_setting_is_obeyed_or_refused() {
    for (lacks, memory, handles, expected) in [
        ("fds", "virtual", "fd", Err("use memory = \"device\" with handles = \"auto\"")),
        ("fds", "auto", "fd", Err("use memory = \"device\" with handles = \"auto\"")),
        ("fabric", "virtual", "opaque", Err("fabric handles")),
        ("", "device", "fd", Err("use handles = \"auto\"")),
        ("", "virtual", "opaque", Ok("64 bytes")),
        ("fabric", "auto", "opaque", Ok("64 bytes")),
        ("", "auto", "fd", Ok("descriptor")),
    ] {
        let mut command = umf(&["demo", "--provider", "cuda", "--ranks", "2", "--blocks", "2", "--json"]);
        command.env("LD_LIBRARY_PATH", driver()).env("UMF_PROVIDER_CUDA_MEMORY", memory);
        // An empty text would be the default.
        command.env("CUDA_SOFT_LACKS", if lacks.is_empty() { "dma-buf" } else { lacks });
        command.env("UMF_PROVIDER_CUDA_HANDLES", handles);
        let (done, out, error) = text(command);
        let case = format!("{lacks} {memory} {handles}: {out}{error}");
        match expected {
            Err(remedy) => assert!(!done && error.contains(remedy), "{case}"),
            Ok(carried) => {
                assert!(done, "{case}");
                let outcome: Value = serde_json::from_str(&out).unwrap();
                assert!(outcome["carried"].as_str().unwrap().contains(carried), "{case}");
            }
        }
    }
}

#[test]
fn provider_set_of_any_name_is_usable() {
    let mut command = umf(&["demo", "--provider", "gpu", "--ranks", "2", "--blocks", "2"]);
    command.env("LD_LIBRARY_PATH", driver()).env("UMF_PROVIDER_GPU_KIND", "cuda");
    let (done, out, error) = text(command);
    assert!(done && out.contains("left behind: nothing"), "{out}{error}");
}

#[test]
fn missing_driver_is_named() {
    let mut command = umf(&["demo", "--provider", "cuda"]);
    command.env_remove("LD_LIBRARY_PATH");
    let (done, out, error) = text(command);
    if done {
        return println!("umf-skip: missing_driver_is_named: this machine has one: {out}");
    }
    assert!(error.contains("libcuda.so.1") && error.contains("install"), "{error}");
    // A device without the requested feature.
    let mut command = umf(&["demo", "--provider", "cuda"]);
    command
        .env("LD_LIBRARY_PATH", driver())
        .env("CUDA_SOFT_LACKS", "virtual")
        .env("UMF_PROVIDER_CUDA_MEMORY", "virtual");
    let (done, _, error) = text(command);
    assert!(!done && error.contains("virtual"), "{error}");
}

#[test]
fn info_lists_device_abilities() {
    let mut command = umf(&["info", "--json"]);
    command.env("LD_LIBRARY_PATH", driver()).env("CUDA_SOFT_LACKS", "fabric,fds");
    let (done, out, error) = text(command);
    assert!(done, "{error}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let found = &report["devices"]["libcuda.so.1"];
    assert_eq!(found["state"], "limited", "{found}");
    assert_eq!(found["value"]["version"], "13.2", "{found}");
    let devices = found["value"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2, "{found}");
    assert_eq!(devices[0]["memory"], 1_u64 << 30);
    let has: Vec<&str> = devices[0]["has"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(has, ["virtual", "dma-buf", "managed"]);
}
