//! A file that the program opens under the number of the provider's descriptor.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use umf_core::{Error, Layout, Provider};
use umf_provider_file::{FileProvider, Mapped};

#[test]
fn file_under_the_descriptors_number_is_left_alone() {
    static OWN: [u8; 1 << 18] = [0x5a; 1 << 18];
    let path = std::env::temp_dir().join(format!("umf-file-number-{}", std::process::id()));
    let provider = FileProvider::open(&path, Mapped::Shared, "test").unwrap();
    std::fs::remove_file(&path).unwrap();
    let layout = Layout::new(1 << 16, 4096).unwrap();
    let regions = [(); 2].map(|()| provider.allocate(layout).unwrap());
    let first = regions[0].base().as_ptr().unwrap();
    // SAFETY: the first byte of a live region of host memory.
    unsafe { first.write_volatile(7) };
    let ability = provider.export().unwrap();
    let number = ability.export(&regions[0]).unwrap().fd.unwrap().as_raw_fd();
    let own = rustix::fs::memfd_create(c"own", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&own, &OWN, 0), Ok(OWN.len()));
    // SAFETY: closes the provider's file, as a program may, and puts the test's under its number.
    assert_eq!(unsafe { libc::dup2(own.as_raw_fd(), number) }, number);

    let is_lost = |error: &Error| matches!(error, Error::Native { native: libc::EBADF, .. });
    let exported = ability.export(&regions[0]);
    assert!(exported.as_ref().is_err_and(is_lost), "{exported:?}");
    let allocated = provider.allocate(layout);
    assert!(allocated.as_ref().is_err_and(is_lost), "{allocated:?}");
    // SAFETY: nobody needs the content.
    let purged = unsafe { provider.purge().unwrap().purge_forced(regions[0].base(), 1 << 16) };
    assert!(purged.as_ref().is_err_and(is_lost), "{purged:?}");
    // SAFETY: as above.
    assert_eq!(unsafe { first.read_volatile() }, 7);
    for region in regions {
        // SAFETY: the test's own region, which nothing uses any more.
        unsafe { provider.free(region) }.unwrap();
    }
    drop(provider);

    // SAFETY: open since `dup2`, and closed by nothing else.
    let number = unsafe { OwnedFd::from_raw_fd(number) };
    let mut content = vec![0; OWN.len()];
    assert_eq!(rustix::io::pread(&number, &mut content[..], 0), Ok(OWN.len()));
    assert!(content == OWN, "the program's file has changed");
}
