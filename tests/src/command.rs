//! Runs the `umf` command as a separate process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// Returns a command that runs `umf`: the program that `TESTS_UMF` names, or a new build. Cargo
/// does not build the programs of one package for the tests of another.
///
/// # Panics
/// If the program does not build.
#[must_use]
pub fn umf() -> Command {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = std::env::var_os("TESTS_UMF").map(PathBuf::from);
        if let Some(built) = built.filter(|program| program.is_file()) {
            return built;
        }
        // The test program is in <target>/<profile>/deps.
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

/// Exit code and output of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs `umf` with these arguments.
///
/// # Panics
/// If the program cannot be started, or its output is not UTF-8.
#[must_use]
pub fn run(arguments: &[&str]) -> CommandOutput {
    finished(umf().args(arguments))
}

/// Runs `umf` with these arguments and this standard input.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn run_with_input(arguments: &[&str], input: &[u8]) -> CommandOutput {
    let mut child = umf()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The write fails if the program exits before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    decode(child.wait_with_output().unwrap())
}

/// Runs a command to its end.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn finished(command: &mut Command) -> CommandOutput {
    decode(command.output().unwrap())
}

fn decode(output: std::process::Output) -> CommandOutput {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
