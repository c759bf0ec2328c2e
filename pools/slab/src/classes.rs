//! Size classes, and the computation of a block's number from its offset.
//!
//! There are eight classes per doubling, so that rounding up wastes at most 12.5 %. Classes of less
//! than a granule of the tracker are served from slabs, the others are large.

use core::ops::Range;

use umf_core::Layout;
use umf_runtime::tracker::GRANULE;

use crate::extents::UNIT;
use crate::types::BinOffset;

/// The most classes that a pool can have.
pub(crate) const MAX_CLASSES: usize = 256;
/// Blocks below this size come from slabs, others from the extents. From this size on no two blocks
/// begin in one granule.
const SLAB_LIMIT: usize = GRANULE;
/// The fewest blocks of a slab.
const BLOCKS_PER_SLAB: usize = 8;

/// The size classes of one pool.
///
/// With `m` the smallest block, classes 0 to 7 are `m` to `8m` in steps of `m`; each following
/// eight divide one doubling evenly.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    shift: u32,
    count: usize,
    slab_count: usize,
    /// 8 times the smallest block.
    linear: usize,
    /// The bin of the class of sizes up to 8 times the index plus one; that of [`Classes::NONE`] if
    /// the class is large.
    table: [BinOffset; TABLE],
}

const TABLE: usize = 512;
const STEP_BITS: u32 = 3;

impl Classes {
    /// Returns the classes from `min_block` (a power of two) up to at least `max_poolable`.
    pub(crate) const fn new(min_block: usize, max_poolable: usize) -> Self {
        let shift = min_block.ilog2();
        let table = [BinOffset::of(Self::NONE); TABLE];
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
                classes.table[place] = BinOffset::of(class);
            }
            place += 1;
        }
        classes
    }

    /// A class without blocks.
    pub(crate) const NONE: usize = MAX_CLASSES - 1;

    /// Returns the number of classes.
    #[inline]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of classes that are served from slabs: the first ones.
    #[inline]
    pub(crate) const fn slab_count(&self) -> usize {
        self.slab_count
    }

    /// Returns whether the blocks of a class are extents of their own.
    #[inline]
    pub(crate) const fn is_large(&self, class: usize) -> bool {
        class >= self.slab_count
    }

    /// Returns the classes that are served from slabs.
    pub(crate) const fn small(&self) -> Range<usize> {
        0..self.slab_count
    }

    /// Returns the large classes.
    pub(crate) const fn large(&self) -> Range<usize> {
        self.slab_count..self.count
    }

    /// Returns the smallest class that holds `size` bytes (not 0). It may lie past
    /// [`Classes::count`].
    #[inline(always)]
    pub(crate) const fn of(&self, size: usize) -> usize {
        self.of_last(size - 1)
    }

    /// Returns the class of a size, given the number of its last byte. Below `linear` the steps are
    /// those of the first doubling, so the bit of `linear` is set first.
    #[inline(always)]
    const fn of_last(&self, last: usize) -> usize {
        let step = (last | self.linear).ilog2() - STEP_BITS;
        ((step - self.shift) as usize * 8) + (last >> step)
    }

    /// Returns the number of the last byte of a block of the layout, with its size rounded up to
    /// the alignment. There is a class of each power of two, and above it are classes of multiples
    /// of its eighth. So the class of that many bytes is aligned too.
    #[inline(always)]
    const fn last(layout: Layout) -> usize {
        (layout.size() - 1) | (layout.align() - 1)
    }

    /// Returns the bin of a layout of up to 4 KiB, or that of [`Classes::NONE`] if its class is
    /// large; `None` for a larger layout.
    #[inline(always)]
    pub(crate) fn small_bin(&self, layout: Layout) -> Option<BinOffset> {
        self.table.get(Self::last(layout) >> STEP_BITS).copied()
    }

    /// Returns the class of a larger layout, if there is one whose blocks are aligned.
    #[inline(always)]
    pub(crate) const fn larger_class(&self, layout: Layout) -> Option<usize> {
        let class = self.of_last(Self::last(layout));
        if layout.align() <= UNIT && class < self.count { Some(class) } else { None }
    }

    /// Returns the bytes of a block of this class.
    #[inline]
    pub(crate) const fn size(&self, class: usize) -> usize {
        if class < 8 {
            (class + 1) << self.shift
        } else {
            (9 + (class & 7)) << ((class >> 3) as u32 - 1 + self.shift)
        }
    }

    /// Returns the smallest class whose blocks hold the layout, and whose size is a multiple of the
    /// alignment.
    #[inline]
    pub(crate) const fn of_layout(&self, layout: Layout) -> usize {
        self.of_last(Self::last(layout))
    }

    /// Returns the bytes of a slab of this class: a multiple of [`GRANULE`].
    pub(crate) const fn slab_size(&self, class: usize, slab_min: usize) -> usize {
        let blocks = self.size(class) * BLOCKS_PER_SLAB;
        let size = if blocks > slab_min { blocks } else { slab_min };
        size.next_multiple_of(GRANULE)
    }
}

/// Finds the number of a block from its offset in a span, with one multiplication.
///
/// For a size `odd << shift`, `offset * inverse` rotated right by `shift`, where `inverse * odd` is
/// 1 modulo 2^64, is the number of the block that begins there (Warren, Hacker's Delight, 10-17).
/// Both steps can be undone, so no other offset yields that number. An offset that is no multiple
/// of the size, or lies outside, yields a number past all blocks. So one comparison tells whether a
/// block begins there.
#[derive(Clone, Copy)]
pub(crate) struct Divisor {
    pub(crate) inverse: u64,
    pub(crate) shift: u8,
}

impl Divisor {
    /// Finds the block at offset 0 alone, of any size.
    pub(crate) const ONE_BLOCK: Self = Self { inverse: 1, shift: 0 };

    /// Returns the divisor for blocks of `size` bytes, at least 1.
    pub(crate) const fn of(size: u64) -> Self {
        let shift = size.trailing_zeros();
        let odd = size >> shift;
        // Correct in the lowest 3 bits; each step of Newton's method doubles their number.
        let mut inverse = odd;
        let mut bits = 3;
        while bits < 64 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
            bits *= 2;
        }
        Self { inverse, shift: shift as u8 }
    }

    /// Returns the number of the block that begins at an offset, or a number past all blocks.
    #[inline(always)]
    pub(crate) const fn number(self, offset: u64) -> u64 {
        offset.wrapping_mul(self.inverse).rotate_right(self.shift as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_is_the_smallest_that_holds_a_size_and_wastes_at_most_an_eighth() {
        for min in [8_usize, 16, 64, 256, 4096] {
            let classes = Classes::new(min, 2 << 20);
            assert!(classes.count() <= Classes::NONE);
            for class in 1..classes.count() {
                assert!(classes.size(class) > classes.size(class - 1));
                assert_eq!(classes.of(classes.size(class)), class);
                for size in [classes.size(class), classes.size(class - 1) + 1] {
                    let layout = Layout::new(size, 1).unwrap();
                    match classes.small_bin(layout) {
                        Some(place) if class < classes.slab_count() => {
                            assert_eq!(place, BinOffset::of(class))
                        }
                        Some(place) => assert_eq!(place, BinOffset::of(Classes::NONE)),
                        None => assert_eq!(classes.larger_class(layout), Some(class)),
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
                    if classes.small_bin(layout).is_none() {
                        assert_eq!(classes.larger_class(layout), least);
                    }
                }
            }
        }
        let classes = Classes::new(8, 2 << 20);
        // Large blocks lie at multiples of a page, not of more.
        assert_eq!(classes.larger_class(Layout::new(100_000, 8192).unwrap()), None);
        assert_eq!(classes.larger_class(Layout::new(4 << 20, 8).unwrap()), None);
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
    fn max_poolable_below_the_smallest_block_leaves_few_classes() {
        assert_eq!(Classes::new(8, 0).count(), 0);
        let classes = Classes::new(64, 100);
        assert_eq!((classes.count(), classes.slab_count()), (2, 2));
    }

    #[test]
    fn divisor_finds_block_starts_only() {
        for size in [8_u64, 9, 24, 40, 56, 72, 112, 1000, 4096, 28_672, 32_768, 57_344, 61_440] {
            let divisor = Divisor::of(size);
            let count = (1 << 32) / size;
            let check = |offset: u64| {
                let number = divisor.number(offset);
                if offset.is_multiple_of(size) && offset / size < count {
                    assert_eq!(number, offset / size, "{offset} / {size}");
                } else {
                    assert!(number >= count, "{offset} / {size}");
                }
            };
            (0..2_000_000).step_by(7).chain((1 << 32) - 5..(1 << 32) + 5).for_each(check);
            for multiple in 1..5_000_u64 {
                for offset in [multiple * size, (multiple * size).wrapping_neg()] {
                    [offset - 1, offset, offset + 1].into_iter().for_each(check);
                }
                check(multiple.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
        }
        assert_eq!(Divisor::ONE_BLOCK.number(0), 0);
        assert!((1..1_000_000).all(|offset| Divisor::ONE_BLOCK.number(offset) >= 1));
    }
}
