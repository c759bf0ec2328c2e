//! [`KeptRanges`]: what of a dead producer's files must stay, because importers have it open.

use core::ops::Range;

use hashbrown::HashMap;
use umf_os::FileIdentity;

use crate::ledger::SlotContent;

/// Ranges of a dead producer's files that are leased, in whole pages.
#[derive(Debug)]
pub(crate) struct KeptRanges {
    /// Per file: disjoint ranges in ascending order.
    by_file: HashMap<FileIdentity, Vec<Range<u64>>>,
}

impl KeptRanges {
    /// Returns the ranges of these exports. A leased export may be retired: its slot keeps the
    /// description as long as the lease.
    pub(crate) fn of(exports: impl Iterator<Item = SlotContent>) -> Self {
        Self::of_ranges(exports.map(|content| {
            let begin = content.data_offset.saturating_add(content.offset);
            let file = FileIdentity { device: content.device, inode: content.inode };
            (file, begin..begin.saturating_add(content.length))
        }))
    }

    /// Returns these ranges, rounded to whole pages.
    fn of_ranges(ranges: impl Iterator<Item = (FileIdentity, Range<u64>)>) -> Self {
        let page = rustix::param::page_size() as u64;
        let mut by_file: HashMap<FileIdentity, Vec<Range<u64>>> = HashMap::new();
        for (file, range) in ranges {
            let end = range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
            by_file.entry(file).or_default().push(range.start / page * page..end);
        }
        for ranges in by_file.values_mut() {
            ranges.sort_unstable_by_key(|range| range.start);
            ranges.dedup_by(|next, last| {
                let overlaps = next.start <= last.end;
                if overlaps {
                    last.end = last.end.max(next.end);
                }
                overlaps
            });
        }
        Self { by_file }
    }

    /// Returns the parts of a range of a file that are in none of these ranges. `within` begins and
    /// ends at pages.
    pub(crate) fn others(&self, file: FileIdentity, within: Range<u64>) -> Vec<Range<u64>> {
        let mut others = Vec::new();
        let mut begin = within.start;
        for kept in self.by_file.get(&file).map_or(&[][..], Vec::as_slice) {
            let end = kept.start.min(within.end);
            if begin < end {
                others.push(begin..end);
            }
            begin = begin.max(kept.end);
        }
        if begin < within.end {
            others.push(begin..within.end);
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: FileIdentity = FileIdentity { device: 1, inode: 2 };

    proptest! {
        /// Each page is kept, or is in exactly one of the other ranges.
        #[test]
        fn kept_and_other_pages_are_complementary(
            ranges in proptest::collection::vec((0_u64..1 << 20, 1_u64..1 << 17), 0..20),
            (first, pages) in (0_u64..128, 1_u64..256),
        ) {
            let page = rustix::param::page_size() as u64;
            let kept = KeptRanges::of_ranges(ranges.iter().map(|&(begin, size)| (FILE, begin..begin + size)));
            let within = first * page..(first + pages) * page;
            let others = kept.others(FILE, within.clone());
            for start in (within.start..within.end).step_by(page as usize) {
                let is_kept = ranges.iter().any(|&(begin, size)| begin < start + page && start < begin + size);
                let found = others.iter().filter(|other| other.start <= start && start + page <= other.end);
                prop_assert_eq!(found.count(), usize::from(!is_kept), "page at {}", start);
            }
            prop_assert!(others.iter().all(|it| within.start <= it.start && it.end <= within.end));
            let other_file = FileIdentity { device: 1, inode: 3 };
            prop_assert_eq!(kept.others(other_file, within.clone()), vec![within]);
        }
    }

    #[test]
    fn ranges_at_the_end_of_numbers_do_not_overflow() {
        let kept = KeptRanges::of_ranges([(FILE, u64::MAX - 5..u64::MAX), (FILE, 0..u64::MAX)].into_iter());
        assert!(kept.others(FILE, 0..1 << 40).is_empty());
    }
}
