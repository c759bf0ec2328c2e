//! [`CheckedFile`]: a descriptor that is compared with its file before each use.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use umf_core::{Error, Result};

use crate::close_on_fork::ClosedInChildren;
use crate::file::{FileIdentity, identity};
use crate::{Errno, SystemResult};

/// A descriptor, and the device and inode of its file.
///
/// A program may close descriptors that it did not open, as daemons do, and then open files of its
/// own under their numbers. What is done to the number is then done to the program's file. So
/// [`CheckedFile::fd`] compares before each use, and dropping this closes the number only if it is
/// still the file's.
///
/// Thread-safe. What another thread does between the comparison and the use is not noticed.
#[derive(Debug)]
pub struct CheckedFile {
    fd: Arc<OwnedFd>,
    identity: FileIdentity,
    in_children: Option<ClosedInChildren>,
}

impl CheckedFile {
    /// Takes over a descriptor, and remembers what file it is of now.
    ///
    /// # Errors
    /// [`Error::Native`] if that cannot be found out (`statx(2)`).
    pub fn new(fd: OwnedFd) -> Result<Self> {
        Self::take(fd).map_err(|errno| Error::native("statx", errno.raw_os_error()))
    }

    /// As [`CheckedFile::new`].
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn take(fd: OwnedFd) -> SystemResult<Self> {
        let identity = identity(&fd)?;
        Ok(Self { fd: Arc::new(fd), identity, in_children: None })
    }

    /// As [`CheckedFile::new`], for a descriptor that forked children close.
    ///
    /// # Errors
    /// Those of `statx(2)`, and `ENOMEM`.
    pub fn closed_on_fork(fd: OwnedFd) -> SystemResult<Self> {
        let in_children = Some(ClosedInChildren::new(fd.as_fd())?);
        let identity = identity(&fd)?;
        Ok(Self { fd: Arc::new(fd), identity, in_children })
    }

    /// Returns the descriptor. A clone keeps it open.
    ///
    /// # Errors
    /// `ESTALE` if its number is closed or another file's.
    pub fn get(&self) -> SystemResult<&Arc<OwnedFd>> {
        if self.is_of_file() { Ok(&self.fd) } else { Err(Errno::STALE) }
    }

    /// As [`CheckedFile::get`], with an error that says what may have happened.
    ///
    /// # Errors
    /// [`Error::Native`] if its number is closed, or another file's.
    pub fn fd(&self) -> Result<&Arc<OwnedFd>> {
        self.get().map_err(|_| Error::Native {
            call: "use of the memory's descriptor",
            native: Errno::BADF.raw_os_error(),
            hint: "the program closed it, or opened another file under its number: let the program close \
                   only descriptors that it opened",
        })
    }

    /// Returns the descriptor without a comparison: for calls that do no harm to another file.
    #[must_use]
    pub const fn unchecked(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The file.
    #[must_use]
    pub const fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Returns whether the number still refers to the file.
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        identity(&self.fd) == Ok(self.identity)
    }
}

impl Drop for CheckedFile {
    fn drop(&mut self) {
        let is_closed = self.in_children.as_ref().is_some_and(|it| !it.belongs_here());
        if is_closed || !self.is_of_file() {
            // A count that is never given back, so that no clone closes the number either.
            core::mem::forget(Arc::clone(&self.fd));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    fn memfd() -> OwnedFd {
        rustix::fs::memfd_create(c"umf-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn number_of_another_file_is_neither_used_nor_closed() {
        let (file, other) = (CheckedFile::new(memfd()).unwrap(), memfd());
        let number = file.fd().unwrap().as_raw_fd();
        let clone = Arc::clone(file.fd().unwrap());
        // SAFETY: closes the test's own file, and puts another of the test's under its number.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(!file.is_of_file());
        let error = file.fd().unwrap_err();
        assert!(matches!(error, Error::Native { native: libc::EBADF, .. }), "{error}");
        drop((file, clone));
        // SAFETY: the number that was put there above, and that nothing else closes.
        let number = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(identity(&number), identity(&other));
    }

    #[test]
    fn number_is_closed_with_the_last_clone() {
        let file = CheckedFile::new(memfd()).unwrap();
        let clone = Arc::clone(file.fd().unwrap());
        drop(file);
        assert_eq!(Arc::strong_count(&clone), 1);
    }
}
