//! What this machine permits a test to do: users, namespaces, dma-bufs, CUDA, MPI.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use umf::dma_buf::{DmaBufBuilder, DmaBufProvider};

use crate::{Actor, Spawn};

/// Prints why a test cannot run here, in the form that `tests/run` lists. The test then returns,
/// and counts as passed.
pub fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

/// Returns whether this process is root. Namespaces and other uids need that.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Starts an actor in new namespaces. If the kernel refuses, prints the reason and returns `None`.
#[must_use]
pub fn in_namespaces(test: &str, spawn: Spawn, flags: i32) -> Option<Actor> {
    match spawn.namespaces(flags).try_start() {
        Ok(actor) => Some(actor),
        Err(error) => {
            skip(test, &format!("the kernel refuses namespaces: {error}"));
            None
        }
    }
}

/// Returns whether `UMF_TESTS_LONG=1` requests the long form of the tests.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("UMF_TESTS_LONG").is_some_and(|value| value == "1")
}

/// Returns whether this is a guest of `tests/vm/run`. Tests may change the settings of such a
/// machine.
#[must_use]
pub fn is_guest() -> bool {
    std::env::var_os("TESTS_GUEST").is_some()
}

/// Returns the dma-buf sources of this machine, as `pool <name> dma-buf <source>` of an actor
/// accepts them. Prints one line for each source that is missing.
#[must_use]
pub fn dma_buf_sources(test: &str) -> Vec<&'static str> {
    let all = ["udmabuf", "heap:system"];
    let is_available = |source: &&str| match dma_buf_provider(source) {
        Ok(_) => true,
        Err(error) => {
            skip(&format!("{test} over {source}"), &error.to_string());
            false
        }
    };
    all.into_iter().filter(is_available).collect()
}

/// Returns the builder of a provider over a dma-buf source: `udmabuf` or `heap:<name>`.
///
/// # Errors
/// If the machine does not have the source.
pub fn dma_buf_provider(source: &str) -> umf_core::Result<DmaBufBuilder> {
    match source.split_once(':') {
        Some((_, heap)) => DmaBufProvider::heap(heap),
        None => DmaBufProvider::udmabuf(),
    }
}

/// Returns the lines of `bufinfo` about the buffers of a process. Returns `None` if debugfs cannot
/// be read.
#[must_use]
pub fn dma_bufs_of(pid: u32) -> Option<Vec<String>> {
    // Buffer names need not be UTF-8.
    let all = std::fs::read("/sys/kernel/debug/dma_buf/bufinfo").ok()?;
    let name = format!("umf {pid} ");
    Some(
        String::from_utf8_lossy(&all)
            .lines()
            .filter(|line| line.contains(&name))
            .map(str::to_owned)
            .collect(),
    )
}

/// Returns whether the tests of CUDA memory run on a GPU: `tests/cuda/run` sets `TESTS_CUDA`. They
/// use the software driver otherwise.
#[must_use]
pub fn has_gpu() -> bool {
    std::env::var_os("TESTS_CUDA").is_some()
}

/// Creates a folder in `scratch` in which `libcuda.so.1` is the software driver that cargo built
/// beside the test program.
#[must_use]
fn cuda_driver_folder(scratch: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libcuda_soft.so");
    assert!(library.exists(), "{} is not there", library.display());
    let folder = PathBuf::from(scratch).join("cuda-soft");
    std::fs::create_dir_all(&folder).unwrap();
    // A concurrent test may have made the same link.
    let _ = symlink(&library, folder.join("libcuda.so.1"));
    assert!(folder.join("libcuda.so.1").exists());
    folder
}

/// Sets the library path of an actor so that it loads the software driver, unless the tests run on
/// a GPU. `scratch` is a folder for temporary files.
///
/// # Panics
/// If the driver was not built.
#[must_use]
pub fn with_cuda_driver(spawn: Spawn, scratch: &str) -> Spawn {
    if has_gpu() {
        return spawn;
    }
    spawn.env("LD_LIBRARY_PATH", cuda_driver_folder(scratch).to_str().unwrap())
}

/// Returns why MPI cannot build programs and start two processes here, or `None` if it can.
#[must_use]
pub fn missing_mpi() -> Option<String> {
    let runs = |program: &str, arguments: &[&str]| run_mpi(Command::new(program).args(arguments)).map(|_| ());
    let missing = runs("mpicc", &["--version"]).and_then(|()| runs("mpirun", &["-n", "2", "true"]));
    missing.err().map(|why| format!("no MPI (Debian: libopenmpi-dev): {why}"))
}

/// Runs an MPI program to its end and returns its output.
///
/// # Errors
/// The exit status and the output of a program that fails.
pub fn run_mpi(command: &mut Command) -> Result<String, String> {
    // Open MPI refuses root, and more ranks than processors, unless these are set.
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ] {
        command.env(name, value);
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    if output.status.success() { Ok(text) } else { Err(format!("{}: {}", output.status, text.trim())) }
}
