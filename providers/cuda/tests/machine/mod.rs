//! Which driver the tests are about: the one in software that cargo built beside them, or that of a GPU, which the
//! system has (`TESTS_CUDA=1`, as `tests/cuda/run` sets it).

#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::OnceLock;

use umf_provider_cuda::{CudaBuilder, CudaMemory, CudaProvider, Driver};

/// Whether the tests are about a GPU.
pub(crate) fn is_real() -> bool {
    std::env::var_os("TESTS_CUDA").is_some()
}

/// The driver.
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
                // SAFETY: nothing in this process reads its environment without the lock of `std`.
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

/// Says why a test proves nothing here.
pub(crate) fn skip(test: &str, why: &str) {
    println!("umf-skip: {test}: {why}");
}

fn symbol<T: Copy>(name: &str) -> T {
    // SAFETY: the driver of this project, opened again, which has these functions; it is never closed.
    unsafe {
        let library = std::mem::ManuallyDrop::new(libloading::Library::new(library()).unwrap());
        *library.get::<T>(name).unwrap()
    }
}

/// How much there is of something in the driver in software.
pub(crate) fn count(what: &str) -> u64 {
    let query: unsafe extern "C" fn(*const std::ffi::c_char, *mut u64) -> u32 = symbol("cudaSoftQuery");
    let (what, mut value) = (CString::new(what).unwrap(), 0);
    // SAFETY: a text, and a place for the answer.
    assert_eq!(unsafe { query(what.as_ptr(), &raw mut value) }, 0, "{what:?}");
    value
}

/// Has the driver in software refuse calls, in the form of `CUDA_SOFT_FAULTS`.
pub(crate) fn faults(text: &str) {
    let set: unsafe extern "C" fn(*const std::ffi::c_char) -> u32 = symbol("cudaSoftSetFaults");
    let faults = CString::new(text).unwrap();
    // SAFETY: a text.
    assert_eq!(unsafe { set(faults.as_ptr()) }, 0, "{text}");
}
