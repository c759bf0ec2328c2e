//! The CUDA driver that tests run on: the one in software, under the name that programs look for; or that of a GPU, which the system
//! has (`TESTS_CUDA=1`, as `tests/cuda/run` sets it).

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::Spawn;

/// Whether the tests are about a GPU.
#[must_use]
pub fn is_real() -> bool {
    std::env::var_os("TESTS_CUDA").is_some()
}

/// A folder in which `libcuda.so.1` is the driver in software, which cargo built beside the test; `scratch` is the test program's own
/// folder.
///
/// # Panics
/// If the driver was not built.
#[must_use]
pub fn folder(scratch: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libcuda_soft.so");
    assert!(library.exists(), "{} is not there", library.display());
    let folder = PathBuf::from(scratch).join("cuda-soft");
    std::fs::create_dir_all(&folder).unwrap();
    // Several tests may do so at once, and all do the same.
    let _ = symlink(&library, folder.join("libcuda.so.1"));
    assert!(folder.join("libcuda.so.1").exists());
    folder
}

/// Has an actor find the driver.
#[must_use]
pub fn with_driver(spawn: Spawn, scratch: &str) -> Spawn {
    if is_real() {
        return spawn;
    }
    spawn.env("LD_LIBRARY_PATH", folder(scratch).to_str().unwrap())
}
