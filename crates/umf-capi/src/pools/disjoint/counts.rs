//! [`TraceCounters`]: the counters of a traced pool per block size; and [`SharedLimits`], a limit on the cached
//! memory of several pools.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use umf_core::Pool as _;
use umf_pool_slab::SlabPool;
use umf_sync::fork;

/// Returns the block sizes of a slab pool in ascending order, from `smallest` (a power of two) to
/// at least `largest`. There are eight per doubling, as in the slab pool.
pub(super) fn sizes(smallest: usize, largest: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let (mut size, mut step) = (0, smallest);
    while sizes.last().is_none_or(|&last| last < largest) {
        if sizes.len() > 8 && sizes.len() % 8 == 0 {
            step *= 2;
        }
        size += step;
        sizes.push(size);
    }
    sizes
}

/// The counters of one block size.
#[derive(Default)]
pub(super) struct BucketCounters {
    pub(super) allocations: AtomicU64,
    /// Allocations that did not allocate from the provider.
    pub(super) from_pool: AtomicU64,
    pub(super) frees: AtomicU64,
    pub(super) most_in_use: AtomicU64,
    pub(super) most_in_pool: AtomicU64,
}

impl BucketCounters {
    pub(super) fn live(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed).saturating_sub(self.frees.load(Ordering::Relaxed))
    }
}

/// The counters of all block sizes; the last is for larger blocks.
pub(super) struct TraceCounters {
    all: Box<[BucketCounters]>,
}

impl TraceCounters {
    pub(super) fn new(sizes: &[usize]) -> Self {
        Self { all: (0..=sizes.len()).map(|_| BucketCounters::default()).collect() }
    }

    /// Returns the counters of the blocks that hold `size` bytes.
    pub(super) fn of(&self, sizes: &[usize], size: usize) -> &BucketCounters {
        let bucket = sizes.partition_point(|&block| block < size);
        &self.all[bucket.min(self.all.len() - 1)]
    }

    pub(super) fn bucket(&self, bucket: usize) -> Option<&BucketCounters> {
        self.all.get(bucket)
    }

    pub(super) fn all(&self) -> &[BucketCounters] {
        &self.all
    }
}

/// The least growth of free memory between two attempts to return some that fail.
const LEAST_GROWTH: u64 = 64 << 10;

/// A limit on the free memory that several pools keep together. Freed memory above it returns to
/// the providers, as far as no live block lies in the same region. It does not limit allocation.
pub(crate) struct SharedLimits {
    most: u64,
    pools: Mutex<Vec<Weak<SlabPool>>>,
    /// Bytes in live blocks of the pools.
    live: AtomicU64,
    /// Free bytes above the limit that could not be returned.
    stuck: AtomicU64,
    /// The fork generation that created it.
    generation: u32,
}

impl SharedLimits {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most as u64,
            pools: Mutex::new(Vec::new()),
            live: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            generation: fork::generation(),
        }
    }

    fn pools(&self) -> Vec<Arc<SlabPool>> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the free bytes of the pools.
    fn kept(&self, pools: &[Arc<SlabPool>]) -> u64 {
        let reserved: u64 = pools.iter().map(|pool| pool.reserved_bytes()).sum();
        reserved.saturating_sub(self.live.load(Ordering::Relaxed))
    }

    /// Counts an allocated block of `size` bytes.
    pub(super) fn allocated(&self, size: usize) {
        self.live.fetch_add(size as u64, Ordering::Relaxed);
    }

    pub(super) fn enter(&self, pool: &Arc<SlabPool>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// Counts a freed block of `size` bytes, and enforces the limit.
    pub(super) fn freed(&self, size: usize) {
        let live = self.live.fetch_sub(size as u64, Ordering::Relaxed).saturating_sub(size as u64);
        let pools = self.pools();
        let kept = self.kept(&pools);
        // Not again at each free where blocks that are live keep the rest.
        let stuck = self.stuck.load(Ordering::Relaxed);
        let has_grown = stuck == 0 || live == 0 || kept >= stuck + (stuck / 8).max(LEAST_GROWTH);
        if kept > self.most && has_grown {
            self.enforce(&pools);
        }
    }

    /// Removes a pool that is being destroyed, and waits until no other thread trims it: its
    /// provider may be destroyed next.
    pub(super) fn leave(&self, pool: &Arc<SlabPool>) {
        let generation = fork::generation();
        {
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.retain(|known| !core::ptr::eq(known.as_ptr(), Arc::as_ptr(pool)));
        }
        // In a forked child, threads of the parent that trimmed it do not run.
        while Arc::strong_count(pool) > 1 && generation == self.generation {
            std::thread::yield_now();
        }
        self.live.fetch_sub(pool.statistics().live_bytes, Ordering::Relaxed);
    }

    /// Enforces the limit when a pool is gone.
    pub(super) fn pool_is_gone(&self) {
        self.enforce(&self.pools());
    }

    /// Trims the pools until they keep no more than the limit.
    fn enforce(&self, pools: &[Arc<SlabPool>]) {
        let mut excess = self.kept(pools).saturating_sub(self.most);
        for pool in pools {
            if excess == 0 {
                break;
            }
            let keep = pool.statistics().cached_bytes.saturating_sub(excess);
            // What cannot be freed stays; another pool may have more.
            let went = pool.trim(usize::try_from(keep).unwrap_or(usize::MAX)).unwrap_or(0);
            excess = excess.saturating_sub(went as u64);
        }
        let kept = self.kept(pools);
        self.stuck.store(if kept > self.most { kept } else { 0 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_slab_pool() {
        let sizes = sizes(64, 4096);
        assert_eq!(sizes[..10], [64, 128, 192, 256, 320, 384, 448, 512, 576, 640]);
        assert_eq!(sizes[16..19], [1152, 1280, 1408]);
        assert_eq!(sizes.last(), Some(&4096));
    }

    #[test]
    fn a_size_is_counted_where_it_fits() {
        let sizes = sizes(64, 1024);
        let counts = TraceCounters::new(&sizes);
        counts.of(&sizes, 65).allocations.fetch_add(1, Ordering::Relaxed);
        counts.of(&sizes, 1 << 20).frees.fetch_add(1, Ordering::Relaxed);
        assert_eq!(counts.bucket(1).unwrap().live(), 1);
        assert_eq!(counts.all().last().unwrap().frees.load(Ordering::Relaxed), 1);
    }
}
