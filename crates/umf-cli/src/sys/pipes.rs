//! Pipes to the processes that this command starts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::Outcome;

/// What to wait for at one end of a pipe.
pub(crate) enum Await<'fd> {
    /// Bytes, or the end.
    Input(BorrowedFd<'fd>),
    /// Room.
    Room(BorrowedFd<'fd>),
}

/// Waits until one of the ends is ready or has ended, or `timeout` has passed.
pub(crate) fn wait(ends: &[Await<'_>], timeout: Duration) -> Outcome<()> {
    let mut polled: Vec<PollFd<'_>> = ends
        .iter()
        .map(|end| match end {
            Await::Input(fd) => PollFd::from_borrowed_fd(*fd, PollFlags::IN),
            Await::Room(fd) => PollFd::from_borrowed_fd(*fd, PollFlags::OUT),
        })
        .collect();
    let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Reads and writes of this end return instead of waiting.
pub(crate) fn do_not_block(end: impl AsFd) -> Outcome<()> {
    let flags = rustix::fs::fcntl_getfl(&end)?;
    rustix::fs::fcntl_setfl(&end, flags | rustix::fs::OFlags::NONBLOCK)
}

/// Takes standard output for a protocol: returns it, and sends what anybody else in this process writes there to
/// standard error.
pub(crate) fn take_stdout() -> Outcome<OwnedFd> {
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok(taken)
}

/// Ends this process when its parent dies. `parent` is who started it; false if that has already ended.
pub(crate) fn die_with(parent: u32) -> bool {
    // Best effort: the end of standard input says it as well.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    rustix::process::getppid().is_some_and(|now| now.as_raw_nonzero().get().cast_unsigned() == parent)
}
