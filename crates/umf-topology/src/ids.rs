//! [`IdList`]: numbers of nodes or processors, as the kernel lists them.

use std::fmt;
use std::str::FromStr;

/// Numbers of nodes or processors, ascending: `0-3,8` in the kernel's form, which is also how it is shown and read.
///
/// Takes memory for its ranges, not for its numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdList {
    /// First and last of each range, ascending, with a gap between each and the next.
    ranges: Vec<(u32, u32)>,
}

/// A text that is no list of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list of numbers is ascending numbers and ranges, each once: 0-3,8")]
pub struct ParseIdListError;

impl IdList {
    /// No numbers.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Whether it has `id`.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        let before = self.ranges.partition_point(|&(first, _)| first <= id);
        self.ranges[..before].last().is_some_and(|&(_, last)| id <= last)
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|&(first, last)| u64::from(last - first) + 1).sum()
    }

    /// The largest of them.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        self.ranges.last().map(|&(_, last)| last)
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Whether a number is in both.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        let (mut mine, mut theirs) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(&&(first, last)), Some(&&(other_first, other_last))) = (mine.peek(), theirs.peek()) {
            if first <= other_last && other_first <= last {
                return true;
            }
            if last < other_last {
                mine.next()
            } else {
                theirs.next()
            };
        }
        false
    }

    /// What is in any of them.
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

    /// Puts the range behind those that are there; `false` if it does not belong there.
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
            // `parse` would take a leading plus sign.
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            if plain { text.parse::<u32>().map_err(|_| ParseIdListError) } else { Err(ParseIdListError) }
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
        for (place, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
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
    fn reads_what_the_kernel_writes_and_nothing_else() {
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
    fn huge_ranges_cost_nothing() {
        let list: IdList = "0-4294967295".parse().unwrap();
        assert_eq!(list.len(), 1 << 32);
        assert!(list.contains(u32::MAX) && list.intersects(&"77".parse().unwrap()));
        let part: IdList = "5-9,77".parse().unwrap();
        assert_eq!(IdList::union([&part, &list, &part]), list);
    }

    proptest! {
        #[test]
        fn is_a_set(ids in prop::collection::vec(0_u32..100, 0..50), others in prop::collection::vec(0_u32..100, 0..5)) {
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
        fn any_text_is_a_list_or_an_error(text in "[0-9,\\- \n]{0,40}") {
            if let Ok(list) = text.parse::<IdList>() {
                prop_assert!(list.is_empty() || list.to_string().parse() == Ok(list));
            }
        }
    }
}
