//! [`Heap`]: the free blocks that one thread caches, in a bin per class; and [`Lookaside`], its cache
//! from addresses to state bytes.
//!
//! The front of the pool. A heap belongs to a thread number ([`umf_sync::thread`]) and lies in a
//! table of the pool, [`crate::heaps`]. Its thread accesses it inside the critical section only,
//! and other threads only while they have revoked the section: see `section`. So a heap has no
//! lock. Other threads read its counters at any time.
//!
//! **Lookaside cache.** Without it, three dependent loads lead from an address to its state byte:
//! the two levels of the tracker, and the span. The processor cannot run the next allocation ahead
//! of them, since that may read what this free writes. The lookaside cache of a heap needs one
//! load. It has an entry per granule, for slabs that the thread owns and for large blocks that are
//! biased towards it. When a span leaves its owner, the entries of the span are cleared: by the
//! owner thread inside its section, or by a thread that has revoked it. See `central` and `bias`.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

use umf_core::Address;
use umf_runtime::tracker::GRANULE;

use crate::classes::{Divisor, MAX_CLASSES};
use crate::types::{
    Bin, BinLimits, BinOffset, Entry, Heap, Kind, LOOKASIDE_ENTRIES, Lookaside, LookasideEntry, Span,
};

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
    /// Returns the bin at an offset.
    #[inline(always)]
    pub(crate) fn bin_at(&self, place: BinOffset) -> &Bin {
        // SAFETY: a `BinOffset` is the offset of a bin.
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

    /// Returns the head of the list of this thread's slabs of a class without blocks in the bitmap.
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
        // SAFETY: the bin has memory for `capacity` entries, and the limit is no more.
        bin.end.set(unsafe { bin.base.load(Ordering::Relaxed).add(limit as usize) });
        if bin.weight.get() == 0 {
            bin.small_end.set(bin.end.get());
            let bytes = |limit: u32| limit as usize * size;
            self.small_limit.set((self.small_limit.get() + bytes(limit)).saturating_sub(bytes(before)));
        }
    }

    /// Removes the oldest blocks of a class, up to `n`, and makes large ones unbiased. Inside the
    /// section, or while it is revoked.
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

    /// Returns whether the bin with this top is full.
    #[inline(always)]
    pub(crate) fn is_full_at(&self, top: *mut Entry) -> bool {
        top >= self.end.get()
    }

    /// Returns whether the bin with this top is full or of a large class.
    #[inline(always)]
    pub(crate) fn is_full_or_large(&self, top: *mut Entry) -> bool {
        top >= self.small_end.get()
    }

    pub(crate) fn len(&self) -> usize {
        // A thread that reads during a move reads again: see `counts`.
        self.top().addr().saturating_sub(self.base.load(Ordering::Relaxed).addr()) / size_of::<Entry>()
    }

    /// Pops a block, if there is one, and counts an allocation.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<Entry> {
        let top = self.top();
        // SAFETY: only this thread writes `base`.
        if top == unsafe { *self.base.as_ptr() } {
            return None;
        }
        self.allocations.store(self.allocations.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // SAFETY: the entries below the top were written, and the bin is not empty.
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

    /// Runs `change`, which changes length and transfers, as the write side of a sequence lock.
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
    /// `take` writes as many entries as it returns, and no more than its count.
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

    /// Returns the newest blocks, up to `n`. Inside the section.
    pub(crate) fn newest(&self, n: usize) -> &[Entry] {
        let n = n.min(self.len());
        // SAFETY: the `n` entries below the top were written.
        unsafe { core::slice::from_raw_parts(self.top().sub(n), n) }
    }

    /// Removes the oldest blocks, up to `n`.
    fn take_oldest(&self, n: usize) -> Evicted {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len());
        // SAFETY: the first `len` entries were written.
        let evicted = unsafe { Evicted::copied(base, n.min(len)) };
        let n = evicted.entries().len();
        if n > 0 {
            // SAFETY: the bin has `len` entries, and `n` of them were removed.
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

    /// Adds a block that another thread freed and counted.
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

    /// Counts an allocation of a block that was not in this bin.
    pub(crate) fn count_allocation(&self) {
        self.allocations.store(self.allocations.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.change(self.top(), -1);
    }

    /// Counts a free of a block that does not enter this bin.
    pub(crate) fn count_free(&self) {
        self.change(self.top(), 1);
    }

    /// Returns the allocations and frees of this class by this thread and by earlier threads with
    /// its number.
    pub(crate) fn counts(&self) -> (u64, u64) {
        /// The caller does not wait for a thread that is preempted during a move.
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
    /// Copies up to `n` entries from `first` on, at most [`EVICTED`].
    ///
    /// # Safety
    /// `n` entries from `first` on were written.
    pub(crate) unsafe fn copied(first: *const Entry, n: usize) -> Self {
        let mut evicted = Self { entries: [const { MaybeUninit::uninit() }; EVICTED], len: n.min(EVICTED) };
        // SAFETY: `len` is no more than `n`, nor than the room here.
        unsafe {
            ptr::copy_nonoverlapping(first, evicted.entries.as_mut_ptr().cast(), evicted.len);
        }
        evicted
    }

    /// Lets `take` write entries, and keeps as many as it returns.
    ///
    /// # Safety
    /// `take` writes as many entries as it returns, and no more than its count.
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

// The lookaside cache.

/// Returns the number of the granule that holds `address`.
pub(crate) const fn granule_of(address: Address) -> u64 {
    address.to_bits() / GRANULE as u64
}

impl Lookaside {
    #[inline(always)]
    fn entry(&self, address: Address) -> &LookasideEntry {
        // Computes the byte offset of the entry without the granule's number: two instructions
        // less.
        const SHIFT: u32 = GRANULE.ilog2() - size_of::<LookasideEntry>().ilog2();
        let offset =
            (address.to_bits() >> SHIFT) as usize & ((LOOKASIDE_ENTRIES - 1) * size_of::<LookasideEntry>());
        // SAFETY: `offset` is that of an entry.
        unsafe { &*self.0.as_ptr().byte_add(offset) }
    }

    /// Returns the state byte of the block that begins at `address` and the bin of its class;
    /// `None` without an entry for its span.
    #[inline(always)]
    pub(crate) fn find(&self, address: Address) -> Option<(NonNull<AtomicU8>, BinOffset)> {
        let known = self.entry(address);
        let divisor = Divisor { inverse: known.inverse.get(), shift: known.shift.get() };
        let index = divisor.number(address.to_bits().wrapping_sub(known.base.get()));
        if index >= u64::from(known.count.get()) {
            return None;
        }
        // SAFETY: the words are those of one span in use, which has that many blocks.
        let state = unsafe { NonNull::new_unchecked(known.states.get().add(index as usize)) };
        Some((state, known.bin.get()))
    }

    /// Enters the span of the block at `address`.
    ///
    /// # Safety
    /// The thread of this heap owns the span, as [`Span::owner`] says, and the span is in use.
    #[inline(always)]
    pub(crate) unsafe fn remember(&self, address: Address, span: &Span) {
        // SAFETY: the calling thread owns the span, so the span does not change meanwhile.
        let ((base, divisor, count, states), bin) = unsafe { (span.parts(), span.bin()) };
        let known = self.entry(address);
        known.base.set(base);
        known.inverse.set(divisor.inverse);
        known.shift.set(divisor.shift);
        known.count.set(u32::try_from(count).unwrap_or(0));
        known.states.set(states);
        known.bin.set(bin);
    }

    /// Clears the entries of a span.
    pub(crate) fn forget(&self, span: &Span) {
        // A large block has its entry where it begins.
        let bytes = if span.kind() == Kind::Slab { span.bytes() } else { 0 };
        let last = span.base().to_bits() + bytes.saturating_sub(1);
        let granules = granule_of(span.base())..=granule_of(Address::from_bits(last));
        for granule in granules.take(LOOKASIDE_ENTRIES) {
            let known = self.entry(Address::from_bits(granule * GRANULE as u64));
            if ptr::eq(known.states.get(), span.states()) {
                known.count.set(0);
            }
        }
    }
}
