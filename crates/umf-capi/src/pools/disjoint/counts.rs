//! [`Counts`]: what a traced pool counts per size of block; and [`Limits`], what several pools
//! keep.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use umf_core::Pool as _;
use umf_pool_slab::SlabPool;

/// The sizes of blocks that a slab pool has, smallest first: `smallest` (a power of two) to at
/// least `largest`.
///
/// Eight of each doubling, as the slab pool's text says.
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

/// Of one size.
#[derive(Default)]
pub(super) struct Count {
    pub(super) allocations: AtomicU64,
    /// Those for which the provider was not asked.
    pub(super) from_pool: AtomicU64,
    pub(super) frees: AtomicU64,
    pub(super) most_in_use: AtomicU64,
    pub(super) most_in_pool: AtomicU64,
}

impl Count {
    pub(super) fn live(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed).saturating_sub(self.frees.load(Ordering::Relaxed))
    }
}

/// Of all sizes; the last is for what is larger than any.
pub(super) struct Counts {
    all: Box<[Count]>,
}

impl Counts {
    pub(super) fn new(sizes: &[usize]) -> Self {
        Self { all: (0..=sizes.len()).map(|_| Count::default()).collect() }
    }

    /// Of the blocks that hold `size` bytes.
    pub(super) fn of(&self, sizes: &[usize], size: usize) -> &Count {
        let bucket = sizes.partition_point(|&block| block < size);
        &self.all[bucket.min(self.all.len() - 1)]
    }

    pub(super) fn bucket(&self, bucket: usize) -> Option<&Count> {
        self.all.get(bucket)
    }

    pub(super) fn all(&self) -> &[Count] {
        &self.all
    }
}

/// Looking costs a sum over all threads: done after so many frees of small blocks, and after each
/// large one.
const FREES: u32 = 256;
const LARGE: usize = 64 << 10;

/// How much free memory several pools may keep together. It bounds what is kept free, not what is
/// allocated: past it, what is freed goes back to the provider.
pub(crate) struct Limits {
    most: usize,
    pools: Mutex<Vec<Weak<SlabPool>>>,
    frees: AtomicU32,
}

impl Limits {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, pools: Mutex::new(Vec::new()), frees: AtomicU32::new(0) }
    }

    pub(super) fn enter(&self, pool: &Arc<SlabPool>) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(pool));
    }

    /// A block was freed: gives back what is too much, now and then.
    pub(super) fn freed(&self, size: usize) {
        let frees = self.frees.fetch_add(1, Ordering::Relaxed);
        if size >= LARGE || frees.is_multiple_of(FREES) {
            self.enforce();
        }
    }

    /// Gives back what is kept above the limit.
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
            // What cannot be given back stays; another pool may have more.
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
        let counts = Counts::new(&sizes);
        counts.of(&sizes, 65).allocations.fetch_add(1, Ordering::Relaxed);
        counts.of(&sizes, 1 << 20).frees.fetch_add(1, Ordering::Relaxed);
        assert_eq!(counts.bucket(1).unwrap().live(), 1);
        assert_eq!(counts.all().last().unwrap().frees.load(Ordering::Relaxed), 1);
    }
}
