//! Whose a row is, and whether that process still lives.

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use umf_core::step::{Step, step};

use super::layout::{Entry, State};
use crate::{identity, sys};

/// A process, as it names itself in an entry. Others could write there: it is compared, not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub state: State,
    pub start_time: u64,
    pub pidfs_inode: u64,
}

impl Owner {
    /// What an entry says.
    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            state: State(entry.state.load(Ordering::Acquire)),
            start_time: entry.start_time.load(Ordering::Relaxed),
            pidfs_inode: entry.pidfs_inode.load(Ordering::Relaxed),
        }
    }

    /// The process behind it, held by a pidfd, or `None` if it has ended (another process may have its pid by now).
    ///
    /// A process that cannot be told from the owner counts as that: then memory is held longer than it need be. One that
    /// announced itself cannot be found here: whoever took note of that knows it, and nobody opens anything before.
    pub(super) fn find(&self) -> Option<Watch> {
        let pid = self.state.pid()?;
        let pidfd = match sys::pidfd_open(pid) {
            Ok(pidfd) => pidfd,
            // Or the number is that of a thread by now: ENOENT, before Linux 6.16 EINVAL.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return None,
            // No fd to be had. It is asked for again the next time.
            Err(_) => return Some(Watch::Nothing),
        };
        step(Step::RowOwnerFound);
        // Who only claims a row has not written more than its pid yet.
        let is_another = self.state.is_used() && self.differs_from(pid, &pidfd);
        let watch = Watch::Pidfd(pidfd);
        (!is_another && watch.is_alive()).then_some(watch)
    }

    /// Whether the process that has the pid now is another one.
    fn differs_from(&self, pid: u32, pidfd: &OwnedFd) -> bool {
        let inode = identity::pidfs_inode(pidfd).unwrap_or(0);
        if inode != 0 && self.pidfs_inode != 0 {
            return inode != self.pidfs_inode;
        }
        // Where there are inodes, an importer that knows neither its own nor its start time opens nothing.
        let is_known = self.start_time != 0 || inode != 0;
        is_known && identity::start_time(pid).is_some_and(|time| time != self.start_time)
    }
}

/// How a process's end is noticed.
#[derive(Debug)]
pub(super) enum Watch {
    Pidfd(OwnedFd),
    /// Not at all, for now.
    Nothing,
}

impl Watch {
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Self::Pidfd(pidfd) => !sys::has_ended(pidfd.as_fd()),
            Self::Nothing => true,
        }
    }
}
