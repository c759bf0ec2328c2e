//! [`find`]: all ledgers that processes have open; and [`OwnerStatus`]: whether the process that made one is
//! still there.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{OFlags, SealFlags};
use rustix::io::Errno;

use super::ledger::Ledger;
use crate::identity::Nonce;
use crate::ledger::layout::{MEMFD_NAME, OwnerIdentity};
use crate::{Handle, identity};
use umf_os::FileIdentity;

/// A ledger, and the processes that have it open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FoundLedger {
    /// Its content.
    pub ledger: Ledger,
    /// What became of the process that made it.
    pub owner: OwnerStatus,
    /// The processes that have it open, its owner among them, by rising process id. Those that only
    /// look are not.
    pub holders: Vec<u32>,
}

/// What [`find`] saw.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Search {
    /// Every ledger once, by the process id of its owner.
    pub found: Vec<FoundLedger>,
    /// Processes whose files this one may not look at: of other users, or not dumpable.
    pub denied: Vec<u32>,
    /// Processes that were looked into.
    pub inspected: Vec<u32>,
    /// Files that are called as ledgers are, and could not be opened (no fds left) or are none that
    /// this version can read.
    pub unreadable: usize,
}

impl Search {
    /// The ledger with this nonce.
    #[must_use]
    pub fn by_nonce(&self, nonce: Nonce) -> Option<&FoundLedger> {
        self.found.iter().find(|found| found.ledger.identity().nonce == nonce)
    }

    /// What became of the producer of a handle, as far as can be told without its ledger.
    #[must_use]
    pub fn producer_of(&self, handle: &Handle) -> OwnerStatus {
        let identity = OwnerIdentity::of(handle);
        let inspected = |pid| self.inspected.binary_search(&pid).is_ok();
        match self.by_nonce(handle.nonce()) {
            Some(found) => found.owner,
            None => OwnerStatus::of(&identity, &[], inspected),
        }
    }
}

/// Looks for ledgers in all processes that `/proc` shows. No process is stopped, asked or written
/// to. Takes about a microsecond per fd that is open anywhere.
///
/// # Errors
/// `/proc` cannot be read, or is not that of this pid namespace.
pub fn find() -> io::Result<Search> {
    if !umf_os::process::sees_itself_in_proc() {
        return Err(io::Error::other(
            "no /proc of this pid namespace is mounted at /proc: mount -t proc proc /proc",
        ));
    }
    let mut search = Search::default();
    let mut files: HashMap<FileIdentity, (OwnedFd, Vec<u32>)> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        match look_into(pid, &mut files) {
            Ok(unopened) => {
                search.unreadable += unopened;
                search.inspected.push(pid);
            }
            // The kernel's own threads have no files.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_kernel_thread(pid) => {
                search.denied.push(pid);
            }
            // It ended meanwhile.
            Err(_) => {}
        }
    }
    search.inspected.sort_unstable();
    search.denied.sort_unstable();
    for (_, (file, mut holders)) in files {
        holders.sort_unstable();
        holders.dedup();
        let Some(ledger) = sealed(&file).then(|| Ledger::from_file(file)).flatten() else {
            search.unreadable += 1;
            continue;
        };
        let inspected = |pid| search.inspected.binary_search(&pid).is_ok();
        let owner = OwnerStatus::of(ledger.identity(), &holders, inspected);
        search.found.push(FoundLedger { ledger, owner, holders });
    }
    // Two files with one nonce: one of them is a forgery, and the owner's own goes first.
    search.found.sort_by_key(|found| {
        (found.ledger.identity().nonce, !matches!(found.owner, OwnerStatus::Alive { .. }))
    });
    search.found.dedup_by_key(|found| found.ledger.identity().nonce);
    search.found.sort_by_key(|found| found.ledger.identity().pid);
    Ok(search)
}

/// Adds the ledgers that a process has. Returns how many of them could not be opened.
fn look_into(pid: u32, files: &mut HashMap<FileIdentity, (OwnedFd, Vec<u32>)>) -> io::Result<usize> {
    let mut entries = fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::peekable);
    // If the main thread has exited, the folder is empty and root's.
    let has_entries = entries.as_mut().is_ok_and(|entries| entries.peek().is_some());
    if !has_entries && let Some(folder) = umf_os::process::fds_of_other_thread(pid) {
        entries = fs::read_dir(folder).map(Iterator::peekable);
    }
    let mut unopened = 0;
    for entry in entries? {
        let path = entry?.path();
        // The name is no proof, but it saves looking at most.
        let Ok(link) = fs::read_link(&path) else { continue };
        let name = link.to_str().and_then(|link| link.strip_prefix("/memfd:"));
        if name.is_none_or(|name| name.strip_suffix(" (deleted)").unwrap_or(name) != MEMFD_NAME) {
            continue;
        }
        if is_looked_at(&path) {
            continue;
        }
        let Some((identity, found)) = path.to_str().and_then(memfd) else { continue };
        if let Some((_, holders)) = files.get_mut(&identity) {
            holders.push(pid);
            continue;
        }
        match umf_os::file::reopen(found.as_fd(), false) {
            Ok(file) => drop(files.insert(identity, (file, vec![pid]))),
            // Closed meanwhile.
            Err(Errno::NOENT) => {}
            Err(_) => unopened += 1,
        }
    }
    Ok(unopened)
}

/// Returns whether a descriptor belongs to a process that only inspects the ledger, as this one
/// does: it is open for reading alone. Owners and importers have it open for writing
/// (`proc_pid_fdinfo(5)`).
fn is_looked_at(path: &Path) -> bool {
    let (folder, number) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let text = fs::read_to_string(folder.with_file_name("fdinfo").join(number)).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags) & OFlags::ACCMODE == OFlags::RDONLY)
}

/// The memfd at a path in `/proc`; `None` for any other file, which is not opened.
fn memfd(path: &str) -> Option<(FileIdentity, OwnedFd)> {
    let found = umf_os::file::open_path(path).ok()?;
    let identity = umf_os::file::identity(&found).ok()?;
    let memfds = umf_os::memfd::device().ok()?;
    let fits =
        umf_os::file::is_regular(&found).ok()? && memfds.is_none_or(|device| device == identity.device);
    fits.then_some((identity, found))
}

/// Returns whether only the creator of a file can have written it, and no process can shrink it.
fn sealed(file: &OwnedFd) -> bool {
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    umf_os::memfd::is_sealed(file, needed).unwrap_or(false)
        && umf_os::file::filesystem(file).is_ok_and(|magic| magic == umf_os::file::TMPFS_MAGIC)
}

/// By the flag `PF_KTHREAD`, field 9 of `/proc/<pid>/stat` (`proc_pid_stat(5)`).
fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// What became of the process that made a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerStatus {
    /// It runs, and has the ledger.
    Alive {
        /// Its process id here.
        pid: u32,
    },
    /// It runs and has the ledger no more: it called exec, or dropped what the ledger was of.
    Detached {
        /// Its process id here.
        pid: u32,
    },
    /// It ended. Its number may be another process's by now.
    Ended,
    /// It was in another pid namespace, and no process there that can be looked at is it.
    Unknown,
}

impl OwnerStatus {
    /// Its process id, if it runs.
    #[must_use]
    pub const fn pid(self) -> Option<u32> {
        match self {
            Self::Alive { pid } | Self::Detached { pid } => Some(pid),
            Self::Ended | Self::Unknown => None,
        }
    }

    /// Of a ledger that the `holders` have open. `inspected` says whether all fds of a process were
    /// seen.
    pub(super) fn of(owner: &OwnerIdentity, holders: &[u32], inspected: impl Fn(u32) -> bool) -> Self {
        let here = identity::pid_namespace();
        if here != 0 && owner.pid_namespace != 0 && owner.pid_namespace != here {
            let holder = holders.iter().find(|&&pid| is_in_namespace(pid, owner));
            return holder.map_or(Self::Unknown, |&pid| Self::Alive { pid });
        }
        let pid = owner.pid;
        if !is_still(pid, owner) {
            Self::Ended
        } else if holders.contains(&pid) || !inspected(pid) {
            Self::Alive { pid }
        } else {
            Self::Detached { pid }
        }
    }
}

/// Whether this number is still that process.
fn is_still(pid: u32, owner: &OwnerIdentity) -> bool {
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

fn started_then(pid: u32, owner: &OwnerIdentity) -> bool {
    identity::start_time(pid).is_some_and(|time| owner.start_time == 0 || time == owner.start_time)
}

/// Whether a process is the owner, by the number that it has in its own pid namespace.
fn is_in_namespace(pid: u32, owner: &OwnerIdentity) -> bool {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid"))
        .map_or(0, |metadata| std::os::unix::fs::MetadataExt::ino(&metadata));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let own = numbers.split_ascii_whitespace().next_back().and_then(|number| number.parse().ok());
    namespace == owner.pid_namespace && own == Some(owner.pid)
}
