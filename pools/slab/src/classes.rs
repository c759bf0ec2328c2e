//! Size classes: eight per doubling, so that rounding up wastes at most 12.5 %.

use umf_core::Layout;
use umf_runtime::tracker::GRANULE;

use crate::large::UNIT;
use crate::thread_cache::BinPlace;

/// The most classes that a pool can have.
pub(crate) const MAX_CLASSES: usize = 256;
/// Blocks below this size come from slabs, others straight from the large allocator: it is the size from which on no two
/// blocks begin in one granule.
const SLAB_LIMIT: usize = GRANULE;
/// Fewer blocks than this are not worth a slab.
const BLOCKS_PER_SLAB: usize = 8;

/// The size classes of one pool.
///
/// With `m` the smallest block, classes 0 to 7 are `m` to `8m` in steps of `m`; each following eight divide
/// one doubling evenly.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    shift: u32,
    count: usize,
    slab_count: usize,
    /// 8 times the smallest block.
    linear: usize,
    /// Where the bin is of the class of sizes up to 8 times the index plus one; that of [`Classes::NONE`] where that is none of slabs.
    table: [BinPlace; TABLE],
}

const TABLE: usize = 512;
const STEP_BITS: u32 = 3;

impl Classes {
    /// The classes from `min_block` (a power of two) up to at least `max_poolable`.
    pub(crate) const fn new(min_block: usize, max_poolable: usize) -> Self {
        let shift = min_block.ilog2();
        let table = [BinPlace::of(Self::NONE); TABLE];
        let mut classes = Self { shift, count: 0, slab_count: 0, linear: 8 << shift, table };
        if max_poolable > 0 {
            classes.count = classes.of(max_poolable) + 1;
            while classes.slab_count < classes.count && classes.size(classes.slab_count) < SLAB_LIMIT {
                classes.slab_count += 1;
            }
        }
        let mut place = 0;
        while place < TABLE {
            let class = classes.of((place + 1) << STEP_BITS);
            if class < classes.slab_count {
                classes.table[place] = BinPlace::of(class);
            }
            place += 1;
        }
        classes
    }

    /// A class of which there never are blocks.
    pub(crate) const NONE: usize = MAX_CLASSES - 1;

    /// How many classes there are.
    #[inline]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Classes below this number are served from slabs.
    #[inline]
    pub(crate) const fn slab_count(&self) -> usize {
        self.slab_count
    }

    /// The smallest class that holds `size` bytes (not 0); may lie past [`Classes::count`].
    #[inline(always)]
    pub(crate) const fn of(&self, size: usize) -> usize {
        self.of_last(size - 1)
    }

    /// The same of sizes of which `last` is the last byte's number. (Below `linear` the steps are those of the first doubling, so the
    /// bit of that is set first.)
    #[inline(always)]
    const fn of_last(&self, last: usize) -> usize {
        let step = (last | self.linear).ilog2() - STEP_BITS;
        ((step - self.shift) as usize * 8) + (last >> step)
    }

    /// The number of the last byte of a block of the layout, with its size rounded up to the alignment: there is a class of each power of
    /// two, and above it classes of multiples of its eighth, so the class of that many bytes is aligned too.
    #[inline(always)]
    const fn last(layout: Layout) -> usize {
        (layout.size() - 1) | (layout.align() - 1)
    }

    /// Where the bin is of the class of a small layout; if it is not one of slabs, of a class of which there are no blocks. `None` if
    /// the layout is not small.
    #[inline(always)]
    pub(crate) fn of_small(&self, layout: Layout) -> Option<BinPlace> {
        self.table.get(Self::last(layout) >> STEP_BITS).copied()
    }

    /// The class of a layout that is not small, if there is one whose blocks are aligned.
    #[inline(always)]
    pub(crate) const fn of_others(&self, layout: Layout) -> Option<usize> {
        let class = self.of_last(Self::last(layout));
        if layout.align() <= UNIT && class < self.count { Some(class) } else { None }
    }

    /// Bytes of a block of this class.
    #[inline]
    pub(crate) const fn size(&self, class: usize) -> usize {
        if class < 8 {
            (class + 1) << self.shift
        } else {
            (9 + (class & 7)) << ((class >> 3) as u32 - 1 + self.shift)
        }
    }

    /// The smallest class whose blocks hold the layout, and whose size is a multiple of the alignment.
    #[inline]
    pub(crate) const fn of_layout(&self, layout: Layout) -> usize {
        self.of_last(Self::last(layout))
    }

    /// Bytes of a slab of this class: a multiple of [`GRANULE`].
    pub(crate) const fn slab_size(&self, class: usize, slab_min: usize) -> usize {
        let blocks = self.size(class) * BLOCKS_PER_SLAB;
        let size = if blocks > slab_min { blocks } else { slab_min };
        size.next_multiple_of(GRANULE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it_and_wastes_an_eighth_at_most() {
        for min in [8_usize, 16, 64, 256, 4096] {
            let classes = Classes::new(min, 2 << 20);
            assert!(classes.count() <= Classes::NONE);
            for class in 1..classes.count() {
                assert!(classes.size(class) > classes.size(class - 1));
                assert_eq!(classes.of(classes.size(class)), class);
                for size in [classes.size(class), classes.size(class - 1) + 1] {
                    let layout = Layout::new(size, 1).unwrap();
                    match classes.of_small(layout) {
                        Some(place) if class < classes.slab_count() => assert_eq!(place, BinPlace::of(class)),
                        Some(place) => assert_eq!(place, BinPlace::of(Classes::NONE)),
                        None => assert_eq!(classes.of_others(layout), Some(class)),
                    }
                }
                assert_eq!(classes.of(classes.size(class - 1) + 1), class);
                if classes.size(class) > 8 * min {
                    let least = classes.size(class - 1) + 1;
                    assert!((classes.size(class) - least) * 8 <= classes.size(class));
                }
            }
            assert!(classes.size(classes.count() - 1) >= 2 << 20);
        }
    }

    #[test]
    fn aligned_classes_are_multiples_of_the_alignment() {
        let classes = Classes::new(8, 2 << 20);
        for size in [1, 7, 8, 24, 100, 1000, 4097, 70_000] {
            for bits in 0..16 {
                let layout = Layout::new(size, 1 << bits).unwrap();
                let class = classes.of_layout(layout);
                assert!(classes.size(class) >= size);
                assert_eq!(classes.size(class) % (1 << bits).min(8), 0);
                if bits >= 3 {
                    assert_eq!(classes.size(class) % (1 << bits), 0);
                }
            }
        }
    }

    #[test]
    fn a_layout_has_the_smallest_class_that_is_large_enough_and_aligned() {
        for min in [8, 64, 1024, 1 << 16] {
            let classes = Classes::new(min, 2 << 20);
            for bits in 0..=12 {
                for size in (1..9000).chain((9000..200_000).step_by(97)) {
                    let layout = Layout::new(size, 1 << bits).unwrap();
                    let serves = |class: usize| {
                        classes.size(class) >= size && classes.size(class).is_multiple_of(1 << bits)
                    };
                    let least = (0..classes.count()).find(|&class| serves(class));
                    assert_eq!(Some(classes.of_layout(layout)), least, "{size} at {bits} of {min}");
                    if classes.of_small(layout).is_none() {
                        assert_eq!(classes.of_others(layout), least);
                    }
                }
            }
        }
        let classes = Classes::new(8, 2 << 20);
        // Large blocks lie at multiples of a page, not of more.
        assert_eq!(classes.of_others(Layout::new(100_000, 8192).unwrap()), None);
        assert_eq!(classes.of_others(Layout::new(4 << 20, 8).unwrap()), None);
    }

    #[test]
    fn large_classes_are_whole_units() {
        for min in [8, 64, 4096, 1 << 16] {
            let classes = Classes::new(min, 16 << 20);
            for class in classes.slab_count()..classes.count() {
                assert_eq!(classes.size(class) % UNIT, 0);
            }
        }
    }

    #[test]
    fn a_limit_below_the_smallest_block_or_of_nothing() {
        assert_eq!(Classes::new(8, 0).count(), 0);
        let classes = Classes::new(64, 100);
        assert_eq!((classes.count(), classes.slab_count()), (2, 2));
    }
}
