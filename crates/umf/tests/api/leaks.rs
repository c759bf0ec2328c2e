//! Leak reports at the exit of a process. The test starts itself again as these processes.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use umf::{Leaks, Pool, PoolBuilder};

/// The environment variable that holds the task of a child process of this test.
const TASK: &str = "LEAKS_TASK";
const TEST: &str = "leaks::exiting_process_reports_leaks";

static POOL: OnceLock<Pool> = OnceLock::new();

#[inline(never)]
fn leaking_place(pool: &Pool, size: usize) {
    std::mem::forget(std::hint::black_box(pool.allocate(size).unwrap()));
}

fn work(task: &str) {
    match task {
        // The pool exists until the process exits; the environment sets its checks.
        "exit" => leaking_place(POOL.get_or_init(|| Pool::named("left").unwrap()), 1000),
        "clean" => drop(POOL.get_or_init(|| Pool::named("left").unwrap()).allocate(1000).unwrap()),
        "drop" => leaking_place(&Pool::named("left").unwrap(), 1000),
        // A forked child does not report the leaks of its parent.
        "fork" => {
            leaking_place(POOL.get_or_init(|| Pool::named("left").unwrap()), 1000);
            // SAFETY: the child exits at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                std::process::exit(0);
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        // The callback may use the pool, and may panic.
        "hook" => {
            let checks = umf::CheckSettings::new().leaks(Leaks::Count).on_leaks(|report| {
                eprintln!("{} bytes leaked", report.bytes);
                drop(POOL.get().unwrap().allocate(10).unwrap());
                panic!("a mistake");
            });
            leaking_place(POOL.get_or_init(|| PoolBuilder::default().check(checks).build().unwrap()), 1000);
        }
        task => panic!("{task}"),
    }
    std::process::exit(7);
}

/// Runs a task in a new process. Returns what the process writes to standard error.
fn report_of(task: &str, leaks: &str) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
        .env(TASK, task)
        .env("UMF_POOL_LEFT_LEAKS", leaks)
        .env("UMF_LOG", "level:warning;output:stderr")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..600 {
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(7), "{task}: {text}");
            return text;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("{task} takes too long");
}

#[test]
fn exiting_process_reports_leaks() {
    if let Ok(task) = std::env::var(TASK) {
        return work(&task);
    }
    let text = report_of("exit", "count");
    assert!(text.contains("1 blocks, 1024 bytes were never freed, at the end of the process"), "{text}");
    assert!(text.contains("1 of 1024 bytes") && !text.contains("leaking_place"), "{text}");
    let text = report_of("drop", "count");
    assert!(text.contains("were never freed, at the end of the pool"), "{text}");
    for (task, leaks) in [("exit", "off"), ("clean", "sites")] {
        assert_eq!(report_of(task, leaks), "");
    }
    assert_eq!(report_of("fork", "count").matches("never freed").count(), 1);
    let text = report_of("hook", "off");
    assert!(text.contains("1024 bytes leaked") && text.contains("a mistake"), "{text}");
    if umf_os::stack::capture().frames().next().is_none() {
        println!("umf-skip: this C library does not capture stacks");
        return;
    }
    let text = report_of("exit", "sites");
    assert!(text.contains("1 blocks, 1000 bytes requested"), "{text}");
    // The stack has symbol names and starts with the caller of umf.
    let first = text.split_once("ago, at\n").unwrap().1.lines().next().unwrap();
    assert!(first.contains("leaking_place") && first.contains("leaks.rs:"), "{text}");
}
