//! [`Errno`]: `errno`, put back as it was.

use libc::c_int;

/// Puts the calling thread's `errno` back when dropped. (Both freeing and allocating with success leave it alone.)
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) fn keep() -> Self {
        // SAFETY: the calling thread's own.
        Self(unsafe { *libc::__errno_location() })
    }

    /// What it is to be instead.
    pub(crate) fn set(&mut self, errno: c_int) {
        self.0 = errno;
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
