//! [`Counts`]: what a traced pool counts per size of block.

use core::sync::atomic::{AtomicU64, Ordering};

/// The sizes of blocks that a slab pool has, smallest first: `smallest` (a power of two) to at least `largest`.
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
