//! The conformance suite over memory of the program's.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::sync::Arc;

use umf_provider_fixed::FixedProvider;
use umf_testkit::provider_conformance;

const SIZE: usize = 256 << 20;

fn fixed() -> Arc<FixedProvider> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which nobody else uses and which stays.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        FixedProvider::new(memory.cast(), SIZE, "test").unwrap()
    }
}

provider_conformance!(fixed_memory, fixed);
