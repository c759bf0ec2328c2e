//! [`ThreadCache`]: free blocks that one thread keeps, by class.
//!
//! A cache belongs to a thread number ([`umf_core::thread`]), lies in a table of the pool, and is reached by its
//! thread alone: nothing in it is locked. Other threads read its counters, and set `pending`.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use umf_core::metadata::Zeroed;

use crate::classes::MAX_CLASSES;
use crate::state::Entry;

/// The free blocks of one class in one thread: a stack.
#[repr(C, align(32))]
pub(crate) struct Bin {
    entries: Cell<*mut Entry>,
    len: Cell<u32>,
    capacity: Cell<u32>,
    allocations: AtomicU64,
    frees: AtomicU64,
}

/// What one thread keeps.
#[repr(C, align(64))]
pub(crate) struct ThreadCache {
    /// Set by a thread that trims: give everything back at the next operation.
    pub(crate) pending: AtomicBool,
    /// Bytes in bins of large classes.
    pub(crate) large_bytes: Cell<usize>,
    /// Which bins were ever used. Written by the owner.
    used: [AtomicU64; MAX_CLASSES / 64],
    bins: [Bin; MAX_CLASSES],
}

// SAFETY: the cells are touched by the thread that has the number of this cache alone (see the module's text);
// all else is atomic.
unsafe impl Sync for ThreadCache {}
// SAFETY: entries point into the pool's metadata, which goes along.
unsafe impl Send for ThreadCache {}
// SAFETY: zeros are valid: bins without entries.
unsafe impl Zeroed for ThreadCache {}

#[inline]
fn count(counter: &AtomicU64) {
    // Written by the owner alone: no read-modify-write is needed.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl ThreadCache {
    /// The bin of a class below [`MAX_CLASSES`].
    #[inline]
    pub(crate) fn bin(&self, class: usize) -> &Bin {
        &self.bins[class % MAX_CLASSES]
    }

    /// The classes whose bins were ever used.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> + '_ {
        self.used.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = bits.load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.checked_sub(1)?;
                Some(word * 64 + bit as usize)
            })
        })
    }

    /// Gives a bin its memory.
    ///
    /// # Safety
    /// `entries` has room for `capacity` entries that nobody else uses as long as the pool lives.
    pub(crate) unsafe fn equip(&self, class: usize, entries: *mut Entry, capacity: u32) {
        let bin = self.bin(class);
        bin.entries.set(entries);
        bin.capacity.set(capacity);
        let word = &self.used[class / 64 % (MAX_CLASSES / 64)];
        word.store(word.load(Ordering::Relaxed) | (1 << (class % 64)), Ordering::Relaxed);
    }
}

impl Bin {
    /// Whether [`ThreadCache::equip`] was called.
    pub(crate) fn is_equipped(&self) -> bool {
        self.capacity.get() != 0
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len.get() == self.capacity.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get() as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity.get() as usize
    }

    /// The block put in last.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Entry> {
        let len = self.len.get().checked_sub(1)?;
        self.len.set(len);
        // SAFETY: the entries below `len` were written by `push` or `fill`.
        Some(unsafe { self.entries.get().add(len as usize).read() })
    }

    /// Puts a block in; `false` if there is no room.
    #[inline]
    pub(crate) fn push(&self, entry: Entry) -> bool {
        let len = self.len.get();
        if len == self.capacity.get() {
            return false;
        }
        // SAFETY: `equip` promised room for `capacity` entries.
        unsafe { self.entries.get().add(len as usize).write(entry) };
        self.len.set(len + 1);
        true
    }

    /// Lets `take` write up to `want` entries on top, and counts what it says it wrote.
    ///
    /// # Safety
    /// `take` writes as many entries as it returns, and no more than it is asked for.
    pub(crate) unsafe fn fill(&self, want: usize, take: impl FnOnce(*mut Entry, usize) -> usize) -> usize {
        let len = self.len.get() as usize;
        let want = want.min(self.capacity.get() as usize - len);
        // SAFETY: there is room for `want` entries from `len` on.
        let took = take(unsafe { self.entries.get().add(len) }, want);
        self.len.set((len + took) as u32);
        took
    }

    /// Takes the `n` oldest entries out, and hands them to `give` in portions.
    ///
    /// They leave the bin first: `give` may end in a provider that allocates from this very pool.
    pub(crate) fn drain(&self, n: usize, mut give: impl FnMut(&[Entry])) {
        const PORTION: usize = 64;
        let mut left = n;
        while left > 0 && self.len.get() > 0 {
            let len = self.len.get() as usize;
            let n = left.min(len).min(PORTION);
            let mut portion = [const { MaybeUninit::<Entry>::uninit() }; PORTION];
            let entries = self.entries.get();
            // SAFETY: the entries below `len` are written, `n` is no more than `len` and the portion's room.
            let taken = unsafe {
                ptr::copy_nonoverlapping(entries, portion.as_mut_ptr().cast(), n);
                ptr::copy(entries.add(n), entries, len - n);
                core::slice::from_raw_parts(portion.as_ptr().cast(), n)
            };
            self.len.set((len - n) as u32);
            left -= n;
            give(taken);
        }
    }

    #[inline]
    pub(crate) fn count_allocation(&self) {
        count(&self.allocations);
    }

    #[inline]
    pub(crate) fn count_free(&self) {
        count(&self.frees);
    }

    /// Allocations and frees of this class in this thread, and in those that had its number before.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // Frees first: a block allocated in between may then be missed as free, not as live.
        let frees = self.frees.load(Ordering::Relaxed);
        (self.allocations.load(Ordering::Relaxed), frees)
    }
}
