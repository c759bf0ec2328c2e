//! The system calls of this crate.

use std::os::fd::OwnedFd;

/// Keeps a file from exec'ed children, which drivers leave it open for.
pub(crate) fn close_on_exec(fd: &OwnedFd) {
    // A file of ours: there is nothing that could fail.
    let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
}
