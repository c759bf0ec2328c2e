//! `cargo bench -p umf-benches` is `umf bench` with all peers built in: one set of workloads, in `crates/umf-cli/src/bench`.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Builds the `umf` command with all peers and has it measure `area`. What stands behind `--` goes to it:
/// `cargo bench -p umf-benches --bench ipc -- --json --peer-umf PATH`.
///
/// Run by `cargo test --benches`, it measures for a short time and without the peers that take long to build.
#[must_use]
pub fn umf_bench(area: &str) -> ExitCode {
    let (arguments, for_comparing) = arguments();
    run(area, arguments, for_comparing)
}

/// As [`umf_bench`], of `umf bench capi`: installs this project's libumf.so.1 under `folder` first, unless `--ours` names one.
#[must_use]
pub fn umf_bench_capi(folder: &Path) -> ExitCode {
    let (mut arguments, for_comparing) = arguments();
    if !arguments.iter().any(|argument| argument.to_string_lossy().starts_with("--ours")) {
        let prefix = folder.join("umf-capi-bench");
        let mut install =
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/umf-capi/install"));
        install.arg(&prefix).arg(if for_comparing { "capi" } else { "dev" });
        match install.status() {
            Ok(status) if status.success() => {}
            // The script has said why.
            Ok(_) => return ExitCode::FAILURE,
            Err(_) => return ExitCode::from(127),
        }
        arguments.extend(["--ours".into(), prefix.join("lib/libumf.so.1").into()]);
    }
    run("capi", arguments, for_comparing)
}

/// What stands behind `--`; and whether this is a run for comparing.
fn arguments() -> (Vec<OsString>, bool) {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let given = arguments.len();
    arguments.retain(|argument| argument != "--bench");
    let for_comparing = arguments.len() < given;
    (arguments, for_comparing)
}

fn run(area: &str, arguments: Vec<OsString>, for_comparing: bool) -> ExitCode {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--release", "--package", "umf-cli"]);
    if for_comparing && area != "capi" {
        // What builds snmalloc is not everywhere; without it the run says that it is missing.
        let builds_snmalloc = is_there("cmake") && is_there("c++");
        cargo.args(["--features", if builds_snmalloc { "peers,snmalloc" } else { "peers" }]);
        // Peers as anybody builds them: what .cargo/config.toml says is for the jemalloc in libumf.so.1.
        cargo.env("force_tls", "1");
    }
    cargo.args(["--", "bench", area]).args(arguments);
    if !for_comparing {
        cargo.arg("--quick");
    }
    match cargo.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        // Cargo or umf has said why.
        Ok(_) => ExitCode::FAILURE,
        Err(_) => ExitCode::from(127),
    }
}

fn is_there(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}
