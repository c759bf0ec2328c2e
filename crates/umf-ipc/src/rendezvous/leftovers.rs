//! [`Leftovers`]: removal of what ended processes have left in a directory.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use umf_sync::failpoint;

use super::directory::{Directory, NEW};
use super::error::DirectoryResult as Result;
use super::lock::{self, LockFile, Record, identity_at};
use crate::transfer::socket::{DIRECTORY_FAMILY, directory_prefix};

/// The most entries that a process reads in a directory before it binds a name there. The others
/// are for [`remove_leftovers`].
const LISTED_BEFORE_BIND: usize = 10_000;

/// Counts of names in a directory, by the state of their owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// Names of ended processes, whose files were removed, or would be.
    pub removed: u64,
    /// Names of running processes.
    pub alive: u64,
    /// Names of ended processes whose files this process may not remove: another user's, in a
    /// directory with the sticky bit, or in one that is read-only.
    pub foreign: u64,
    /// Names of ended processes on whose lock files another process has a read lock. They can
    /// neither be removed nor taken until that process unlocks them or ends.
    pub read_locked: u64,
    /// Names whose owner this process cannot know: their lock files are seen through another file
    /// system, are unreadable, or were removed by another program.
    pub unknown: u64,
    /// Names of other prefixes of umf: of another boot or machine.
    pub other_boots: u64,
}

/// Removes what ended processes of this boot have left in a directory.
///
/// # Errors
/// The directory cannot be used or listed.
pub fn remove_leftovers(directory: &Directory) -> Result<Leftovers> {
    visit(directory, DIRECTORY_FAMILY, &directory_prefix(), usize::MAX, remove_if_dead)
}

/// Returns what [`remove_leftovers`] would remove. Takes no lock, and changes nothing.
///
/// # Errors
/// As [`remove_leftovers`].
pub fn find_leftovers(directory: &Directory) -> Result<Leftovers> {
    visit(directory, DIRECTORY_FAMILY, &directory_prefix(), usize::MAX, test)
}

/// Removes what ended processes have left in a directory in which this process is about to bind a
/// name. Looks at a bounded number of files. A failure is logged: a process that may not list the
/// directory can bind there.
pub fn remove_leftovers_before_bind(directory: &Directory) {
    let found = visit(directory, DIRECTORY_FAMILY, &directory_prefix(), LISTED_BEFORE_BIND, remove_if_dead);
    let path = directory.path().display();
    match found {
        Ok(found) => tracing::debug!(%path, ?found, "looked for left-overs"),
        Err(error) => tracing::debug!(%path, %error, "left-overs are not looked for"),
    }
}

/// Calls `act` with the names of `prefix` among the first `most` entries. `family` is the beginning
/// of all names of umf, which `prefix` begins with.
pub(super) fn visit(
    directory: &Directory,
    family: &str,
    prefix: &str,
    most: usize,
    act: impl Fn(&OwnedFd, &str) -> Outcome,
) -> Result<Leftovers> {
    let mut found = Leftovers::default();
    let (mut names, mut sockets) = (Vec::new(), Vec::new());
    directory.list(most, |entry| {
        match entry.strip_suffix(lock::SUFFIX).filter(|name| name.starts_with(family)) {
            Some(name) if name.starts_with(prefix) => names.push(name.to_owned()),
            Some(_) => found.other_boots += 1,
            None if entry.starts_with(prefix) => sockets.push(entry.to_owned()),
            None => {}
        }
    })?;
    // Not while it is listed, which removals may disturb.
    let folder = directory.open(OFlags::PATH)?;
    for name in &names {
        match act(&folder, name) {
            Outcome::Removed => found.removed += 1,
            Outcome::Alive => found.alive += 1,
            Outcome::Foreign => found.foreign += 1,
            Outcome::ReadLocked => found.read_locked += 1,
            Outcome::Unknown => found.unknown += 1,
        }
    }
    found.unknown += sockets.iter().filter(|name| has_lost_lock(&folder, name)).count() as u64;
    Ok(found)
}

/// Returns whether a name has a socket and no lock file. A process makes the lock file first and
/// removes it last.
fn has_lost_lock(directory: &OwnedFd, name: &str) -> bool {
    let has_no_lock = identity_at(directory, lock::name_of(name), FileType::RegularFile) == Err(Errno::NOENT);
    has_no_lock && !name.ends_with(NEW) && identity_at(directory, name, FileType::Socket).is_ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Removed,
    Alive,
    Foreign,
    ReadLocked,
    Unknown,
}

/// Returns what [`remove_if_dead`] would do, except for a read lock of another process, which only
/// an attempt to lock the file shows.
pub(super) fn test(directory: &OwnedFd, name: &str) -> Outcome {
    let lock = lock::name_of(name);
    let file = match LockFile::open(directory, &lock, false) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Outcome::Removed,
        Err(_) => return Outcome::Unknown,
    };
    match (file.read_record(), file.is_locked()) {
        (Ok(Record::Same | Record::Empty), Ok(true)) => Outcome::Alive,
        (Ok(Record::Same | Record::Empty), Ok(false)) if file.is_removable(directory) => Outcome::Removed,
        (Ok(Record::Same | Record::Empty), Ok(false)) => Outcome::Foreign,
        _ => Outcome::Unknown,
    }
}

/// Removes the files of a name if its lock is free.
pub(super) fn remove_if_dead(directory: &OwnedFd, name: &str) -> Outcome {
    let lock = lock::name_of(name);
    let file = match LockFile::open(directory, &lock, true) {
        Ok(file) => file,
        // Another process removed it meanwhile.
        Err(Errno::NOENT) => return Outcome::Removed,
        // Another user's, or in a read-only directory. Reading may be permitted, and with it a test
        // of the lock.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            return match test(directory, name) {
                Outcome::Removed => Outcome::Foreign,
                other => other,
            };
        }
        Err(_) => return Outcome::Unknown,
    };
    match (file.try_lock(), file.is_locked()) {
        (Ok(true), _) => {}
        (Ok(false), Ok(true)) => return Outcome::Alive,
        // The owner has a write lock.
        (Ok(false), Ok(false)) => return Outcome::ReadLocked,
        _ => return Outcome::Unknown,
    }
    failpoint!("directory.dead_locked");
    // Another process may have removed it, and a third may have bound the name.
    if !file.is_at(directory, &lock) {
        return Outcome::Removed;
    }
    match file.read_record() {
        // Without a text: its owner ended before it made the socket.
        Ok(Record::Same | Record::Empty) => {}
        _ => return Outcome::Unknown,
    }
    // The lock file last: without it, no process would find the others.
    for suffix in [NEW, "", lock::SUFFIX] {
        match rustix::fs::unlinkat(directory, format!("{name}{suffix}"), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ACCESS | Errno::PERM) => return Outcome::Foreign,
            Err(_) => return Outcome::Unknown,
        }
        failpoint!("directory.leftover_removed");
    }
    Outcome::Removed
}
