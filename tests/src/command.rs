//! The `umf` command, as its users run it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The program that `TESTS_UMF` names, as `tests/run` does; otherwise it is built if it is not there or not new: tests of one package are not
/// given the programs of another.
///
/// # Panics
/// If it does not build.
#[must_use]
pub fn umf() -> Command {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = std::env::var_os("TESTS_UMF").map(PathBuf::from);
        if let Some(built) = built.filter(|program| program.is_file()) {
            return built;
        }
        // A test lies in <target>/<profile>/deps.
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let build = |more: &[&str]| {
            let mut cargo = Command::new(env!("CARGO"));
            cargo
                .args(["build", "--quiet", "-p", "umf-cli", "--bin", "umf", "--manifest-path"])
                .arg(&manifest);
            cargo
                .arg("--target-dir")
                .arg(profile.parent().unwrap())
                .args(more)
                .env_remove("CARGO_BUILD_TARGET");
            if profile.ends_with("release") {
                cargo.arg("--release");
            }
            cargo.status().unwrap().success()
        };
        assert!(build(&["--offline"]) || build(&[]), "the umf command does not build");
        profile.join("umf")
    });
    let mut command = Command::new(&*BUILT);
    command.stdin(Stdio::null()).env_remove("UMF_TOML").env_remove("UMF_LOG");
    command
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it printed.
    pub out: String,
    /// What it complained of.
    pub err: String,
}

/// Runs `umf` with these arguments.
///
/// # Panics
/// If it cannot be started, or prints what is no text.
#[must_use]
pub fn run(arguments: &[&str]) -> Outcome {
    finished(umf().args(arguments))
}

/// Runs `umf` with these arguments and this on its standard input.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn run_with_input(arguments: &[&str], input: &[u8]) -> Outcome {
    let mut child = umf()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It need not read all of it.
    let _ = child.stdin.take().unwrap().write_all(input);
    outcome(child.wait_with_output().unwrap())
}

/// Runs a command to its end.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn finished(command: &mut Command) -> Outcome {
    outcome(command.output().unwrap())
}

fn outcome(output: std::process::Output) -> Outcome {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
