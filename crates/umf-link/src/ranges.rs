//! Parts of lists of ranges.

use crate::sys::Iov;

/// The ranges that bytes `from` to `from + length` of a list are.
pub(crate) fn part_of(list: &[Iov], from: u64, length: u64) -> Vec<Iov> {
    let (mut ranges, mut at) = (Vec::new(), 0_u64);
    for range in list {
        let (start, end) = (from.max(at), (from + length).min(at + range.length));
        if start < end {
            ranges.push(Iov { address: range.address + (start - at), length: end - start });
        }
        at += range.length;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_part_of_a_list(lengths in prop::collection::vec(0..20_u64, 0..10), from in 0..100_u64, length in 0..100_u64) {
            let mut list = Vec::new();
            let mut bytes = Vec::new();
            for (number, length) in lengths.into_iter().enumerate() {
                let address = 1000 * number as u64;
                list.push(Iov { address, length });
                bytes.extend(address..address + length);
            }
            let all = bytes.len() as u64;
            let from = from.min(all);
            let length = length.min(all - from);
            let found: Vec<u64> = part_of(&list, from, length)
                .into_iter()
                .flat_map(|range| range.address..range.address + range.length)
                .collect();
            prop_assert_eq!(&found[..], &bytes[from as usize..(from + length) as usize]);
        }
    }
}
