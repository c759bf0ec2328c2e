//! Files of other processes: identity, type, size and content; and the range of a file that an
//! import requests.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use umf_core::{Error, ImportRequest};

use crate::SystemResult as Result;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The device number (`stat(2)`).
    pub device: u64,
    /// The inode number.
    pub inode: u64,
}

/// The magic number of shared memory (tmpfs), which [`filesystem`] returns (`statfs(2)`).
pub const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Opens a file for reading, or for reading and writing.
pub(crate) fn open(path: &str, writable: bool) -> Result<OwnedFd> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // NONBLOCK and NOCTTY: the path may lead to any file that another process has open.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// Returns the file at `path` without opening it (`O_PATH`): no driver or file server is called.
///
/// # Errors
/// Those of `open(2)`.
pub fn open_path(path: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Opens a file that [`open_path`] returned. Needs the `/proc` of this pid namespace.
///
/// # Errors
/// Those of `open(2)`.
pub fn reopen(found: BorrowedFd<'_>, writable: bool) -> Result<OwnedFd> {
    // Not `/proc/self`, which has no descriptors after the main thread has exited.
    open(&format!("/proc/thread-self/fd/{}", found.as_raw_fd()), writable)
}

/// The metadata of a file.
pub(crate) struct Status {
    pub(crate) identity: FileIdentity,
    pub(crate) size: u64,
    is_regular: bool,
}

/// Returns the metadata that the kernel has cached. Does not call a file server (FUSE, NFS), which
/// could block.
pub(crate) fn status(fd: impl AsFd) -> Result<Status> {
    use rustix::fs::{AtFlags, FileType, StatxFlags};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(&fd, c"", flags, StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE) {
        Ok(found) => Ok(Status {
            identity: FileIdentity {
                device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
            },
            size: found.stx_size,
            is_regular: FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::RegularFile,
        }),
        // Linux before 4.11, or a seccomp filter that does not know `statx`.
        Err(Errno::NOSYS | Errno::PERM) => {
            let found = rustix::fs::fstat(fd)?;
            Ok(Status {
                identity: FileIdentity { device: found.st_dev, inode: found.st_ino },
                size: found.st_size.cast_unsigned(),
                is_regular: FileType::from_raw_mode(found.st_mode) == FileType::RegularFile,
            })
        }
        Err(errno) => Err(errno),
    }
}

/// Returns the identity of the file of a descriptor.
///
/// # Errors
/// Those of `statx(2)`.
pub fn identity(fd: impl AsFd) -> Result<FileIdentity> {
    Ok(status(fd)?.identity)
}

/// Returns the size of the file in bytes.
///
/// # Errors
/// Those of `statx(2)`.
pub fn size(fd: impl AsFd) -> Result<u64> {
    Ok(status(fd)?.size)
}

/// Returns whether the file is a regular file. Opening one has no side effects, unlike opening a
/// device or a pipe.
///
/// # Errors
/// Those of `statx(2)`.
pub fn is_regular(fd: impl AsFd) -> Result<bool> {
    Ok(status(fd)?.is_regular)
}

/// Fills `bytes` from `offset` in a file. Returns `false` if the file has fewer bytes.
///
/// # Errors
/// Those of `pread(2)`.
pub fn read_at(fd: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<bool> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(&fd, &mut bytes[filled..], offset + filled as u64) {
            Ok(0) => return Ok(false),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Allocates the pages of a range of a memory file, so that accessing them cannot cause SIGBUS.
///
/// # Errors
/// Those of `fallocate(2)`.
pub fn reserve(fd: impl AsFd, offset: u64, size: u64) -> Result<()> {
    rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::KEEP_SIZE, offset, size)
    })
}

/// Punches a hole into a file: frees the pages of a range, which then reads as zeros.
///
/// # Errors
/// Those of `fallocate(2)`.
pub fn punch_hole(fd: impl AsFd, offset: u64, size: u64) -> Result<()> {
    use rustix::fs::FallocateFlags;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&fd, flags, offset, size))
}

/// Returns the magic number of the file system of a file (`statfs(2)`).
///
/// # Errors
/// Those of `fstatfs(2)`.
pub fn filesystem(fd: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type.cast_unsigned())
}

/// Returns whether a descriptor is a dma-buf. `fdinfo` shows the exporter of a dma-buf, and of no
/// other file (Linux 5.3). Does not call the file system of the file, which could block for ever.
///
/// # Errors
/// [`Error::Native`] if `/proc` cannot be read.
pub fn is_dma_buf(fd: BorrowedFd<'_>) -> umf_core::Result<bool> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
    match std::fs::read(&path) {
        // The names in it need not be UTF-8.
        Ok(text) => Ok(text.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"exp_name:\t"))),
        Err(error) => Err(Error::Native {
            call: "read of /proc/thread-self/fdinfo",
            native: error.raw_os_error().unwrap_or(0),
            hint: "mount /proc, without which a dma-buf cannot be distinguished from other files",
        }),
    }
}

/// The whole pages of a file that an [`ImportRequest`] requests. The request came from another
/// process, so it is checked against the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// Its size in bytes, not 0.
    pub size: usize,
}

impl FileRange {
    /// Returns the range for a file of `file_size` bytes in pages of `page` bytes, a power of two.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if the range does not begin at a page, is empty or too large, or does
    /// not lie in the file.
    pub fn of(request: &ImportRequest, page: usize, file_size: u64) -> umf_core::Result<Self> {
        if !request.offset.is_multiple_of(page as u64) {
            return Err(Error::Untrusted { why: "the offset is not a multiple of the page size" });
        }
        let size = Some(request.size)
            .filter(|&size| size > 0)
            .and_then(|size| size.checked_next_multiple_of(page))
            .filter(|&size| isize::try_from(size).is_ok())
            .ok_or(Error::Untrusted { why: "the size is 0 or exceeds an address space" })?;
        if request.offset.checked_add(size as u64).is_none_or(|end| end > file_size) {
            return Err(Error::Untrusted { why: "the range does not lie inside the file" });
        }
        Ok(Self { offset: request.offset, size })
    }
}

#[cfg(test)]
mod tests {
    use umf_core::Access;

    use super::*;

    #[test]
    fn range_is_whole_pages_inside_the_file() {
        let part = |offset, size| {
            FileRange::of(&ImportRequest::new(None, offset, size, Access::ReadOnly), 4096, 5 * 4096 + 1)
        };
        assert_eq!(part(4096, 1), Ok(FileRange { offset: 4096, size: 4096 }));
        assert_eq!(part(0, 5 * 4096), Ok(FileRange { offset: 0, size: 5 * 4096 }));
        for (offset, size) in [
            (1, 4096),
            (0, 0),
            (0, 5 * 4096 + 1),
            (5 * 4096, 1),
            (0, usize::MAX),
            (0, isize::MAX as usize),
            (u64::MAX - 4095, 4096),
        ] {
            assert!(matches!(part(offset, size), Err(Error::Untrusted { .. })), "{size} at {offset}");
        }
    }
}
