//! The threads of a pool: [`ThreadCaches`] with a cache of jemalloc and counters per thread; ends
//! of threads; forks.
//!
//! A cache belongs to a thread index ([`umf_sync::thread`]). It is destroyed when the thread ends,
//! when the pool is dropped, and by the next operation of the thread after a trim.
//!
//! **Forks.** `fork` closes umf's outer gate, then takes the locks of jemalloc, then closes umf's
//! leaf gate. So a thread may call jemalloc while it holds a lock of umf, as all threads do in a
//! program whose global allocator is jemalloc. The extent hooks run under locks of jemalloc and
//! take the lock of an arena's free extents, which passes the leaf gate. They take no other lock,
//! and call nothing under it.

use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use umf_core::Result;
use umf_runtime::registry::PoolRegistry;
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::fork::{self, Hooks};
use umf_sync::thread::{self, ThreadIndex};

use crate::{JemallocPool, je};

/// The thread has requested no cache yet.
const UNREQUESTED: u32 = 0;
/// jemalloc has no more caches.
const NONE: u32 = 1;
/// From here on: the number of jemalloc's cache, plus this.
const FIRST: u32 = 2;

/// The cache and the counters of one thread. Only that thread writes them while it runs.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct ThreadCache {
    cache: AtomicU32,
    /// The flush epoch of the pool in which the cache was requested.
    flush_epoch: AtomicU32,
    allocations: AtomicU64,
    allocated: AtomicU64,
    frees: AtomicU64,
    freed: AtomicU64,
}

// SAFETY: all fields are atomics, and a zeroed value has no cache and zero counters.
unsafe impl Zeroable for ThreadCache {}

/// The caches and counters of all threads of a pool.
pub(crate) struct ThreadCaches {
    by_index: Chunks<ThreadCache>,
    /// The counters of threads without an index, which have no cache.
    unindexed: ThreadCache,
    /// Advances when all caches are flushed.
    flush_epoch: AtomicU32,
}

/// The numbers of allocations and frees, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allocations: u64,
    pub(crate) allocated: u64,
    pub(crate) frees: u64,
    pub(crate) freed: u64,
}

impl Counts {
    /// Returns the bytes of live blocks.
    pub(crate) const fn live_bytes(&self) -> u64 {
        // Other threads count meanwhile, so the frees may be ahead.
        let bytes = self.allocated.wrapping_sub(self.freed);
        if bytes.cast_signed() < 0 { 0 } else { bytes }
    }

    /// Returns the number of live blocks.
    pub(crate) const fn live_blocks(&self) -> u64 {
        self.allocations.saturating_sub(self.frees)
    }
}

impl ThreadCache {
    const fn new() -> Self {
        Self {
            cache: AtomicU32::new(UNREQUESTED),
            flush_epoch: AtomicU32::new(0),
            allocations: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            frees: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    /// Destroys the cache; returns whether there was one.
    ///
    /// # Safety
    /// The owner thread does not use the cache: it is the calling thread, it is ending, or no
    /// thread uses the pool any more.
    unsafe fn destroy(&self) -> bool {
        let Some(cache) = self.cache.swap(UNREQUESTED, Ordering::Relaxed).checked_sub(FIRST) else {
            return false;
        };
        // SAFETY: `renew` created the cache, and no thread uses it, as the caller says.
        unsafe { je::destroy_cache(cache) };
        true
    }
}

/// The cache and the counters of the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct CurrentThread<'a> {
    caches: &'a ThreadCaches,
    /// `None` for a thread without an index.
    cache: Option<&'a ThreadCache>,
}

impl CurrentThread<'_> {
    /// Returns jemalloc's flags for the cache of the thread, which is requested if need be.
    #[inline]
    pub(crate) fn flags(self) -> c_int {
        let Some(thread) = self.cache else {
            je::ensure_ready();
            return je::cache_flags(None);
        };
        let (cache, flush_epoch) =
            (thread.cache.load(Ordering::Relaxed), thread.flush_epoch.load(Ordering::Relaxed));
        if flush_epoch == self.caches.flush_epoch.load(Ordering::Relaxed) {
            if let Some(cache) = cache.checked_sub(FIRST) {
                return je::cache_flags(Some(cache));
            }
            if cache == NONE {
                return je::cache_flags(None);
            }
        }
        self.caches.renew(thread)
    }

    #[inline]
    pub(crate) fn count_allocation(self, size: usize) {
        match self.cache {
            Some(thread) => {
                add(&thread.allocations, 1);
                add(&thread.allocated, size as u64);
            }
            None => {
                self.caches.unindexed.allocations.fetch_add(1, Ordering::Relaxed);
                self.caches.unindexed.allocated.fetch_add(size as u64, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    pub(crate) fn count_free(self, size: usize) {
        match self.cache {
            Some(thread) => {
                add(&thread.frees, 1);
                add(&thread.freed, size as u64);
            }
            None => {
                self.caches.unindexed.frees.fetch_add(1, Ordering::Relaxed);
                self.caches.unindexed.freed.fetch_add(size as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl ThreadCaches {
    pub(crate) const fn new() -> Self {
        Self { by_index: Chunks::new(), unindexed: ThreadCache::new(), flush_epoch: AtomicU32::new(0) }
    }

    /// Returns the cache of the calling thread, and its index.
    #[inline]
    pub(crate) fn current(&self) -> (CurrentThread<'_>, u32) {
        let Some(index) = thread::current() else { return (CurrentThread { caches: self, cache: None }, 0) };
        let cache = match self.by_index.get(index.get()) {
            Some(cache) => Some(cache),
            None => self.by_index.get_or_grow(index.get()).ok(),
        };
        (CurrentThread { caches: self, cache }, index.get())
    }

    /// Replaces the cache of the calling thread; returns jemalloc's flags for the new one.
    #[cold]
    fn renew(&self, thread: &ThreadCache) -> c_int {
        je::ensure_ready();
        // SAFETY: the cache is the calling thread's.
        unsafe { thread.destroy() };
        thread.flush_epoch.store(self.flush_epoch.load(Ordering::Relaxed), Ordering::Relaxed);
        let cache = je::create_cache();
        thread.cache.store(cache.map_or(NONE, |cache| cache + FIRST), Ordering::Relaxed);
        je::cache_flags(cache)
    }

    /// Flushes all caches: the calling thread's now, the others at the next operation of their
    /// threads.
    pub(crate) fn flush(&self) {
        self.flush_epoch.fetch_add(1, Ordering::Relaxed);
        self.flush_current();
    }

    /// Flushes the cache of the calling thread.
    pub(crate) fn flush_current(&self) {
        if let Some(thread) = self.current().0.cache {
            // SAFETY: the cache is the calling thread's.
            unsafe { thread.destroy() };
        }
    }

    /// Destroys the cache of a thread that ends; returns whether it had one.
    ///
    /// # Safety
    /// The thread with this index does not use its cache any more.
    pub(crate) unsafe fn destroy(&self, index: ThreadIndex) -> bool {
        // SAFETY: passed on to the caller.
        self.by_index.get(index.get()).is_some_and(|cache| unsafe { cache.destroy() })
    }

    /// Destroys the caches of all threads.
    ///
    /// # Safety
    /// No thread uses the pool any more.
    pub(crate) unsafe fn destroy_all(&self) {
        for cache in self.all() {
            // SAFETY: passed on to the caller.
            unsafe { cache.destroy() };
        }
    }

    /// Forgets the caches of the parent's other threads, in a forked child: these threads may have
    /// been changing them.
    pub(crate) fn forget_other_threads(&self) {
        let current = self.current().0.cache;
        for cache in self.all().filter(|&cache| !current.is_some_and(|current| core::ptr::eq(current, cache)))
        {
            cache.cache.store(UNREQUESTED, Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &ThreadCache> {
        (0..thread::end()).filter_map(|index| self.by_index.get(index))
    }

    /// Returns the sums of the counters of all threads.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // Frees first: a block that is allocated and freed meanwhile then counts as live, not as
        // freed only.
        for cache in self.all().chain([&self.unindexed]) {
            counts.frees += cache.frees.load(Ordering::Relaxed);
            counts.freed = counts.freed.wrapping_add(cache.freed.load(Ordering::Relaxed));
        }
        for cache in self.all().chain([&self.unindexed]) {
            counts.allocations += cache.allocations.load(Ordering::Relaxed);
            counts.allocated = counts.allocated.wrapping_add(cache.allocated.load(Ordering::Relaxed));
        }
        counts
    }
}

/// Registers the fork handlers in the right order: of the handlers that run before a fork, the last
/// registered runs first. jemalloc registers its own when it initialises, at the latest in a
/// constructor without a priority.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        // Registers the handlers that close both gates.
        fork::generation();
        je::initialise();
        // Without memory for this, forks take the locks in another order.
        let _ = fork::close_outer_gate_earlier();
    }
    at_load
};

/// All pools that are not being dropped.
pub(crate) static POOLS: PoolRegistry<JemallocPool> = PoolRegistry::new(1 << 14);

static AT_FORK: Hooks =
    Hooks { child: || POOLS.for_each(|pool| pool.caches.forget_other_threads()), ..Hooks::NONE };

/// Registers a pool for forks and ends of threads.
///
/// # Errors
/// Those of [`PoolRegistry::enter`], [`thread::on_exit`] and [`fork::add_hooks`].
///
/// # Safety
/// As for [`PoolRegistry::enter`].
pub(crate) unsafe fn register(pool: NonNull<JemallocPool>) -> Result<()> {
    thread::on_exit(end_thread)?;
    fork::add_hooks(&AT_FORK)?;
    // SAFETY: passed on to the caller.
    unsafe { POOLS.enter(pool) }
}

/// Destroys the caches of an ending thread in all pools.
fn end_thread(index: ThreadIndex) {
    je::end_thread();
    POOLS.for_each(|pool| pool.end_thread(index));
}
