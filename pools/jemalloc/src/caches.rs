//! What each thread has of a pool: a cache of jemalloc's, and counts.
//!
//! A cache belongs to a thread's number ([`umf_sync::thread`]). It goes when the thread ends, when the pool does, and, after a trim,
//! at the thread's next operation.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::thread::{self, ThreadIndex};

use crate::je;

/// The thread has not asked for a cache.
const UNASKED: u32 = 0;
/// There was none to be had.
const NONE: u32 = 1;
/// jemalloc's number, plus this.
const FIRST: u32 = 2;

/// One thread's part. Only that thread writes, and whoever ends it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cache {
    cache: AtomicU32,
    /// The turn of the pool in which the cache was asked for.
    turn: AtomicU32,
    allocations: AtomicU64,
    allocated: AtomicU64,
    frees: AtomicU64,
    freed: AtomicU64,
}

// SAFETY: all fields are atomics, and a zeroed one has no cache and counted nothing.
unsafe impl Zeroable for Cache {}

/// All threads' parts of a pool.
pub(crate) struct Caches {
    each: Chunks<Cache>,
    /// Of threads without a number: they have no cache.
    others: Cache,
    /// Advances when all caches are to go.
    turn: AtomicU32,
}

/// Allocations, their bytes, frees, their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allocations: u64,
    pub(crate) allocated: u64,
    pub(crate) frees: u64,
    pub(crate) freed: u64,
}

impl Counts {
    pub(crate) const fn live_bytes(&self) -> u64 {
        // Summed up while others go on: the frees may be ahead.
        let bytes = self.allocated.wrapping_sub(self.freed);
        if bytes.cast_signed() < 0 { 0 } else { bytes }
    }

    pub(crate) const fn live_blocks(&self) -> u64 {
        self.allocations.saturating_sub(self.frees)
    }
}

impl Cache {
    const fn new() -> Self {
        Self {
            cache: AtomicU32::new(UNASKED),
            turn: AtomicU32::new(0),
            allocations: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            frees: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    /// Gives the cache back; whether there was one.
    ///
    /// # Safety
    /// The thread whose it is does not use it: it is the calling one, or at its end, or done with the pool.
    unsafe fn forget(&self) -> bool {
        let Some(cache) = self.cache.swap(UNASKED, Ordering::Relaxed).checked_sub(FIRST) else {
            return false;
        };
        // SAFETY: made by `renew`; the caller says that nobody uses it.
        unsafe { je::destroy_cache(cache) };
        true
    }
}

/// A thread's part, for the thread.
#[derive(Clone, Copy)]
pub(crate) struct Own<'a> {
    caches: &'a Caches,
    /// `None`: the thread has no number.
    cache: Option<&'a Cache>,
}

impl Own<'_> {
    /// jemalloc's flags for the thread's cache.
    #[inline]
    pub(crate) fn flags(self) -> c_int {
        let Some(own) = self.cache else {
            je::ready();
            return je::cache_flags(None);
        };
        let (cache, turn) = (own.cache.load(Ordering::Relaxed), own.turn.load(Ordering::Relaxed));
        if turn == self.caches.turn.load(Ordering::Relaxed) {
            if let Some(cache) = cache.checked_sub(FIRST) {
                return je::cache_flags(Some(cache));
            }
            if cache == NONE {
                return je::cache_flags(None);
            }
        }
        self.caches.renew(own)
    }

    #[inline]
    pub(crate) fn count_allocation(self, size: usize) {
        match self.cache {
            Some(own) => {
                add(&own.allocations, 1);
                add(&own.allocated, size as u64);
            }
            None => {
                self.caches.others.allocations.fetch_add(1, Ordering::Relaxed);
                self.caches.others.allocated.fetch_add(size as u64, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub(crate) fn count_free(self, size: usize) {
        match self.cache {
            Some(own) => {
                add(&own.frees, 1);
                add(&own.freed, size as u64);
            }
            None => {
                self.caches.others.frees.fetch_add(1, Ordering::Relaxed);
                self.caches.others.freed.fetch_add(size as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Adds to a count that only this thread writes.
#[inline]
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Caches {
    pub(crate) const fn new() -> Self {
        Self { each: Chunks::new(), others: Cache::new(), turn: AtomicU32::new(0) }
    }

    /// The calling thread's part.
    #[inline]
    pub(crate) fn own(&self) -> (Own<'_>, u32) {
        let Some(index) = thread::current() else { return (Own { caches: self, cache: None }, 0) };
        let cache = match self.each.get(index.get()) {
            Some(cache) => Some(cache),
            None => self.each.get_or_grow(index.get()).ok(),
        };
        (Own { caches: self, cache }, index.get())
    }

    #[cold]
    fn renew(&self, own: &Cache) -> c_int {
        je::ready();
        // SAFETY: the calling thread's own.
        unsafe { own.forget() };
        own.turn.store(self.turn.load(Ordering::Relaxed), Ordering::Relaxed);
        let cache = je::create_cache();
        own.cache.store(cache.map_or(NONE, |cache| cache + FIRST), Ordering::Relaxed);
        je::cache_flags(cache)
    }

    /// All caches are to go: the calling thread's now, the others at their threads' next operation.
    pub(crate) fn flush(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
        self.flush_own();
    }

    /// The calling thread's cache goes.
    pub(crate) fn flush_own(&self) {
        if let Some(own) = self.own().0.cache {
            // SAFETY: the calling thread's own.
            unsafe { own.forget() };
        }
    }

    /// A thread's cache goes; whether it had one.
    ///
    /// # Safety
    /// The thread with this number does not use its cache: it is at its end.
    pub(crate) unsafe fn forget(&self, index: ThreadIndex) -> bool {
        // SAFETY: passed on to the caller.
        self.each.get(index.get()).is_some_and(|cache| unsafe { cache.forget() })
    }

    /// # Safety
    /// Nobody uses the pool any more.
    pub(crate) unsafe fn forget_all(&self) {
        for cache in self.all() {
            // SAFETY: passed on to the caller.
            unsafe { cache.forget() };
        }
    }

    /// In a child: what other threads were doing with their caches when it was forked, nobody knows.
    pub(crate) fn lose_others(&self) {
        let own = self.own().0.cache;
        for cache in self.all().filter(|&cache| !own.is_some_and(|own| core::ptr::eq(own, cache))) {
            cache.cache.store(UNASKED, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Cache> {
        (0..thread::end()).filter_map(|index| self.each.get(index))
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // Frees first: what is counted meanwhile is then live rather than freed without having been.
        for cache in self.all().chain([&self.others]) {
            counts.frees += cache.frees.load(Ordering::Relaxed);
            counts.freed = counts.freed.wrapping_add(cache.freed.load(Ordering::Relaxed));
        }
        for cache in self.all().chain([&self.others]) {
            counts.allocations += cache.allocations.load(Ordering::Relaxed);
            counts.allocated = counts.allocated.wrapping_add(cache.allocated.load(Ordering::Relaxed));
        }
        counts
    }
}
