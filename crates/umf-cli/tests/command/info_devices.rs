//! What `umf info` says in the guest of `tests/vm/run dma-buf-sources`: of dma-bufs, of which it
//! has every source, to root and to somebody who may not; and of the ways between two processes, at
//! each scope of yama that can be taken back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

const NOBODY: u32 = 65_534;

fn is_the_guest(test: &str) -> bool {
    let is_it = std::env::var_os("TESTS_GUEST").is_some_and(|boot| boot == "dma-buf-sources");
    if !is_it {
        println!("umf-skip: {test}: looks at the guest of tests/vm/run dma-buf-sources");
    }
    is_it
}

/// The report of `umf info --json`, as a user sees it; `None`, with a line that says so, elsewhere.
fn report(test: &str, user: Option<u32>) -> Option<Value> {
    if !is_the_guest(test) {
        return None;
    }
    // Where every user can reach it.
    let copy = std::env::temp_dir().join(format!("umf-info-{}-{test}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_umf"), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&copy);
    command.args(["info", "--json"]);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().unwrap();
    std::fs::remove_file(&copy).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn devices(test: &str, user: Option<u32>) -> Option<Value> {
    report(test, user).map(|report| report["devices"].clone())
}

#[test]
fn every_source_works_and_says_how_far() {
    let Some(devices) = devices("every_source_works", None) else { return };
    let udmabuf = &devices["udmabuf"];
    assert_eq!(
        (&udmabuf["state"], &udmabuf["value"]["list_limit"]),
        (&"ok".into(), &1024.into()),
        "{udmabuf}"
    );
    assert_eq!(udmabuf["value"]["size_limit_mb"], 64);
    assert!(udmabuf["text"].as_str().unwrap().contains("64 MiB each in 1024 parts"), "{udmabuf}");
    assert_eq!(devices["dma_heap/system"]["state"], "ok");
}

#[test]
fn who_may_not_is_told_what_would_help() {
    let Some(devices) = devices("who_may_not_is_told", Some(NOBODY)) else { return };
    let refused = |finding: &Value, remedy: &str| {
        assert_eq!(finding["state"], "missing", "{finding}");
        assert!(finding["text"].as_str().unwrap().contains("refused (EACCES)"), "{finding}");
        assert!(finding["remedy"].as_str().unwrap().contains(remedy), "{finding}");
    };
    refused(&devices["udmabuf"], "group kvm");
    refused(&devices["dma_heap/system"], "udev rule");
    // Limits can be read by everybody.
    assert_eq!(devices["udmabuf"]["value"]["size_limit_mb"], 64);
}

/// What was tried between two processes. (A trial has two seconds, which a busy guest may not get:
/// then it says so.)
fn transfer(test: &str, user: Option<u32>) -> Value {
    let mut last = Value::Null;
    for _ in 0..10 {
        last = report(test, user).unwrap()["transfer"].clone();
        if !last["auto"]["value"].is_null() {
            break;
        }
    }
    last
}

#[test]
fn auto_names_the_way_that_it_takes_and_why() {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    const TEST: &str = "auto_names_the_way";
    if !is_the_guest(TEST) {
        return;
    }
    let before = std::fs::read_to_string(SCOPE).unwrap();
    for (scope, remedy) in [
        ("1", "sysctl kernel.yama.ptrace_scope=0, or UMF_IPC_PTRACER=any in the producer"),
        ("2", "sysctl kernel.yama.ptrace_scope=0, grant CAP_SYS_PTRACE"),
    ] {
        std::fs::write(SCOPE, scope).unwrap();
        let transfer = transfer(TEST, Some(NOBODY));
        let auto = &transfer["auto"];
        assert_eq!((&auto["value"], &auto["state"]), (&"procfs".into(), &"limited".into()), "scope {scope}");
        let text = auto["text"].as_str().unwrap();
        assert!(text.starts_with("procfs, and socket for dma-buf, since pidfd is refused ("), "{text}");
        assert!(text.contains(&format!("kernel.yama.ptrace_scope is {scope}")), "{text}");
        let pidfd = transfer["pidfd"]["remedy"].as_str().unwrap();
        assert!(pidfd.contains(remedy), "scope {scope}: {pidfd}");
    }
    // Who may trace everybody is not concerned.
    assert_eq!(transfer(TEST, None)["auto"]["text"], "pidfd");
    std::fs::write(SCOPE, before).unwrap();
}
