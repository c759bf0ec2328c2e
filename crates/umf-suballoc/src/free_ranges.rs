//! [`FreeRanges`]: the free ranges of a file or of an address range.
//!
//! Best fit, lowest offset first, coalesced with neighbours when freed. Metadata is not stored in
//! the file. Freeing never needs memory: there are at most as many free ranges as taken ranges,
//! plus one per part, and taking a range reserves the node.

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, UnsafeRef, intrusive_adapter};
use umf_core::Result;

use crate::node_arena::NodeArena;

struct Free {
    by_offset: RBTreeLink,
    by_size: RBTreeLink,
    number: u32,
    offset: u64,
    size: u64,
}

intrusive_adapter!(ByOffset = UnsafeRef<Free>: Free { by_offset: RBTreeLink });
intrusive_adapter!(BySize = UnsafeRef<Free>: Free { by_size: RBTreeLink });

impl<'a> KeyAdapter<'a> for ByOffset {
    type Key = u64;
    fn get_key(&self, free: &'a Free) -> u64 {
        free.offset
    }
}

impl<'a> KeyAdapter<'a> for BySize {
    type Key = (u64, u64);
    fn get_key(&self, free: &'a Free) -> (u64, u64) {
        (free.size, free.offset)
    }
}

/// The number of free ranges of at least the size that are tried for a fit with the alignment,
/// before the search moves to ranges that fit at any alignment.
const CANDIDATES: usize = 8;

/// The free ranges of a file, or of several parts that do not touch each other.
pub struct FreeRanges {
    by_offset: RBTree<ByOffset>,
    by_size: RBTree<BySize>,
    nodes: NodeArena<Free>,
    taken: u32,
    parts: u32,
}

// SAFETY: the trees' nodes lie in `nodes`, which moves along, and no other pointer to them exists.
unsafe impl Send for FreeRanges {}

impl core::fmt::Debug for FreeRanges {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ranges taken", self.taken)
    }
}

impl FreeRanges {
    /// Returns the ranges of a file of `size` bytes, all free.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn new(size: u64) -> Result<Self> {
        let mut ranges = Self::empty();
        ranges.add_part(0, size)?;
        Ok(ranges)
    }

    /// Returns ranges without a part.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            by_offset: RBTree::new(ByOffset::NEW),
            by_size: RBTree::new(BySize::NEW),
            nodes: NodeArena::new(),
            taken: 0,
            parts: 0,
        }
    }

    /// Adds a part, all free. It must not be adjacent to another part: free ranges would coalesce
    /// across.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn add_part(&mut self, offset: u64, size: u64) -> Result<()> {
        self.parts += 1;
        self.prepare(0).inspect_err(|_| self.parts -= 1)?;
        self.insert(offset, size);
        Ok(())
    }

    /// Removes a part. Returns `false` and changes nothing if it is not completely free.
    pub fn remove_part(&mut self, offset: u64, size: u64) -> bool {
        let is_free = self.by_offset.find(&offset).get().is_some_and(|free| free.size == size);
        if is_free {
            self.remove(offset);
            self.parts -= 1;
        }
        is_free
    }

    /// Takes `size` bytes at a multiple of `align`, a power of two. Returns the offset, or `None`
    /// if no free range is long enough.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn take(&mut self, size: u64, align: u64) -> Result<Option<u64>> {
        // One free range becomes up to two, and each taken range may become a free range when it is
        // freed.
        self.prepare(1)?;
        let Some((free_offset, free_size, offset)) = self.find(size, align) else { return Ok(None) };
        self.remove(free_offset);
        self.insert(free_offset, offset - free_offset);
        self.insert(offset + size, free_offset + free_size - offset - size);
        self.taken += 1;
        Ok(Some(offset))
    }

    /// Counts a taken range as two, which are freed separately.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn split_taken(&mut self) -> Result<()> {
        self.prepare(1)?;
        self.taken += 1;
        Ok(())
    }

    /// Counts two adjacent taken ranges as one.
    pub fn merge_taken(&mut self) {
        self.taken -= 1;
    }

    /// Frees a taken range.
    pub fn give(&mut self, offset: u64, size: u64) {
        self.put(offset, size);
        self.taken -= 1;
    }

    /// Returns the number of taken ranges.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        self.taken
    }

    /// Reserves memory for `count` free ranges in total, for ranges that [`FreeRanges::put`] adds.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn reserve(&mut self, count: u32) -> Result<()> {
        self.nodes.ensure(count.saturating_sub(self.nodes.used()))
    }

    /// Adds a free range, coalesced with its neighbours. Returns the number of these, 0 to 2.
    pub fn put(&mut self, offset: u64, size: u64) -> u32 {
        let (mut start, mut end) = (offset, offset + size);
        let mut neighbours = 0;
        let below = self.by_offset.upper_bound(Bound::Excluded(&offset));
        if let Some((free_offset, free_size)) = below.get().map(|free| (free.offset, free.size))
            && free_offset + free_size == start
        {
            self.remove(free_offset);
            start = free_offset;
            neighbours += 1;
        }
        if let Some(free_size) = self.by_offset.find(&end).get().map(|free| free.size) {
            self.remove(end);
            end += free_size;
            neighbours += 1;
        }
        self.insert(start, end - start);
        neighbours
    }

    /// Removes the longest free range, and returns its offset and size. For ranges that
    /// [`FreeRanges::put`] added.
    pub fn pop(&mut self) -> Option<(u64, u64)> {
        let longest = self.by_size.back().get().map(|free| (free.offset, free.size))?;
        self.remove(longest.0);
        Some(longest)
    }

    /// Reserves the nodes that all taken ranges, `more` further ones and the parts can need as free
    /// ranges.
    fn prepare(&mut self, more: u32) -> Result<()> {
        let wanted = self.taken.saturating_add(more).saturating_add(self.parts);
        let free = self.nodes.used();
        self.nodes.ensure(wanted.saturating_sub(free))
    }

    /// Finds a free range. Returns its offset and size, and the aligned offset in it.
    fn find(&self, size: u64, align: u64) -> Option<(u64, u64, u64)> {
        let fits = |free: &Free| {
            let offset = free.offset.checked_next_multiple_of(align)?;
            let end = offset.checked_add(size)?;
            (end <= free.offset + free.size).then_some((free.offset, free.size, offset))
        };
        let mut cursor = self.by_size.lower_bound(Bound::Included(&(size, 0)));
        for _ in 0..CANDIDATES {
            if let Some(found) = fits(cursor.get()?) {
                return Some(found);
            }
            cursor.move_next();
        }
        // Every range of at least this size fits at any offset; the first one is the shortest.
        let sufficient = size.checked_add(align)?;
        if let Some(found) = self.by_size.lower_bound(Bound::Included(&(sufficient, 0))).get().and_then(fits)
        {
            return Some(found);
        }
        // The remaining ranges have sizes between `size` and `sufficient`.
        while let Some(free) = cursor.get() {
            if let Some(found) = fits(free) {
                return Some(found);
            }
            cursor.move_next();
        }
        None
    }

    fn insert(&mut self, offset: u64, size: u64) {
        if size == 0 {
            return;
        }
        let make =
            |number| Free { by_offset: RBTreeLink::new(), by_size: RBTreeLink::new(), number, offset, size };
        // Cannot fail, because `take` reserved the node (see the module documentation).
        if let Ok(node) = self.nodes.insert(make) {
            // SAFETY: the node does not move until `remove` has unlinked it from both trees.
            let (first, second) =
                unsafe { (UnsafeRef::from_raw(node.as_ptr()), UnsafeRef::from_raw(node.as_ptr())) };
            self.by_offset.insert(first);
            self.by_size.insert(second);
        }
    }

    fn remove(&mut self, offset: u64) {
        let Some(free) = self.by_offset.find_mut(&offset).remove() else { return };
        // SAFETY: a node is in both trees or in neither. It is unlinked from both before its slot
        // is freed, and `free` is not used any more.
        unsafe {
            let _ = self.by_size.cursor_mut_from_ptr(&raw const *free).remove();
            let _ = self.nodes.remove(free.number);
        }
    }

    /// Returns the free bytes and the number of free ranges.
    #[cfg(test)]
    fn free(&self) -> (u64, usize) {
        self.by_offset.iter().fold((0, 0), |(bytes, count), free| (bytes + free.size, count + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Take { size: u64, align: u64 },
        Give(usize),
        Split(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1_u64..16, 0_u32..5).prop_map(|(size, align)| Step::Take { size, align: 1 << align }),
            2 => any::<usize>().prop_map(Step::Give),
            1 => any::<usize>().prop_map(Step::Split),
        ]
    }

    proptest! {
        /// Compares with an array that has a flag for each unit.
        #[test]
        fn free_ranges_agree_with_a_model(steps in proptest::collection::vec(step(), 1..200)) {
            let mut ranges = FreeRanges::new(SIZE).unwrap();
            let mut map = [false; SIZE as usize];
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take { size, align } => {
                        let possible = (0..=SIZE - size).step_by(align as usize).any(|offset| {
                            map[offset as usize..(offset + size) as usize].iter().all(|taken| !taken)
                        });
                        let got = ranges.take(size, align).unwrap();
                        prop_assert_eq!(got.is_some(), possible);
                        if let Some(offset) = got {
                            prop_assert_eq!(offset % align, 0);
                            for unit in &mut map[offset as usize..(offset + size) as usize] {
                                prop_assert!(!*unit);
                                *unit = true;
                            }
                            taken.push((offset, size));
                        }
                    }
                    Step::Give(which) if !taken.is_empty() => {
                        let (offset, size) = taken.swap_remove(which % taken.len());
                        let capacity = ranges.nodes.capacity();
                        ranges.give(offset, size);
                        prop_assert_eq!(ranges.nodes.capacity(), capacity, "freeing allocated memory");
                        map[offset as usize..(offset + size) as usize].fill(false);
                    }
                    Step::Split(which) if !taken.is_empty() => {
                        let which = which % taken.len();
                        let (offset, size) = taken[which];
                        if size > 1 {
                            ranges.split_taken().unwrap();
                            taken[which] = (offset, size / 2);
                            taken.push((offset + size / 2, size - size / 2));
                        }
                    }
                    _ => {}
                }
                let free = map.iter().filter(|taken| !**taken).count() as u64;
                let runs = map.chunk_by(|a, b| a == b).filter(|run| !run[0]).count();
                prop_assert_eq!(ranges.free(), (free, runs), "free bytes and ranges");
            }
        }
    }

    #[test]
    fn parts_are_added_and_removed() {
        let mut ranges = FreeRanges::empty();
        assert_eq!(ranges.take(1, 1).unwrap(), None);
        ranges.add_part(100, 10).unwrap();
        ranges.add_part(200, 20).unwrap();
        assert_eq!(ranges.take(11, 1).unwrap(), Some(200));
        assert_eq!(ranges.take(10, 1).unwrap(), Some(100));
        assert!(!ranges.remove_part(100, 10) && !ranges.remove_part(200, 20));
        ranges.split_taken().unwrap();
        let capacity = ranges.nodes.capacity();
        ranges.give(104, 6);
        ranges.give(200, 11);
        assert!(!ranges.remove_part(100, 10) && ranges.remove_part(200, 20));
        ranges.give(100, 4);
        assert_eq!(ranges.nodes.capacity(), capacity, "freeing allocated memory");
        assert!(ranges.remove_part(100, 10) && !ranges.remove_part(100, 10));
        assert_eq!((ranges.free(), ranges.parts, ranges.taken), ((0, 0), 0, 0));
    }

    #[test]
    fn put_ranges_coalesce_and_pop_longest_first() {
        let mut ranges = FreeRanges::empty();
        ranges.reserve(3).unwrap();
        let capacity = ranges.nodes.capacity();
        assert_eq!([ranges.put(10, 5), ranges.put(30, 10), ranges.put(20, 5)], [0, 0, 0]);
        assert_eq!([ranges.put(15, 5), ranges.put(50, 1)], [2, 0]);
        assert_eq!(ranges.nodes.capacity(), capacity, "adding allocated memory");
        assert_eq!(ranges.pop(), Some((10, 15)));
        assert_eq!([ranges.pop(), ranges.pop(), ranges.pop()], [Some((30, 10)), Some((50, 1)), None]);
        assert_eq!(ranges.taken(), 0);
    }

    #[test]
    fn take_is_best_fit_and_aligned() {
        let mut ranges = FreeRanges::new(1 << 30).unwrap();
        assert_eq!(ranges.take(4096, 1 << 21).unwrap(), Some(0));
        assert_eq!(ranges.take(4096, 1 << 21).unwrap(), Some(1 << 21));
        // The gap between them is the best fit.
        assert_eq!(ranges.take(4096, 4096).unwrap(), Some(4096));
        assert_eq!(ranges.take(1 << 30, 4096).unwrap(), None);
        ranges.give(0, 4096);
        ranges.give(1 << 21, 4096);
        ranges.give(4096, 4096);
        assert_eq!(ranges.free(), (1 << 30, 1));
    }
}
