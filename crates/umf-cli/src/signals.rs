//! The signals that end a long-running subcommand, as a descriptor to poll.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Catches SIGTERM, SIGINT and SIGHUP, and becomes readable with the first of them.
///
/// A second signal has its default action: it ends a process that is blocked in a write.
pub(crate) struct EndSignals(UnixStream);

impl EndSignals {
    /// Installs the handlers, for the rest of the process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn catch() -> std::io::Result<EndSignals> {
        let (reader, writer) = UnixStream::pair()?;
        let was_caught = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // Registered before the flag is set by the same signal.
            flag::register_conditional_default(signal, Arc::clone(&was_caught))?;
            flag::register(signal, Arc::clone(&was_caught))?;
            low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(EndSignals(reader))
    }
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits at most `time` for an event of a descriptor. Returns the events of each; none after
/// `time`, or if a signal interrupts the wait.
///
/// # Errors
/// The error of poll(2).
pub(crate) fn wait<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    time: Duration,
) -> std::io::Result<[PollFlags; N]> {
    let mut fds = fds.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events));
    let time = Timespec::try_from(time).map_err(std::io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&time)) {
        Ok(_) => Ok(fds.map(|fd| fd.revents())),
        Err(Errno::INTR) => Ok([PollFlags::empty(); N]),
        Err(error) => Err(error.into()),
    }
}
