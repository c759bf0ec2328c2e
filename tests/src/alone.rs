//! Tests that need a process of their own, in a program with other tests.

use std::process::Command;

/// Runs a test (with its module: `windows::pools_go`) in a process of its own, unless this is it.
/// Returns whether it ran.
///
/// # Panics
/// If it failed there.
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
        // Where a test limits memory, a thread cannot have a heap of its own.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .expect("this program starts again");
    // Its result is not one more.
    let told = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let told = told.concat();
    let told = told.lines().filter(|line| !line.starts_with("test result: "));
    let told = told.fold(String::new(), |text, line| text + line + "\n");
    assert!(output.status.success(), "{test}: {}\n{told}", output.status);
    assert!(told.contains(&format!("test {test} ... ")), "there is no test {test}");
    print!("{told}");
    true
}
