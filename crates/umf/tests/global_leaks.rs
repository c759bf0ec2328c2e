//! A program whose global allocator remembers where everything is allocated: it must not allocate
//! for that.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::process::{Command, Stdio};

use umf::{GlobalPool, Leaks};

#[global_allocator]
static ALLOCATOR: GlobalPool = GlobalPool::new().leaks(Leaks::Sites, 1);

const TASK: &str = "GLOBAL_LEAKS_TASK";

#[inline(never)]
fn leaking_place() {
    std::mem::forget(std::hint::black_box(vec![1_u8; 54_321]));
}

#[test]
fn global_pool_reports_leaks_at_exit() {
    if umf_os::stack::capture().frames().next().is_none() {
        println!("umf-skip: this C library does not capture stacks");
        return;
    }
    if std::env::var_os(TASK).is_some() {
        let threads: Vec<_> = (0..4)
            .map(|seed: usize| {
                std::thread::spawn(move || {
                    let mut all = std::collections::HashMap::new();
                    (0..2000).for_each(|n| drop(all.insert(n % 100, vec![seed; n % 500])));
                    // It allocates, while it holds locks of its own.
                    std::hint::black_box(std::backtrace::Backtrace::force_capture().to_string());
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        leaking_place();
        std::process::exit(7);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "global_pool_reports_leaks_at_exit", "--nocapture"])
        .env(TASK, "1")
        .stdout(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains("umf: pool global: ") && text.contains("at the end of the process"), "{text}");
    let site = text.split_once("1 blocks, 54321 bytes requested").unwrap().1;
    // Files and offsets, for addr2line.
    assert!(site.lines().nth(1).unwrap().contains("global_leaks-") && site.contains("+0x"), "{text}");
    assert!(ALLOCATOR.statistics().unwrap().live_blocks > 0);
}
