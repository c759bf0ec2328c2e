//! [`Ranges`]: what lies where in a context, as far as this crate made it or opened it.

use std::collections::BTreeMap;

use umf_core::{Address, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    size: usize,
    /// How often it was opened; 0 for what was allocated.
    opened: u32,
}

/// The regions of a context's providers, and what was opened from other processes.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, Range>);

impl Ranges {
    /// Notes an allocation.
    pub(crate) fn add(&mut self, base: Address, size: usize) {
        self.0.insert(base.to_bits(), Range { size, opened: 0 });
    }

    /// Forgets an allocation.
    pub(crate) fn remove(&mut self, base: Address) {
        self.0.remove(&base.to_bits());
    }

    /// Whether something that was opened begins there: drivers may open one thing twice at one address, which is closed once.
    pub(crate) fn is_opened(&self, base: Address) -> bool {
        self.0.get(&base.to_bits()).is_some_and(|range| range.opened > 0)
    }

    /// Notes that something was opened, once more if it is known.
    pub(crate) fn open(&mut self, base: Address, size: usize) {
        let range = self.0.entry(base.to_bits()).or_insert(Range { size, opened: 0 });
        range.opened = range.opened.saturating_add(1);
    }

    /// Takes one opening back: whether it was the last. `None` if nothing was opened there.
    pub(crate) fn close(&mut self, base: Address) -> Option<bool> {
        let range = self.0.get_mut(&base.to_bits()).filter(|range| range.opened > 0)?;
        range.opened -= 1;
        let is_last = range.opened == 0;
        if is_last {
            self.0.remove(&base.to_bits());
        }
        Some(is_last)
    }

    /// Whether all of a range lies in one of them.
    pub(crate) fn check(&self, base: Address, size: usize) -> Result<()> {
        let foreign =
            Error::ForeignAddress { address: base, owner: "one region or import of this Level Zero context" };
        let (start, range) = self.0.range(..=base.to_bits()).next_back().ok_or(foreign)?;
        let inside = base.to_bits() - start;
        let end = inside.checked_add(size as u64).ok_or(foreign)?;
        if inside < range.size as u64 && end <= range.size as u64 { Ok(()) } else { Err(foreign) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

    use super::*;

    fn at(value: usize) -> Address {
        Address::new(value).unwrap()
    }

    #[test]
    fn ranges_are_found_as_a_whole() {
        let mut ranges = Ranges::default();
        ranges.add(at(4096), 4096);
        ranges.add(at(8192), 4096);
        ranges.check(at(4096), 4096).unwrap();
        ranges.check(at(8191), 1).unwrap();
        ranges.check(at(5000), 0).unwrap();
        for (base, size) in [(4095, 1), (4096, 4097), (12288, 0), (12287, 2), (5000, usize::MAX)] {
            assert!(ranges.check(at(base), size).is_err(), "{size} at {base}");
        }
        ranges.remove(at(4096));
        assert!(ranges.check(at(4096), 1).is_err());
    }

    #[test]
    fn what_is_opened_twice_is_closed_with_the_second() {
        let mut ranges = Ranges::default();
        ranges.add(at(4096), 4096);
        assert_eq!((ranges.is_opened(at(4096)), ranges.close(at(4096))), (false, None));
        ranges.open(at(65536), 100);
        ranges.open(at(65536), 100);
        assert!(ranges.is_opened(at(65536)));
        assert_eq!(ranges.close(at(65536)), Some(false));
        ranges.check(at(65536), 100).unwrap();
        assert_eq!(ranges.close(at(65536)), Some(true));
        assert_eq!(ranges.close(at(65536)), None);
        assert!(ranges.check(at(65536), 1).is_err());
    }
}
