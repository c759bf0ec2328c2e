//! Memory exchanged with other interfaces as fds.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use umf_core::{Access, Error, Layout, Provider};
use umf_provider_level_zero::FdFormat;

use super::{allocate, built, device, free, get, put, soft};

/// A file that cannot change its size.
fn sealed(bytes: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"umf-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

#[test]
fn exported_fd_shares_memory_and_outlives_region() {
    let provider = built(device().exportable(FdFormat::Opaque));
    let other = built(umf_provider_level_zero::LevelZeroProvider::device(soft()));
    let region = allocate(&provider, 100).unwrap();
    put(&provider, &region, b"there");
    let fd = provider.export_fd(&region, FdFormat::Opaque).unwrap();
    let twin = other.import_fd(&fd, region.size(), FdFormat::Opaque).unwrap();
    drop(fd);
    assert_eq!(get(&other, &twin, 5), b"there");
    put(&other, &twin, b"back!");
    assert_eq!(get(&provider, &region, 5), b"back!");
    free(&provider, region).unwrap();
    assert_eq!(get(&other, &twin, 5), b"back!");
    free(&other, twin).unwrap();
    assert!(provider.export_fd(&region, FdFormat::Opaque).is_err(), "it was freed");
}

#[test]
fn export_fd_of_unexportable_memory_fails() {
    let provider = built(device());
    let region = allocate(&provider, 100).unwrap();
    let refused = provider.export_fd(&region, FdFormat::Opaque).unwrap_err();
    assert!(matches!(refused, Error::Driver { name: "ZE_RESULT_ERROR_INVALID_ARGUMENT", .. }), "{refused}");
    free(&provider, region).unwrap();
}

#[test]
fn missing_dma_buf_support_is_reported() {
    let refused = device().exportable(FdFormat::DmaBuf).build().unwrap_err();
    assert!(refused.to_string().contains("exporting memory as a dma-buf is not supported"), "{refused}");
    let provider = built(device());
    assert!(!provider.exports(FdFormat::DmaBuf).unwrap() && provider.exports(FdFormat::Opaque).unwrap());
    let file = sealed(&[7; 1 << 16]);
    let refused = provider.import_fd(&file, 1 << 16, FdFormat::DmaBuf).unwrap_err();
    assert_eq!(refused, Error::Untrusted { why: "the descriptor is not a dma-buf" });
}

#[test]
fn imported_fd_becomes_a_region() {
    let provider = built(device());
    let file = sealed(&[7; 1 << 17]);
    let region = provider.import_fd(&file, 1 << 17, FdFormat::Opaque).unwrap();
    assert_eq!(get(&provider, &region, 1 << 17), vec![7; 1 << 17]);
    put(&provider, &region, b"to the file");
    let mut bytes = [0; 11];
    rustix::io::pread(file.as_fd(), &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"to the file");
    free(&provider, region).unwrap();
    assert!(provider.import_fd(&file, 1 << 18, FdFormat::Opaque).is_err(), "it is smaller");
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert!(provider.import_fd(&pipe, 1 << 16, FdFormat::Opaque).is_err());
    assert_eq!(provider.statistics().bytes(), 0);
}

#[test]
fn imported_host_dma_buf_becomes_a_region() {
    let maker = match umf_provider_dma_buf::DmaBufProvider::udmabuf().and_then(|builder| builder.build()) {
        Ok(maker) => maker,
        Err(error) => {
            return crate::driver::skip("imported_host_dma_buf_becomes_a_region", &error.to_string());
        }
    };
    let size = 1 << 17;
    let buffer = maker.allocate(Layout::new(size, 1).unwrap()).unwrap();
    let exported = Provider::export(&*maker).unwrap().export(&buffer).unwrap();
    let fd = exported.fd.as_ref().unwrap().try_clone().unwrap();
    // SAFETY: a live region of this test's, here and below.
    let access =
        || unsafe { umf_provider_dma_buf::cpu_access(buffer.base(), size, Access::ReadWrite) }.unwrap();
    let mut memory = access();
    memory.write(0, b"of the host").unwrap();
    memory.end().unwrap();
    let provider = built(device());
    assert!(provider.import_fd(&fd, size, FdFormat::Opaque).is_err(), "it is a dma-buf");
    let region = provider.import_fd(&fd, size, FdFormat::DmaBuf).unwrap();
    assert_eq!(get(&provider, &region, 11), b"of the host");
    put(&provider, &region, b"of a device");
    let mut bytes = [0; 11];
    access().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"of a device");
    free(&provider, region).unwrap();
    // SAFETY: the region is no longer used.
    unsafe { maker.free(buffer) }.unwrap();
}
