//! [`Portion`]: blocks on their way out of a bin.

use core::mem::MaybeUninit;

use crate::span::Entry;

const ROOM: usize = 64;

/// Blocks that have left a bin. (They do before anything else is done with them: giving them back may end in a provider that
/// allocates from this very pool.)
pub(crate) struct Portion {
    entries: [MaybeUninit<Entry>; ROOM],
    len: usize,
}

impl Portion {
    /// Up to `n` entries from `first` on, as far as there is room.
    ///
    /// # Safety
    /// So many are written there.
    pub(crate) unsafe fn copied(first: *const Entry, n: usize) -> Self {
        let mut portion = Self { entries: [const { MaybeUninit::uninit() }; ROOM], len: n.min(ROOM) };
        // SAFETY: the caller has written so many, and there is room for them.
        unsafe {
            core::ptr::copy_nonoverlapping(first, portion.entries.as_mut_ptr().cast(), portion.len);
        }
        portion
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        // SAFETY: the first `len` were written.
        unsafe { core::slice::from_raw_parts(self.entries.as_ptr().cast(), self.len) }
    }
}
