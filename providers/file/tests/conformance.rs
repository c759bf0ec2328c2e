//! The conformance suite over a file and over memory of the program; and a file that the program
//! opens under the fd number of a provider.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use umf_core::{Error, Layout, Provider, Visibility};
use umf_provider_file::{FileProvider, FixedProvider};
use umf_testkit::provider_conformance;

/// Returns a provider of a file that is already unlinked.
fn file(visibility: Visibility) -> Arc<FileProvider> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("umf-file-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let provider = FileProvider::open(&path, visibility, "test").unwrap();
    std::fs::remove_file(path).unwrap();
    provider
}

fn fixed() -> Arc<FixedProvider> {
    const SIZE: usize = 256 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which only the provider uses and which is never unmapped.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        FixedProvider::new(memory.cast(), SIZE, "test").unwrap()
    }
}

provider_conformance!(shared_file, || file(Visibility::Shared));
provider_conformance!(private_file, || file(Visibility::Private));
provider_conformance!(fixed_memory, fixed);

#[test]
fn file_under_a_reused_fd_number_is_left_alone() {
    static CONTENT: [u8; 1 << 18] = [0x5a; 1 << 18];
    let provider = file(Visibility::Shared);
    let layout = Layout::new(1 << 16, 4096).unwrap();
    let regions = [(); 2].map(|()| provider.allocate(layout).unwrap());
    let first = regions[0].base().as_ptr().unwrap();
    // SAFETY: the first byte of a live region of host memory.
    unsafe { first.write_volatile(7) };
    let export = provider.export().unwrap();
    let number = export.export(&regions[0]).unwrap().fd.unwrap().as_raw_fd();
    let other = rustix::fs::memfd_create(c"other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&other, &CONTENT, 0), Ok(CONTENT.len()));
    // SAFETY: closes the provider's file and opens the test's file under its number. No other code
    // uses the fd.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);

    let is_lost = |error: &Error| matches!(error, Error::Native { native: libc::EBADF, .. });
    let exported = export.export(&regions[0]);
    assert!(exported.as_ref().is_err_and(is_lost), "{exported:?}");
    let allocated = provider.allocate(layout);
    assert!(allocated.as_ref().is_err_and(is_lost), "{allocated:?}");
    // SAFETY: an error is expected, and the content is not needed.
    let purged = unsafe { provider.purge().unwrap().purge_forced(regions[0].base(), 1 << 16) };
    assert!(purged.as_ref().is_err_and(is_lost), "{purged:?}");
    // SAFETY: as above.
    assert_eq!(unsafe { first.read_volatile() }, 7);
    for region in regions {
        // SAFETY: a live region of the test, which is no longer used.
        unsafe { provider.free(region) }.unwrap();
    }
    drop(provider);

    // SAFETY: opened by `dup2`, and no other code owns it.
    let number = unsafe { OwnedFd::from_raw_fd(number) };
    let mut content = vec![0; CONTENT.len()];
    assert_eq!(rustix::io::pread(&number, &mut content[..], 0), Ok(CONTENT.len()));
    assert!(content == CONTENT, "the provider changed the file of the program");
}
