//! Runs a test in a separate process, for test programs that run several tests in one process.

use std::process::Command;

/// Runs a test in a new process and returns `true`, or returns `false` in that process. `test` is
/// the name with its modules: `windows::pools_go`.
///
/// # Panics
/// If the test fails in the new process.
#[must_use]
#[track_caller]
#[allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]
pub fn ran_alone(test: &str) -> bool {
    const MARK: &str = "TESTS_ALONE";
    if std::env::var_os(MARK).is_some() {
        return false;
    }
    let output = Command::new("/proc/self/exe")
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "1")
        // If a test limits memory, glibc cannot map an arena for each thread.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .expect("this program starts again");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.concat();
    // `tests/sum.awk` would count the result of the new process as that of another program.
    let lines = text.lines().filter(|line| !line.starts_with("test result: "));
    let text = lines.fold(String::new(), |text, line| text + line + "\n");
    assert!(output.status.success(), "{test}: {}\n{text}", output.status);
    assert!(text.contains(&format!("test {test} ... ")), "there is no test {test}");
    print!("{text}");
    true
}
