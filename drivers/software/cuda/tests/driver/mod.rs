//! The driver under test, and tests that run in two processes.

#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cuda_sys::*;

/// The variable by which a test that runs again in a child gets its arguments.
const ARGUMENTS: &str = "CUDA_SOFT_TEST_ARGUMENTS";

pub(crate) fn library() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libcuda_soft.so")
}

pub(crate) fn open() -> Api {
    // SAFETY: the driver of this project.
    unsafe { Api::load_from(library()) }.unwrap()
}

/// Opens the driver, and makes the primary context of the first device current.
pub(crate) fn started() -> (Api, CUcontext) {
    let api = open();
    let mut context = CUcontext::NULL;
    // SAFETY: arguments as the driver interface requires.
    unsafe {
        api.cuInit(0).unwrap();
        api.cuDevicePrimaryCtxRetain(&raw mut context, 0).unwrap();
        api.cuCtxSetCurrent(context).unwrap();
    }
    (api, context)
}

/// Returns the result of a call that fails.
pub(crate) fn error(answer: Result<(), Failure>) -> CUresult {
    answer.unwrap_err().result()
}

/// Returns the arguments if this process is the child of a test.
pub(crate) fn arguments() -> Option<Vec<String>> {
    Some(std::env::var(ARGUMENTS).ok()?.split(' ').map(str::to_owned).collect())
}

/// Runs a test again in a child, which inherits fds without `FD_CLOEXEC`.
pub(crate) fn run_child(test: &str, arguments: &[String]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(ARGUMENTS, arguments.join(" "));
    let output = child.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}", text.concat().replace("test result", "result of the child"));
    assert!(text[0].contains("1 passed"), "there is no test {test}");
}

pub(crate) fn hex(bytes: &[u8; 64]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}

/// Returns the bytes at an address of the device.
pub(crate) fn read(api: &Api, address: CUdeviceptr, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    // SAFETY: arguments as the driver interface requires.
    unsafe { api.cuMemcpyDtoH(bytes.as_mut_ptr().cast(), address, size) }.unwrap();
    bytes
}

/// Blocks a stream until the returned value is dropped.
pub(crate) fn block(api: &Api, stream: CUstream) -> std::sync::mpsc::Sender<()> {
    unsafe extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: `block` passed the pointer of a box.
        let receiver = unsafe { Box::from_raw(receiver.cast::<std::sync::mpsc::Receiver<()>>()) };
        let _ = receiver.recv_timeout(Duration::from_secs(30));
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    // SAFETY: the function takes the box, once.
    unsafe { api.cuLaunchHostFunc(stream, Some(wait), Box::into_raw(Box::new(receiver)).cast()) }.unwrap();
    sender
}

/// Returns a number of objects of the driver.
pub(crate) fn query(what: &CStr) -> u64 {
    let mut value = 0;
    // SAFETY: the driver's function, with its arguments.
    unsafe {
        let library = libloading::Library::new(library()).unwrap();
        let query: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char, *mut u64) -> CUresult> =
            library.get(b"cudaSoftQuery").unwrap();
        assert_eq!(query(what.as_ptr(), &raw mut value), CUDA_SUCCESS);
    }
    value
}
