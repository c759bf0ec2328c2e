//! Files that others have: opened, asked, read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::SystemResult as Result;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// As `stat(2)` numbers it.
    pub device: u64,
    /// The number of the inode there.
    pub inode: u64,
}

/// What [`filesystem`] says of shared memory (`statfs(2)`).
pub const TMPFS_MAGIC: u64 = 0x0102_1994;

pub(crate) fn open(path: &str, writable: bool) -> Result<OwnedFd> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // NONBLOCK and NOCTTY: the path is a link to whatever another process has open.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// The file at `path`, which is not opened: no driver and no file server hears of it.
///
/// # Errors
/// Those of `open(2)`.
pub fn open_path(path: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Opens what [`open_path`] found. Needs the `/proc` of this pid namespace.
///
/// # Errors
/// Those of `open(2)`.
pub fn reopen(found: BorrowedFd<'_>, writable: bool) -> Result<OwnedFd> {
    // Not `/proc/self`, whose descriptors are gone once the main thread has exited.
    open(&format!("/proc/thread-self/fd/{}", found.as_raw_fd()), writable)
}

pub(crate) struct Status {
    pub(crate) identity: FileIdentity,
    pub(crate) size: u64,
    is_regular: bool,
}

/// As the kernel has it: a file server (FUSE, NFS) is not asked, so that it cannot keep this
/// process waiting.
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
        // Linux before 4.11, or a seccomp filter that does not know it.
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

/// The identity of the file behind a descriptor.
///
/// # Errors
/// Those of `statx(2)`.
pub fn identity(fd: impl AsFd) -> Result<FileIdentity> {
    Ok(status(fd)?.identity)
}

/// The size of the file in bytes.
///
/// # Errors
/// Those of `statx(2)`.
pub fn size(fd: impl AsFd) -> Result<u64> {
    Ok(status(fd)?.size)
}

/// Whether it is a regular file. (Opening a device or a pipe does something; opening a regular file
/// does not.)
///
/// # Errors
/// Those of `statx(2)`.
pub fn is_regular(fd: impl AsFd) -> Result<bool> {
    Ok(status(fd)?.is_regular)
}

/// Fills `bytes` from a place in a file; `false` if the file has fewer.
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

/// Allocates the pages of a range of a file of memory, so that touching them cannot be SIGBUS.
///
/// # Errors
/// What `fallocate(2)` says.
pub fn reserve(fd: impl AsFd, offset: u64, size: u64) -> Result<()> {
    rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::KEEP_SIZE, offset, size)
    })
}

/// Makes a hole of a range of a file: it reads as zeros, and its pages are free.
///
/// # Errors
/// Those of `fallocate(2)`.
pub fn punch_hole(fd: impl AsFd, offset: u64, size: u64) -> Result<()> {
    use rustix::fs::FallocateFlags;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&fd, flags, offset, size))
}

/// The magic number of the file system that the file is on (`statfs(2)`).
///
/// # Errors
/// Those of the call.
pub fn filesystem(fd: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type.cast_unsigned())
}
