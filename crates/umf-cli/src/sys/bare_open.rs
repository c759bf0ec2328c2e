//! The system calls of a cold open and nothing else, to measure against.

use std::os::fd::{BorrowedFd, RawFd};

use super::{Mapping, Outcome, fetch_fd};
use std::os::fd::AsFd;

/// Fetches descriptor `number` of the process behind `pidfd`, maps `size` bytes of it, unmaps and closes.
pub(crate) fn open_and_close(pidfd: BorrowedFd<'_>, number: RawFd, size: usize) -> Outcome<()> {
    let fd = fetch_fd(pidfd, number)?;
    drop(Mapping::shared(fd.as_fd(), size)?);
    Ok(())
}
