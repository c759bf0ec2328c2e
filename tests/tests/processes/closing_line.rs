//! The closing line of `tests/run`, which `tests/sum.awk` computes from a log.

use std::io::Write;
use std::process::{Command, Stdio};

fn sum(log: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/sum.awk");
    let mut awk = Command::new("awk");
    let mut awk = awk.args(["-f", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    awk.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let output = awk.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.success(), text.contains(" 0 failed,"), "{text}");
    text
}

const PASSED: &str = "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\
    test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";

#[test]
fn results_of_all_programs_are_summed() {
    let log = format!(
        "{PASSED}     Running tests/x.rs (target/debug/deps/x-1)\n\
         test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
         error: test failed, to rerun pass `-p a --test x`\n   Doc-tests a\n\
         test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
         umf-skip: b: no root\numf-skip: b: no root\nerror: 1 target failed:\numf-step: 101 cargo test\n"
    );
    let expected = "\ncould not run here:\n  b: no root\n\n8 passed, 2 failed, 1 skipped\n";
    assert_eq!(sum(&log), expected);
}

#[test]
fn program_that_ends_before_its_result_is_a_failure() {
    let aborted = "     Running tests/x.rs (target/debug/deps/x-1)\nrunning 2 tests\n\
        error: test failed, to rerun pass `-p a --test x`\n\nCaused by:\n  process didn't exit \
        successfully: `x` (signal: 6, SIGABRT: process abort signal)\n";
    for log in [
        format!("{PASSED}{aborted}umf-step: 101 cargo test\n"),
        format!("{aborted}{PASSED}umf-step: 101 cargo test\n"),
        // As in tests/unprivileged, which does not use cargo.
        format!("{PASSED}     Running as uid 65534: leases-1\numf-step: 1 tests/unprivileged\n"),
    ] {
        let text = sum(&log);
        assert!(text.contains("ended before its result"), "{text}");
        assert!(text.ends_with("\n3 passed, 1 failed, 1 skipped\n"), "{text}");
    }
}

#[test]
fn program_that_fails_after_its_result_is_a_failure() {
    let text = sum(&format!("{PASSED}error: test failed, to rerun pass `-p a --lib`\numf-step: 101 cargo\n"));
    assert!(text.ends_with("\n3 passed, 1 failed, 1 skipped\n"), "{text}");
}

#[test]
fn step_that_fails_without_a_test_is_a_failure() {
    let text = sum(&format!("{PASSED}umf-step: 0 cargo test\numf-step: 125 tests/vm/run --workspace\n"));
    assert!(text.contains("  125 tests/vm/run --workspace\n"), "{text}");
    assert!(text.ends_with("\n3 passed, 1 failed, 1 skipped\n"), "{text}");
}
