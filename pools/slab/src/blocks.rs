//! Large blocks: cut out of regions, and kept whole for as long as they may be wanted again.
//!
//! A freed block goes to the thread's bin, then to the stock of its class for all threads, then back to the allocator
//! of units, which merges it with its neighbours. A request takes a block of its class or of the next two (a quarter
//! larger at most), so that what is kept serves in spite of its sizes; and before the pool takes more memory from its
//! provider than it should need, blocks that are kept are merged.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use umf_core::{Error, Result};
use umf_runtime::tracker;
use umf_sync::thread;

use crate::SlabPool;
use crate::central::Central;
use crate::extents::{Range, UNIT};
use crate::reach::{UNBIASED, thread_word};
use crate::span::{Cold, Entry, Span};
use crate::thread_cache::ThreadCache;

/// How many classes above its own may serve a request.
const ABOVE: usize = 2;
/// So many threads may each keep as much as they are allowed to before the pool merges blocks rather than grow.
const KEEPERS: usize = 8;

/// How often a few kept blocks are merged before all are.
const TRIES: u32 = 8;

/// How many large blocks are merged as they are freed after all had to be: where kept ones lie, no longer range comes about.
const MERGING: u32 = 8192;

/// What merging kept blocks came to.
pub(crate) enum Gathered {
    /// There is little to merge: the pool should grow.
    Little,
    /// Look again.
    Some,
    /// All is merged: the pool has to grow, by no more than it must.
    All,
}

impl SlabPool {
    /// A large block of the class from the allocator of units.
    pub(crate) fn cut_block(&self, class: usize, align: u32) -> Result<Entry> {
        let size = self.classes.size(class);
        let (number, span) = self.meta.allocate_span()?;
        let cut = self.obtain((size / UNIT) as u32, align, number).and_then(|range| {
            let lost = Error::OutOfMemory { size, owner: "metadata", native: 0 };
            let (base, region) = self.region_of(range).ok_or(lost)?;
            // SAFETY: nobody else knows the number yet.
            unsafe { *span.cold() = Cold { unit: range.first, ..Cold::EMPTY } };
            span.publish_block(class, range.region, base, size as u64);
            tracker::set_span(region, base, 1, number).inspect_err(|_| {
                span.retract();
                self.give_range(range);
            })
        });
        if let Err(error) = cut {
            self.meta.release_span(number);
            return Err(error);
        }
        if let Some(index) = thread::current() {
            span.owner.store(thread_word(index.get()), Ordering::Relaxed);
        }
        // SAFETY: the span is in use, and has one block.
        Ok(unsafe { span.entry(0) })
    }

    /// The calling thread has freed a large block, whose life was nobody's, and keeps it: whether the life is its own from here on is
    /// a matter of trust. (No free is under way that would have to be waited for.)
    #[inline]
    pub(crate) fn take_home(index: u32, cache: &ThreadCache, span: &Span) {
        span.owner.store(thread_word(index), Ordering::Relaxed);
        if cache.trust().lends() {
            span.bias.store(thread_word(index), Ordering::Relaxed);
            cache.remember(span.base(), span);
        }
    }

    /// Merges large blocks with what is free around them. `release`: regions that are idle then may go to the provider.
    pub(crate) fn give_units(&self, entries: &[Entry], release: bool) {
        for entry in entries {
            let Some((number, span)) = self.meta.large_span(entry) else { continue };
            // SAFETY: the caller alone has the block.
            let range = Range { region: span.region(), first: unsafe { span.cold() }.unit };
            debug_assert_eq!(span.bias.load(Ordering::Relaxed), UNBIASED, "its owner remembers the span");
            if let Some((base, region)) = self.region_of(range) {
                // Cannot fail: the granule is the region's.
                let _ = tracker::set_span(region, base, 1, range.region);
            }
            span.retract();
            self.meta.release_span(number);
            if release {
                self.give_range(range);
            } else {
                self.extents.lock().free(&self.meta, range);
            }
        }
    }

    /// Before large blocks leave their thread: its frees alone met them so far. Inside, or with the thread kept out.
    pub(crate) fn forget_owner(&self, entries: &[Entry]) {
        for &entry in entries {
            // SAFETY: they are large blocks of this pool, as all callers say.
            self.caches.disown(unsafe { Span::of_own_state(entry) });
        }
    }

    /// A block of the class from the thread's bins; or, if it is a large class and much is kept, of one of those above. Inside.
    #[inline]
    pub(crate) fn pop_near(&self, cache: &ThreadCache, class: usize) -> Option<Entry> {
        if !self.is_large(class) {
            return cache.bin(class).pop();
        }
        match cache.bin(class).pop() {
            Some(entry) => {
                cache.set_large_bytes(cache.large_bytes() - self.classes.size(class));
                Some(entry)
            }
            None => self.pop_above(cache, class),
        }
    }

    /// If it is a large class and much is kept, a block of one of the classes above. Inside.
    #[inline(never)]
    pub(crate) fn pop_above(&self, cache: &ThreadCache, class: usize) -> Option<Entry> {
        if !self.is_large(class) || cache.large_bytes() <= self.settings.thread_cache_size / 4 {
            return None;
        }
        let end = (class + ABOVE + 1).min(self.classes.count());
        let bin = (class + 1..end).map(|class| cache.bin(class)).find(|bin| bin.len() != 0)?;
        let entry = bin.pop()?;
        cache.set_large_bytes(cache.large_bytes() - bin.weight());
        Some(entry)
    }

    /// From the thread's bins, then from stock. Inside.
    pub(crate) fn take_large(&self, index: u32, cache: &ThreadCache, class: usize) -> Option<Entry> {
        if let Some(found) = self.pop_near(cache, class) {
            return Some(found);
        }
        for class in class..(class + ABOVE + 1).min(self.classes.count()) {
            // The bins above may not have been used yet.
            if !self.stocked(class) || !cache.measure(class).is_equipped() {
                continue;
            }
            let (bin, size) = (cache.bin(class), self.classes.size(class));
            let room = self.settings.thread_cache_size.saturating_sub(cache.large_bytes()) / size;
            let want = self.exchange(class).min(room + 1);
            // SAFETY: `take_stock` writes as many as it returns.
            let took = unsafe {
                bin.fill(cache.measure(class), want, |out, want| {
                    self.take_stock(class, &mut self.centrals[class].lock(), Some(index), out, want)
                })
            };
            cache.set_large_bytes(cache.large_bytes() + took * size);
            if let Some(entry) = bin.pop() {
                cache.set_large_bytes(cache.large_bytes() - size);
                return Some(entry);
            }
        }
        None
    }

    /// Puts a block into the bin of a large class, and gives others to the stock where that is too much.
    pub(crate) fn put_large(&self, index: u32, cache: &ThreadCache, class: usize, entry: Entry) {
        let (bin, size) = (cache.bin(class), self.classes.size(class));
        let most = self.most_kept.load(Ordering::Relaxed);
        if self.merging.load(Ordering::Relaxed) > 0 {
            let more = |left: u32| left.checked_sub(1);
            if self.merging.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) == Ok(1) {
                self.most_kept.store(self.settings.thread_cache_size, Ordering::Relaxed);
            }
            // SAFETY: it is a large block of this pool, and the caller's alone.
            self.share_life(unsafe { Span::of_own_state(entry) });
            self.count_free(class);
            return self.give_units(&[entry], true);
        }
        let mut target = most;
        loop {
            let (from, surplus) = {
                let _inside = self.inside(cache);
                let bytes = cache.large_bytes() + size;
                if bytes <= target && !bin.is_full() {
                    cache.set_large_bytes(bytes);
                    if let Some((_, span)) = self.meta.large_span(&entry)
                        && span.bias.load(Ordering::Relaxed) == UNBIASED
                    {
                        Self::take_home(index, cache, span);
                    }
                    // SAFETY: it is not full.
                    return unsafe { bin.push(entry) };
                }
                // Once too much, room for some.
                target = most - most / 8;
                let from = if bin.is_full() {
                    class
                } else {
                    let large = self.classes.slab_count()..self.classes.count();
                    cache.next_in_turn(large).unwrap_or(class)
                };
                let surplus = cache.bin(from).take_oldest(cache.bin(from).len().div_ceil(4));
                let freed = surplus.entries().len() * self.classes.size(from);
                cache.set_large_bytes(cache.large_bytes().saturating_sub(freed));
                self.forget_owner(surplus.entries());
                (from, surplus)
            };
            if surplus.entries().is_empty() && cache.large_bytes() == 0 {
                // The block alone is more than a thread may keep.
                // SAFETY: as above.
                self.share_life(unsafe { Span::of_own_state(entry) });
                self.count_free(class);
                return self.give(class, &[entry]);
            }
            self.give(from, surplus.entries());
        }
    }

    fn stocked(&self, class: usize) -> bool {
        self.stocked[class / 64].load(Ordering::Relaxed) & (1 << (class % 64)) != 0
    }

    fn stock_changed(&self, class: usize, central: &Central) {
        let (word, bit) = (&self.stocked[class / 64], 1 << (class % 64));
        if central.buffered() > 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Counts `n` blocks of a large class that left the stock.
    pub(crate) fn stock_went(&self, class: usize, central: &Central, n: usize) {
        self.stock_changed(class, central);
        self.stock_bytes.fetch_sub((n * self.classes.size(class)) as u64, Ordering::Relaxed);
    }

    /// Moves up to `want` blocks of a large class from stock to `out`, for the bins of a thread whose number is given.
    ///
    /// # Safety
    /// `out` has room for `want` entries.
    pub(crate) unsafe fn take_stock(
        &self,
        class: usize,
        central: &mut Central,
        index: Option<u32>,
        out: *mut Entry,
        want: usize,
    ) -> usize {
        // SAFETY: passed on to the caller.
        let took = unsafe { central.take_buffered(out, want) };
        self.stock_went(class, central, took);
        for place in 0..took {
            // SAFETY: that many were written.
            let entry = unsafe { out.add(place).read() };
            if let Some(index) = index {
                // SAFETY: what lies in stock are large blocks of this pool.
                unsafe { Span::of_own_state(entry) }.owner.store(thread_word(index), Ordering::Relaxed);
            }
        }
        took
    }

    /// The most bytes that are kept for all threads: in stock, and in the depot.
    pub(crate) fn most_shared(&self) -> u64 {
        let least = self.settings.shared_cache_size as u64;
        if self.settings.shared_cache_grows { least.max(self.reserve.bytes() / 4) } else { least }
    }

    /// Puts as many blocks of a large class as there is room for into stock, and yields how many.
    pub(crate) fn give_stock(&self, class: usize, entries: &[Entry]) -> usize {
        let size = self.classes.size(class) as u64;
        let kept = self.stock_bytes.load(Ordering::Relaxed) + self.depot.bytes();
        let room = self.most_shared().saturating_sub(kept) / size;
        let fit = entries.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let most = self.settings.shared_cache_blocks as usize;
        if fit == 0 || most == 0 {
            return 0;
        }
        let mut central = self.centrals[class].lock();
        if !central.has_buffer()
            && let Ok((_, place)) = self.meta.runs.allocate(most * size_of::<Entry>())
        {
            // SAFETY: the run is of that size, aligned to a cache line, and stays this class's.
            unsafe { central.equip(place.as_ptr().cast(), most) };
        }
        let put = central.put_buffered(&entries[..fit]);
        self.stock_bytes.fetch_add(put as u64 * size, Ordering::Relaxed);
        self.stock_changed(class, &central);
        put
    }

    /// Merges all blocks that are in stock.
    pub(crate) fn sell_out(&self, release: bool) {
        self.clear_depot(release);
        for class in self.classes.slab_count()..self.classes.count() {
            while self.stocked(class) {
                let mut portion = [const { MaybeUninit::<Entry>::uninit() }; 16];
                // SAFETY: there is room for that many.
                let n = unsafe {
                    self.take_stock(
                        class,
                        &mut self.centrals[class].lock(),
                        None,
                        portion.as_mut_ptr().cast(),
                        16,
                    )
                };
                // SAFETY: that many were written.
                self.give_units(unsafe { core::slice::from_raw_parts(portion.as_ptr().cast(), n) }, release);
            }
        }
    }

    /// Merges kept blocks, more with each attempt, where more memory is free than should be and no range is long enough for
    /// a block of `size` bytes.
    pub(crate) fn gather(&self, attempt: u32) -> Gathered {
        let caches =
            || (0..thread::end()).filter_map(|index| self.caches.get(index)).map(ThreadCache::large_bytes);
        let kept =
            caches().sum::<usize>() as u64 + self.stock_bytes.load(Ordering::Relaxed) + self.depot.bytes();
        let keepers = caches().filter(|&bytes| bytes > 0).count().clamp(1, KEEPERS);
        let reserved = self.reserve.bytes();
        let most = (self.settings.thread_cache_size as u64 / 4).saturating_mul(5 * keepers as u64);
        let allowed = most.saturating_sub(reserved / 4).max(reserved / 32);
        let free = self.extents.lock().free_units() * UNIT as u64 + kept;
        if free <= allowed {
            return Gathered::Little;
        }
        let own = self.cache();
        match attempt {
            // A few at a time, from each class in turn, so that what was freed long ago goes first.
            0..TRIES => {
                let Some((_, cache)) = own else { return Gathered::Some };
                for _ in 0..2 {
                    let portion = {
                        let _inside = self.inside(cache);
                        let large = self.classes.slab_count()..self.classes.count();
                        let Some(class) = cache.next_in_turn(large) else { break };
                        let portion = cache.bin(class).take_oldest(1);
                        let bytes = portion.entries().len() * self.classes.size(class);
                        cache.set_large_bytes(cache.large_bytes().saturating_sub(bytes));
                        self.forget_owner(portion.entries());
                        portion
                    };
                    self.give_units(portion.entries(), false);
                }
                Gathered::Some
            }
            TRIES => {
                self.sell_out(false);
                if let Some((_, cache)) = own {
                    self.flush_large(cache);
                }
                if most < reserved / 16 * 5 {
                    self.merging.store(MERGING, Ordering::Relaxed);
                    self.most_kept.store(0, Ordering::Relaxed);
                }
                Gathered::Some
            }
            _ => Gathered::All,
        }
    }
}
