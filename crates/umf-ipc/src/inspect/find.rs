//! [`find`]: searches `/proc` for ledgers. [`OwnerStatus`]: whether the owner of a ledger still
//! runs.

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
    /// Status of the process that created it.
    pub owner: OwnerStatus,
    /// The processes that have it open, including its owner and excluding inspecting ones, sorted
    /// by process id.
    pub holders: Vec<u32>,
}

/// The result of [`find`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Search {
    /// The ledgers, sorted by the process id of their owners.
    pub found: Vec<FoundLedger>,
    /// Processes whose files this one may not inspect: they are of other users, or not dumpable.
    pub denied: Vec<u32>,
    /// Processes that were inspected.
    pub inspected: Vec<u32>,
    /// Number of files with a ledger's name that could not be opened (for example without a free
    /// descriptor), or that this version cannot read.
    pub unreadable: usize,
    /// Number of producers in directories ([`Search::add_directory`]) that did not answer: they are
    /// stopped, or do not permit this process.
    pub silent: usize,
}

impl Search {
    /// Returns the ledger with this nonce.
    #[must_use]
    pub fn by_nonce(&self, nonce: Nonce) -> Option<&FoundLedger> {
        self.found.iter().find(|found| found.ledger.identity().nonce == nonce)
    }

    /// Returns the status of the producer of a handle, even if its ledger was not found.
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

/// Searches all processes in `/proc` for ledgers. Does not stop, contact or modify any process.
/// Takes about a microsecond per open descriptor in the system.
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
        match inspect_process(pid, &mut files) {
            Ok(unopened) => {
                search.unreadable += unopened;
                search.inspected.push(pid);
            }
            // Kernel threads have no files.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_kernel_thread(pid) => {
                search.denied.push(pid);
            }
            // The process has ended.
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
    // If two files have one nonce, one of them is forged. The one that its owner has open comes
    // first.
    search.found.sort_by_key(|found| {
        (found.ledger.identity().nonce, !matches!(found.owner, OwnerStatus::Alive { .. }))
    });
    search.found.dedup_by_key(|found| found.ledger.identity().nonce);
    search.found.sort_by_key(|found| found.ledger.identity().pid);
    Ok(search)
}

/// Adds the ledgers that a process has open. Returns how many of them could not be opened.
fn inspect_process(pid: u32, files: &mut HashMap<FileIdentity, (OwnedFd, Vec<u32>)>) -> io::Result<usize> {
    let mut entries = fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::peekable);
    // If the main thread has exited, the folder is empty and root's.
    let has_entries = entries.as_mut().is_ok_and(|entries| entries.peek().is_some());
    if !has_entries && let Some(folder) = umf_os::process::fds_of_other_thread(pid) {
        entries = fs::read_dir(folder).map(Iterator::peekable);
    }
    let mut unopened = 0;
    for entry in entries? {
        let path = entry?.path();
        // The name proves nothing, but excludes most other files cheaply.
        let Ok(link) = fs::read_link(&path) else { continue };
        let name = link.to_str().and_then(|link| link.strip_prefix("/memfd:"));
        if name.is_none_or(|name| name.strip_suffix(" (deleted)").unwrap_or(name) != MEMFD_NAME) {
            continue;
        }
        if is_open_for_inspection(&path) {
            continue;
        }
        let Some((identity, found)) = path.to_str().and_then(memfd) else { continue };
        if let Some((_, holders)) = files.get_mut(&identity) {
            holders.push(pid);
            continue;
        }
        match umf_os::file::reopen(found.as_fd(), false) {
            Ok(file) => drop(files.insert(identity, (file, vec![pid]))),
            // The process has closed it.
            Err(Errno::NOENT) => {}
            Err(_) => unopened += 1,
        }
    }
    Ok(unopened)
}

/// Returns whether a descriptor belongs to a process that only inspects the ledger, as this one
/// does: it is open for reading alone. Owners and importers have it open for writing
/// (`proc_pid_fdinfo(5)`).
fn is_open_for_inspection(path: &Path) -> bool {
    let (folder, number) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
    let text = fs::read_to_string(folder.with_file_name("fdinfo").join(number)).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags) & OFlags::ACCMODE == OFlags::RDONLY)
}

/// Returns the memfd at a path in `/proc`. Does not open any other file, and returns `None` for it.
fn memfd(path: &str) -> Option<(FileIdentity, OwnedFd)> {
    let found = umf_os::file::open_path(path).ok()?;
    let identity = umf_os::file::identity(&found).ok()?;
    // Not by the device of a new memfd: a filter may end a process that creates one.
    let fits = umf_os::file::is_regular(&found).ok()?
        && umf_os::file::filesystem(&found).ok()? == umf_os::file::TMPFS_MAGIC;
    fits.then_some((identity, found))
}

/// Returns whether only the creator of a file can write it, and no process can shrink it.
pub(super) fn sealed(file: &OwnedFd) -> bool {
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    umf_os::memfd::is_sealed(file, needed).unwrap_or(false)
        && umf_os::file::filesystem(file).is_ok_and(|magic| magic == umf_os::file::TMPFS_MAGIC)
}

/// Returns whether a process is a kernel thread, by the flag `PF_KTHREAD` in field 9 of
/// `/proc/<pid>/stat` (`proc_pid_stat(5)`).
fn is_kernel_thread(pid: u32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let flags = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Status of the process that created a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerStatus {
    /// It runs and has the ledger open.
    Alive {
        /// Its process id in this pid namespace.
        pid: u32,
    },
    /// It runs without the ledger: it called exec, or dropped the exporter or importer of the
    /// ledger.
    Detached {
        /// Its process id in this pid namespace.
        pid: u32,
    },
    /// It runs in another pid namespace, or may not be inspected: it has answered in a directory.
    Elsewhere {
        /// Its process id in its own pid namespace.
        pid: u32,
    },
    /// It has ended. Its pid may have been reused.
    Ended,
    /// It was in another pid namespace, and no process that can be inspected is the owner.
    Unknown,
}

impl OwnerStatus {
    /// Returns its process id in this pid namespace, if it runs here.
    #[must_use]
    pub const fn pid(self) -> Option<u32> {
        match self {
            Self::Alive { pid } | Self::Detached { pid } => Some(pid),
            Self::Elsewhere { .. } | Self::Ended | Self::Unknown => None,
        }
    }

    /// Returns the status of the owner of a ledger that `holders` have open. `inspected` returns
    /// whether all descriptors of a process were inspected.
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

/// Returns whether the process with this pid is the owner.
fn is_still(pid: u32, owner: &OwnerIdentity) -> bool {
    match umf_os::process::pidfd_open(pid) {
        Ok(pidfd) => {
            if umf_os::process::has_ended(pidfd.as_fd()) {
                return false;
            }
            match identity::pidfs_inode(&pidfd) {
                Some(inode) if owner.pidfs_inode != 0 => inode == owner.pidfs_inode,
                _ => has_start_time_of(pid, owner),
            }
        }
        // There is no such process, or the pid was reused for a thread.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => false,
        Err(_) => has_start_time_of(pid, owner),
    }
}

/// Returns whether a process has the owner's start time, as far as that is known.
fn has_start_time_of(pid: u32, owner: &OwnerIdentity) -> bool {
    identity::start_time(pid).is_some_and(|time| owner.start_time == 0 || time == owner.start_time)
}

/// Returns whether a process is the owner, by its pid in its own pid namespace.
fn is_in_namespace(pid: u32, owner: &OwnerIdentity) -> bool {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid"))
        .map_or(0, |metadata| std::os::unix::fs::MetadataExt::ino(&metadata));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let innermost = pids.split_ascii_whitespace().next_back().and_then(|pid| pid.parse().ok());
    namespace == owner.pid_namespace && innermost == Some(owner.pid)
}
