//! [`ReopenedFile`]: an open file description of this process only; and [`OfdLocks`], the locks on bytes
//! of its file.
//!
//! A lock of an open file description (`F_OFD_SETLK`, `fcntl_locking(2)`) ends when the last
//! reference to the description ends: the last descriptor, or the last mapping that was made
//! through one. A mapping that forked children do not inherit (`MADV_DONTFORK`) therefore holds a
//! lock exactly as long as the process uses the memory. The lock ends at `munmap`, `exec`, exit and
//! SIGKILL, and every process that can open the file sees it.
//!
//! A descriptor from `pidfd_getfd(2)` or `SCM_RIGHTS` shares the sender's description, and thereby
//! the sender's locks. A [`ReopenedFile`] shares neither.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use umf_sync::failpoint;
use umf_sync::fork::{self, ForkGuard, Outer};

use crate::SystemResult as Result;
use crate::file::{self, FileIdentity, identity};

/// A descriptor whose open file description belongs to this process only. Forks of this process
/// wait until it is dropped.
#[derive(Debug)]
pub struct ReopenedFile {
    // Dropped before the guard, in the order of the fields: a forked child would inherit the
    // description and keep its locks.
    fd: OwnedFd,
    _no_fork: ForkGuard<Outer>,
}

impl ReopenedFile {
    /// Opens the file of `fd` again, for reading and writing. `expected` is its identity: the
    /// number may refer to another file, if the program closes descriptors that it did not open.
    ///
    /// # Errors
    /// Those of `open(2)`; `ENOENT` without a `/proc` that has this process. `ESTALE` if it is
    /// another file.
    pub fn of(fd: BorrowedFd<'_>, expected: FileIdentity) -> Result<Self> {
        let mut path = [0; 40];
        let capacity = path.len();
        let mut rest = &mut path[..];
        write!(rest, "/proc/thread-self/fd/{}", fd.as_raw_fd()).map_err(|_| Errno::NAMETOOLONG)?;
        let length = capacity - rest.len();
        let path = core::str::from_utf8(&path[..length]).map_err(|_| Errno::INVAL)?;
        let no_fork = ForkGuard::new();
        let fd = file::open(path, true)?;
        if identity(&fd)? != expected {
            return Err(Errno::STALE);
        }
        Ok(Self { fd, _no_fork: no_fork })
    }

    /// Takes ownership of a description that another process opened for this one, sent, and closed.
    /// `forks` is the result of [`fork::sequence`] before the request.
    ///
    /// # Errors
    /// `EAGAIN` if this process has forked since: a child may have inherited the descriptor.
    pub fn received(fd: OwnedFd, forks: u32) -> Result<Self> {
        let no_fork = ForkGuard::new();
        if fork::sequence() != forks {
            return Err(Errno::AGAIN);
        }
        Ok(Self { fd, _no_fork: no_fork })
    }

    /// Returns the locks of this description.
    #[must_use]
    pub fn locks(&self) -> OfdLocks<'_> {
        OfdLocks(self.fd.as_fd())
    }
}

impl AsFd for ReopenedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The locks of an open file description.
#[derive(Clone, Copy, Debug)]
pub struct OfdLocks<'f>(BorrowedFd<'f>);

impl<'f> OfdLocks<'f> {
    /// Returns the locks of the description behind `fd`. To take locks, `fd` must be the descriptor
    /// with which this process created the file. To query a lock, the lock must not be held through
    /// this description.
    #[must_use]
    pub fn of_file(fd: &'f OwnedFd) -> Self {
        Self(fd.as_fd())
    }

    /// Returns the locks of the description behind `fd`, to query locks that other descriptions hold.
    #[must_use]
    pub const fn of_descriptor(fd: BorrowedFd<'f>) -> Self {
        Self(fd)
    }

    /// Acquires the write lock of a byte. Returns `false` if another description holds a lock on
    /// it.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn try_write_lock(self, byte: u64) -> Result<bool> {
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, byte, 1) {
            Ok(_) => {
                failpoint!("lock.taken");
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Releases the lock of a byte.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn unlock(self, byte: u64) -> Result<()> {
        self.control(libc::F_OFD_SETLK, libc::F_UNLCK, byte, 1).map(drop)
    }

    /// Returns whether another description holds the write lock of a byte. A read lock does not
    /// count: any process that can open the file for reading can acquire one.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn is_write_locked(self, byte: u64) -> Result<bool> {
        self.is_any_write_locked(byte..byte.saturating_add(1))
    }

    /// Returns whether another description holds the write lock of any of the bytes.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn is_any_write_locked(self, bytes: core::ops::Range<u64>) -> Result<bool> {
        let count = bytes.end.saturating_sub(bytes.start);
        if count == 0 {
            return Ok(false);
        }
        Ok(self.control(libc::F_OFD_GETLK, libc::F_RDLCK, bytes.start, count)? != libc::F_UNLCK)
    }

    /// Runs a lock operation on `count` bytes. Returns the type of lock that the kernel reports.
    fn control(self, command: libc::c_int, kind: libc::c_int, byte: u64, count: u64) -> Result<libc::c_int> {
        let start = libc::off_t::try_from(byte).map_err(|_| Errno::INVAL)?;
        let count = libc::off_t::try_from(count).map_err(|_| Errno::INVAL)?;
        let mut lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: count,
            // Open file description locks require 0.
            l_pid: 0,
        };
        loop {
            // SAFETY: `lock` is valid for reads and writes during the call.
            if unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut lock) } == 0 {
                return Ok(libc::c_int::from(lock.l_type));
            }
            let error = std::io::Error::last_os_error().raw_os_error();
            match error.map_or(Errno::IO, Errno::from_raw_os_error) {
                Errno::INTR => {}
                errno => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, SharedMapping};

    const PAGE: usize = 65536;

    fn file() -> (OwnedFd, FileIdentity) {
        let fd = memfd::create("umf-test-locks", 4 * PAGE as u64).unwrap();
        let identity = identity(&fd).unwrap();
        (fd, identity)
    }

    #[test]
    fn mapping_keeps_the_lock_until_it_is_unmapped() {
        let (fd, identity) = file();
        let locks = OfdLocks::of_file(&fd);
        let reopened = ReopenedFile::of(fd.as_fd(), identity).unwrap();
        let mapping = SharedMapping::at(&reopened, PAGE as u64, PAGE, true).unwrap();
        assert!(reopened.locks().try_write_lock(PAGE as u64).unwrap());
        drop(reopened);
        assert!(locks.is_write_locked(PAGE as u64).unwrap());
        assert!(!locks.is_write_locked(0).unwrap());
        assert!(!locks.try_write_lock(PAGE as u64).unwrap());
        // Another description of the same process is another owner.
        let other = ReopenedFile::of(fd.as_fd(), identity).unwrap();
        assert!(!other.locks().try_write_lock(PAGE as u64).unwrap());
        drop(other);
        assert!(locks.is_write_locked(PAGE as u64).unwrap());
        drop(mapping);
        assert!(!locks.is_write_locked(PAGE as u64).unwrap());
        assert!(locks.try_write_lock(PAGE as u64).unwrap());
        locks.unlock(PAGE as u64).unwrap();
    }

    #[test]
    fn query_of_a_range_finds_each_lock_in_it() {
        let (fd, identity) = file();
        let holder = ReopenedFile::of(fd.as_fd(), identity).unwrap();
        assert!(holder.locks().try_write_lock(1 << 40).unwrap() && holder.locks().try_write_lock(7).unwrap());
        let locks = OfdLocks::of_descriptor(fd.as_fd());
        for (bytes, expected) in [
            (0..7, false),
            (0..8, true),
            (7..8, true),
            (8..1 << 40, false),
            (8..(1 << 40) + 1, true),
            (7..7, false),
        ] {
            assert_eq!(locks.is_any_write_locked(bytes.clone()), Ok(expected), "{bytes:?}");
        }
    }

    #[test]
    fn read_lock_of_another_description_does_not_count() {
        let (fd, identity) = file();
        let other = ReopenedFile::of(fd.as_fd(), identity).unwrap();
        other.locks().control(libc::F_OFD_SETLK, libc::F_RDLCK, 0, 1).unwrap();
        assert!(!OfdLocks::of_file(&fd).is_write_locked(0).unwrap());
    }

    #[test]
    fn reused_descriptor_number_is_refused() {
        let (fd, _) = file();
        let (_other, expected) = file();
        assert_eq!(ReopenedFile::of(fd.as_fd(), expected).unwrap_err(), Errno::STALE);
    }
}
