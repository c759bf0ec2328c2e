//! [`Heap`]: the free blocks that one thread keeps, in a bin per class.
//!
//! The front of the pool. A heap belongs to a thread number ([`umf_sync::thread`]) and lies in a
//! table of the pool, [`crate::heaps`]. Its thread accesses it inside the critical section only,
//! and other threads only while they have revoked the section: see `section`. So a heap has no
//! lock. Other threads read its counters at any time.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering, fence};

use crate::classes::MAX_CLASSES;
use crate::types::{Bin, BinLimits, BinOffset, Entry, Heap};

impl BinLimits {
    /// Returns whether the bin has memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.capacity.get() != 0
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit.get()
    }

    /// Returns the highest limit.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.get()
    }
}

impl Heap {
    /// Returns the bin at a place.
    #[inline(always)]
    pub(crate) fn bin_at(&self, place: BinOffset) -> &Bin {
        // SAFETY: a bin is there: that is how places are made.
        unsafe { &*ptr::from_ref(self).byte_add(usize::from(place.offset())).cast() }
    }

    /// Returns the bin of a class below [`MAX_CLASSES`].
    #[inline]
    pub(crate) fn bin(&self, class: usize) -> &Bin {
        &self.bins[class % MAX_CLASSES]
    }

    pub(crate) fn limits(&self, class: usize) -> &BinLimits {
        &self.limits[class % MAX_CLASSES]
    }

    /// Returns the head of the list of this thread's slabs of a class with blocks in the bitmap.
    pub(crate) fn partial_slabs(&self, class: usize) -> &AtomicU32 {
        &self.partial_slabs[class % MAX_CLASSES]
    }

    /// Returns the head of the list of the others.
    pub(crate) fn full_slabs(&self, class: usize) -> &AtomicU32 {
        &self.full_slabs[class % MAX_CLASSES]
    }

    /// Returns the classes whose bins were ever used.
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

    /// Returns the next of these classes whose bin was used, in rotation.
    pub(crate) fn next_in_turn(&self, classes: Range<usize>) -> Option<usize> {
        let turn = self.turn.get() as usize;
        let mut all = self.used().filter(|class| classes.contains(class));
        let class = all.clone().find(|&class| class > turn).or_else(|| all.next())?;
        self.turn.set(class as u32);
        Some(class)
    }

    /// Adopts the heap for a new thread with its number, after a thread that ended or exists in the
    /// parent process only. Called before the new thread first enters the section.
    pub(crate) fn adopt(&self) {
        self.inbox.reopen();
        if self.of_parent.load(Ordering::Relaxed) {
            self.of_parent.store(false, Ordering::Relaxed);
        }
    }

    /// Gives a bin its memory. `weight` is 0, or the bytes of a block of a large class.
    ///
    /// # Safety
    /// `entries` has room for `capacity` entries that no other code uses as long as the pool lives.
    pub(crate) unsafe fn set_memory(&self, class: usize, entries: *mut Entry, capacity: u32, weight: usize) {
        let bin = self.bin(class);
        self.limits(class).capacity.set(capacity);
        bin.weight.set(weight);
        bin.moving(|| {
            bin.base.store(entries, Ordering::Relaxed);
            bin.top.store(entries, Ordering::Relaxed);
        });
        let word = &self.used[class / 64 % (MAX_CLASSES / 64)];
        word.store(word.load(Ordering::Relaxed) | (1 << (class % 64)), Ordering::Relaxed);
    }

    /// Returns the bytes in bins of large classes.
    #[inline]
    pub(crate) fn large_bytes(&self) -> usize {
        self.large_bytes.load(Ordering::Relaxed)
    }

    /// Sets the bytes in bins of large classes. Inside the section.
    #[inline]
    pub(crate) fn set_large_bytes(&self, bytes: usize) {
        self.large_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of the limits of all bins of small classes.
    pub(crate) fn small_limit(&self) -> usize {
        self.small_limit.get()
    }

    /// Sets the limit of the bin of a class with blocks of `size` bytes.
    pub(crate) fn set_limit(&self, class: usize, limit: u32, size: usize) {
        let (bin, limits) = (self.bin(class), self.limits(class));
        let limit = limit.min(limits.capacity());
        let before = limits.limit.replace(limit);
        // SAFETY: there is room for as many entries.
        bin.end.set(unsafe { bin.base.load(Ordering::Relaxed).add(limit as usize) });
        if bin.weight.get() == 0 {
            bin.small_end.set(bin.end.get());
            let bytes = |limit: u32| limit as usize * size;
            self.small_limit.set((self.small_limit.get() + bytes(limit)).saturating_sub(bytes(before)));
        }
    }

    /// Takes the oldest blocks of a class out, up to `n`. Large ones are unbiased then. Inside, or
    /// while revoked.
    pub(crate) fn evict(&self, class: usize, n: usize) -> Evicted {
        let bin = self.bin(class);
        let evicted = bin.take_oldest(n);
        if bin.weight() != 0 {
            let bytes = evicted.entries().len() * bin.weight();
            self.set_large_bytes(self.large_bytes().saturating_sub(bytes));
            self.unbias_large(evicted.entries());
        }
        evicted
    }
}

impl Bin {
    /// Returns the top, where the next block is pushed.
    #[inline(always)]
    pub(crate) fn top(&self) -> *mut Entry {
        self.top.load(Ordering::Relaxed)
    }

    /// Returns the bytes of a block of a large class; 0 for a small class.
    #[inline(always)]
    pub(crate) fn weight(&self) -> usize {
        self.weight.get()
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_at(self.top())
    }

    /// Returns whether the bin, whose top is there, is full.
    #[inline(always)]
    pub(crate) fn is_full_at(&self, top: *mut Entry) -> bool {
        top >= self.end.get()
    }

    /// Returns whether the bin, whose top is there, is full or of a large class.
    #[inline(always)]
    pub(crate) fn is_full_or_large(&self, top: *mut Entry) -> bool {
        top >= self.small_end.get()
    }

    pub(crate) fn len(&self) -> usize {
        // Another thread may read in the middle of a move; it reads again then.
        self.top().addr().saturating_sub(self.base.load(Ordering::Relaxed).addr()) / size_of::<Entry>()
    }

    /// Pops a block, if there is one, and counts an allocation.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<Entry> {
        let top = self.top();
        // SAFETY: only this thread ever writes it.
        if top == unsafe { *self.base.as_ptr() } {
            return None;
        }
        self.allocations.store(self.allocations.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // SAFETY: the entries below the top were written by `push` or `fill`, and there is one.
        unsafe {
            let top = top.sub(1);
            self.top.store(top, Ordering::Relaxed);
            Some(top.read())
        }
    }

    /// Pushes a freed block, at the top that the caller has read.
    ///
    /// # Safety
    /// `top` is the top of the bin, which is not full.
    #[inline(always)]
    pub(crate) unsafe fn push_at(&self, top: *mut Entry, entry: Entry) {
        // SAFETY: `set_memory` promised room for `capacity` entries; the limit is no more, and not
        // reached.
        unsafe {
            top.write(entry);
            self.top.store(top.add(1), Ordering::Relaxed);
        }
    }

    /// Runs what changes words that do not belong together meanwhile.
    fn moving(&self, change: impl FnOnce()) {
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.moves.store(moves.wrapping_add(2), Ordering::Release);
    }

    /// Sets the top and adds to the transfers.
    fn change(&self, top: *mut Entry, more: i64) {
        self.moving(|| {
            self.top.store(top, Ordering::Relaxed);
            let transfers = self.transfers.load(Ordering::Relaxed).wrapping_add(more);
            self.transfers.store(transfers, Ordering::Relaxed);
        });
    }

    /// Lets `take` write up to `want` entries at the top, and counts as many as it returns.
    ///
    /// # Safety
    /// `take` writes as many entries as it returns, and no more than it is asked for.
    pub(crate) unsafe fn fill(
        &self,
        limits: &BinLimits,
        want: usize,
        take: impl FnOnce(*mut Entry, usize) -> usize,
    ) -> usize {
        let want = want.min((limits.capacity() as usize).saturating_sub(self.len()));
        let took = take(self.top(), want);
        // SAFETY: there is room for `want` entries.
        self.change(unsafe { self.top().add(took) }, -(took as i64));
        took
    }

    /// Returns the blocks that came last, up to `n`. Inside the section.
    pub(crate) fn newest(&self, n: usize) -> &[Entry] {
        let n = n.min(self.len());
        // SAFETY: so many entries below the top are written.
        unsafe { core::slice::from_raw_parts(self.top().sub(n), n) }
    }

    /// Takes the oldest blocks out, up to `n`.
    fn take_oldest(&self, n: usize) -> Evicted {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len());
        // SAFETY: the entries below `len` are written, and no more are asked for.
        let evicted = unsafe { Evicted::copied(base, n.min(len)) };
        let n = evicted.entries().len();
        if n > 0 {
            // SAFETY: there are `len` entries, of which `n` went.
            unsafe {
                ptr::copy(base.add(n), base, len - n);
                self.change(base.add(len - n), n as i64);
            }
        }
        evicted
    }

    /// Allocates the newest of the blocks that begin at a multiple of `align`, if there is one.
    pub(crate) fn pop_aligned(&self, align: usize) -> Option<Entry> {
        let all = self.newest(usize::MAX);
        let place = all.iter().rposition(|entry| entry.address.is_multiple_of(align as u64))?;
        // SAFETY: the entries below the top are written, and the one at `place` is among them.
        unsafe { ptr::swap(self.base.load(Ordering::Relaxed).add(place), self.top().sub(1)) };
        self.pop()
    }

    /// Puts a block in that another thread freed and counted.
    ///
    /// # Safety
    /// The bin is not full.
    pub(crate) unsafe fn receive(&self, entry: Entry) {
        // SAFETY: `set_memory` promised room for `capacity` entries; the limit is no more, and not
        // reached.
        unsafe {
            self.top().write(entry);
            self.change(self.top().add(1), -1);
        }
    }

    /// Counts an allocation of a block that was never here.
    pub(crate) fn count_allocation(&self) {
        self.allocations.store(self.allocations.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.change(self.top(), -1);
    }

    /// Counts a free of a block that does not come here.
    pub(crate) fn count_free(&self) {
        self.change(self.top(), 1);
    }

    /// Returns allocations and frees of this class in this thread, and in those that had its number
    /// before.
    pub(crate) fn counts(&self) -> (u64, u64) {
        /// A thread that has no processor in the middle of a move is not waited for.
        const TRIES: u32 = 1000;
        let mut tries = 0;
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            let (length, transfers) = (self.len() as i64, self.transfers.load(Ordering::Relaxed));
            let allocations = self.allocations.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            tries += 1;
            if moves.is_multiple_of(2) && self.moves.load(Ordering::Relaxed) == moves || tries == TRIES {
                return (allocations, allocations.wrapping_add_signed(length.wrapping_add(transfers)));
            }
            core::hint::spin_loop();
        }
    }
}

/// The most blocks of an [`Evicted`].
const EVICTED: usize = 64;

/// Blocks that have left a bin or a stock. They are removed before they are freed, since freeing
/// them may call a provider that allocates from this very pool.
pub(crate) struct Evicted {
    entries: [MaybeUninit<Entry>; EVICTED],
    len: usize,
}

impl Evicted {
    /// Copies up to `n` entries from `first` on, as far as there is room.
    ///
    /// # Safety
    /// So many are written there.
    pub(crate) unsafe fn copied(first: *const Entry, n: usize) -> Self {
        let mut evicted = Self { entries: [const { MaybeUninit::uninit() }; EVICTED], len: n.min(EVICTED) };
        // SAFETY: the caller has written so many, and there is room for them.
        unsafe {
            ptr::copy_nonoverlapping(first, evicted.entries.as_mut_ptr().cast(), evicted.len);
        }
        evicted
    }

    /// Lets `take` write entries, and keeps as many as it returns.
    ///
    /// # Safety
    /// `take` writes as many entries as it returns, and no more than it is asked for.
    pub(crate) unsafe fn filled(take: impl FnOnce(*mut Entry, usize) -> usize) -> Self {
        let mut evicted = Self { entries: [const { MaybeUninit::uninit() }; EVICTED], len: 0 };
        evicted.len = take(evicted.entries.as_mut_ptr().cast(), EVICTED);
        evicted
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        // SAFETY: the first `len` were written.
        unsafe { core::slice::from_raw_parts(self.entries.as_ptr().cast(), self.len) }
    }
}
