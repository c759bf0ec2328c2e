//! [`ThreadCache`]: free blocks that one thread keeps, by class.
//!
//! A cache belongs to a thread number ([`umf_sync::thread`]) and lies in a table of the pool. Its thread is
//! *inside* while it uses it, which it says with a plain store; others reach into it only while it is not (see
//! `reach`). So nothing in it is locked. Others read its counters at any time.

use core::cell::Cell;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use umf_core::Address;
use umf_runtime::tracker::GRANULE;
use umf_sync::chunks::Zeroed;

use crate::classes::MAX_CLASSES;
use crate::depot::Outbox;
use crate::near::{NEARS, Near};
use crate::portion::Portion;
use crate::span::{Entry, Kind, Span};
use crate::trust::Trust;

/// The free blocks of one class in one thread: a stack.
#[repr(C, align(64))]
pub(crate) struct Bin {
    top: AtomicPtr<Entry>,
    base: AtomicPtr<Entry>,
    /// Where the top is when the bin is full.
    end: Cell<*mut Entry>,
    /// The same; null for a large class, so that one comparison tells both.
    small_end: Cell<*mut Entry>,
    /// Bytes of a block of a large class; 0 for a small class.
    weight: Cell<usize>,
    allocations: AtomicU64,
    /// Frees less allocations less the length: what came and went otherwise. So the frees need not be counted one by one.
    bias: AtomicI64,
    /// Odd while length and bias do not fit together.
    moves: AtomicU32,
}

/// What is seldom looked at: how large a bin is, and how far its thread may count on freeing by itself the small blocks that it takes.
#[repr(C)]
pub(crate) struct Measure {
    /// Entries for which the bin has room.
    capacity: Cell<u32>,
    /// How many it takes: less than it has room for as long as that saves no exchanges.
    limit: Cell<u32>,
    /// How often that turned out wrong. Written by others.
    pub(crate) revoked: AtomicU32,
    seen: Cell<u32>,
    streak: Cell<u32>,
    skip: Cell<u32>,
}

/// What one thread keeps.
#[repr(C, align(64))]
pub(crate) struct ThreadCache {
    /// First, so that a bin's place is its class alone.
    bins: [Bin; MAX_CLASSES],
    nears: [Near; NEARS],
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
    measures: [Measure; MAX_CLASSES],
    trust: Trust,
    outbox: Outbox,
}

// SAFETY: the cells are touched by whoever is inside alone (see the module's text); all else is atomic.
unsafe impl Sync for ThreadCache {}
// SAFETY: entries point into the pool's metadata, which goes along.
unsafe impl Send for ThreadCache {}
// SAFETY: zeros are valid: bins without entries.
unsafe impl Zeroed for ThreadCache {}

/// Where the bin of a class is in a thread's cache: bytes from its beginning. Kept instead of the class where that has to be found fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BinPlace(u16);

impl BinPlace {
    /// That of a class below [`MAX_CLASSES`].
    pub(crate) const fn of(class: usize) -> Self {
        const { assert!(core::mem::offset_of!(ThreadCache, bins) == 0) };
        const { assert!(MAX_CLASSES * size_of::<Bin>() <= 1 << 16) };
        Self((class % MAX_CLASSES * size_of::<Bin>()) as u16)
    }

    /// One whose bytes were written down.
    ///
    /// # Safety
    /// [`BinPlace::offset`] said so many, or they are 0.
    #[inline(always)]
    pub(crate) const unsafe fn from_offset(offset: u16) -> Self {
        Self(offset)
    }

    /// As bytes.
    #[inline(always)]
    pub(crate) const fn offset(self) -> u16 {
        self.0
    }
}

impl ThreadCache {
    /// What is remembered of the granule that holds an address, or of another one.
    #[inline(always)]
    pub(crate) fn near(&self, address: Address) -> &Near {
        // SAFETY: it is the offset of one of them.
        unsafe { &*self.nears.as_ptr().byte_add(Near::offset_of(address)) }
    }

    /// Remembers a span of the thread's own for the block at an address. Inside.
    pub(crate) fn remember(&self, address: Address, span: &Span) {
        // SAFETY: the span is the thread's, so it stays as it is until it is forgotten.
        unsafe { self.near(address).set(span) };
    }

    /// Forgets a span, if it is one that is remembered. By the thread, or while it is kept out.
    pub(crate) fn forget(&self, span: &Span) {
        // (A large block is remembered where it begins.)
        let bytes = if span.kind() == Kind::Slab { span.bytes() } else { 0 };
        let last = span.base().to_bits() + bytes.saturating_sub(1);
        let granules = Near::granule_of(span.base())..=Near::granule_of(Address::from_bits(last));
        let begins = granules.take(NEARS).map(|granule| Address::from_bits(granule * GRANULE as u64));
        begins.for_each(|begin| self.near(begin).forget(span));
    }

    /// The bin at a place.
    #[inline(always)]
    pub(crate) fn bin_at(&self, place: BinPlace) -> &Bin {
        // SAFETY: a bin is there: that is how places are made.
        unsafe { &*ptr::from_ref(self).byte_add(usize::from(place.offset())).cast() }
    }

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

    /// Whether the thread frees the large blocks that it takes.
    #[inline(always)]
    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// What it freed that others are to have. Inside.
    #[inline(always)]
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
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
    /// `entries` has room for `capacity` entries that nobody else uses as long as the pool lives.
    pub(crate) unsafe fn equip(&self, class: usize, entries: *mut Entry, capacity: u32, weight: usize) {
        let bin = self.bin(class);
        self.measure(class).capacity.set(capacity);
        bin.weight.set(weight);
        bin.moving(|| {
            bin.base.store(entries, Ordering::Relaxed);
            bin.top.store(entries, Ordering::Relaxed);
        });
        let word = &self.used[class / 64 % (MAX_CLASSES / 64)];
        word.store(word.load(Ordering::Relaxed) | (1 << (class % 64)), Ordering::Relaxed);
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
        // SAFETY: there is room for as many entries.
        bin.end.set(unsafe { bin.base.load(Ordering::Relaxed).add(limit as usize) });
        if bin.weight.get() == 0 {
            bin.small_end.set(bin.end.get());
            let bytes = |limit: u32| limit as usize * size;
            self.small_limit.set((self.small_limit.get() + bytes(limit)).saturating_sub(bytes(before)));
        }
    }
}

impl Bin {
    /// Where the next block goes.
    #[inline(always)]
    pub(crate) fn top(&self) -> *mut Entry {
        self.top.load(Ordering::Relaxed)
    }

    /// Bytes of a block of a large class; 0 for a small class.
    #[inline(always)]
    pub(crate) fn weight(&self) -> usize {
        self.weight.get()
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.is_full_at(self.top())
    }

    /// The same with its top there.
    #[inline(always)]
    pub(crate) fn is_full_at(&self, top: *mut Entry) -> bool {
        top >= self.end.get()
    }

    /// Whether it is full, with its top there, or of a large class.
    #[inline(always)]
    pub(crate) fn takes_no_small(&self, top: *mut Entry) -> bool {
        top >= self.small_end.get()
    }

    pub(crate) fn len(&self) -> usize {
        // (Others may look in the middle of a move, and look again then.)
        self.top().addr().saturating_sub(self.base.load(Ordering::Relaxed).addr()) / size_of::<Entry>()
    }

    /// Allocates a block, if there is one.
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

    /// Puts a block in that was freed.
    ///
    /// # Safety
    /// The bin is not full.
    #[inline(always)]
    pub(crate) unsafe fn push(&self, entry: Entry) {
        // SAFETY: passed on to the caller.
        unsafe { self.push_at(self.top(), entry) };
    }

    /// The same by one who has looked where the top is.
    ///
    /// # Safety
    /// It is there, and the bin is not full.
    #[inline(always)]
    pub(crate) unsafe fn push_at(&self, top: *mut Entry, entry: Entry) {
        // SAFETY: `equip` promised room for `capacity` entries; the limit is no more, and not reached.
        unsafe {
            top.write(entry);
            self.top.store(top.add(1), Ordering::Relaxed);
        }
    }

    /// Runs what changes words that do not fit together meanwhile.
    fn moving(&self, change: impl FnOnce()) {
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.moves.store(moves.wrapping_add(2), Ordering::Release);
    }

    /// Changes the top and adds to the bias.
    fn change(&self, top: *mut Entry, more: i64) {
        self.moving(|| {
            self.top.store(top, Ordering::Relaxed);
            self.bias.store(self.bias.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        });
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
        let want = want.min((measure.capacity.get() as usize).saturating_sub(self.len()));
        let took = take(self.top(), want);
        // SAFETY: there is room for `want` entries.
        self.change(unsafe { self.top().add(took) }, -(took as i64));
        took
    }

    /// The blocks that came last, up to `n`. Inside.
    pub(crate) fn newest(&self, n: usize) -> &[Entry] {
        let n = n.min(self.len());
        // SAFETY: so many entries below the top are written.
        unsafe { core::slice::from_raw_parts(self.top().sub(n), n) }
    }

    /// Takes the oldest blocks out, up to `n`.
    pub(crate) fn take_oldest(&self, n: usize) -> Portion {
        let (base, len) = (self.base.load(Ordering::Relaxed), self.len());
        // SAFETY: the entries below `len` are written, and no more are asked for.
        let portion = unsafe { Portion::copied(base, n.min(len)) };
        let n = portion.entries().len();
        if n > 0 {
            // SAFETY: as above.
            unsafe {
                ptr::copy(base.add(n), base, len - n);
                self.change(base.add(len - n), n as i64);
            }
        }
        portion
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
        // SAFETY: `equip` promised room for `capacity` entries; the limit is no more, and not reached.
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

    /// Allocations and frees of this class in this thread, and in those that had its number before.
    pub(crate) fn counts(&self) -> (u64, u64) {
        /// Who has no processor in the middle of a change is not waited for.
        const TRIES: u32 = 1000;
        let mut tries = 0;
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            let (length, bias) = (self.len() as i64, self.bias.load(Ordering::Relaxed));
            let allocations = self.allocations.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            tries += 1;
            if moves.is_multiple_of(2) && self.moves.load(Ordering::Relaxed) == moves || tries == TRIES {
                return (allocations, allocations.wrapping_add_signed(length.wrapping_add(bias)));
            }
            core::hint::spin_loop();
        }
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
        self.capacity.get()
    }

    /// Whether the next slab is expected to have its blocks freed by this thread. Each time that turns out
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
