//! `umf info` in the guest of `tests/vm/run dma-buf-sources`, which has every source of dma-bufs:
//! as root, as an unprivileged user, and at each yama scope that can be reset.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::Value;

const UNPRIVILEGED_UID: u32 = 65_534;

fn is_the_guest(test: &str) -> bool {
    let is_it = std::env::var_os("TESTS_GUEST").is_some_and(|boot| boot == "dma-buf-sources");
    if !is_it {
        println!("umf-skip: {test}: looks at the guest of tests/vm/run dma-buf-sources");
    }
    is_it
}

/// Runs `umf info --json` as a user. Returns `None`, and prints a skip line, outside of the guest.
fn report(test: &str, user: Option<u32>) -> Option<Value> {
    if !is_the_guest(test) {
        return None;
    }
    // A path that every user can reach.
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
fn dma_buf_sources_report_their_limits() {
    let Some(devices) = devices("dma_buf_sources_report_their_limits", None) else { return };
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
fn unprivileged_user_gets_remedies() {
    let Some(devices) = devices("unprivileged_user_gets_remedies", Some(UNPRIVILEGED_UID)) else { return };
    let refused = |finding: &Value, remedy: &str| {
        assert_eq!(finding["state"], "missing", "{finding}");
        assert!(finding["text"].as_str().unwrap().contains("refused (EACCES)"), "{finding}");
        assert!(finding["remedy"].as_str().unwrap().contains(remedy), "{finding}");
    };
    refused(&devices["udmabuf"], "group kvm");
    refused(&devices["dma_heap/system"], "udev rule");
    // Limits are readable for every user.
    assert_eq!(devices["udmabuf"]["value"]["size_limit_mb"], 64);
}

/// Returns the group "transfer". Retries: a busy guest may exceed the two seconds of a trial.
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
fn auto_names_mode_and_reason() {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    const TEST: &str = "auto_names_mode_and_reason";
    if !is_the_guest(TEST) {
        return;
    }
    let before = std::fs::read_to_string(SCOPE).unwrap();
    for (scope, remedy) in [
        ("1", "sysctl kernel.yama.ptrace_scope=0, or UMF_IPC_PTRACER=any in the producer"),
        ("2", "sysctl kernel.yama.ptrace_scope=0, grant CAP_SYS_PTRACE"),
    ] {
        std::fs::write(SCOPE, scope).unwrap();
        let transfer = transfer(TEST, Some(UNPRIVILEGED_UID));
        let auto = &transfer["auto"];
        assert_eq!((&auto["value"], &auto["state"]), (&"procfs".into(), &"limited".into()), "scope {scope}");
        let text = auto["text"].as_str().unwrap();
        assert!(text.starts_with("procfs, and socket for dma-buf, since pidfd is refused ("), "{text}");
        assert!(text.contains(&format!("kernel.yama.ptrace_scope is {scope}")), "{text}");
        let pidfd = transfer["pidfd"]["remedy"].as_str().unwrap();
        assert!(pidfd.contains(remedy), "scope {scope}: {pidfd}");
    }
    // A process that may trace all others is not restricted.
    assert_eq!(transfer(TEST, None)["auto"]["text"], "pidfd");
    std::fs::write(SCOPE, before).unwrap();
}
