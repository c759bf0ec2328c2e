//! [`IdList`]: a list of nodes or processors in the kernel's format.

use std::fmt;
use std::str::FromStr;

/// A set of node or processor numbers, in ascending order. It is parsed and displayed in the
/// kernel's list format, `0-3,8`.
///
/// The memory use depends on the number of ranges, not on the number of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdList {
    /// First and last of each range, ascending, with a gap between ranges.
    ranges: Vec<(u32, u32)>,
}

/// The text is not a list of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of numbers; it must be ascending numbers and ranges without repetition, such as 0-3,8")]
pub struct ParseIdListError;

impl IdList {
    /// Returns an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Returns whether the list contains `id`.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        let before = self.ranges.partition_point(|&(first, _)| first <= id);
        self.ranges[..before].last().is_some_and(|&(_, last)| id <= last)
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|&(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Returns the largest id.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        self.ranges.last().map(|&(_, last)| last)
    }

    /// Returns the ids in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Returns whether the lists have an id in common.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(&&(first, last)), Some(&&(other_first, other_last))) = (left.peek(), right.peek()) {
            if first <= other_last && other_first <= last {
                return true;
            }
            if last < other_last {
                left.next()
            } else {
                right.next()
            };
        }
        false
    }

    /// Returns the union of the lists.
    #[must_use]
    pub fn union<'a>(lists: impl IntoIterator<Item = &'a Self>) -> Self {
        Self::of_ranges(lists.into_iter().flat_map(|list| list.ranges.iter().copied()).collect())
    }

    fn of_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut list = Self::new();
        for (first, last) in ranges {
            let first = match list.last() {
                Some(u32::MAX) => break,
                Some(before) => first.max(before + 1),
                None => first,
            };
            list.push(first, last);
        }
        list
    }

    /// Appends a range. Returns `false` if it is not above all others.
    fn push(&mut self, first: u32, last: u32) -> bool {
        match self.ranges.last_mut() {
            _ if last < first => false,
            Some(&mut (_, before)) if first <= before => false,
            Some((_, before)) if *before + 1 == first => {
                *before = last;
                true
            }
            _ => {
                self.ranges.push((first, last));
                true
            }
        }
    }
}

impl FromIterator<u32> for IdList {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        Self::of_ranges(ids.into_iter().map(|id| (id, id)).collect())
    }
}

impl FromStr for IdList {
    type Err = ParseIdListError;

    fn from_str(text: &str) -> Result<Self, ParseIdListError> {
        let number = |text: &str| {
            // `parse` would accept a leading plus sign.
            let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
            if is_digits { text.parse::<u32>().map_err(|_| ParseIdListError) } else { Err(ParseIdListError) }
        };
        let mut list = Self::new();
        let text = text.trim();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if !list.push(number(first)?, number(last)?) {
                return Err(ParseIdListError);
            }
        }
        Ok(list)
    }
}

impl fmt::Display for IdList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_accepts_the_kernel_format_only() {
        let list: IdList = "0-3,8,10-11\n".parse().unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!((list.len(), list.last(), list.to_string().as_str()), (7, Some(11), "0-3,8,10-11"));
        assert!("\n".parse::<IdList>().unwrap().is_empty());
        for text in ["3-1", "1,1", "2,1", "0-4,3", "a", "-1", "1-", "1-2-3", "+1", "1, 2", "4294967296", ","]
        {
            assert_eq!(text.parse::<IdList>(), Err(ParseIdListError), "{text}");
        }
    }

    #[test]
    fn huge_ranges_take_no_memory() {
        let list: IdList = "0-4294967295".parse().unwrap();
        assert_eq!(list.len(), 1 << 32);
        assert!(list.contains(u32::MAX) && list.intersects(&"77".parse().unwrap()));
        let part: IdList = "5-9,77".parse().unwrap();
        assert_eq!(IdList::union([&part, &list, &part]), list);
    }

    proptest! {
        #[test]
        fn id_list_is_a_set(ids in prop::collection::vec(0_u32..100, 0..50), others in prop::collection::vec(0_u32..100, 0..5)) {
            let list: IdList = ids.iter().copied().collect();
            let other: IdList = others.iter().copied().collect();
            for id in 0..101 {
                prop_assert_eq!(list.contains(id), ids.contains(&id));
            }
            prop_assert_eq!(list.intersects(&other), others.iter().any(|id| ids.contains(id)));
            prop_assert_eq!(IdList::union([&list, &other]), ids.iter().chain(&others).copied().collect());
            if !list.is_empty() {
                prop_assert_eq!(list.to_string().parse::<IdList>().unwrap(), list);
            }
        }

        #[test]
        fn parse_never_panics(text in "[0-9,\\- \n]{0,40}") {
            if let Ok(list) = text.parse::<IdList>() {
                prop_assert!(list.is_empty() || list.to_string().parse() == Ok(list));
            }
        }
    }
}
