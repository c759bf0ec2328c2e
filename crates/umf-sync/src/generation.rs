//! Words that the kernel zeroes in a forked child (`MADV_WIPEONFORK`, `madvise(2)`, Linux 4.14):
//! [`WipeOnForkWord`], and the generation of a process.
//!
//! The [`generation`] is a number that differs between a process and its forked children. Before
//! Linux 4.14, the child's handler of `fork(3)` zeroes its word.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use umf_core::Result;

use crate::{fork, sys};

/// The generation in a page that the kernel zeroes in a child. 0 in a child that has not chosen its
/// generation yet.
static CANARY: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Whether the kernel zeroes the page in a child.
static IS_WIPED: AtomicBool = AtomicBool::new(false);
/// At least the value of the canary, in this process or in the parent.
static GENERATION: AtomicU32 = AtomicU32::new(1);

#[inline]
fn canary() -> Option<&'static AtomicU32> {
    // SAFETY: a published canary page is never unmapped.
    NonNull::new(CANARY.load(Ordering::Acquire)).map(|canary| unsafe { canary.as_ref() })
}

/// Returns the generation of this process: not 0, and larger than that of every ancestor it was
/// forked from.
///
/// Costs two loads. An object that belongs to one process stores the generation and compares. Where
/// the kernel zeroes the page, this also distinguishes a child of raw `clone` without `CLONE_VM`.
#[inline]
pub fn generation() -> u32 {
    match canary().map(|canary| canary.load(Ordering::Relaxed)) {
        Some(generation) if generation != 0 => generation,
        _ => choose_generation(),
    }
}

/// Sets the generation of a forked child. Lock-free: several threads of the child, and signal
/// handlers that interrupt them, may run this at the same time.
#[cold]
fn choose_generation() -> u32 {
    let Some(canary) = canary() else {
        fork::install();
        return GENERATION.load(Ordering::Relaxed);
    };
    let new = GENERATION.load(Ordering::Relaxed) + 1;
    // Stored before the canary, so that a child that is forked in between gets a larger number.
    GENERATION.fetch_max(new, Ordering::AcqRel);
    canary.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).err().unwrap_or(new)
}

/// Runs first in a child of `fork(3)`.
pub(crate) fn begin_child() {
    match canary() {
        Some(canary) if !IS_WIPED.load(Ordering::Relaxed) => canary.store(0, Ordering::Relaxed),
        Some(_) => {}
        None => _ = GENERATION.fetch_add(1, Ordering::Relaxed),
    }
}

/// Makes the canary page, unless another thread was first or there is no memory.
pub(crate) fn make_canary() {
    let Ok(page) = sys::map(sys::PAGE) else { return };
    // SAFETY: the page was mapped above and is not shared yet.
    IS_WIPED.store(unsafe { sys::wipe_on_fork(page, sys::PAGE) }.is_ok(), Ordering::Relaxed);
    let canary = page.cast::<AtomicU32>();
    // SAFETY: a zeroed page is a valid AtomicU32.
    unsafe { canary.as_ref() }.store(GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
    let none = core::ptr::null_mut();
    if CANARY.compare_exchange(none, canary.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: another thread was first, and no thread has seen this page.
        unsafe { sys::unmap(page, sys::PAGE) };
    }
}

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
    /// Makes a word with this value, in a page of its own.
    ///
    /// # Errors
    /// [`umf_core::Error::OutOfMemory`]; [`umf_core::Error::Native`] before Linux 4.14.
    pub fn new(value: u32) -> Result<Self> {
        let page = sys::map(sys::PAGE)?;
        let wiped = Self { word: page.cast() };
        // SAFETY: the page was mapped above, and this value owns it.
        unsafe { sys::wipe_on_fork(page, sys::PAGE)? };
        wiped.word().store(value, Ordering::Relaxed);
        Ok(wiped)
    }

    /// Returns the word.
    #[must_use]
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped as long as this value exists, and zeros are a valid
        // `AtomicU32`.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for WipeOnForkWord {
    fn drop(&mut self) {
        // SAFETY: this value owns the page, and no reference into it is left.
        unsafe { sys::unmap(self.word.cast(), sys::PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_zero_in_a_forked_child() {
        let wiped = WipeOnForkWord::new(7).unwrap();
        assert_eq!(wiped.word().load(Ordering::Relaxed), 7);
        // SAFETY: the child reads a word and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let value = wiped.word().load(Ordering::Relaxed);
            // SAFETY: `_exit` runs no code of this process.
            unsafe { libc::_exit(value as i32) };
        }
        let mut status = 1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert_eq!(wiped.word().load(Ordering::Relaxed), 7);
    }
}
