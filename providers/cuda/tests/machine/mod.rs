//! The driver under test: the software driver that cargo built beside the tests, or the system's
//! driver for a GPU (`TESTS_CUDA=1`, as `tests/cuda/run` sets it).

#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;

use umf_provider_cuda::{CudaBuilder, CudaMemory, CudaProvider, Driver};

/// Returns whether the tests run on a GPU.
pub(crate) fn is_real() -> bool {
    std::env::var_os("TESTS_CUDA").is_some()
}

/// Returns the path of the driver's library.
pub(crate) fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            if is_real() {
                return "libcuda.so.1".into();
            }
            let beside = std::env::current_exe().unwrap().with_file_name("libcuda_soft.so");
            assert!(beside.exists(), "{} is not there", beside.display());
            if std::env::var_os("CUDA_SOFT_MEMORY").is_none() {
                // SAFETY: all readers of the environment in this process take the lock of `std`.
                unsafe { std::env::set_var("CUDA_SOFT_MEMORY", "16G") };
            }
            beside
        })
        .clone()
}

pub(crate) fn builder(memory: CudaMemory) -> CudaBuilder {
    CudaProvider::builder().library(library()).memory(memory)
}

pub(crate) fn driver() -> &'static Driver {
    Driver::open(Some(&library())).unwrap()
}

/// Reports why a test is skipped on this machine.
pub(crate) fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

fn symbol<T: Copy>(name: &str) -> T {
    // SAFETY: the library is the software driver, which has these functions. It is never closed.
    unsafe {
        let library = std::mem::ManuallyDrop::new(libloading::Library::new(library()).unwrap());
        *library.get::<T>(name).unwrap()
    }
}

/// Returns the number of objects of a kind in the software driver.
pub(crate) fn count(what: &str) -> u64 {
    // The driver counts only after it was initialized.
    let _ = driver();
    let query: unsafe extern "C" fn(*const std::ffi::c_char, *mut u64) -> u32 = symbol("cudaSoftQuery");
    let (what, mut value) = (CString::new(what).unwrap(), 0);
    // SAFETY: a C string and a valid pointer to the result.
    assert_eq!(unsafe { query(what.as_ptr(), &raw mut value) }, 0, "{what:?}");
    value
}

/// Injects faults into the software driver, in the syntax of `CUDA_SOFT_FAULTS`.
pub(crate) fn faults(text: &str) {
    let set: unsafe extern "C" fn(*const std::ffi::c_char) -> u32 = symbol("cudaSoftSetFaults");
    let faults = CString::new(text).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { set(faults.as_ptr()) }, 0, "{text}");
}
