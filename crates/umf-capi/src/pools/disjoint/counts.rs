//! [`TraceCounters`]: the counters of a traced pool per block size; and [`SharedLimits`], a limit on the cached
//! memory of several pools.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use umf_core::Pool as _;
use umf_pool_slab::SlabPool;

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

/// Number of small frees between two checks: a check sums over all threads. Each large free is
/// checked.
const FREES: u32 = 256;
const LARGE: usize = 64 << 10;

/// A limit on the free memory that several pools keep together. Freed memory above it returns to
/// the providers. It does not limit allocation.
pub(crate) struct SharedLimits {
    most: usize,
    pools: Mutex<Vec<Weak<SlabPool>>>,
    frees: AtomicU32,
}

impl SharedLimits {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, pools: Mutex::new(Vec::new()), frees: AtomicU32::new(0) }
    }

    pub(super) fn enter(&self, pool: &Arc<SlabPool>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// Records a free of `size` bytes. Enforces the limit after some of them.
    pub(super) fn freed(&self, size: usize) {
        let frees = self.frees.fetch_add(1, Ordering::Relaxed);
        if size >= LARGE || frees.is_multiple_of(FREES) {
            self.enforce();
        }
    }

    /// Trims the pools until they keep no more than the limit.
    pub(super) fn enforce(&self) {
        let pools: Vec<_> = {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.iter().filter_map(Weak::upgrade).collect()
        };
        let kept =
            |pool: &Arc<SlabPool>| usize::try_from(pool.statistics().cached_bytes).unwrap_or(usize::MAX);
        let all = pools.iter().map(kept).fold(0, usize::saturating_add);
        let mut excess = all.saturating_sub(self.most);
        for pool in pools {
            if excess == 0 {
                return;
            }
            let keep = kept(&pool).saturating_sub(excess);
            // What cannot be freed stays; another pool may have more.
            let went = pool.trim(keep).unwrap_or(0);
            excess = excess.saturating_sub(went);
        }
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
