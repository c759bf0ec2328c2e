//! [`Divisor`]: from an offset to the number of a block, with one multiplication.

/// What finds the number of a block from its bytes from the base.
///
/// For a size `odd << shift`, `bytes * inverse` rotated right by `shift`, where `inverse * odd` is 1 modulo 2^64, is the
/// number of the block that begins there. Both steps can be undone, so no other offset yields that number: those
/// that are no multiple of the size, or lie outside, yield one past all blocks. (Warren, Hacker's Delight, 10-17.) So one comparison tells all.
#[derive(Clone, Copy)]
pub(crate) struct Divisor {
    pub(crate) inverse: u64,
    pub(crate) shift: u8,
}

impl Divisor {
    /// For the offset 0 alone, whatever the size.
    pub(super) const ONE_BLOCK: Self = Self { inverse: 1, shift: 0 };

    /// For blocks of `size` bytes, at least 1.
    pub(super) const fn of(size: u64) -> Self {
        let shift = size.trailing_zeros();
        let odd = size >> shift;
        // Right in the lowest 3 bits; each step doubles that (Newton).
        let mut inverse = odd;
        let mut bits = 3;
        while bits < 64 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
            bits *= 2;
        }
        Self { inverse, shift: shift as u8 }
    }

    #[inline(always)]
    pub(crate) const fn number(self, offset: u64) -> u64 {
        offset.wrapping_mul(self.inverse).rotate_right(self.shift as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_find_multiples_and_nothing_else() {
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
