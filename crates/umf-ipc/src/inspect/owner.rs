//! [`Owner`]: whether the process that made a ledger is still there.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::ledger::Identity;
use crate::identity;

/// What became of the process that made a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It runs, and has the ledger.
    Alive {
        /// Its process id here.
        pid: u32,
    },
    /// It runs and has the ledger no more: it called exec, or dropped what the ledger was of.
    Left {
        /// Its process id here.
        pid: u32,
    },
    /// It ended. Its number may be another process's by now.
    Ended,
    /// It was in another pid namespace, and no process there that can be looked at is it.
    Unknown,
}

impl Owner {
    /// Its process id, if it runs.
    #[must_use]
    pub const fn pid(self) -> Option<u32> {
        match self {
            Self::Alive { pid } | Self::Left { pid } => Some(pid),
            Self::Ended | Self::Unknown => None,
        }
    }

    /// Of a ledger that the `holders` have open. `looked_into` says whether all fds of a process were seen.
    pub(super) fn of(owner: &Identity, holders: &[u32], looked_into: impl Fn(u32) -> bool) -> Self {
        let here = identity::pid_namespace();
        if here != 0 && owner.pid_namespace != 0 && owner.pid_namespace != here {
            let holder = holders.iter().find(|&&pid| is_in_namespace(pid, owner));
            return holder.map_or(Self::Unknown, |&pid| Self::Alive { pid });
        }
        let pid = owner.pid;
        if !is_still(pid, owner) {
            Self::Ended
        } else if holders.contains(&pid) || !looked_into(pid) {
            Self::Alive { pid }
        } else {
            Self::Left { pid }
        }
    }
}

/// Whether this number is still that process.
fn is_still(pid: u32, owner: &Identity) -> bool {
    match umf_os::process::pidfd_open(pid) {
        Ok(pidfd) => {
            if umf_os::process::has_ended(pidfd.as_fd()) {
                return false;
            }
            match identity::pidfs_inode(&pidfd) {
                Some(inode) if owner.pidfs_inode != 0 => inode == owner.pidfs_inode,
                _ => started_then(pid, owner),
            }
        }
        // No such process, or its number is that of a thread now.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => false,
        Err(_) => started_then(pid, owner),
    }
}

fn started_then(pid: u32, owner: &Identity) -> bool {
    identity::start_time(pid).is_some_and(|time| owner.start_time == 0 || time == owner.start_time)
}

/// Whether a process is the owner, by the number that it has in its own pid namespace.
fn is_in_namespace(pid: u32, owner: &Identity) -> bool {
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid"))
        .map_or(0, |metadata| std::os::unix::fs::MetadataExt::ino(&metadata));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let own = numbers.split_ascii_whitespace().next_back().and_then(|number| number.parse().ok());
    namespace == owner.pid_namespace && own == Some(owner.pid)
}
