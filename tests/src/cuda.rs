//! The CUDA driver of the tests: the software driver, or that of a GPU if `TESTS_CUDA` is set, as
//! `tests/cuda/run` does.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::Spawn;

/// Returns whether the tests run on a GPU.
#[must_use]
pub fn is_real() -> bool {
    std::env::var_os("TESTS_CUDA").is_some()
}

/// Creates a folder in `scratch` in which `libcuda.so.1` is the software driver that cargo built
/// beside the test program.
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
    // A concurrent test may have made the same link.
    let _ = symlink(&library, folder.join("libcuda.so.1"));
    assert!(folder.join("libcuda.so.1").exists());
    folder
}

/// Sets the library path of an actor so that it loads the driver of the tests.
#[must_use]
pub fn with_driver(spawn: Spawn, scratch: &str) -> Spawn {
    if is_real() {
        return spawn;
    }
    spawn.env("LD_LIBRARY_PATH", folder(scratch).to_str().unwrap())
}
