//! Files that others have: opened, asked, read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::close_on_fork::ClosedInChildren;
use crate::sys::Result;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    pub device: u64,
    pub inode: u64,
}

/// A descriptor of a file that this process made, and the file's identity.
///
/// The program may close descriptors that are not its own, and open other files under their
/// numbers. The number is compared before each use, and closed only while it is the file's.
#[derive(Debug)]
pub(crate) struct CheckedFd {
    fd: Arc<OwnedFd>,
    identity: FileIdentity,
    in_children: Option<ClosedInChildren>,
}

impl CheckedFd {
    pub(crate) fn new(fd: OwnedFd) -> Result<Self> {
        let identity = identity(&fd)?;
        Ok(Self { fd: Arc::new(fd), identity, in_children: None })
    }

    /// As [`CheckedFd::new`], for a descriptor that forked children close.
    pub(crate) fn closed_on_fork(fd: OwnedFd) -> Result<Self> {
        let in_children = Some(ClosedInChildren::new(fd.as_fd())?);
        let identity = identity(&fd)?;
        Ok(Self { fd: Arc::new(fd), identity, in_children })
    }

    /// Returns the descriptor; `ESTALE` if its number is closed or another file's.
    pub(crate) fn get(&self) -> Result<&Arc<OwnedFd>> {
        if identity(&self.fd) == Ok(self.identity) { Ok(&self.fd) } else { Err(Errno::STALE) }
    }

    /// Returns the descriptor without a comparison.
    pub(crate) const fn unchecked(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(crate) const fn identity(&self) -> FileIdentity {
        self.identity
    }
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        let is_closed = self.in_children.as_ref().is_some_and(|it| !it.belongs_here());
        if is_closed || self.get().is_err() {
            // A count that is never given back, so that no clone closes the number either.
            core::mem::forget(Arc::clone(&self.fd));
        }
    }
}

/// What [`filesystem`] says of shared memory (`statfs(2)`).
pub const TMPFS_MAGIC: u64 = 0x0102_1994;

pub(super) fn open(path: &str, writable: bool) -> Result<OwnedFd> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // NONBLOCK and NOCTTY: the path is a link to whatever another process has open.
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// The file at `path`, which is not opened: no driver and no file server hears of it.
pub(crate) fn open_path(path: &str) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Opens what [`open_path`] found. Needs the `/proc` of this pid namespace.
pub(crate) fn reopen(found: BorrowedFd<'_>, writable: bool) -> Result<OwnedFd> {
    // Not `/proc/self`, whose descriptors are gone once the main thread has exited.
    open(&format!("/proc/thread-self/fd/{}", found.as_raw_fd()), writable)
}

struct Status {
    identity: FileIdentity,
    size: u64,
    is_regular: bool,
}

/// As the kernel has it: a file server (FUSE, NFS) is not asked, so that it cannot keep this process waiting.
fn status(fd: impl AsFd) -> Result<Status> {
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
        Err(Errno::NOSYS) => {
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

pub(crate) fn identity(fd: impl AsFd) -> Result<FileIdentity> {
    Ok(status(fd)?.identity)
}

pub(crate) fn size(fd: impl AsFd) -> Result<u64> {
    Ok(status(fd)?.size)
}

/// Opening a device or a pipe does something; opening a regular file does not.
pub(crate) fn is_regular(fd: impl AsFd) -> Result<bool> {
    Ok(status(fd)?.is_regular)
}

/// Fills `bytes` from a place in a file; `false` if the file has fewer.
pub(crate) fn read_at(fd: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<bool> {
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

/// The magic number of the file system that the file is on (`statfs(2)`).
pub(crate) fn filesystem(fd: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type.cast_unsigned())
}
