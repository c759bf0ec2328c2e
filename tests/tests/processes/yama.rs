//! Exchange modes at each `kernel.yama.ptrace_scope`, between siblings of one unprivileged user,
//! for memfds and dma-bufs. A guest of `tests/vm/run` sets each scope; elsewhere the current scope
//! is tested.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use umf::Handle;
use umf_tests::{Actor, Spawn, machine, spawn};

const OTHER_UID: u32 = 65534;
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

fn scope() -> Option<u32> {
    std::fs::read_to_string(SCOPE).ok()?.trim().parse().ok()
}

/// Returns the scopes to test, in ascending order. Scope 3 cannot be lowered until the next boot.
fn scopes() -> Vec<u32> {
    match scope() {
        Some(now @ 0..=3) if machine::is_guest() => (now..=3).collect(),
        Some(now) => vec![now],
        None => Vec::new(),
    }
}

/// Kinds of memory, with the actor's kind of pool.
const KINDS: [(&str, &str); 2] = [("memfd", "isolated"), ("dma-buf", "dma-buf udmabuf")];

/// Returns a process with one exchange mode, and with a directory for the mode `directory`.
fn in_mode(mode: &str, directory: &Path) -> Spawn {
    let spawn = spawn!().env("UMF_IPC_EXCHANGE", mode);
    if mode == "directory" { spawn.env("UMF_IPC_DIR", directory.to_str().unwrap()) } else { spawn }
}

/// Starts a producer with one block. It opens the device as root and then changes its user.
fn producer(mode: &str, ptracer: &str, kind: &str, directory: &Path) -> (Actor, Handle) {
    let mut producer = in_mode(mode, directory).env("UMF_IPC_PTRACER", ptracer).start();
    producer.ok(&format!("pool p {kind}"));
    producer.ok("alloc p 10000 -> p.b");
    producer.ok("fill p.b 9");
    producer.ok(&format!("setuid {OTHER_UID}"));
    producer.ok("dumpable 1");
    let handle = producer.handle("handle p.b");
    (producer, handle)
}

fn importer(mode: &str, uid: u32, log: &Path, directory: &Path) -> Actor {
    let log = format!("level:debug;output:file,{}", log.display());
    let mut importer = in_mode(mode, directory).env("UMF_LOG", &log).start();
    if uid != 0 {
        importer.ok(&format!("setuid {uid}"));
        importer.ok("dumpable 1");
    }
    importer
}

/// Returns the expected parts of the error, or `None` if the mode works.
fn expected(mode: &str, kind: &str, scope: u32, ptracer: &str, uid: u32) -> Option<&'static [&'static str]> {
    match (mode, scope) {
        ("pidfd", 1) if uid != 0 && ptracer != "any" => {
            Some(&["ptrace_scope is 1, so only ancestors may attach", "UMF_IPC_PTRACER=any in the producer"])
        }
        ("pidfd", 2) if uid != 0 => Some(&["ptrace_scope is 2, so only CAP_SYS_PTRACE may attach"]),
        ("pidfd", 3) => Some(&["ptrace_scope is 3", "until the next boot"]),
        ("procfs", _) if kind == "dma-buf" => Some(&[
            "memory of a device (a dma-buf, CUDA memory) cannot be opened through /proc",
            "use pidfd or socket",
        ]),
        _ => None,
    }
}

#[test]
fn each_yama_scope_permits_documented_modes_and_auto_works() {
    const TEST: &str = "each_yama_scope_permits_documented_modes_and_auto_works";
    if !machine::is_root() {
        return machine::skip(TEST, "changing the user needs root");
    }
    let scopes = scopes();
    if scopes.is_empty() {
        return machine::skip(TEST, "this kernel has no yama");
    }
    let kinds: Vec<_> = KINDS
        .into_iter()
        .filter(|(kind, _)| {
            let error = umf::dma_buf::Udmabuf::open().err().filter(|_| *kind != "memfd");
            if let Some(error) = &error {
                machine::skip(TEST, &error.to_string());
            }
            error.is_none()
        })
        .collect();
    // Producers with an explicit mode do not depend on the scope at their start.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let directory = directory.path();
    let mut explicit = Vec::new();
    for (kind, pool) in &kinds {
        for (mode, ptracer) in [
            ("pidfd", "none"),
            ("pidfd", "any"),
            ("procfs", "none"),
            ("socket", "none"),
            ("directory", "none"),
        ] {
            explicit.push((mode, ptracer, *kind, producer(mode, ptracer, pool, directory)));
        }
    }
    let log = std::env::temp_dir().join(format!("umf-yama-{}", std::process::id()));
    let mut importers: Vec<_> = ["pidfd", "procfs", "socket", "directory", "auto"]
        .into_iter()
        .map(|mode| (mode, OTHER_UID))
        // Root can open through pidfd only: a socket answers its own user alone.
        .chain([("pidfd", 0)])
        .map(|(mode, uid)| {
            let log = if mode == "auto" { log.as_path() } else { Path::new("/dev/null") };
            (mode, uid, importer(mode, uid, log, directory))
        })
        .collect();
    let mut by_auto = Vec::new();
    for wanted in scopes {
        if scope() != Some(wanted) {
            std::fs::write(SCOPE, wanted.to_string()).unwrap();
        }
        assert_eq!(scope(), Some(wanted));
        let auto = |pool: &str| producer("auto", "none", pool, directory);
        let found: Vec<_> = kinds.iter().map(|(kind, pool)| ("auto", "none", *kind, auto(pool))).collect();
        for (mode, ptracer, kind, (_, handle)) in explicit.iter().chain(&found) {
            if *mode == "auto" {
                by_auto.push((wanted, *kind, handle.pid()));
                // The producer serves a socket only if no other mode works.
                assert_eq!(handle.is_served(), *kind == "dma-buf" && wanted > 0, "{kind} at scope {wanted}");
            }
            for (_, uid, importer) in importers.iter_mut().filter(|(permitted, ..)| permitted == mode) {
                let case = format!("scope {wanted}, {kind} by {mode}, ptracer {ptracer}, importer {uid}");
                check_open(importer, handle, expected(mode, kind, wanted, ptracer, *uid), &case);
            }
        }
    }
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    for (wanted, kind, pid) in by_auto {
        check_log_of_auto(&text, wanted, kind, pid);
    }
}

/// Opens a handle, which must work, or fail with the expected reasons.
fn check_open(importer: &mut Actor, handle: &Handle, expected: Option<&[&str]>, case: &str) {
    match (expected, importer.ask(&format!("open {handle} -> m"))) {
        (None, opened) => {
            assert!(opened.is_ok(), "{case}: {opened:?}");
            importer.check("m", 9);
            importer.ok("close m");
            importer.ok("evict");
        }
        (Some(_), Ok(_)) => panic!("{case}: works"),
        (Some(reasons), Err(failure)) => {
            assert_eq!(failure.variant, "NotPermitted", "{case}: {failure}");
            for reason in reasons {
                assert!(failure.message.contains(reason), "{case}: {failure}");
            }
        }
    }
}

/// The log has the mode that `auto` used, and why those before it were refused.
fn check_log_of_auto(text: &str, wanted: u32, kind: &str, pid: u32) {
    let mode = match (wanted, kind) {
        (0, _) => "pidfd",
        (_, "memfd") => "procfs",
        _ => "socket",
    };
    let lines: Vec<_> = text.lines().filter(|line| line.contains(&format!("pid={pid} "))).collect();
    let is_logged =
        |event: &str, detail: &str| lines.iter().any(|line| line.contains(event) && line.contains(detail));
    let case = format!("{kind} at scope {wanted}: {text}");
    assert!(is_logged("fetched an fd", &format!("mode={mode}")), "{case}");
    assert!(wanted == 0 || is_logged("mode=pidfd", &format!("ptrace_scope is {wanted}")), "{case}");
    assert!(mode != "socket" || is_logged("mode=procfs", "a dma-buf"), "{case}");
}

/// If the kernel refuses reads of sibling processes, a link reports that and uses bounce buffers.
/// If the scope changes while the link exists, the link falls back and counts the refusal.
#[test]
fn link_falls_back_where_yama_refuses_reads() {
    const TEST: &str = "link_falls_back_where_yama_refuses_reads";
    if !machine::is_root() {
        return machine::skip(TEST, "changing the user needs root");
    }
    let scopes = scopes();
    if scopes.is_empty() {
        return machine::skip(TEST, "this kernel has no yama");
    }
    let set = |wanted: u32| {
        if scope() != Some(wanted) {
            std::fs::write(SCOPE, wanted.to_string()).unwrap();
        }
    };
    let actor = || {
        let mut actor = spawn!().start();
        actor.ok(&format!("setuid {OTHER_UID}"));
        actor.ok("dumpable 1");
        actor
    };
    let message = |one: &mut Actor, other: &mut Actor| {
        other.send("link-recv link 1 1000000 3");
        one.ok("link-send link 1 1000000 3");
        other.answer(std::time::Duration::from_secs(60)).unwrap()
    };
    for &wanted in &scopes {
        set(wanted);
        let (mut one, mut other) = (actor(), actor());
        let join = |one: &mut Actor, other: &mut Actor| {
            let address = one.ok("link-bind end");
            one.send("link-accept end 30000 -> link");
            other.ok(&format!("link-connect {address} 30000 -> link"));
            one.answer(std::time::Duration::from_secs(60)).unwrap();
            one.ok("link-unbind end");
        };
        join(&mut one, &mut other);
        let engines = other.ok("link-engines link");
        if wanted == 0 {
            assert!(!engines.contains("refused"), "{engines}");
            assert_eq!(message(&mut one, &mut other), "1000000 both same");
            if scopes.contains(&1) {
                set(1);
                assert_eq!(message(&mut one, &mut other), "1000000 bounce same");
                let statistics = other.ok("link-statistics link");
                assert!(statistics.contains("refused-cma=1"), "{statistics}");
                set(0);
            }
        } else {
            assert!(engines.contains("cma     refused: process_vm_readv"), "{engines}");
            assert!(engines.contains("ptrace_scope"), "{engines}");
            assert_eq!(message(&mut one, &mut other), "1000000 bounce same");
            assert!(other.ok("link-statistics link").contains("refused-cma=0"), "the link does not try cma");
        }
        one.finish();
        other.finish();
    }
}
