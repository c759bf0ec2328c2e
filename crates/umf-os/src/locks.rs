//! Files opened anew, and the kernel's locks on their bytes.
//!
//! A lock of an open file description (`F_OFD_SETLK`, `fcntl_locking(2)`) belongs to the
//! description, and the kernel drops it when the last reference to that is gone: the last
//! descriptor, or the last mapping made through one. A mapping that forked children do not get
//! (`MADV_DONTFORK`) is therefore a lock that lasts exactly as long as the process uses that
//! memory: it ends at `munmap`, `exec`, exit and SIGKILL, and is seen by every process that can
//! open the file.
//!
//! A descriptor that came by `pidfd_getfd(2)` or `SCM_RIGHTS` shares the sender's description, and
//! with it the sender's locks. [`ReopenedFile`] is a description of this process alone.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use umf_sync::failpoint;
use umf_sync::fork::{self, ForkGuard, Outer};

use crate::SystemResult as Result;
use crate::file::{self, FileIdentity, identity};

/// A descriptor whose description belongs to this process alone. Until it is dropped, forks of
/// this process wait.
#[derive(Debug)]
pub struct ReopenedFile {
    // Closed before forks go on: fields are dropped in this order. A forked child would keep the
    // locks of the description.
    fd: OwnedFd,
    _no_fork: ForkGuard<Outer>,
}

impl ReopenedFile {
    /// Opens the file behind `fd` anew, for reading and writing. `expected` is its identity: the
    /// number may have come to mean another file, if the program closes descriptors that are not
    /// its own.
    ///
    /// # Errors
    /// Those of `open(2)`: `ENOENT` where no `/proc` that shows this process is mounted. `ESTALE`
    /// if it is another file.
    pub fn of(fd: BorrowedFd<'_>, expected: FileIdentity) -> Result<Self> {
        let mut path = [0; 40];
        let room = path.len();
        let mut rest = &mut path[..];
        write!(rest, "/proc/thread-self/fd/{}", fd.as_raw_fd()).map_err(|_| Errno::NAMETOOLONG)?;
        let length = room - rest.len();
        let path = core::str::from_utf8(&path[..length]).map_err(|_| Errno::INVAL)?;
        let no_fork = ForkGuard::new();
        let fd = file::open(path, true)?;
        if identity(&fd)? != expected {
            return Err(Errno::STALE);
        }
        Ok(Self { fd, _no_fork: no_fork })
    }

    /// Takes over a description that another process made for this one, and closed on its side.
    /// `forks` is what [`fork::sequence`] said before it was asked for.
    ///
    /// # Errors
    /// `EAGAIN` if this process has forked since: the child may have inherited the descriptor.
    pub fn received(fd: OwnedFd, forks: u32) -> Result<Self> {
        let no_fork = ForkGuard::new();
        if fork::sequence() != forks {
            return Err(Errno::AGAIN);
        }
        Ok(Self { fd, _no_fork: no_fork })
    }

    /// The locks of this description.
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
    /// with which this process created the file. To ask for a lock, it must not be taken through
    /// this description.
    #[must_use]
    pub fn of_file(fd: &'f OwnedFd) -> Self {
        Self(fd.as_fd())
    }

    /// Takes the write lock of one byte; `false` if another description holds it.
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

    /// Gives the lock of a byte back.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn unlock(self, byte: u64) -> Result<()> {
        self.control(libc::F_OFD_SETLK, libc::F_UNLCK, byte).map(drop)
    }

    /// Whether another description holds the write lock of a byte. (A read lock does not count: any
    /// process that can open a file for reading can take one.)
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn is_write_locked(self, byte: u64) -> Result<bool> {
        Ok(self.control(libc::F_OFD_GETLK, libc::F_RDLCK, byte)? != libc::F_UNLCK)
    }

    /// One lock operation on one byte; the type of lock that the kernel returns.
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
        // Another description of this same process is another owner.
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
    fn read_lock_of_a_stranger_does_not_count() {
        let (fd, identity) = file();
        let stranger = ReopenedFile::of(fd.as_fd(), identity).unwrap();
        stranger.locks().control(libc::F_OFD_SETLK, libc::F_RDLCK, 0).unwrap();
        assert!(!OfdLocks::of_file(&fd).is_write_locked(0).unwrap());
    }

    #[test]
    fn reused_descriptor_number_is_refused() {
        let (fd, _) = file();
        let (_other, expected) = file();
        assert_eq!(ReopenedFile::of(fd.as_fd(), expected).unwrap_err(), Errno::STALE);
    }
}
