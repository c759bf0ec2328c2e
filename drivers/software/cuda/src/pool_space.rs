//! [`Space`]: the free ranges of a pool, from which allocations are cut.

use std::collections::BTreeMap;

/// The free ranges of a pool: sizes by offset. Neighbours are joined.
#[derive(Clone, Debug)]
pub(crate) struct Space(BTreeMap<usize, usize>);

impl Space {
    /// Returns a space of which all is free.
    pub(crate) fn new(size: usize) -> Self {
        Self(BTreeMap::from([(0, size)]))
    }

    /// Takes `size` bytes from the first range that has them. Returns their offset.
    pub(crate) fn take(&mut self, size: usize) -> Option<usize> {
        let (offset, free) =
            self.0.iter().find(|(_, free)| **free >= size).map(|(offset, free)| (*offset, *free))?;
        self.0.remove(&offset);
        if free > size {
            self.0.insert(offset + size, free - size);
        }
        Some(offset)
    }

    /// Gives bytes back, which [`Space::take`] returned.
    pub(crate) fn give(&mut self, mut offset: usize, mut size: usize) {
        if let Some(next) = self.0.remove(&(offset + size)) {
            size += next;
        }
        let before = self.0.range(..offset).next_back().map(|(start, free)| (*start, *free));
        if let Some((start, free)) = before.filter(|(start, free)| start + free == offset) {
            (offset, size) = (start, free + size);
        }
        self.0.insert(offset, size);
    }

    /// Takes the free parts of a range.
    pub(crate) fn cut(&mut self, offset: usize, size: usize) {
        let end = offset + size;
        let overlapping: Vec<_> = self
            .0
            .range(..end)
            .rev()
            .map(|(start, free)| (*start, start + free))
            .take_while(|(_, last)| *last > offset)
            .collect();
        for (first, last) in overlapping {
            self.0.remove(&first);
            if first < offset {
                self.0.insert(first, offset - first);
            }
            if last > end {
                self.0.insert(end, last - end);
            }
        }
    }

    /// Returns whether `size` bytes at `offset` are free.
    pub(crate) fn is_free(&self, offset: usize, size: usize) -> bool {
        let range = self.0.range(..=offset).next_back();
        range.is_some_and(|(start, free)| offset + size <= start + free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_range_that_fits_is_taken() {
        let mut space = Space::new(100);
        assert_eq!(
            [space.take(10), space.take(20), space.take(70), space.take(1)],
            [Some(0), Some(10), Some(30), None]
        );
        space.give(10, 20);
        assert_eq!(space.take(21), None);
        assert_eq!(space.take(20), Some(10));
    }

    #[test]
    fn free_parts_of_a_range_are_cut() {
        let mut space = Space::new(100);
        assert_eq!([space.take(40), space.take(20)], [Some(0), Some(40)]);
        space.give(0, 40);
        space.cut(30, 50);
        assert!(space.is_free(0, 30) && space.is_free(80, 20));
        for taken in [30, 45, 60, 79] {
            assert!(!space.is_free(taken, 1), "{taken}");
        }
    }

    #[test]
    fn returned_neighbours_are_joined() {
        for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
            let mut space = Space::new(30);
            let parts = [space.take(10), space.take(10), space.take(10)].map(Option::unwrap);
            for place in order {
                assert!(!space.is_free(parts[place], 10));
                space.give(parts[place], 10);
            }
            assert!(space.is_free(0, 30));
            assert!(!space.is_free(0, 31));
            assert_eq!(space.take(30), Some(0));
        }
    }
}
