//! Handles of a Rust process, which is the test, in C and Python processes.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::installed::{Installed, installed};
use crate::programs::{With, compile, has, said};

/// Runs a process with a block's handle on its standard input. Returns its lines, and the text in
/// the block afterwards.
fn run(installed: &Installed, mut command: Command) -> (Vec<String>, String) {
    let pool = umf::Pool::shared().unwrap();
    let block = pool.allocate(1000).unwrap();
    block.write(0, b"question\0").unwrap();
    let handle = block.handle().unwrap();
    let mut child = command
        .env("LD_LIBRARY_PATH", installed.prefix.join("lib"))
        .env("UMF_LIBRARY", installed.library())
        .env_remove("UMF_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(handle.as_bytes()).unwrap();
    writeln!(input, "{handle}").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}\n{:?}\n{error}", output.status, said(&output));
    let mut text = [0; 6];
    block.read(0, &mut text).unwrap();
    (said(&output), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn c_process_opens_handle_of_rust_process() {
    let Some(installed) = installed("c_process_opens_handle_of_rust_process") else { return };
    let program =
        compile(installed, "from_bytes", &With { flags: vec!["-Wextra".into()], ..With::default() });
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(&program);
    let (lines, text) = run(installed, command);
    std::fs::remove_file(program).unwrap();
    for line in [
        "bytes: question",
        "text: question",
        "C handle: offset",
        "without the offset: offset",
        "changed offset: 3",
        "other size: 3",
        "provider: question",
        "changed: 3",
    ] {
        has(&lines, line);
    }
    assert_eq!(text, "answer");
}

#[test]
fn python_opens_handle_of_rust_process() {
    const TEST: &str = "python_opens_handle_of_rust_process";
    let Some(installed) = installed(TEST) else { return };
    if !Command::new("python3").args(["-c", "import ctypes"]).output().is_ok_and(|out| out.status.success()) {
        println!("umf-skip: {TEST}: there is no python3 with ctypes");
        return;
    }
    let mut command = Command::new("timeout");
    command.args([
        "-k",
        "5",
        "60",
        "python3",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/open_handle.py"),
    ]);
    let (lines, text) = run(installed, command);
    has(&lines, "python: question");
    let error = "error: umfrsIPCHandleFromBytes: cannot make an IPC handle: the size is of no form of handle";
    assert!(lines.iter().any(|line| line.starts_with(error)), "{lines:#?}");
    assert_eq!(text, "answer");
}
