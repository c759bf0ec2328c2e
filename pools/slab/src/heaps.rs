//! [`Heaps`]: the heaps of all threads of a pool, their sections and their limits.
//!
//! The front of the pool as a whole. The exchange with the layers behind is in `allocate` and
//! `free`.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use umf_core::Result;
use umf_sync::chunks::Chunks;
use umf_sync::fork::ForkGuard as NoFork;
use umf_sync::{Lock, thread};

use crate::SlabSettings;
use crate::classes::{Classes, MAX_CLASSES};
use crate::heap::Evicted;
use crate::metadata::Arena;
use crate::registry::is_thread_ending;
use crate::section::{FENCED, LockingSection, Section, SlowPathFlags, await_exit, restore, revoke};
use crate::types::{Entry, Heap, Span, UNOWNED, thread_word};

/// The number of heaps that the fast paths reach without a table lookup: that of threads without a
/// number, and those of the smallest numbers.
const FIRST: usize = 64;

/// The capacity of a bin of a small class, as [`bounded`] computes it: the most blocks, the most
/// bytes, the fewest blocks.
const SMALL: (usize, usize, usize) = (128, 256 << 10, 32);
/// The smallest capacity of a bin of a large class.
const LEAST_LARGE: usize = 4;
/// The first limit of the bin of a small class, as in [`SMALL`].
const FIRST_LIMIT: (usize, usize, usize) = (16, 8 << 10, 4);
/// Blocks of a large class in one exchange with the transfer cache, as in [`SMALL`].
const EXCHANGE: (usize, usize, usize) = (16, 16 << 20, 1);
/// Entries in a cache line.
const PER_LINE: usize = 64 / size_of::<Entry>();
/// A request takes a block of its class or of this many classes above: at most a quarter larger.
const ABOVE: usize = 2;
/// A batch holds at most the bytes that a thread may cache, divided by this.
const BATCH_PART: usize = 8;
/// A thread that needs a new slab first drains an inbox with at least the small bytes that a thread
/// may cache, divided by this.
const MANY_PART: u64 = 4;

/// After all cached large blocks were merged, this many are merged as they are freed: cached blocks
/// would prevent longer free extents.
const MERGING: u32 = 8192;

/// Returns how many blocks of `size` bytes `bytes` hold, at most `most` and at least `least`.
const fn bounded((most, bytes, least): (usize, usize, usize), size: usize) -> usize {
    let n = bytes / size;
    if n > most {
        most
    } else if n < least {
        least
    } else {
        n
    }
}

/// The heaps of a pool.
pub(crate) struct Heaps {
    pub(crate) flags: SlowPathFlags,
    pub(crate) classes: Classes,
    /// Element 0 is for threads without a number, and never holds a block: so the fast paths need
    /// not check whether the thread has a number. Element `n` belongs to thread number `n - 1`.
    heaps: Chunks<Heap, FIRST>,
    first: [NonNull<Heap>; FIRST],
    /// The most bytes of large blocks that a thread caches: `thread_cache_size`, or 0 while
    /// `merging`.
    max_large: AtomicUsize,
    /// The number of large blocks that are merged as they are freed before threads cache any again.
    merging: AtomicU32,
    thread_cache_size: usize,
    small_cache_size: usize,
    large_blocks: usize,
    /// Held while a thread revokes sections. Taken before all other locks.
    pub(crate) revoker: Lock<()>,
    /// Allocations and frees of each class by threads without a heap.
    without_heap: [[AtomicU64; 2]; MAX_CLASSES],
    /// Dropped frees of each class: the block was already free. See `remote`.
    late: [AtomicU64; MAX_CLASSES],
}

// SAFETY: the pointers are into the table, which does not move; all else is `Send` and `Sync`.
unsafe impl Send for Heaps {}
// SAFETY: as above.
unsafe impl Sync for Heaps {}

impl Heaps {
    pub(crate) fn new(settings: &SlabSettings, flags: u8) -> Result<Self> {
        let heaps = Chunks::new();
        let first = NonNull::from(heaps.get_or_grow(0)?);
        Ok(Self {
            flags: SlowPathFlags::new(flags),
            classes: Classes::new(settings.min_block_size, settings.max_poolable_size),
            heaps,
            // SAFETY: the first chunk has that many.
            first: core::array::from_fn(|element| unsafe { first.add(element) }),
            max_large: AtomicUsize::new(settings.thread_cache_size),
            merging: AtomicU32::new(0),
            thread_cache_size: settings.thread_cache_size,
            small_cache_size: settings.small_cache_size,
            large_blocks: settings.thread_cache_blocks as usize,
            revoker: Lock::new(()),
            without_heap: [const { [const { AtomicU64::new(0) }; 2] }; MAX_CLASSES],
            late: [const { AtomicU64::new(0) }; MAX_CLASSES],
        })
    }

    /// Returns the heap of thread number `index`, if there is one.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Heap> {
        self.heaps.get(index + 1)
    }

    /// Returns the heaps of all threads, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Heap)> {
        (0..thread::end()).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// Returns the number and the heap of the calling thread; `None` before its first slow path,
    /// and while it ends.
    #[inline]
    pub(crate) fn current(&self) -> Option<(u32, &Heap)> {
        let index = thread::current()?.get();
        Some((index, self.get(index)?))
    }

    /// Returns the number of the calling thread, and its heap with memory for the bin of the class.
    /// Returns `None` if the thread ends, or there is no memory for a heap.
    pub(crate) fn current_with_bin(&self, class: usize, runs: &Arena) -> Option<(u32, &Heap)> {
        if is_thread_ending() {
            return None;
        }
        let index = thread::current()?.get();
        let heap = self.heaps.get_or_grow(index + 1).ok()?;
        heap.adopt();
        if !heap.limits(class).has_memory() {
            let (size, is_large) = (self.classes.size(class), self.classes.is_large(class));
            let large = (self.large_blocks, usize::MAX, LEAST_LARGE);
            let capacity = bounded(if is_large { large } else { SMALL }, size);
            // Runs are aligned to their length. The skew spreads the beginnings of bins over the
            // sets of the processor's cache.
            let skew = class % (capacity / PER_LINE / 4).max(1) * PER_LINE;
            let (_, place) = runs.allocate(capacity * size_of::<Entry>()).ok()?;
            let capacity = capacity - skew;
            let _section = self.enter(heap);
            let weight = if is_large { size } else { 0 };
            // SAFETY: the run is of that size, aligned to a cache line, and stays this bin's.
            unsafe {
                heap.set_memory(class, place.cast::<Entry>().add(skew).as_ptr(), capacity as u32, weight);
            }
            let limit = if is_large { capacity } else { bounded(FIRST_LIMIT, size) };
            heap.set_limit(class, limit as u32, size);
        }
        Some((index, heap))
    }

    // Sections.

    /// Enters the section of the calling thread, `word` as [`thread::index_plus_one`] returns it,
    /// if the thread is one of the first and the fast paths are allowed.
    #[inline(always)]
    pub(crate) fn enter_fast(&self, word: u64) -> Option<Section<'_>> {
        // SAFETY: the elements of the first chunk are there as long as the pool.
        let heap = unsafe { self.first.get(word as usize)?.as_ref() };
        if word != 0 {
            heap.debug_assert_outside();
        }
        heap.enter_if(false, || self.flags.is_fast_allowed())
    }

    /// Enters the section of the calling thread's heap, and waits while another thread revokes it.
    pub(crate) fn enter<'a>(&self, heap: &'a Heap) -> LockingSection<'a> {
        let no_fork = NoFork::new();
        let fenced = self.flags.is_set(FENCED);
        loop {
            if let Some(section) = heap.enter(fenced) {
                return LockingSection { _section: section, _no_fork: no_fork };
            }
            drop(self.revoker.lock());
        }
    }

    /// Runs `run` while the section of thread number `index`, the owner of `heap`, is revoked. The
    /// calling thread is outside of its own section, and holds no lock. `run` calls no provider.
    pub(crate) fn with_revoked<R>(&self, index: u32, heap: &Heap, run: impl FnOnce() -> R) -> R {
        let _revoker = self.revoker.lock();
        if thread::current().is_some_and(|current| current.get() == index) {
            return run();
        }
        revoke(core::iter::once(heap), || self.flags.forbid_fast());
        await_exit(heap);
        let result = run();
        restore(heap);
        self.flags.allow_fast();
        result
    }

    /// Passes the heaps of all other threads to `visit`, with their sections revoked. `visit` calls
    /// no provider.
    pub(crate) fn revoke_all(&self, mut visit: impl FnMut(u32, &Heap)) {
        let _revoker = self.revoker.lock();
        let current = thread::current().map(thread::ThreadIndex::get);
        let others = || {
            self.iter().filter(|&(index, heap)| {
                current != Some(index)
                    && !heap.of_parent.load(Ordering::Relaxed)
                    && heap.used().next().is_some()
            })
        };
        // A thread that gets a number meanwhile is left out.
        let Some((last, _)) = others().last() else { return };
        let others = || others().take_while(|&(index, _)| index <= last);
        revoke(others().map(|(_, heap)| heap), || self.flags.forbid_fast());
        for (index, heap) in others().filter(|(_, heap)| heap.revoked.load(Ordering::Relaxed)) {
            await_exit(heap);
            visit(index, heap);
            restore(heap);
        }
        self.flags.allow_fast();
    }

    // Blocks that a thread caches.

    /// Pops a block of the class. If the class is large and the thread caches much, pops a block of
    /// the classes above instead of none. Inside the section.
    #[inline]
    pub(crate) fn pop(&self, heap: &Heap, class: usize) -> Option<Entry> {
        match heap.bin(class).pop() {
            Some(entry) => {
                heap.set_large_bytes(heap.large_bytes() - heap.bin(class).weight());
                Some(entry)
            }
            None => self.pop_above(heap, class),
        }
    }

    /// Pops a block of one of the classes above, if the class is large and the thread caches much.
    /// Inside the section.
    #[inline]
    pub(crate) fn pop_above(&self, heap: &Heap, class: usize) -> Option<Entry> {
        if !self.classes.is_large(class) || heap.large_bytes() <= self.thread_cache_size / 4 {
            return None;
        }
        let mut above = self.with_above(class).skip(1).map(|class| heap.bin(class));
        let bin = above.find(|bin| bin.len() != 0)?;
        let entry = bin.pop()?;
        heap.set_large_bytes(heap.large_bytes() - bin.weight());
        Some(entry)
    }

    /// Returns a large class and those above it that may serve its requests.
    pub(crate) fn with_above(&self, class: usize) -> core::ops::Range<usize> {
        class..(class + ABOVE + 1).min(self.classes.count())
    }

    /// Returns how many blocks of a large class a thread takes from the transfer cache.
    pub(crate) fn exchange(&self, heap: &Heap, class: usize) -> usize {
        let size = self.classes.size(class);
        let room = self.thread_cache_size.saturating_sub(heap.large_bytes()) / size;
        bounded(EXCHANGE, size).min(room + 1)
    }

    /// Raises the limit of the bin of a small class. If the thread caches too much, lowers the
    /// limit of another class. Inside the section.
    pub(crate) fn widen(&self, heap: &Heap, class: usize) {
        let (limits, size) = (heap.limits(class), self.classes.size(class));
        let more = (limits.limit() / 2).max(4).min(limits.capacity().saturating_sub(limits.limit()));
        let bytes = more as usize * size;
        let max = self.small_cache_size;
        if heap.small_limit() + bytes > max {
            // One class at a time; it raises its limit again when it needs to.
            if let Some(other) =
                heap.next_in_turn(0..self.classes.slab_count()).filter(|&other| other != class)
            {
                heap.set_limit(other, (heap.limits(other).limit() / 2).max(4), self.classes.size(other));
            }
        }
        if heap.small_limit() + bytes <= max {
            heap.set_limit(class, limits.limit() + more, size);
        }
    }

    /// Returns the most bytes of large blocks that a thread may cache now.
    #[inline(always)]
    pub(crate) fn max_large(&self) -> usize {
        self.max_large.load(Ordering::Relaxed)
    }

    /// Makes threads merge the next large blocks as they are freed.
    pub(crate) fn begin_merging(&self) {
        self.merging.store(MERGING, Ordering::Relaxed);
        self.max_large.store(0, Ordering::Relaxed);
    }

    /// Returns whether the large block that the caller frees is to be merged, and counts it.
    pub(crate) fn merges_next(&self) -> bool {
        if self.merging.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let more = |left: u32| left.checked_sub(1);
        if self.merging.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) == Ok(1) {
            self.max_large.store(self.thread_cache_size, Ordering::Relaxed);
        }
        true
    }

    /// Evicts blocks from a bin of the calling thread's heap.
    pub(crate) fn evict(&self, heap: &Heap, class: usize) -> Evicted {
        let _section = self.enter(heap);
        heap.evict(class, usize::MAX)
    }

    // Batches.

    /// Returns whether a thread other than number `index` allocated a large block. Returns `false`
    /// for a block that is a region.
    #[inline(always)]
    pub(crate) fn is_foreign(span: &Span, index: u32) -> bool {
        let last_user = span.last_user.load(Ordering::Relaxed);
        last_user != thread_word(index) && last_user != 0 && span.owner.load(Ordering::Acquire) == UNOWNED
    }

    /// Returns the most bytes in a batch of remote frees.
    #[inline(always)]
    pub(crate) fn max_remote_batch(&self) -> usize {
        self.small_cache_size / BATCH_PART
    }

    /// Returns the bytes in an inbox at which a sender drains it.
    pub(crate) fn max_pending(&self) -> u64 {
        self.small_cache_size as u64
    }

    /// Returns the bytes in an inbox at which a thread that needs a new slab drains it first.
    pub(crate) fn many_pending(&self) -> u64 {
        self.max_pending() / MANY_PART
    }

    /// Returns the most bytes in a batch of large blocks.
    pub(crate) fn max_batch(&self) -> usize {
        self.max_large() / BATCH_PART
    }

    /// Puts a large block into the thread's outgoing batch, if there is room and `free` frees it.
    /// Inside the section.
    #[inline(always)]
    pub(crate) fn add_outgoing(
        &self,
        heap: &Heap,
        (class, entry): (usize, Entry),
        free: impl FnOnce() -> Option<()>,
    ) -> Option<()> {
        let mut batch = heap.outgoing.take()?;
        let size = self.classes.size(class);
        let freed = if batch.fits(size, self.max_batch()) { free() } else { None };
        if freed.is_some() {
            batch.push(class, entry, size);
            heap.bin(class).count_free();
        }
        heap.outgoing.set(Some(batch));
        freed
    }

    /// Puts a block of a batch into the bin of thread number `index`, and returns its size; `None`
    /// if there is no room. Inside the section.
    pub(crate) fn receive(&self, index: u32, heap: &Heap, class: usize, entry: Entry) -> Option<usize> {
        let (bin, size) = (heap.bin(class), self.classes.size(class));
        let bytes = heap.large_bytes() + size;
        if bin.is_full() || bytes > self.max_large() {
            return None;
        }
        heap.set_large_bytes(bytes);
        // SAFETY: batches have large blocks, whose state is their span's own.
        let span = unsafe { Span::of_own_state(entry) };
        span.last_user.store(thread_word(index), Ordering::Relaxed);
        // SAFETY: it is not full.
        unsafe { bin.receive(entry) };
        Some(size)
    }

    // Counters.

    /// Counts an allocation or a free of a block that is in no bin.
    fn count(&self, class: usize, runs: &Arena, is_free: bool) {
        match self.current_with_bin(class, runs) {
            Some((_, heap)) => {
                let _section = self.enter(heap);
                if is_free { heap.bin(class).count_free() } else { heap.bin(class).count_allocation() }
            }
            None => {
                self.without_heap[class][usize::from(is_free)].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts an allocation of a block that was in no bin.
    pub(crate) fn count_allocation(&self, class: usize, runs: &Arena) {
        self.count(class, runs, false);
    }

    /// Counts a free of a block that goes into no bin.
    pub(crate) fn count_free(&self, class: usize, runs: &Arena) {
        self.count(class, runs, true);
    }

    /// Calls `each` with class, allocations and frees of every counter.
    pub(crate) fn counts(&self, mut each: impl FnMut(usize, u64, u64)) {
        for class in 0..self.classes.count() {
            for (_, heap) in self.iter() {
                let (allocations, frees) = heap.bin(class).counts();
                each(class, allocations, frees);
            }
            let [allocations, frees] = &self.without_heap[class];
            let late = self.late[class].load(Ordering::Relaxed);
            // May be negative; the sum over all threads is not.
            each(
                class,
                allocations.load(Ordering::Relaxed),
                frees.load(Ordering::Relaxed).wrapping_sub(late),
            );
        }
    }

    /// Counts that a counted free was dropped, since the block was already free.
    pub(crate) fn count_late(&self, class: usize) {
        self.late[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of dropped frees.
    pub(crate) fn late(&self) -> u64 {
        self.late.iter().map(|late| late.load(Ordering::Relaxed)).sum()
    }
}
