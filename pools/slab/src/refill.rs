//! The exchange between a thread's cache and what all threads share.

use core::sync::atomic::Ordering;

use umf_core::{Address, Error, Result};
use umf_sync::{failpoint, thread, thread::ThreadIndex};

use crate::SlabPool;
use crate::central::{Slabs, Taker};
use crate::extents::UNIT;
use crate::near::Near;
use crate::portion::Portion;
use crate::reach::thread_word;
use crate::span::Entry;
use crate::thread_cache::ThreadCache;

/// What a bin has room for: this many blocks, or the fewer that this many bytes hold, but not below the least.
const SMALL: (usize, usize, usize) = (128, 256 << 10, 32);
/// Large ones: the least that a bin has room for.
const LEAST_LARGE: usize = 4;
/// With which limit a bin of a small class begins.
const FIRST: (usize, usize, usize) = (16, 8 << 10, 4);
/// How many small blocks a thread takes at a time, at most. (No more: whoever frees elsewhere what he takes here would go
/// round among many addresses.)
const REFILL: u32 = 32;
/// Entries in a cache line.
const PER_LINE: usize = 64 / size_of::<Entry>();
/// So many parcels that others sent are looked through before the shared store is.
const PARCELS: u32 = 2;
/// How many large blocks go in one exchange.
const EXCHANGE: (usize, usize, usize) = (16, 16 << 20, 1);

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

impl SlabPool {
    pub(crate) const fn is_large(&self, class: usize) -> bool {
        class >= self.classes.slab_count()
    }

    pub(crate) const fn slabs(&self, class: usize) -> Slabs<'_> {
        Slabs { spans: &self.meta, caches: &self.caches, class }
    }

    /// The calling thread's number, and its cache with a bin for the class; `None` where the thread goes without.
    pub(crate) fn equipped(&self, class: usize) -> Option<(u32, &ThreadCache)> {
        let index = thread::current()?.get();
        let cache = self.caches.get_or_grow(index).ok()?;
        if cache.away.load(Ordering::Relaxed) {
            cache.away.store(false, Ordering::Relaxed);
        }
        if !cache.measure(class).is_equipped() {
            let size = self.classes.size(class);
            let large = (self.settings.thread_cache_blocks as usize, usize::MAX, LEAST_LARGE);
            let capacity = bounded(if self.is_large(class) { large } else { SMALL }, size);
            // Runs are aligned to their length. If all bins began at the same line of a page, those in use would
            // share one set of the processor's cache.
            let skew = class % (capacity / PER_LINE / 4).max(1) * PER_LINE;
            let (_, place) = self.meta.runs.allocate(capacity * size_of::<Entry>()).ok()?;
            let capacity = capacity - skew;
            let _inside = self.inside(cache);
            let weight = if self.is_large(class) { size } else { 0 };
            // SAFETY: the run is of that size, aligned to a cache line, and stays this bin's.
            unsafe {
                cache.equip(class, place.cast::<Entry>().add(skew).as_ptr(), capacity as u32, weight);
            }
            let limit = if self.is_large(class) { capacity } else { bounded(FIRST, size) };
            cache.set_limit(class, limit as u32, size);
        }
        Some((index, cache))
    }

    /// A block of the class where the thread's bin had none.
    pub(crate) fn allocate_cached(&self, class: usize) -> Result<Address> {
        let entry = self.retrying(|| self.take_counted(class))?;
        // SAFETY: the entry was taken out of a cache or the shared store, so it is ours alone, and names our metadata.
        Ok(unsafe { entry.hand_out() })
    }

    /// Runs `take`, unless too much is held; if it lacks memory, gives everything that is free back and runs it again.
    pub(crate) fn retrying<T>(&self, take: impl Fn() -> Result<T>) -> Result<T> {
        self.mind_policy(0);
        self.upstream.admit()?;
        self.upstream.poll_awaited();
        match take() {
            Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) => {
                // What the provider refuses to take back does not matter here.
                let _ = self.release_free(0);
                take().or_else(|error| if self.reserve.reclaim(&error) { take() } else { Err(error) })
            }
            result => result,
        }
    }

    /// A block of the class, or of one a little larger, that counts as allocated.
    fn take_counted(&self, class: usize) -> Result<Entry> {
        let Some((index, cache)) = self.equipped(class) else { return self.take_one(class) };
        let mut parcels = PARCELS;
        loop {
            let found = {
                let _inside = self.inside(cache);
                if parcels > 0 && (self.is_large(class) || cache.home(class).load(Ordering::Relaxed) == 0) {
                    self.pop_near(cache, class)
                } else if self.is_large(class) {
                    self.take_large(index, cache, class)
                } else {
                    self.take_small(index, cache, class)
                }
            };
            if let Some(entry) = found {
                return Ok(entry);
            }
            if parcels > 0 {
                parcels = if self.unpack(index, cache) { parcels - 1 } else { 0 };
                continue;
            }
            if self.upstream.poll_many_awaited() {
                continue;
            }
            if self.is_large(class) {
                let entry = self.cut_block(class, 1)?;
                let _inside = self.inside(cache);
                cache.bin(class).count_allocation();
                return Ok(entry);
            }
            self.add_slab(class)?;
        }
    }

    /// From the bin of a small class, which is filled where it has nothing. Inside.
    fn take_small(&self, index: u32, cache: &ThreadCache, class: usize) -> Option<Entry> {
        cache.bin(class).pop().or_else(|| {
            let (bin, measure) = (cache.bin(class), cache.measure(class));
            if measure.limit() < REFILL {
                self.widen(cache, class);
            }
            let want = measure.limit().min(REFILL) as usize;
            let taker = Some(Taker { index, alone: measure.trusts() });
            // SAFETY: `take` writes as many as it returns.
            let took = unsafe {
                bin.fill(measure, want, |out, want| {
                    self.centrals[class].lock().take(self.slabs(class), taker, out, want)
                })
            };
            self.remember_own(index, cache, bin.newest(took));
            bin.pop()
        })
    }

    /// The thread remembers the slabs of these blocks that are its own. Inside.
    fn remember_own(&self, index: u32, cache: &ThreadCache, entries: &[Entry]) {
        let mut last = None;
        for entry in entries {
            let address = Address::from_bits(entry.address);
            let granule = Some(Near::granule_of(address));
            if core::mem::replace(&mut last, granule) == granule {
                continue;
            }
            let span = self.meta.span_number(address).and_then(|number| self.meta.span(number));
            if let Some(span) = span.filter(|span| span.bias.load(Ordering::Relaxed) == thread_word(index)) {
                cache.remember(address, span);
            }
        }
    }

    /// Raises the limit of the bin of a small class; at the cost of others that have room to spare, if need be. Inside.
    pub(crate) fn widen(&self, cache: &ThreadCache, class: usize) {
        let (measure, size) = (cache.measure(class), self.classes.size(class));
        let more = (measure.limit() / 2).max(4).min(measure.most().saturating_sub(measure.limit()));
        let bytes = more as usize * size;
        let most = self.settings.small_cache_size;
        if cache.small_limit() + bytes > most {
            // One at a time: those that miss it afterwards take it back from others.
            if let Some(other) =
                cache.next_in_turn(0..self.classes.slab_count()).filter(|&other| other != class)
            {
                cache.set_limit(other, (cache.measure(other).limit() / 2).max(4), self.classes.size(other));
            }
        }
        if cache.small_limit() + bytes <= most {
            cache.set_limit(class, measure.limit() + more, size);
        }
    }

    /// One block, counted, past the caches.
    fn take_one(&self, class: usize) -> Result<Entry> {
        let mut entry = core::mem::MaybeUninit::uninit();
        loop {
            let mut central = self.centrals[class].lock();
            // SAFETY: there is room for the one entry that is asked for.
            let took = unsafe {
                if self.is_large(class) {
                    self.take_stock(class, &mut central, None, entry.as_mut_ptr(), 1)
                } else {
                    central.take(self.slabs(class), None, entry.as_mut_ptr(), 1)
                }
            };
            if took == 1 {
                central.allocations += 1;
                // SAFETY: one entry was written.
                return Ok(unsafe { entry.assume_init() });
            }
            drop(central);
            if self.is_large(class) {
                let entry = self.cut_block(class, 1)?;
                self.centrals[class].lock().allocations += 1;
                return Ok(entry);
            }
            self.add_slab(class)?;
        }
    }

    /// A large block at an alignment that its class does not give by itself.
    pub(crate) fn allocate_aligned(&self, class: usize, align: usize) -> Result<Address> {
        let entry = self.retrying(|| {
            let cached = self.equipped(class);
            if let Some((_, cache)) = cached
                && let _inside = self.inside(cache)
                && let Some(entry) = cache.bin(class).pop_aligned(align)
            {
                cache.set_large_bytes(cache.large_bytes() - self.classes.size(class));
                return Ok(entry);
            }
            let entry = self.cut_block(class, (align / UNIT) as u32)?;
            match cached {
                Some((_, cache)) => {
                    let _inside = self.inside(cache);
                    cache.bin(class).count_allocation();
                }
                None => self.centrals[class].lock().allocations += 1,
            }
            Ok(entry)
        })?;
        // SAFETY: the entry was taken out of a cache or the shared store, so it is ours alone, and names our metadata.
        Ok(unsafe { entry.hand_out() })
    }

    /// Puts a block, which was freed, into the calling thread's cache, and makes room there if need be.
    pub(crate) fn put_class(&self, class: usize, entry: Entry) {
        let Some((index, cache)) = self.equipped(class) else {
            self.centrals[class].lock().frees += 1;
            self.give(class, &[entry]);
            return;
        };
        if self.is_large(class) {
            return self.put_large(index, cache, class, entry);
        }
        let bin = cache.bin(class);
        loop {
            let surplus = {
                let _inside = self.inside(cache);
                if bin.is_full() {
                    self.widen(cache, class);
                }
                if !bin.is_full() {
                    // SAFETY: it is not full.
                    return unsafe { bin.push(entry) };
                }
                bin.take_oldest((cache.measure(class).limit() - cache.measure(class).limit() / 4) as usize)
            };
            self.give(class, surplus.entries());
        }
    }

    /// Counts the free of a block that goes into no bin.
    pub(crate) fn count_free(&self, class: usize) {
        match self.equipped(class) {
            Some((_, cache)) => {
                let _inside = self.inside(cache);
                cache.bin(class).count_free();
            }
            None => self.centrals[class].lock().frees += 1,
        }
    }

    /// How many large blocks go in one exchange.
    pub(crate) const fn exchange(&self, class: usize) -> usize {
        bounded(EXCHANGE, self.classes.size(class))
    }

    /// Gives blocks to the shared store. The caller is not inside, and holds no lock.
    pub(crate) fn give(&self, class: usize, entries: &[Entry]) {
        let (doomed, rest) = if self.is_large(class) {
            (0, &entries[self.give_stock(class, entries)..])
        } else {
            let mut central = self.centrals[class].lock();
            central.put(self.slabs(class), entries);
            (central.trim(self.slabs(class), self.settings.capacity), &entries[..0])
        };
        failpoint!("pool.blocks_given");
        self.remove_slabs(doomed);
        self.give_units(rest, true);
        self.mind_policy(entries.len() * self.classes.size(class));
    }

    /// Empties a cache, into which the caller has reached, without giving anything to the provider.
    pub(crate) fn empty(&self, index: u32, cache: &ThreadCache) {
        for class in cache.used() {
            loop {
                let portion = cache.bin(class).take_oldest(usize::MAX);
                if portion.entries().is_empty() {
                    break;
                }
                if self.is_large(class) {
                    self.forget_owner(portion.entries());
                    self.give_units(portion.entries(), false);
                } else {
                    self.centrals[class].lock().put(self.slabs(class), portion.entries());
                }
            }
            if !self.is_large(class) {
                self.centrals[class].lock().leave_home(self.slabs(class), index);
            }
        }
        cache.set_large_bytes(0);
        self.clear_outbox(cache);
    }

    /// Gives everything back that the calling thread keeps.
    pub(crate) fn flush(&self, index: u32, cache: &ThreadCache) {
        self.flush_outbox(cache, true);
        for class in cache.used() {
            loop {
                let portion = self.leaving(cache, class);
                if portion.entries().is_empty() {
                    break;
                }
                self.give(class, portion.entries());
            }
            if !self.is_large(class) {
                self.centrals[class].lock().leave_home(self.slabs(class), index);
            }
        }
    }

    /// Merges the large blocks that the calling thread keeps.
    pub(crate) fn flush_large(&self, cache: &ThreadCache) {
        self.flush_outbox(cache, false);
        for class in cache.used().filter(|&class| self.is_large(class)) {
            loop {
                let portion = self.leaving(cache, class);
                if portion.entries().is_empty() {
                    break;
                }
                self.give_units(portion.entries(), false);
            }
        }
    }

    /// A portion of what the calling thread's bin holds, taken out.
    pub(crate) fn leaving(&self, cache: &ThreadCache, class: usize) -> Portion {
        let _inside = self.inside(cache);
        let portion = cache.bin(class).take_oldest(usize::MAX);
        if self.is_large(class) {
            let bytes = portion.entries().len() * self.classes.size(class);
            cache.set_large_bytes(cache.large_bytes().saturating_sub(bytes));
            self.forget_owner(portion.entries());
        }
        portion
    }

    /// The thread with this number, which is the calling one, ends.
    pub(crate) fn flush_thread(&self, index: ThreadIndex) {
        if let Some(cache) = self.caches.get(index.get()) {
            // First, so that no slab finds its way home behind the back of `flush`.
            cache.away.store(true, Ordering::Relaxed);
            self.hand_over(cache);
            self.flush(index.get(), cache);
        }
    }
}
