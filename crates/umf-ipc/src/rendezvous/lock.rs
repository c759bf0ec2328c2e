//! [`LockFile`]: the file `NAME.lock`, opened; and [`HeldLock`], its lock.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use umf_sync::failpoint;
use umf_sync::fork::{ForkGuard, Outer};

use umf_os::SystemResult as Result;
use umf_os::file;
use umf_os::{FileIdentity, OfdLocks, SharedMapping, page_size};

/// Suffix of the lock file of a name.
pub(super) const SUFFIX: &str = ".lock";

/// Returns the name of the lock file of a name.
pub(super) fn name_of(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// Flags of all descriptors.
const FLAGS: OFlags = OFlags::CLOEXEC;
/// Mode of a file that is not ready yet.
const OWN: Mode = Mode::RUSR.union(Mode::WUSR);
/// The longest text of a lock file.
const MAX_RECORD: usize = 128;
/// The byte whose write lock is held.
const BYTE: u64 = 0;

/// A lock file that this process has opened. Forks of this process wait until it is dropped: a
/// child would share its open file description, and with it the lock.
#[derive(Debug)]
pub(super) struct LockFile {
    fd: OwnedFd,
    identity: FileIdentity,
    _no_fork: ForkGuard<Outer>,
}

/// What the text of a lock file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// This process sees the file that its owner locked.
    Same,
    /// The owner ended before it wrote the text, or could not.
    Empty,
    /// The owner locked another file than the one that this process sees, or the text is not a
    /// record.
    Other,
}

impl LockFile {
    /// Opens the file `name` in a directory.
    pub(super) fn open(directory: impl AsFd, name: &str, writable: bool) -> Result<Self> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | FLAGS | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let no_fork = ForkGuard::new();
        // Never O_CREAT for a file that exists: in a directory with the sticky bit, the kernel may
        // refuse that for files of other users (fs.protected_regular).
        Self::of(rustix::fs::openat(directory, name, flags, Mode::empty())?, no_fork)
    }

    fn of(fd: OwnedFd, no_fork: ForkGuard<Outer>) -> Result<Self> {
        if !file::is_regular(&fd)? {
            return Err(Errno::OPNOTSUPP);
        }
        let identity = file::identity(&fd)?;
        Ok(Self { fd, identity, _no_fork: no_fork })
    }

    /// Creates the file `name` in a directory, with its lock. The file has its mode, its record and
    /// its lock before other processes see it, so that no other process is refused meanwhile.
    ///
    /// # Errors
    /// `EEXIST` if there is one, or another process has removed the new one.
    pub(super) fn create(directory: impl AsFd, name: &str, mode: Mode) -> Result<Self> {
        match Self::create_unnamed(&directory, name, mode) {
            // File systems without O_TMPFILE, and processes without `/proc`, have several errors.
            Err(errno) if errno != Errno::EXIST => Self::create_renamed(directory, name, mode),
            created => created,
        }
    }

    /// Creates the file without a name, and links it when it is ready.
    fn create_unnamed(directory: impl AsFd, name: &str, mode: Mode) -> Result<Self> {
        let no_fork = ForkGuard::new();
        let flags = OFlags::RDWR | FLAGS | OFlags::TMPFILE;
        let created = Self::of(rustix::fs::openat(&directory, ".", flags, OWN)?, no_fork)?;
        if !created.try_lock()? {
            return Err(Errno::AGAIN);
        }
        created.write_record(mode)?;
        failpoint!("directory.lock_made");
        let path = format!("/proc/thread-self/fd/{}", created.fd.as_raw_fd());
        rustix::fs::linkat(CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)?;
        Ok(created)
    }

    /// Creates the file under a name of its own, and renames it when it is ready. A process that is
    /// killed meanwhile leaves the lock file of a name without a socket.
    pub(super) fn create_renamed(directory: impl AsFd, name: &str, mode: Mode) -> Result<Self> {
        let random = u128::from_ne_bytes(umf_os::process::random()?);
        let new = format!("{}-{random:032x}{SUFFIX}", name.strip_suffix(SUFFIX).unwrap_or(name));
        let no_fork = ForkGuard::new();
        let flags = OFlags::RDWR | FLAGS | OFlags::CREATE | OFlags::EXCL;
        let fd = rustix::fs::openat(&directory, &new, flags, OWN)?;
        let ready = Self::of(fd, no_fork).and_then(|created| {
            // A process that looks for left-overs may have locked it, to remove it.
            if !created.try_lock()? {
                return Err(Errno::EXIST);
            }
            created.write_record(mode)?;
            created.rename(&directory, &new, name)?;
            Ok(created)
        });
        if ready.is_err() {
            let _ = rustix::fs::unlinkat(&directory, &new, AtFlags::empty());
        }
        ready
    }

    fn rename(&self, directory: impl AsFd, new: &str, name: &str) -> Result<()> {
        let renamed =
            match rustix::fs::renameat_with(&directory, new, &directory, name, RenameFlags::NOREPLACE) {
                // A file system without the flag. The file has two names until the unlink.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    rustix::fs::linkat(&directory, new, &directory, name, AtFlags::empty())
                        .and_then(|()| rustix::fs::unlinkat(&directory, new, AtFlags::empty()))
                }
                renamed => renamed,
            };
        renamed.map_err(|errno| if errno == Errno::NOENT { Errno::EXIST } else { errno })
    }

    /// Returns the owner and the number of names if the file is not one that this process may take:
    /// a hard link of another file, or the file of another user where `mode` permits only the owner
    /// to write. The caller holds the lock.
    pub(super) fn foreign(&self, mode: Mode) -> Result<Option<(u32, u64)>> {
        let found = rustix::fs::fstat(&self.fd)?;
        let is_shared = mode.intersects(Mode::WGRP | Mode::WOTH);
        let is_own = [umf_os::process::effective_uid(), 0].contains(&found.st_uid);
        #[allow(clippy::useless_conversion, reason = "32 bits on other processors")]
        let links = u64::from(found.st_nlink);
        // 0: it was removed, which the caller finds out.
        Ok((links > 1 || !is_own && !is_shared).then_some((found.st_uid, links)))
    }

    /// Acquires the lock. Returns `false` if another process holds it, or has a read lock on the
    /// file ([`LockFile::is_locked`] tells).
    pub(super) fn try_lock(&self) -> Result<bool> {
        OfdLocks::of_file(&self.fd).try_write_lock(BYTE)
    }

    /// Returns whether another process holds the lock. A read lock does not count: any process that
    /// may read the file can place one.
    pub(super) fn is_locked(&self) -> Result<bool> {
        OfdLocks::of_file(&self.fd).is_write_locked(BYTE)
    }

    /// Returns whether `name` in a directory is still this file.
    pub(super) fn is_at(&self, directory: impl AsFd, name: &str) -> bool {
        identity_at(directory, name, FileType::RegularFile) == Ok(self.identity)
    }

    /// Returns the permissions of the file.
    #[cfg(test)]
    pub(super) fn mode(&self) -> Result<u32> {
        Ok(rustix::fs::fstat(&self.fd)?.st_mode & 0o7777)
    }

    /// Returns whether this process may remove the file from a directory that it may write to.
    pub(super) fn is_removable(&self, directory: impl AsFd) -> bool {
        const STICKY: u32 = 0o1000;
        let own = umf_os::process::effective_uid();
        let is_writable = || {
            let access = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(&directory, ".", access, AtFlags::EACCESS).is_ok()
        };
        let Ok(folder) = rustix::fs::fstat(&directory) else { return false };
        let is_owner =
            || rustix::fs::fstat(&self.fd).is_ok_and(|file| [file.st_uid, folder.st_uid].contains(&own));
        is_writable() && (folder.st_mode & STICKY == 0 || own == 0 || is_owner())
    }

    /// Writes the record, and sets the mode, whatever the umask is. The caller holds the lock.
    pub(super) fn write_record(&self, mode: Mode) -> Result<()> {
        // Another user's file, which this process may write, has its mode already.
        if rustix::fs::fstat(&self.fd)?.st_mode & 0o7777 != mode.as_raw_mode() {
            rustix::fs::fchmod(&self.fd, mode)?;
        }
        rustix::fs::ftruncate(&self.fd, 0)?;
        let FileIdentity { device, inode } = self.identity;
        let record = format!("umf lock 1: device {device} inode {inode}, pid {}\n", umf_os::process::pid());
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, record.as_bytes(), 0))?;
        if written == record.len() { Ok(()) } else { Err(Errno::NOSPC) }
    }

    pub(super) fn read_record(&self) -> Result<Record> {
        let mut bytes = [0; MAX_RECORD];
        let length = rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut bytes, 0))?;
        if length == 0 {
            return Ok(Record::Empty);
        }
        let FileIdentity { device, inode } = self.identity;
        let own = format!("umf lock 1: device {device} inode {inode},");
        Ok(if bytes.starts_with(own.as_bytes()) { Record::Same } else { Record::Other })
    }

    /// Passes the lock, which the caller holds, to a mapping of the file, and closes the
    /// descriptor.
    ///
    /// # Errors
    /// Those of `mmap(2)`. `EOPNOTSUPP` if the mapping does not keep the lock: a mapping on an
    /// overlay file system refers to the file below, which has another description.
    pub(super) fn into_held(self, directory: impl AsFd, name: &str) -> Result<HeldLock> {
        let mut mapping = SharedMapping::at(&self.fd, 0, page_size(), false)?;
        mapping.exclude_from_fork()?;
        failpoint!("directory.lock_mapped");
        let held = HeldLock { identity: self.identity, _mapping: mapping };
        drop(self);
        let again = Self::open(directory, name, false)?;
        if again.identity == held.identity && again.is_locked()? { Ok(held) } else { Err(Errno::OPNOTSUPP) }
    }
}

/// A lock that lasts until this is dropped or the process ends. A program that closes all
/// descriptors does not lose it. Forked children do not have it.
#[derive(Debug)]
pub(super) struct HeldLock {
    identity: FileIdentity,
    _mapping: SharedMapping,
}

impl HeldLock {
    /// Returns the identity of the locked file.
    pub(super) const fn identity(&self) -> FileIdentity {
        self.identity
    }
}

/// Returns the identity of a file of this type in a directory.
///
/// # Errors
/// Those of `fstatat(2)`; `EOPNOTSUPP` if the file has another type.
pub(super) fn identity_at(directory: impl AsFd, name: impl Arg, wanted: FileType) -> Result<FileIdentity> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != wanted {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(FileIdentity { device: found.st_dev, inode: found.st_ino })
}
