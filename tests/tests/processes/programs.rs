//! Programs that use umf in special ways: under valgrind, which unmaps the vDSO although the
//! auxiliary vector contains its address; and `examples/mpi_ipc_bandwidth`, a workspace of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::path::Path;
use std::process::{Command, Stdio};

use umf::host::HostProvider;
use umf::ipc::ExporterSettings;
use umf::pools::{SlabPool, SlabSettings};
use umf::{Exporter, Visibility};
use umf_core::{Layout, pool};
use umf_tests::machine;

/// The name of the test that runs again under valgrind.
const VALGRIND_TEST: &str = "programs::block_is_exported_under_valgrind";
/// Set if this process runs under valgrind.
const UNDER_VALGRIND: &str = "TESTS_UNDER_VALGRIND";

#[test]
fn block_is_exported_under_valgrind() {
    if std::env::var_os(UNDER_VALGRIND).is_some() {
        return export_block();
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return machine::skip(VALGRIND_TEST, "valgrind is not installed");
    }
    let output = Command::new("valgrind")
        .arg("--tool=none")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", VALGRIND_TEST, "--test-threads=1"])
        .env(UNDER_VALGRIND, "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
}

/// Allocates and exports a block. The library then reads the page size and the time.
fn export_block() {
    let provider = HostProvider::builder().visibility(Visibility::Shared).build().unwrap();
    let pool = SlabPool::new(provider, SlabSettings::new()).unwrap();
    let exporter = Exporter::new(ExporterSettings::default()).unwrap();
    let address = pool::allocate(&*pool, Layout::new(4096, 8).unwrap()).unwrap();
    // SAFETY: the test holds no reference into the block.
    let handle = unsafe { exporter.handle(address) }.unwrap();
    assert!(handle.length() >= 4096);
    // SAFETY: the block is live, and no pointer into it is used afterwards.
    unsafe { pool::free(&*pool, address) }.unwrap();
}

const MPI_TEST: &str = "mpi_bandwidth_example_builds_and_runs";

fn cargo(command: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([command, "--quiet", "--locked", "--manifest-path"])
        .arg(root.join("examples/mpi_ipc_bandwidth/Cargo.toml"))
        .env_remove("CARGO_BUILD_TARGET")
        .stdin(Stdio::null());
    cargo
}

/// Returns whether libclang is installed, with which the crate `mpi` reads the C headers.
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
    if let Some(why) = machine::missing_mpi() {
        return machine::skip(MPI_TEST, &why);
    }
    if !has_libclang() {
        return machine::skip(
            MPI_TEST,
            "no libclang (Debian: libclang-dev), which the crate mpi needs to be built",
        );
    }
    // The example has packages of its own, which may be neither cached nor available.
    let fetched = |more: &[&str]| cargo("fetch").args(more).output().unwrap();
    if !fetched(&["--offline"]).status.success() {
        let output = fetched(&[]);
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
            return machine::skip(MPI_TEST, &format!("the crate mpi cannot be fetched: {why}"));
        }
    }
    // All runs share this folder, which cargo locks.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mpi-example");
    let built = cargo("build").args(["--offline", "--target-dir"]).arg(&target).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let program = target.join("debug/mpi_ipc_bandwidth");
    for ranks in ["2", "3"] {
        let mut job = Command::new("mpirun");
        let output = machine::run_mpi(job.args(["-n", ranks]).arg(&program).arg("1")).unwrap();
        let rows: Vec<Vec<&str>> = output.lines().map(|line| line.split_whitespace().collect()).collect();
        for bytes in ["65536", "262144", "1048576"] {
            let is_row = |row: &&Vec<&str>| row.first() == Some(&bytes) && row.len() == 4;
            assert!(rows.iter().any(|row| is_row(&row)), "{ranks} ranks, {bytes} bytes: {output}");
        }
    }
    let alone = machine::run_mpi(Command::new("mpirun").args(["-n", "1"]).arg(&program)).unwrap_err();
    assert!(alone.contains("mpirun -n 2"), "{alone}");
}
