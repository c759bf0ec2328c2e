//! Whose a row is, and whether that process still lives.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use umf_core::step::{Step, step};

use super::layout::State;
use crate::{identity, sys};

/// A process, as it names itself in an entry. Others could write there: it is compared, not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub state: State,
    pub start_time: u64,
    pub pidfs_inode: u64,
}

impl Owner {
    /// The process behind it, held by a pidfd, or `None` if it has ended (another process may have its pid by now).
    ///
    /// A process that cannot be told from the owner counts as that: then memory is held longer than it need be.
    pub(super) fn find(&self) -> Option<Watch> {
        let Some(pid) = self.state.pid() else { return Some(Watch::Nothing) };
        let pidfd = match sys::pidfd_open(pid) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH | Errno::INVAL) => return None,
            // No fd to be had. It is asked for again the next time.
            Err(_) => return Some(Watch::Nothing),
        };
        step(Step::RowOwnerFound);
        let inode = identity::pidfs_inode(&pidfd).unwrap_or(0);
        let is_another = if inode != 0 && self.pidfs_inode != 0 {
            inode != self.pidfs_inode
        } else {
            identity::start_time(pid).is_some_and(|time| self.start_time != 0 && time != self.start_time)
        };
        let watch = Watch::Pidfd(pidfd);
        (!is_another && watch.is_alive()).then_some(watch)
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
