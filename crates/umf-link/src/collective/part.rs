//! Which part of memory is whose.

use core::ops::Range;

/// Numbers do not lie in two lines, and no line is two ranks'.
const LINE: usize = 128;

/// The part of so many elements that is one rank's: as equal as can be.
pub(crate) fn share(elements: usize, rank: usize, size: usize) -> Range<usize> {
    let (each, more) = (elements / size.max(1), elements % size.max(1));
    let begin = |rank: usize| rank * each + rank.min(more);
    begin(rank)..begin(rank + 1)
}

/// The part of so many bytes, in whole lines but for the last.
pub(super) fn share_of_bytes(bytes: usize, rank: usize, size: usize) -> Range<usize> {
    let lines = share(bytes.div_ceil(LINE), rank, size);
    (lines.start * LINE).min(bytes)..(lines.end * LINE).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_is_just_one_rank_s(bytes in 0..100_000_usize, size in 1..40_usize) {
            for part in [share, share_of_bytes] {
                let mut end = 0;
                for rank in 0..size {
                    let range = part(bytes, rank, size);
                    prop_assert!(range.start == end && range.end >= end);
                    prop_assert!(range.len() <= bytes / size + 2 * LINE);
                    end = range.end;
                }
                prop_assert_eq!(end, bytes);
            }
        }
    }
}
