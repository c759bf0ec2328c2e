//! [`ThreadCache`]: free blocks that one thread keeps, by class.
//!
//! A cache belongs to a thread number ([`umf_core::thread`]) and lies in a table of the pool. Its thread is
//! *inside* while it uses it, which it says with a plain store; others reach into it only while it is not (see
//! `reach`). So nothing in it is locked. Others read its counters at any time.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use umf_core::metadata::Zeroed;

use crate::classes::MAX_CLASSES;
use crate::state::Entry;

/// The free blocks of one class in one thread: a stack that is taken from, and one that is put on. They change places when
/// the first is empty.
///
/// With one stack for both, an allocation reads what the free before it has just written, and the processor waits for
/// all that the free had to find out first: half as much again as both cost.
#[repr(C, align(64))]
pub(crate) struct Bin {
    out_top: Cell<*mut Entry>,
    out_base: Cell<*mut Entry>,
    in_top: Cell<*mut Entry>,
    in_end: Cell<*mut Entry>,
    in_base: Cell<*mut Entry>,
    allocations: AtomicU64,
    frees: AtomicU64,
    /// Bytes of a block of a large class; 0 for a small class.
    weight: Cell<usize>,
}

/// What is seldom looked at: how large a bin is, and how far its thread may count on freeing by itself what it takes.
#[repr(C)]
pub(crate) struct Measure {
    /// Entries for which each stack has room.
    capacity: Cell<u32>,
    /// How many are put on before the stacks change places: two thirds of the capacity at most, less as long as that saves no
    /// exchanges.
    limit: Cell<u32>,
    /// How often it turned out wrong. Written by others.
    pub(crate) revoked: AtomicU32,
    seen: Cell<u32>,
    streak: Cell<u32>,
    skip: Cell<u32>,
}

/// What one thread keeps.
#[repr(C, align(64))]
pub(crate) struct ThreadCache {
    /// The thread is inside.
    pub(crate) busy: AtomicBool,
    /// Somebody else wants to reach in: keep out.
    pub(crate) pending: AtomicBool,
    /// No thread has this number now: what is freed stays with nobody.
    pub(crate) away: AtomicBool,
    /// The thread was one of the parent's, and is not there any more: nobody touches the cache.
    pub(crate) lost: AtomicBool,
    /// Bytes in bins of large classes. Written by the thread inside; others read it for an estimate.
    large_bytes: AtomicUsize,
    /// Bytes that the limits of the bins of small classes amount to.
    small_limit: Cell<usize>,
    /// Whose turn it is to give room to others.
    turn: Cell<u32>,
    /// Which bins were ever used. Written by the thread inside.
    used: [AtomicU64; MAX_CLASSES / 64],
    /// Slabs, with some blocks free, from which this thread takes: heads of lists that the lock of the class guards.
    homes: [AtomicU32; MAX_CLASSES],
    bins: [Bin; MAX_CLASSES],
    measures: [Measure; MAX_CLASSES],
}

// SAFETY: the cells are touched by whoever is inside alone (see the module's text); all else is atomic.
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

    /// What is seldom looked at of a class below [`MAX_CLASSES`].
    pub(crate) fn measure(&self, class: usize) -> &Measure {
        &self.measures[class % MAX_CLASSES]
    }

    /// The head of the list of slabs of a class from which this thread takes.
    pub(crate) fn home(&self, class: usize) -> &AtomicU32 {
        &self.homes[class % MAX_CLASSES]
    }

    /// The classes whose bins were ever used.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.used.iter().enumerate().flat_map(|(word, bits)| {
            let mut bits = bits.load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.checked_sub(1)?;
                Some(word * 64 + bit as usize)
            })
        })
    }

    /// The next of these classes whose bin was used, and is not the last one's, in turn.
    pub(crate) fn next_in_turn(&self, classes: Range<usize>) -> Option<usize> {
        let turn = self.turn.get() as usize;
        let mut all = self.used().filter(|class| classes.contains(class));
        let class = all.clone().find(|&class| class > turn).or_else(|| all.next())?;
        self.turn.set(class as u32);
        Some(class)
    }

    /// Gives a bin its memory. `weight` is 0, or the bytes of a block of a large class.
    ///
    /// # Safety
    /// `entries` has room for twice `capacity` entries that nobody else uses as long as the pool lives.
    pub(crate) unsafe fn equip(&self, class: usize, entries: *mut Entry, capacity: u32, weight: usize) {
        let bin = self.bin(class);
        self.measure(class).capacity.set(capacity);
        bin.weight.set(weight);
        bin.set_out(entries, entries);
        // SAFETY: passed on to the caller.
        bin.set_in(unsafe { entries.add(capacity as usize) }, 0);
        let word = &self.used[class / 64 % (MAX_CLASSES / 64)];
        word.store(word.load(Ordering::Relaxed) | (1 << (class % 64)), Ordering::Relaxed);
    }

    /// The stacks of a bin change places, if not much is left on the one that is taken from: that comes on top of the other.
    pub(crate) fn turn(&self, class: usize) {
        let (bin, measure) = (self.bin(class), self.measure(class));
        let (out, base) = (bin.out_base.get(), bin.in_base.get());
        let (rest, put) = (length(out, bin.out_top.get()), length(base, bin.in_top.get()));
        if rest > measure.limit.get() as usize / 2 || rest + put > measure.capacity.get() as usize {
            return;
        }
        // SAFETY: the stacks lie apart, each with room for `capacity` entries; `rest` of one and `put` of the other are written.
        let top = unsafe {
            ptr::copy_nonoverlapping(out, bin.in_top.get(), rest);
            base.add(rest + put)
        };
        bin.set_out(base, top);
        bin.set_in(out, measure.limit.get());
    }

    /// A block of a class, if there is one.
    #[inline]
    pub(crate) fn pop(&self, class: usize) -> Option<Entry> {
        let bin = self.bin(class);
        bin.pop().or_else(|| {
            self.turn(class);
            bin.pop()
        })
    }

    /// Takes the oldest blocks of a class out, up to `n`.
    pub(crate) fn take_oldest(&self, class: usize, n: usize) -> Portion {
        if self.bin(class).is_out() {
            self.turn(class);
        }
        self.bin(class).take_oldest(n)
    }

    /// Bytes in bins of large classes.
    #[inline]
    pub(crate) fn large_bytes(&self) -> usize {
        self.large_bytes.load(Ordering::Relaxed)
    }

    /// Sets that, inside.
    #[inline]
    pub(crate) fn set_large_bytes(&self, bytes: usize) {
        self.large_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that the limits of the bins of small classes amount to.
    pub(crate) fn small_limit(&self) -> usize {
        self.small_limit.get()
    }

    /// Sets the limit of the bin of a class.
    pub(crate) fn set_limit(&self, class: usize, limit: u32, size: usize) {
        let (bin, measure) = (self.bin(class), self.measure(class));
        let limit = limit.min(measure.most());
        let before = measure.limit.replace(limit);
        // SAFETY: each stack has room for more than `limit` entries.
        bin.in_end.set(unsafe { bin.in_base.get().add(limit as usize) });
        if bin.weight.get() == 0 {
            let bytes = |limit: u32| limit as usize * size;
            self.small_limit.set((self.small_limit.get() + bytes(limit)).saturating_sub(bytes(before)));
        }
    }
}

/// Entries from `base` to `top`, which belong to one stack.
fn length(base: *mut Entry, top: *mut Entry) -> usize {
    (top.addr() - base.addr()) / size_of::<Entry>()
}

impl Bin {
    fn set_out(&self, base: *mut Entry, top: *mut Entry) {
        self.out_base.set(base);
        self.out_top.set(top);
    }

    /// Makes an empty stack the one that is put on.
    fn set_in(&self, base: *mut Entry, limit: u32) {
        self.in_base.set(base);
        self.in_top.set(base);
        // SAFETY: each stack has room for more than `limit` entries.
        self.in_end.set(unsafe { base.add(limit as usize) });
    }

    /// Bytes of a block of a large class; 0 for a small class.
    #[inline(always)]
    pub(crate) fn weight(&self) -> usize {
        self.weight.get()
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.in_top.get() >= self.in_end.get()
    }

    /// Whether nothing can be taken before the stacks have changed places.
    #[inline(always)]
    pub(crate) fn is_out(&self) -> bool {
        self.out_top.get() == self.out_base.get()
    }

    pub(crate) fn len(&self) -> usize {
        length(self.out_base.get(), self.out_top.get()) + length(self.in_base.get(), self.in_top.get())
    }

    /// A block, if one is left before the stacks have to change places.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<Entry> {
        if self.is_out() {
            return None;
        }
        // SAFETY: the entries below the top were written by `push` or `fill`, and there is one.
        unsafe {
            let top = self.out_top.get().sub(1);
            self.out_top.set(top);
            Some(top.read())
        }
    }

    /// Puts a block in.
    ///
    /// # Safety
    /// The bin is not full.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, entry: Entry) {
        // SAFETY: `equip` promised room for `capacity` entries; the limit is no more, and not reached.
        unsafe {
            let top = self.in_top.get();
            top.write(entry);
            self.in_top.set(top.add(1));
        }
    }

    /// Lets `take` write up to `want` entries for the next to take, and counts what it says it wrote.
    ///
    /// # Safety
    /// `take` writes as many entries as it returns, and no more than it is asked for.
    pub(crate) unsafe fn fill(
        &self,
        measure: &Measure,
        want: usize,
        take: impl FnOnce(*mut Entry, usize) -> usize,
    ) -> usize {
        let len = length(self.out_base.get(), self.out_top.get());
        let want = want.min((measure.capacity.get() as usize).saturating_sub(len));
        let top = self.out_top.get();
        let took = take(top, want);
        // SAFETY: there is room for `want` entries from `len` on.
        self.out_top.set(unsafe { top.add(took) });
        took
    }

    fn take_oldest(&self, n: usize) -> Portion {
        let base = self.out_base.get();
        let len = length(base, self.out_top.get());
        let n = n.min(len).min(PORTION);
        let mut portion = Portion { entries: [const { MaybeUninit::uninit() }; PORTION], len: n };
        if n > 0 {
            // SAFETY: the entries below `len` are written, `n` is no more than `len` and the portion's room.
            unsafe {
                ptr::copy_nonoverlapping(base, portion.entries.as_mut_ptr().cast(), n);
                ptr::copy(base.add(n), base, len - n);
                self.out_top.set(base.add(len - n));
            }
        }
        portion
    }

    #[inline(always)]
    pub(crate) fn count_allocation(&self) {
        count(&self.allocations);
    }

    #[inline(always)]
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

impl Measure {
    /// Whether [`ThreadCache::equip`] was called.
    pub(crate) fn is_equipped(&self) -> bool {
        self.capacity.get() != 0
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// The highest limit.
    pub(crate) fn most(&self) -> u32 {
        self.capacity.get() - self.capacity.get() / 3
    }

    /// Whether the next slab or large block is expected to have its blocks freed by this thread. Each time that turns out
    /// wrong, the thread goes without for longer.
    pub(crate) fn trusts(&self) -> bool {
        const LONGEST: u32 = 10;
        let revoked = self.revoked.load(Ordering::Relaxed);
        if revoked != self.seen.replace(revoked) {
            let streak = (self.streak.get() + 1).min(LONGEST);
            self.streak.set(streak);
            self.skip.set(1 << streak);
        }
        match self.skip.get() {
            0 => true,
            skip => {
                self.skip.set(skip - 1);
                if skip == 1 {
                    self.streak.set(self.streak.get().saturating_sub(1));
                }
                false
            }
        }
    }
}

const PORTION: usize = 64;

/// Blocks on their way out of a bin. (They leave it before anything else is done with them: giving them back may end in
/// a provider that allocates from this very pool.)
pub(crate) struct Portion {
    entries: [MaybeUninit<Entry>; PORTION],
    len: usize,
}

impl Portion {
    pub(crate) fn entries(&self) -> &[Entry] {
        // SAFETY: the first `len` were written.
        unsafe { core::slice::from_raw_parts(self.entries.as_ptr().cast(), self.len) }
    }
}
