//! The exchange between a thread's cache and what all threads share.

use core::sync::atomic::Ordering;

use umf_core::step::{Step, step};
use umf_core::thread::ThreadIndex;
use umf_core::{Address, Error, Result, thread};

use crate::SlabPool;
use crate::large::UNIT;
use crate::state::Entry;
use crate::thread_cache::{Bin, ThreadCache};

/// What a bin keeps at most: this many blocks, or the fewer that this many bytes hold, but not below the least.
const SMALL: (usize, usize, usize) = (128, 32 << 10, 8);
const LARGE: (usize, usize, usize) = (16, 1 << 20, 4);
/// The same for what a class buffers for all threads.
const SMALL_BUFFER: (usize, usize, usize) = (512, 256 << 10, 0);
const LARGE_BUFFER: (usize, usize, usize) = (16, 1 << 20, 0);

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
    const fn is_large(&self, class: usize) -> bool {
        class >= self.classes.slab_count()
    }

    /// How many blocks go in one exchange.
    fn batch(bin: &Bin) -> usize {
        bin.capacity().div_ceil(2)
    }

    /// The calling thread's cache with a bin for the class; `None` where the thread goes without.
    fn equipped(&self, class: usize) -> Option<&ThreadCache> {
        let cache = self.caches.get_or_grow(thread::current()?.get()).ok()?;
        if cache.pending.load(Ordering::Relaxed) {
            self.flush(cache);
        }
        if !cache.bin(class).is_equipped() {
            let bounds = if self.is_large(class) { LARGE } else { SMALL };
            let capacity = bounded(bounds, self.classes.size(class));
            let (_, place) = self.arena.allocate(capacity * size_of::<Entry>()).ok()?;
            // SAFETY: the run is of that size, aligned to a cache line, and stays this bin's.
            unsafe { cache.equip(class, place.as_ptr().cast(), capacity as u32) };
        }
        Some(cache)
    }

    /// A block of the class where the thread's bin had none.
    pub(crate) fn allocate_refilling(&self, class: usize) -> Result<Address> {
        let entry = if let Some(cache) = self.equipped(class) {
            let bin = cache.bin(class);
            let entry = match bin.pop() {
                Some(entry) => entry,
                None => self.retrying(|| self.refill(class, bin))?,
            };
            if self.is_large(class) {
                // `refill` counts nothing: what lies in the bin now, counts.
                self.recount(cache);
            }
            bin.count_allocation();
            entry
        } else {
            let entry = self.retrying(|| self.take_one(class))?;
            self.centrals[class].lock().allocations += 1;
            entry
        };
        // SAFETY: the entry was taken out of the shared store, so it is ours alone, and names our metadata.
        Ok(Address::from_bits(unsafe { entry.hand_out() }))
    }

    /// Runs `take`, unless too much is held; if it lacks memory, gives everything that is free back and runs it again.
    fn retrying<T>(&self, take: impl Fn() -> Result<T>) -> Result<T> {
        self.upstream.admit()?;
        match take() {
            Err(Error::OutOfMemory { .. } | Error::LimitReached { .. }) => {
                // What the provider refuses to take back does not matter here.
                let _ = self.release_free(0);
                take()
            }
            result => result,
        }
    }

    /// Fills the bin with a batch, less one that it yields.
    fn refill(&self, class: usize, bin: &Bin) -> Result<Entry> {
        let want = Self::batch(bin);
        if self.is_large(class) {
            // SAFETY: `take_buffered` writes as many as it returns.
            unsafe {
                bin.fill(want, |out, want| self.centrals[class].lock().take_buffered(out, want));
            }
            return match bin.pop() {
                Some(entry) => Ok(entry),
                None => self.take_units(class, 1),
            };
        }
        loop {
            // SAFETY: `take` writes as many as it returns.
            unsafe {
                bin.fill(want, |out, want| self.centrals[class].lock().take(&self.spans, out, want));
            }
            if let Some(entry) = bin.pop() {
                return Ok(entry);
            }
            self.add_slab(class)?;
        }
    }

    /// One block, past the caches.
    fn take_one(&self, class: usize) -> Result<Entry> {
        if self.is_large(class) {
            return self.take_units(class, 1);
        }
        let mut entry = core::mem::MaybeUninit::uninit();
        loop {
            // SAFETY: there is room for the one entry that is asked for.
            if unsafe { self.centrals[class].lock().take(&self.spans, entry.as_mut_ptr(), 1) } == 1 {
                // SAFETY: one entry was written.
                return Ok(unsafe { entry.assume_init() });
            }
            self.add_slab(class)?;
        }
    }

    /// A large block of the class from the allocator of units.
    fn take_units(&self, class: usize, align: u32) -> Result<Entry> {
        let units = (self.classes.size(class) / UNIT) as u32;
        let range = self.obtain(units, align, class as u32)?;
        let span = self.spans.get(range.region).ok_or(Error::OutOfMemory {
            size: self.classes.size(class),
            owner: "metadata",
            native: 0,
        })?;
        let first = Address::from_bits(span.base().to_bits() + u64::from(range.first) * UNIT as u64);
        if let Some(place) = span.locate(range.region, first) {
            place.large_class().store(class as u8, Ordering::Relaxed);
        }
        // SAFETY: the region is in use and has this unit.
        Ok(unsafe { span.entry(u64::from(range.first)) })
    }

    /// A block of a large class at an alignment that its class does not give by itself.
    pub(crate) fn allocate_aligned(&self, class: usize, align: usize) -> Result<Address> {
        let align = (align / UNIT) as u32;
        let entry = self.retrying(|| self.take_units(class, align))?;
        match self.equipped(class) {
            Some(cache) => cache.bin(class).count_allocation(),
            None => self.centrals[class].lock().allocations += 1,
        }
        // SAFETY: the block was just cut out, and names our metadata.
        Ok(Address::from_bits(unsafe { entry.hand_out() }))
    }

    /// Counts the bytes of all large bins anew.
    fn recount(&self, cache: &ThreadCache) {
        let large = cache.used().filter(|&class| self.is_large(class));
        cache.large_bytes.set(large.map(|class| cache.bin(class).len() * self.classes.size(class)).sum());
    }

    /// Puts a block into the cache where that is more than a push; counts the free if nobody has.
    #[cold]
    pub(crate) fn put_slow(&self, class: usize, entry: Entry) {
        let counted = self.cache().is_some();
        let Some(cache) = self.equipped(class) else {
            if !counted {
                self.centrals[class].lock().frees += 1;
            }
            self.give(class, &[entry]);
            return;
        };
        let bin = cache.bin(class);
        if !counted {
            bin.count_free();
        }
        if bin.is_full() {
            bin.drain(Self::batch(bin), |entries| self.give(class, entries));
        }
        if self.is_large(class) {
            let size = self.classes.size(class);
            self.recount(cache);
            if cache.large_bytes.get() + size > self.settings.thread_cache_size {
                for class in cache.used().filter(|&class| self.is_large(class)) {
                    let bin = cache.bin(class);
                    bin.drain(Self::batch(bin).min(bin.len().div_ceil(2)), |entries| {
                        self.give(class, entries)
                    });
                }
                self.recount(cache);
            }
            if cache.large_bytes.get() + size > self.settings.thread_cache_size {
                self.give(class, &[entry]);
                return;
            }
            cache.large_bytes.set(cache.large_bytes.get() + size);
        }
        if !bin.push(entry) {
            self.give(class, &[entry]);
        }
    }

    /// Counts the free of a block that goes into no bin.
    pub(crate) fn count_free(&self, class: usize) {
        match self.equipped(class) {
            Some(cache) => cache.bin(class).count_free(),
            None => self.centrals[class].lock().frees += 1,
        }
    }

    /// Gives blocks to the shared store.
    pub(crate) fn give(&self, class: usize, entries: &[Entry]) {
        let large = self.is_large(class);
        let mut doomed = 0;
        let buffered = {
            let mut central = self.centrals[class].lock();
            if !central.has_buffer() {
                let bounds = if large { LARGE_BUFFER } else { SMALL_BUFFER };
                let room = bounded(bounds, self.classes.size(class));
                if room > 0
                    && let Ok((_, place)) = self.arena.allocate(room * size_of::<Entry>())
                {
                    // SAFETY: the run is of that size, aligned to a cache line, and stays this class's.
                    unsafe { central.equip(place.as_ptr().cast(), room) };
                }
            }
            let buffered = central.put_buffered(entries);
            if !large {
                central.put(&self.spans, &entries[buffered..], self.settings.capacity, &mut doomed);
            }
            buffered
        };
        step(Step::PoolBlocksGiven);
        self.remove_slabs(doomed);
        if large {
            self.give_units(&entries[buffered..]);
        }
    }

    /// Gives large blocks to the allocator of units.
    pub(crate) fn give_units(&self, entries: &[Entry]) {
        for entry in entries {
            if let Some(range) = self.range_of(Address::from_bits(entry.address)) {
                self.give_range(range);
            }
        }
    }

    /// Gives everything back that a cache keeps. The calling thread owns it.
    pub(crate) fn flush(&self, cache: &ThreadCache) {
        cache.pending.store(false, Ordering::Relaxed);
        for class in cache.used() {
            let bin = cache.bin(class);
            bin.drain(bin.len(), |entries| self.give(class, entries));
        }
        cache.large_bytes.set(0);
    }

    /// The thread with this number, which is the calling one, ends.
    pub(crate) fn flush_thread(&self, index: ThreadIndex) {
        if let Some(cache) = self.caches.get(index.get()) {
            self.flush(cache);
        }
    }
}
