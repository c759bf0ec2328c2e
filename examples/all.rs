//! Runs every example, and checks its output.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

fn run(program: &str) -> String {
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn first() {
    let mut producer = Command::new(env!("CARGO_BIN_EXE_first"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(producer.stdout.take().unwrap());
    let mut handle = String::new();
    output.read_line(&mut handle).unwrap();
    let consumer = Command::new(env!("CARGO_BIN_EXE_first")).arg(handle.trim()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&consumer.stdout), "hello from the producer\n", "{consumer:?}");
    producer.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "hello from the consumer\n");
    assert!(producer.wait().unwrap().success());
    // The producer has exited, and the error states it.
    let late = Command::new(env!("CARGO_BIN_EXE_first")).arg(handle.trim()).output().unwrap();
    assert!(!late.status.success());
    assert!(String::from_utf8_lossy(&late.stderr).contains("is gone: it ended"), "{late:?}");
}

#[test]
fn allreduce() {
    let program = env!("CARGO_BIN_EXE_allreduce");
    let output = run(program);
    assert!(output.starts_with("4 ranks summed 1048576 numbers each, in "), "{output}");
    let odd = Command::new(program).arg("two").output().unwrap();
    assert!(!odd.status.success() && !odd.stderr.is_empty(), "{odd:?}");
}

#[test]
fn collections() {
    let output = run(env!("CARGO_BIN_EXE_collections"));
    assert_eq!(output, "sum 332833500 names 2\n2 blocks live\n0 blocks live\n");
}

#[test]
fn global() {
    let output = run(env!("CARGO_BIN_EXE_global"));
    assert_eq!(output, "4000 entries, and more than 4000 allocations: true\n");
}

#[test]
fn serde() {
    assert_eq!(run(env!("CARGO_BIN_EXE_serde")), "weights [2, 3]: 24 bytes of 7\n");
}

#[test]
fn read_only() {
    let output = run(env!("CARGO_BIN_EXE_read_only"));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "isolated: true");
    assert!(lines[1].contains("read-only"), "{output}");
    assert_eq!(lines[2], "still current: false");
    assert!(lines[3].starts_with("stale handle"), "{output}");
}

#[test]
fn debugging() {
    let output = run(env!("CARGO_BIN_EXE_debugging"));
    let fault = output.lines().next().unwrap();
    assert!(
        fault.starts_with("byte 40 of the free block of 4096 bytes") && fault.contains("by thread"),
        "{output}"
    );
    assert!(output.contains("written-after-free") && output.contains("300 bytes in 320"), "{output}");
    assert!(output.contains("640 of 1048576 bytes live"), "{output}");
    let (_, report) = output.split_once("pool example: 3 blocks, 640 bytes were never freed").unwrap();
    let stacks = report.contains("read_configuration at ") && report.contains("debugging.rs:");
    assert!(stacks || !report.contains("asked for"), "{output}");
}

#[test]
fn link() {
    let program = env!("CARGO_BIN_EXE_link");
    let mut listener = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(listener.stdout.take().unwrap());
    let mut address = String::new();
    output.read_line(&mut address).unwrap();
    let other = Command::new(program).arg(address.trim_end()).status().unwrap();
    let mut output_text = String::new();
    output.read_to_string(&mut output_text).unwrap();
    assert!(listener.wait().unwrap().success() && other.success());
    assert!(
        output_text.contains("hello from process") && output_text.contains("[1, 2, 3, 4, 5, 6, 7, 8]"),
        "{output_text}"
    );
}

#[test]
fn ring() {
    let output = run(env!("CARGO_BIN_EXE_ring"));
    let backs = output.lines().filter(|line| line.ends_with(" is back")).count();
    assert_eq!(backs, 60, "{output}");
    assert!(output.contains("60 records went round"), "{output}");
    assert!(output.contains("worker 1: process ") && output.contains("continues with worker 3"), "{output}");
    assert!(output.contains("worker 3: the predecessor is gone"), "{output}");
}

#[test]
fn domain() {
    let name = format!("umf-examples-{}", std::process::id());
    let start = |number: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_domain"));
        let command = command.arg(&name).args(number).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        (process, output)
    };
    let line = |output: &mut dyn BufRead| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let (mut creator, mut output) = start(&[]);
    let number = line(&mut output);
    assert_eq!(line(&mut output), "user 1 of this region");
    let (mut second, mut output) = start(&[&number]);
    assert_eq!(line(&mut output), "user 2 of this region");
    creator.kill().unwrap();
    creator.wait().unwrap();
    let (mut third, mut output) = start(&[&number]);
    assert_eq!(line(&mut output), "user 3 of this region");
    for process in [&mut second, &mut third] {
        process.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(process.wait().unwrap().success());
    }
    // The last user has exited, so the region and the domain no longer exist.
    let late = Command::new(env!("CARGO_BIN_EXE_domain")).args([&name, &number]).output().unwrap();
    assert!(!late.status.success());
    assert!(String::from_utf8_lossy(&late.stderr).contains("NoSuchObject"), "{late:?}");
}
