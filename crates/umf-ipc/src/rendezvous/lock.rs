//! [`LockFile`]: the file `NAME.lock`, opened; and [`HeldLock`], its lock.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use umf_sync::failpoint;
use umf_sync::fork::{ForkGuard, Outer};

use umf_os::SystemResult as Result;
use umf_os::file;
use umf_os::{FileIdentity, OfdLocks, SharedMapping, page_size};

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
    /// The owner has not written it yet, or ended before.
    Empty,
    /// The owner locked another file than the one that this process sees, or the text is not a
    /// record.
    Other,
}

impl LockFile {
    /// Opens the file `name` in a directory. `create`: with this mode, if there is none. Then
    /// `EEXIST` means that it was removed meanwhile.
    pub(super) fn open(
        directory: impl AsFd,
        name: &str,
        create: Option<Mode>,
        writable: bool,
    ) -> Result<Self> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let no_fork = ForkGuard::new();
        let new = |mode| rustix::fs::openat(&directory, name, flags | OFlags::CREATE | OFlags::EXCL, mode);
        let known = || rustix::fs::openat(&directory, name, flags, Mode::empty());
        // Never O_CREAT for a file that exists: in a directory with the sticky bit, the kernel may
        // refuse that for files of other users (fs.protected_regular).
        let fd = match create {
            None => known(),
            Some(mode) => match new(mode) {
                Err(Errno::EXIST) => match known() {
                    Err(Errno::NOENT) => Err(Errno::EXIST),
                    found => found,
                },
                made => made,
            },
        }?;
        if !file::is_regular(&fd)? {
            return Err(Errno::OPNOTSUPP);
        }
        let identity = file::identity(&fd)?;
        Ok(Self { fd, identity, _no_fork: no_fork })
    }

    /// Acquires the lock. Returns `false` if another process holds it.
    pub(super) fn try_lock(&self) -> Result<bool> {
        OfdLocks::of_file(&self.fd).try_write_lock(BYTE)
    }

    /// Returns whether another process holds the lock.
    pub(super) fn is_locked(&self) -> Result<bool> {
        OfdLocks::of_file(&self.fd).is_write_locked(BYTE)
    }

    /// Returns whether `name` in a directory is still this file.
    pub(super) fn is_at(&self, directory: impl AsFd, name: &str) -> bool {
        identity_at(directory, name) == Ok(self.identity)
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
        let again = Self::open(directory, name, None, false)?;
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

/// Returns the identity of a regular file in a directory.
pub(super) fn identity_at(directory: impl AsFd, name: &str) -> Result<FileIdentity> {
    let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(FileIdentity { device: found.st_dev, inode: found.st_ino })
}
