//! [`RegionTable`]: the live regions of a provider, by address.

use core::ptr::NonNull;

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, UnsafeRef, intrusive_adapter};
use umf_core::{Address, Error, Region, Result};

use crate::NodeArena;

struct Node<T> {
    link: RBTreeLink,
    number: u32,
    region: Region,
    value: T,
}

intrusive_adapter!(ByBase<T> = UnsafeRef<Node<T>>: Node<T> { link: RBTreeLink });

impl<'a, T> KeyAdapter<'a> for ByBase<T> {
    type Key = u64;
    fn get_key(&self, node: &'a Node<T>) -> u64 {
        node.region.base().to_bits()
    }
}

/// The live regions of a provider, each with a value. Does not use the global allocator.
///
/// A freed region is not found, even if another one begins at its address. Dropping the table drops
/// the values; the memory of the regions is not touched.
pub struct RegionTable<T> {
    /// `None` until the first region: a tree cannot be made in a `const`.
    tree: Option<RBTree<ByBase<T>>>,
    nodes: NodeArena<Node<T>>,
    owner: &'static str,
}

// SAFETY: the tree's nodes lie in `nodes`, which moves along, and no other pointer to them exists.
unsafe impl<T: Send> Send for RegionTable<T> {}

impl<T> core::fmt::Debug for RegionTable<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} regions of {}", self.count(), self.owner)
    }
}

impl<T> RegionTable<T> {
    /// Returns an empty table. Maps nothing. Errors name `owner`.
    #[must_use]
    pub const fn new(owner: &'static str) -> Self {
        Self { tree: None, nodes: NodeArena::new(), owner }
    }

    const fn foreign(&self, address: Address) -> Error {
        Error::ForeignAddress { address, owner: self.owner }
    }

    /// Returns the number of live regions.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.nodes.used()
    }

    /// Reserves memory, so that `more` regions can be inserted without an error.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn ensure(&mut self, more: u32) -> Result<()> {
        self.nodes.ensure(more)
    }

    /// Adds a region. No other region may begin at its address.
    ///
    /// # Errors
    /// Those of [`NodeArena::ensure`].
    pub fn insert(&mut self, region: Region, value: T) -> Result<()> {
        let node: NonNull<Node<T>> =
            self.nodes.insert(|number| Node { link: RBTreeLink::new(), number, region, value })?;
        // SAFETY: the node does not move until `remove` has unlinked it from the tree.
        let node = unsafe { UnsafeRef::from_raw(node.as_ptr()) };
        self.tree.get_or_insert_with(|| RBTree::new(ByBase::new())).insert(node);
        Ok(())
    }

    /// Returns the value of exactly this region.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if no live region begins there, [`Error::NotAllocated`] if another
    /// one does.
    pub fn get(&self, region: &Region) -> Result<&T> {
        let address = region.base();
        let node = self.tree.as_ref().and_then(|tree| tree.find(&address.to_bits()).get());
        match node {
            Some(node) if node.region == *region => Ok(&node.value),
            // The address was reused: the caller's region was freed.
            Some(_) => Err(Error::NotAllocated { address }),
            None => Err(self.foreign(address)),
        }
    }

    /// Returns the value of exactly this region, mutably.
    ///
    /// # Errors
    /// As [`RegionTable::get`].
    pub fn get_mut(&mut self, region: &Region) -> Result<&mut T> {
        self.get(region)?;
        let address = region.base();
        let node =
            self.tree.as_mut().and_then(|tree| tree.find_mut(&address.to_bits()).as_cursor().clone_pointer());
        let node = UnsafeRef::into_raw(node.ok_or(self.foreign(address))?);
        // SAFETY: the pointer was made from a mutable one. Only the value of the node is borrowed,
        // for as long as `self`.
        Ok(unsafe { &mut (*node).value })
    }

    /// Returns the live region that contains `size` bytes at `address`, and its value. The range
    /// must be whole pages of `page` bytes.
    ///
    /// # Errors
    /// [`Error::ForeignAddress`] if no region contains the first byte. [`Error::InvalidArgument`]
    /// if the range is not whole pages, or the region ends before it.
    pub fn holding(&self, address: Address, size: usize, page: usize) -> Result<(Region, &T)> {
        if size == 0 || !address.is_aligned_to(page) || !size.is_multiple_of(page) {
            return Err(Error::InvalidArgument { what: "range", why: "must be one or more whole pages" });
        }
        let below = self.tree.as_ref().map(|tree| tree.upper_bound(Bound::Included(&address.to_bits())));
        let node = below.and_then(|below| below.get()).filter(|node| node.region.contains(address));
        let node = node.ok_or(self.foreign(address))?;
        let offset = address.offset_from(node.region.base()).unwrap_or(u64::MAX);
        match offset.checked_add(size as u64) {
            Some(end) if end <= node.region.size() as u64 => Ok((node.region, &node.value)),
            _ => Err(Error::InvalidArgument { what: "range", why: "must lie inside one live region" }),
        }
    }

    /// Returns whether the region overlaps a live one.
    #[must_use]
    pub fn overlap(&self, region: &Region) -> bool {
        let (first, end) =
            (region.base().to_bits(), region.base().to_bits().saturating_add(region.size() as u64));
        let below = self.tree.as_ref().map(|tree| tree.upper_bound(Bound::Excluded(&end)));
        below.and_then(|below| below.get()).is_some_and(|node| {
            node.region.base().to_bits().saturating_add(node.region.size() as u64) > first
        })
    }

    /// Iterates over the regions in address order.
    pub fn iter(&self) -> impl Iterator<Item = (Region, &T)> {
        self.tree.iter().flatten().map(|node| (node.region, &node.value))
    }

    /// Removes a region, and returns its value.
    ///
    /// # Errors
    /// As [`RegionTable::get`].
    pub fn remove(&mut self, region: &Region) -> Result<T> {
        self.get(region)?;
        let address = region.base();
        let node = self.tree.as_mut().and_then(|tree| tree.find_mut(&address.to_bits()).remove());
        let number = node.map(|node| node.number).ok_or(self.foreign(address))?;
        // SAFETY: the node was unlinked from the tree, and no reference to it is left.
        unsafe { self.nodes.remove(number) }.map(|node| node.value).ok_or(self.foreign(address))
    }
}

impl<T> Drop for RegionTable<T> {
    fn drop(&mut self) {
        let mut pop = || Some(self.tree.as_mut()?.front_mut().remove()?.number);
        while let Some(number) = pop() {
            // SAFETY: the node was unlinked from the tree, and no reference to it is left.
            drop(unsafe { self.nodes.remove(number) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(base: usize, size: usize) -> Region {
        Region::new(Address::new(base).unwrap(), size)
    }

    #[test]
    fn regions_are_found_by_base_and_by_range() {
        let mut regions = RegionTable::new("the test");
        let all: Vec<Region> = (1..100).map(|i| region(i * 0x3000, 0x2000)).collect();
        for (value, region) in all.iter().enumerate() {
            regions.insert(*region, value).unwrap();
        }
        let one = all[50];
        let inside = one.base().checked_add(0x1fff).unwrap();
        assert_eq!(regions.holding(inside, 1, 1).unwrap(), (one, &50));
        assert!(matches!(regions.holding(inside, 2, 1), Err(Error::InvalidArgument { .. })));
        assert!(regions.holding(inside.checked_add(1).unwrap(), 1, 1).is_err());
        assert!(regions.holding(Address::new(0).unwrap(), 1, 1).is_err());
        assert_eq!(regions.holding(one.base(), 0x2000, 0x1000).unwrap().0, one);
        for (offset, size) in [(0, 0), (0, 0xfff), (1, 0x1000)] {
            let refused = regions.holding(one.base().checked_add(offset).unwrap(), size, 0x1000);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{size} at {offset}");
        }
        *regions.get_mut(&one).unwrap() += 1000;
        assert_eq!(regions.get(&one), Ok(&1050));
        assert_eq!(regions.remove(&one), Ok(1050));
        assert!(matches!(regions.remove(&one), Err(Error::ForeignAddress { .. })));
        let newer = region(50 * 0x3000 + 0x3000, 0x2000);
        regions.insert(newer, 7).unwrap();
        assert!(matches!(regions.remove(&one), Err(Error::NotAllocated { .. })));
        assert_eq!((regions.get(&newer), regions.count()), (Ok(&7), 99));
        assert!(regions.iter().map(|(region, _)| region.base()).is_sorted());
    }

    #[test]
    fn overlap_is_detected() {
        let mut regions = RegionTable::new("the test");
        assert!(!regions.overlap(&region(0x2000, 0x2000)));
        regions.insert(region(0x2000, 0x2000), ()).unwrap();
        for (base, size) in [(0x2000, 1), (0x3fff, 1), (0x1000, 0x1001), (0x1000, 0x9000)] {
            assert!(regions.overlap(&region(base, size)), "{base:#x}");
        }
        assert!(!regions.overlap(&region(0x4000, 0x1000)) && !regions.overlap(&region(0x1000, 0x1000)));
    }

    #[test]
    fn values_are_dropped_once() {
        let value = std::rc::Rc::new(());
        let mut regions = RegionTable::new("the test");
        let freed = region(0x1000, 0x1000);
        regions.insert(freed, std::rc::Rc::clone(&value)).unwrap();
        regions.insert(region(0x2000, 0x1000), std::rc::Rc::clone(&value)).unwrap();
        drop(regions.remove(&freed).unwrap());
        assert_eq!(std::rc::Rc::strong_count(&value), 2);
        drop(regions);
        assert_eq!(std::rc::Rc::strong_count(&value), 1);
    }
}
