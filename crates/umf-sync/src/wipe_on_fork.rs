//! [`WipeOnForkWord`]: a word that is 0 in a forked child.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::Result;

use crate::sys;

const PAGE: usize = 4096;

/// A word that the kernel zeroes in every forked child, also in one of raw `clone(2)`. So one load
/// checks a flag and whether this is still the process that set it.
#[derive(Debug)]
pub struct WipeOnForkWord {
    word: NonNull<AtomicU32>,
}

// SAFETY: the word is atomic, and its page belongs to this value.
unsafe impl Send for WipeOnForkWord {}
// SAFETY: a shared reference gives access to an atomic only.
unsafe impl Sync for WipeOnForkWord {}

impl WipeOnForkWord {
    /// Makes a word with this value, in its own page.
    ///
    /// # Errors
    /// [`umf_core::Error::OutOfMemory`]; [`umf_core::Error::Native`] before Linux 4.14.
    pub fn new(value: u32) -> Result<Self> {
        let page = sys::map(PAGE)?;
        let wiped = Self { word: page.cast() };
        // SAFETY: the page was just mapped, and is this value's.
        unsafe { sys::wipe_on_fork(page, PAGE)? };
        wiped.word().store(value, Ordering::Relaxed);
        Ok(wiped)
    }

    /// Returns the word.
    #[must_use]
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: mapped, aligned to a page, zeroed at first, and there as long as this value.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for WipeOnForkWord {
    fn drop(&mut self) {
        // SAFETY: the page is this value's, and no reference into it outlives it.
        unsafe { sys::unmap(self.word.cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_reads_zero() {
        let wiped = WipeOnForkWord::new(7).unwrap();
        assert_eq!(wiped.word().load(Ordering::Relaxed), 7);
        // SAFETY: the child reads a word and ends at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let seen = wiped.word().load(Ordering::Relaxed);
            // SAFETY: ends the child.
            unsafe { libc::_exit(seen as i32) };
        }
        let mut status = 1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert_eq!(wiped.word().load(Ordering::Relaxed), 7);
    }
}
