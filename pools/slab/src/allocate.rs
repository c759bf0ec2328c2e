//! The path of an allocation, from the thread's bin to the provider.
//!
//! | step | source of the block |
//! |---|---|
//! | [`SlabPool::allocate_fast`] | the bin of the calling thread, without a call |
//! | [`SlabPool::allocate_slow`] | the same bin, for threads and flags that the fast path leaves out |
//! | `allocate_uncached` | the layers behind the bins; reclaims memory if they have none |
//! | `allocate_class` | the inbox, then a refill, then new memory |
//! | `refill_small`, `refill_large` | central slabs; the stock of large blocks |
//! | `add_slab`, `cut_block` | extents, and regions from the provider |
//!
//! A large request takes a block of its class or of the next two, so that more cached blocks can
//! serve it. If the caches hold much memory, the pool merges cached large blocks into the extents
//! before it takes another region from its provider: `merge_cached`.

use core::sync::atomic::Ordering;

use umf_core::{Address, Error, Layout, Result};
use umf_sync::{failpoint, thread};

use crate::SlabPool;
use crate::central::make_slab;
use crate::extents::{GRANULE_UNITS, Range, UNIT};
use crate::heap::Evicted;
use crate::regions::OWNER;
use crate::section::{CLOSING, FENCED, SHARED, Section, TRACED};
use crate::types::{BinOffset, Entry, Heap, Span, UNOWNED, thread_word};

/// The most small blocks in one refill. With more, threads that free each other's blocks would
/// touch more memory.
const REFILL: u32 = 32;
/// The most batches of large blocks that a request takes before it tries the stock.
const BATCHES: u32 = 2;

/// The most threads whose caches raise the allowance of [`SlabPool::merge_cached`].
const MAX_CACHING_THREADS: usize = 8;
/// How often a few cached blocks are merged before all of them are.
const PARTIAL_MERGES: u32 = 8;

/// A new region has at least the bytes of the pool divided by this.
const GROWTH: u64 = 32;
/// The same after all cached blocks were merged.
const GROWTH_AFTER_MERGE: u64 = 8 * GROWTH;

/// The span of a slab's extent: extents know the spans of large blocks only.
const NO_SPAN: u32 = 0;

/// How a request is served.
enum Route {
    /// By a block of this class.
    Class(usize),
    /// By a large block of this class, at an alignment that its class does not guarantee.
    Aligned(usize),
    /// By a region.
    Direct,
}

/// The result of [`SlabPool::merge_cached`].
enum MergeOutcome {
    /// Little memory is free: the pool takes a region.
    NotNeeded,
    /// Blocks were merged: the caller tries again.
    Merged,
    /// All cached blocks are merged: the pool takes a region, as small as possible.
    AllMerged,
}

impl SlabPool {
    /// Pops a block from the thread's bin. It makes no call, so that no register has to be saved.
    #[inline(always)]
    pub(crate) fn allocate_fast(&self, layout: Layout) -> Option<Address> {
        let entry = match self.heaps.classes.small_bin(layout) {
            Some(place) => self.heaps.enter_fast(thread::index_plus_one())?.heap().bin_at(place).pop()?,
            None => {
                let class = self.heaps.classes.larger_class(layout)?;
                let section = self.heaps.enter_fast(thread::index_plus_one())?;
                let (heap, bin) = (section.heap(), section.heap().bin_at(BinOffset::of(class)));
                match bin.pop() {
                    Some(entry) => {
                        // The weight of a small class is 0.
                        heap.set_large_bytes(heap.large_bytes() - bin.weight());
                        entry
                    }
                    None => return self.allocate_above(section, class),
                }
            }
        };
        // SAFETY: entries of this pool's heaps point into its metadata, and a popped entry is this
        // thread's alone.
        Some(unsafe { entry.hand_out() })
    }

    /// Pops a block of a class above. A tail call of [`SlabPool::allocate_fast`].
    #[inline(never)]
    fn allocate_above(&self, section: Section<'_>, class: usize) -> Option<Address> {
        let entry = self.heaps.pop_above(section.heap(), class)?;
        // SAFETY: as in `allocate_fast`.
        Some(unsafe { entry.hand_out() })
    }

    /// Pops a block from the bin of the calling thread after checking each slow-path flag, or
    /// allocates it from the layers behind.
    #[inline(never)]
    pub(crate) fn allocate_slow(&self, layout: Layout) -> Result<Address> {
        let flags = self.heaps.flags.get();
        if flags != 0 {
            self.check_usable()?;
        }
        if flags & TRACED == 0
            && let Route::Class(class) = self.route(layout)
            && let Some((_, heap)) = self.heaps.current()
            && let Some(_section) = heap.enter(flags & FENCED != 0)
            && let Some(entry) = self.heaps.pop(heap, class)
        {
            // SAFETY: as in `allocate_fast`.
            return Ok(unsafe { entry.hand_out() });
        }
        self.allocate_uncached(layout)
    }

    /// Returns an error if the pool must not allocate: in a forked child, or while it is dropped.
    pub(crate) fn check_usable(&self) -> Result<()> {
        let flags = self.heaps.flags.get();
        if flags & SHARED != 0 && self.back.upstream.is_frozen() {
            return Err(Error::Frozen { what: "shared memory" });
        }
        if flags & CLOSING != 0 {
            let what = "allocating while the pool is being dropped";
            return Err(Error::NotSupported { what, owner: OWNER, native: 0 });
        }
        Ok(())
    }

    #[inline]
    fn route(&self, layout: Layout) -> Route {
        // Classes guarantee alignment up to a page. Beyond, a large block is cut at an aligned
        // place.
        const LARGEST_ALIGNMENT: usize = 64 << 20;
        let (classes, align) = (&self.heaps.classes, layout.align());
        let class = classes.of_layout(layout);
        let aligned = if align <= UNIT { classes.count() } else { classes.slab_count() };
        if class < aligned {
            return Route::Class(class);
        }
        let class = classes.of(layout.size()).max(classes.slab_count());
        if align > UNIT && align <= LARGEST_ALIGNMENT && class < classes.count() {
            Route::Aligned(class)
        } else {
            Route::Direct
        }
    }

    /// Allocates a block from the layers behind the bins, unless the limit of deferred memory is
    /// reached. If memory runs out, returns all free memory to the provider and tries again, then
    /// calls the `on_out_of_memory` callback.
    #[cold]
    fn allocate_uncached(&self, layout: Layout) -> Result<Address> {
        let allocate = || {
            let entry = match self.route(layout) {
                Route::Class(class) => self.allocate_class(class)?,
                Route::Aligned(class) => self.allocate_aligned(class, layout.align())?,
                Route::Direct => return self.back.allocate_direct(layout),
            };
            // SAFETY: the entry points into the pool's metadata. It was removed from a heap or a
            // shared list, so it is this thread's alone.
            Ok(unsafe { entry.hand_out() })
        };
        let upstream = &self.back.upstream;
        let address = upstream.retry_on_out_of_memory(self, layout, || {
            self.apply_policy(0);
            upstream.admit()?;
            upstream.poll_pending();
            let result = allocate();
            // A provider may report a lack of aligned memory by the alignment.
            if !matches!(
                result,
                Err(Error::OutOfMemory { .. } | Error::LimitReached { .. } | Error::BadAlignment { .. })
            ) {
                return result;
            }
            // A region that the provider refuses stays in the pool.
            let _ = self.release_free(0);
            allocate().or_else(|error| if self.back.limits.reclaim(&error) { allocate() } else { Err(error) })
        });
        if let Ok(address) = address {
            self.requested.note(&self.back.meta, layout.size(), address);
        }
        if self.heaps.flags.is_set(TRACED) {
            self.back.trace.block("allocate", layout.size(), address.as_ref().ok());
        }
        address
    }

    /// Allocates a block of the class or of one of the next two, and counts it.
    fn allocate_class(&self, class: usize) -> Result<Entry> {
        let Some((index, heap)) = self.heaps.current_with_bin(class, &self.back.meta.runs) else {
            return self.allocate_without_heap(class);
        };
        if !self.heaps.classes.is_large(class) {
            return self.allocate_small(index, heap, class);
        }
        let mut batches = BATCHES;
        loop {
            let found = {
                let _section = self.heaps.enter(heap);
                if batches > 0 { self.heaps.pop(heap, class) } else { self.refill_large(index, heap, class) }
            };
            if let Some(entry) = found {
                return Ok(entry);
            }
            if batches > 0 {
                batches = if self.receive_batch(index, heap) { batches - 1 } else { 0 };
                continue;
            }
            if self.back.upstream.poll_many_pending() {
                continue;
            }
            let entry = self.cut_block(class, 1)?;
            self.heaps.count_allocation(class, &self.back.meta.runs);
            return Ok(entry);
        }
    }

    /// Allocates a block of a small class: from the inbox, from a slab, from the inbox of another
    /// thread, or from a new slab.
    fn allocate_small(&self, index: u32, heap: &Heap, class: usize) -> Result<Entry> {
        let mut may_drain_others = true;
        loop {
            self.drain_own(index, heap);
            let found = {
                let _section = self.heaps.enter(heap);
                self.refill_small(index, heap, class)
            };
            if let Some(entry) = found {
                return Ok(entry);
            }
            if self.collect_unowned(heap) || self.back.upstream.poll_many_pending() {
                continue;
            }
            if core::mem::take(&mut may_drain_others) {
                self.send_open(heap);
                self.drain_idle_owner(index, class);
                continue;
            }
            self.add_slab(class)?;
        }
    }

    /// Moves the blocks of a batch into the thread's bins: of a waiting batch, or of the thread's
    /// outgoing one. Returns `false` if there is no block.
    fn receive_batch(&self, index: u32, heap: &Heap) -> bool {
        let take_outgoing = || {
            let _section = self.heaps.enter(heap);
            heap.outgoing.take()
        };
        let Some(mut batch) = self.transfer.take().or_else(take_outgoing) else { return false };
        let has_blocks = !batch.is_empty();
        {
            let _section = self.heaps.enter(heap);
            batch.offer(|class, entry| self.heaps.receive(index, heap, class, entry));
        }
        // Blocks that do not fit go to the shared lists.
        batch.drain(|class, entries| self.return_blocks(class, entries));
        self.transfer.recycle(batch);
        has_blocks
    }

    /// Pops a block of a small class; fills the bin from the slabs if it is empty. Inside the
    /// section.
    fn refill_small(&self, index: u32, heap: &Heap, class: usize) -> Option<Entry> {
        heap.bin(class).pop().or_else(|| {
            let (bin, limits) = (heap.bin(class), heap.limits(class));
            if limits.limit() < REFILL {
                self.heaps.widen(heap, class);
            }
            let want = limits.limit().min(REFILL) as usize;
            let owner = thread_word(index);
            // SAFETY: `take` writes as many as it returns.
            let took =
                unsafe { bin.fill(limits, want, |out, want| self.central(class).take(owner, out, want)) };
            heap.remember_owned(index, &self.back.meta, bin.newest(took));
            bin.pop()
        })
    }

    /// Pops a large block from the thread's bins; fills one from stock if they are empty. Inside
    /// the section.
    fn refill_large(&self, index: u32, heap: &Heap, class: usize) -> Option<Entry> {
        if let Some(found) = self.heaps.pop(heap, class) {
            return Some(found);
        }
        for class in self.heaps.with_above(class) {
            // A bin above may have no memory yet.
            if !self.transfer.has_stock(class) || !heap.limits(class).has_memory() {
                continue;
            }
            let (bin, size) = (heap.bin(class), self.heaps.classes.size(class));
            let want = self.heaps.exchange(heap, class);
            // SAFETY: `take_stock` writes as many as it returns.
            let took = unsafe {
                bin.fill(heap.limits(class), want, |out, want| {
                    self.transfer.take_stock(class, size, out, want)
                })
            };
            for &entry in bin.newest(took) {
                // SAFETY: the stock holds large blocks of this pool.
                let span = unsafe { Span::of_own_state(entry) };
                span.last_user.store(thread_word(index), Ordering::Relaxed);
            }
            heap.set_large_bytes(heap.large_bytes() + took * size);
            if let Some(entry) = bin.pop() {
                heap.set_large_bytes(heap.large_bytes() - size);
                return Some(entry);
            }
        }
        None
    }

    /// Allocates a block for a thread without a heap, and counts it.
    fn allocate_without_heap(&self, class: usize) -> Result<Entry> {
        let size = self.heaps.classes.size(class);
        loop {
            // SAFETY: both `take` and `take_stock` write as many entries as they return, at most
            // one.
            let taken = unsafe {
                Evicted::filled(|out, _| {
                    if self.heaps.classes.is_large(class) {
                        self.transfer.take_stock(class, size, out, 1)
                    } else {
                        self.central(class).take(UNOWNED, out, 1)
                    }
                })
            };
            let entry = match taken.entries() {
                [entry] => *entry,
                _ if self.heaps.classes.is_large(class) => self.cut_block(class, 1)?,
                _ => {
                    self.add_slab(class)?;
                    continue;
                }
            };
            self.heaps.count_allocation(class, &self.back.meta.runs);
            return Ok(entry);
        }
    }

    /// Allocates a large block at an alignment that its class does not guarantee, and counts it.
    fn allocate_aligned(&self, class: usize, align: usize) -> Result<Entry> {
        if let Some((_, heap)) = self.heaps.current_with_bin(class, &self.back.meta.runs)
            && let _section = self.heaps.enter(heap)
            && let Some(entry) = heap.bin(class).pop_aligned(align)
        {
            heap.set_large_bytes(heap.large_bytes() - self.heaps.classes.size(class));
            return Ok(entry);
        }
        let entry = self.cut_block(class, (align / UNIT) as u32)?;
        self.heaps.count_allocation(class, &self.back.meta.runs);
        Ok(entry)
    }

    // New memory.

    /// Makes a slab of the class.
    fn add_slab(&self, class: usize) -> Result<()> {
        let (block, size) = (self.heaps.classes.size(class), self.slab_size(class));
        self.policy.note_class(class, block, false);
        let range = self.allocate_units((size / UNIT) as u32, GRANULE_UNITS, NO_SPAN)?;
        let number = make_slab(&self.back, class, range, (block, size)).inspect_err(|_| {
            self.apply_policy(self.back.free(range));
        })?;
        self.central(class).add(number);
        failpoint!("pool.slab_made");
        self.back.trace.slab("made", size, block);
        Ok(())
    }

    /// Cuts a large block of the class out of the extents.
    fn cut_block(&self, class: usize, align: u32) -> Result<Entry> {
        let size = self.heaps.classes.size(class);
        self.policy.note_class(class, size, true);
        let (number, span) = self.back.meta.allocate_span()?;
        let made = self
            .allocate_units((size / UNIT) as u32, align, number)
            .and_then(|range| self.back.make_block(class, size, range, number));
        match (&made, thread::current()) {
            (Err(_), _) => self.back.meta.release_span(number),
            (Ok(_), Some(index)) => span.last_user.store(thread_word(index.get()), Ordering::Relaxed),
            (Ok(_), None) => {}
        }
        made
    }

    /// Allocates units: from free extents, after merging cached blocks, or from a new region.
    fn allocate_units(&self, units: u32, align: u32, span: u32) -> Result<Range> {
        let mut attempt = 0;
        loop {
            if let Some(range) = self.back.allocate(units, align, span) {
                return Ok(range);
            }
            let (size, align) = (units as usize * UNIT, align as usize * UNIT);
            match self.merge_cached(attempt) {
                MergeOutcome::Merged => {}
                MergeOutcome::NotNeeded => self.back.add_region(size, align, GROWTH)?,
                MergeOutcome::AllMerged => self.back.add_region(size, align, GROWTH_AFTER_MERGE)?,
            }
            attempt += 1;
        }
    }

    /// Merges cached large blocks into the extents if too much memory is free, although no free
    /// extent is long enough for the request. The first attempts merge a few blocks, a later one
    /// all.
    ///
    /// Free memory is allowed up to 5/4 of `thread_cache_size` for each thread that caches large
    /// blocks, less a quarter of the pool, but at least a 32nd of the pool.
    fn merge_cached(&self, attempt: u32) -> MergeOutcome {
        let cached_by_thread = || self.heaps.iter().map(|(_, heap)| heap.large_bytes());
        let cached = cached_by_thread().sum::<usize>() as u64 + self.transfer.bytes();
        let threads = cached_by_thread().filter(|&bytes| bytes > 0).count().clamp(1, MAX_CACHING_THREADS);
        let reserved = self.back.limits.bytes();
        let max = (self.settings.thread_cache_size as u64 / 4).saturating_mul(5 * threads as u64);
        let allowed = max.saturating_sub(reserved / 4).max(reserved / 32);
        let free = self.back.extents.lock().free_units() * UNIT as u64 + cached;
        if free <= allowed {
            return MergeOutcome::NotNeeded;
        }
        let current = self.heaps.current();
        match attempt {
            // The oldest blocks of a few classes, in rotation.
            0..PARTIAL_MERGES => {
                let Some((_, heap)) = current else { return MergeOutcome::Merged };
                for _ in 0..2 {
                    let evicted = {
                        let _section = self.heaps.enter(heap);
                        let Some(class) = heap.next_in_turn(self.heaps.classes.large()) else { break };
                        heap.evict(class, 1)
                    };
                    self.merge(evicted.entries(), false);
                }
                MergeOutcome::Merged
            }
            PARTIAL_MERGES => {
                self.merge_transfer(false);
                if let Some((_, heap)) = current {
                    self.merge_own_large(heap);
                }
                if max < reserved / 16 * 5 {
                    self.heaps.begin_merging();
                }
                MergeOutcome::Merged
            }
            _ => MergeOutcome::AllMerged,
        }
    }
}
