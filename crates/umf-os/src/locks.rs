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

    /// Acquires the write lock of a byte. Returns `false` if another description holds a lock on
    /// it.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn try_write_lock(self, byte: u64) -> Result<bool> {
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
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
        self.control(libc::F_OFD_SETLK, libc::F_UNLCK, byte).map(drop)
    }

    /// Returns whether another description holds the write lock of a byte. A read lock does not
    /// count: any process that can open the file for reading can acquire one.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn is_write_locked(self, byte: u64) -> Result<bool> {
        Ok(self.control(libc::F_OFD_GETLK, libc::F_RDLCK, byte)? != libc::F_UNLCK)
    }

    /// Runs a lock operation on one byte. Returns the type of lock that the kernel reports.
    fn control(self, command: libc::c_int, kind: libc::c_int, byte: u64) -> Result<libc::c_int> {
        let start = libc::off_t::try_from(byte).map_err(|_| Errno::INVAL)?;
        let mut lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: 1,
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
    fn read_lock_of_another_description_does_not_count() {
        let (fd, identity) = file();
        let other = ReopenedFile::of(fd.as_fd(), identity).unwrap();
        other.locks().control(libc::F_OFD_SETLK, libc::F_RDLCK, 0).unwrap();
        assert!(!OfdLocks::of_file(&fd).is_write_locked(0).unwrap());
    }

    #[test]
    fn reused_descriptor_number_is_refused() {
        let (fd, _) = file();
        let (_other, expected) = file();
        assert_eq!(ReopenedFile::of(fd.as_fd(), expected).unwrap_err(), Errno::STALE);
    }
}
