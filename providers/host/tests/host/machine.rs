//! Helpers of the tests: memory, exports, the machine, and running a part in a forked child.
#![allow(dead_code)] // Each test program uses some of them.
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use umf_core::{Access, ImportRequest, Layout, NativeExport, Provider, Region, Visibility};
use umf_provider_host::{HostBuilder, HostProvider};

pub fn shared() -> HostBuilder {
    HostProvider::builder().visibility(Visibility::Shared)
}

pub fn layout(size: usize) -> Layout {
    Layout::new(size, 1).expect("a valid layout")
}

pub fn export(provider: &HostProvider, region: &Region) -> NativeExport {
    Provider::export(provider).expect("shared memory exports").export(region).expect("an export")
}

pub fn fd(export: &NativeExport) -> Arc<OwnedFd> {
    export.fd.clone().expect("host exports have a descriptor")
}

pub fn request(export: &NativeExport, size: usize, access: Access) -> ImportRequest {
    ImportRequest::new(fd(export).try_clone().ok(), export.offset, size, access)
}

pub fn pointer(region: &Region) -> *mut u8 {
    region.base().as_ptr().expect("host memory has pointers")
}

/// Writes `value` to the first byte of every page.
pub fn touch(region: &Region, value: u8) {
    for place in (0..region.size()).step_by(4096) {
        // SAFETY: the address lies in a live region of host memory.
        unsafe { pointer(region).add(place).write_volatile(value) };
    }
}

pub fn byte(region: &Region, place: usize) -> u8 {
    assert!(place < region.size());
    // SAFETY: as above.
    unsafe { pointer(region).add(place).read_volatile() }
}

pub fn free(provider: &HostProvider, region: Region) {
    // SAFETY: the tests do not use regions after freeing them.
    unsafe { provider.free(region) }.expect("freeing");
}

/// Returns the bytes of memory that a file has.
pub fn committed(file: impl AsFd) -> u64 {
    u64::try_from(rustix::fs::fstat(file).expect("fstat").st_blocks).expect("blocks") * 512
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs `body` in a forked child. A panic or a hang in the child fails the test in this process.
pub fn in_child(body: impl FnOnce()) {
    // SAFETY: the child runs `body` and ends with `_exit`. `body` calls functions that must work
    // after a fork; glibc's allocator works in a forked child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // Guests of `tests/vm/run` may be interpreted.
        let seconds = if std::env::var_os("TESTS_GUEST").is_some() { 900 } else { 60 };
        // SAFETY: sets a timer that ends a child that hangs.
        unsafe { libc::alarm(seconds) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        if let Err(panic) = &result {
            // Output that the test harness captures in a child is lost.
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            let _ = rustix::io::write(std::io::stderr(), format!("in a child: {text}\n").as_bytes());
        }
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {}
    assert_eq!(status, 0, "the child failed (wait status)");
}

pub fn set_limit(resource: u32, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` is valid for the read.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0, "setrlimit");
}
