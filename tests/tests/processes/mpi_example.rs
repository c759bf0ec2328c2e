//! Builds and runs `examples/mpi_ipc_bandwidth`, which is a workspace of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::path::Path;
use std::process::{Command, Stdio};

use umf_tests::{machine, mpi};

const TEST: &str = "mpi_bandwidth_example_builds_and_runs";

fn cargo(what: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([what, "--quiet", "--locked", "--manifest-path"])
        .arg(root.join("examples/mpi_ipc_bandwidth/Cargo.toml"))
        .env_remove("CARGO_BUILD_TARGET")
        .stdin(Stdio::null());
    cargo
}

/// Returns whether libclang is installed, by which the crate `mpi` reads the C headers.
fn has_libclang() -> bool {
    let folders = std::env::var("LIBCLANG_PATH").into_iter().collect::<Vec<_>>();
    let is_it = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            // `libclang-cpp` is another library.
            let rest = name.strip_prefix("libclang");
            let version = rest.and_then(|rest| rest.strip_prefix('-'));
            rest.is_some_and(|rest| rest.starts_with(".so"))
                || version.is_some_and(|rest| rest.starts_with(char::is_numeric) && rest.contains(".so"))
        })
    };
    let holds = |folder: &Path| {
        is_it(folder)
            || std::fs::read_dir(folder)
                .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| is_it(&entry.path()))))
    };
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let llvm = versions.flat_map(|path| [path.join("lib"), path]);
    folders.iter().any(|folder| holds(Path::new(folder)))
        || llvm.chain(["/usr/lib64".into(), "/usr/local/lib".into()]).any(|folder| holds(&folder))
}

#[test]
fn mpi_bandwidth_example_builds_and_runs() {
    if let Some(why) = mpi::lacking() {
        return machine::skip(TEST, &why);
    }
    if !has_libclang() {
        return machine::skip(
            TEST,
            "no libclang (Debian: libclang-dev), which the crate mpi needs to be built",
        );
    }
    // The example has packages of its own, which may be neither cached nor available.
    let fetched = |more: &[&str]| cargo("fetch").args(more).output().unwrap();
    if !fetched(&["--offline"]).status.success() {
        let output = fetched(&[]);
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
            return machine::skip(TEST, &format!("the crate mpi cannot be fetched: {why}"));
        }
    }
    // All runs share this folder, which cargo locks.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi-example");
    let built = cargo("build").args(["--offline", "--target-dir"]).arg(&target).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = target.join("debug/mpi_ipc_bandwidth");
    for ranks in ["2", "3"] {
        let mut job = Command::new("mpirun");
        let said = mpi::run(job.args(["-n", ranks]).arg(&program).arg("1")).unwrap();
        let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
        for bytes in ["65536", "262144", "1048576"] {
            let is_row = |row: &&Vec<&str>| row.first() == Some(&bytes) && row.len() == 4;
            assert!(rows.iter().any(|row| is_row(&row)), "{ranks} ranks, {bytes} bytes: {said}");
        }
    }
    let alone = mpi::run(Command::new("mpirun").args(["-n", "1"]).arg(&program)).unwrap_err();
    assert!(alone.contains("mpirun -n 2"), "{alone}");
}
