//! Objects of named shared memory, looked at without disturbing who uses them.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Outcome;

/// The most bytes that a mark has.
const MARK: usize = 256;

/// An object, found and not opened.
pub(crate) struct Object {
    path: OwnedFd,
    size: u64,
}

/// The kernel's word that nobody else has an object open or mapped, for as long as this lives:
/// whoever opens it meanwhile waits (`F_SETLEASE`, `fcntl(2)`).
pub(crate) struct Lease {
    file: OwnedFd,
}

impl Object {
    /// The object at `path`; `None` if that is no regular file.
    pub(crate) fn open(path: &Path) -> Outcome<Option<Self>> {
        let found = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(is_regular
            .then_some(Self { path: found, size: stat.st_blocks.cast_unsigned().saturating_mul(512) }))
    }

    /// What its provider wrote on it (the attribute of [`umf::host::CreatorMark`]).
    pub(crate) fn mark(&self) -> Outcome<Option<Vec<u8>>> {
        let mut bytes = [0; MARK];
        match rustix::fs::getxattr(self.in_proc(), umf::host::CreatorMark::ATTRIBUTE, &mut bytes) {
            Ok(length) => Ok(bytes.get(..length).map(<[u8]>::to_vec)),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    fn in_proc(&self) -> String {
        format!("/proc/self/fd/{}", self.path.as_raw_fd())
    }

    /// A lease on it; `None` if another process has it open or mapped.
    pub(crate) fn lease(self) -> Outcome<Option<Lease>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = self.in_proc();
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            // Another's lease, which waits to be broken: somebody looks at it just now.
            Err(Errno::AGAIN) => return Ok(None),
            other => other?,
        };
        // Whoever opens it while the lease is there has the kernel send this signal, which would
        // end this process.
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        // The fd that found it does not count: it opened nothing.
        // SAFETY: an fd of this process and numbers; the lease goes with the fd.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if taken == 0 {
            return Ok(Some(Lease { file }));
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::AGAIN) => Ok(None),
            errno => Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

impl Lease {
    /// Takes the name away, if it still is that of the object.
    pub(crate) fn remove(self, path: &Path) -> Outcome<()> {
        let mine = rustix::fs::fstat(self.file.as_fd())?;
        let named = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
        if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino) {
            // Taken away and made anew meanwhile.
            return Err(Errno::STALE);
        }
        rustix::fs::unlink(path)
    }
}
