//! [`Records`]: the live regions of a provider, by address.

use core::ptr::NonNull;
use std::sync::Arc;

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, UnsafeRef, intrusive_adapter};
use umf_core::{Address, Error, Region, Result};
use umf_os::CheckedFile;
use umf_suballoc::Nodes;

/// What is behind a region.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Private anonymous memory.
    Anonymous,
    /// A range of one of the provider's arenas.
    Arena {
        /// The arena's number.
        arena: u32,
        /// Where in its file, in bytes.
        offset: u64,
    },
    /// A file that holds nothing else.
    Own(Arc<CheckedFile>),
}

/// A live region.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Base, size and id, as the user has it.
    pub(crate) region: Region,
    /// The number of the provider, where several share one [`Records`].
    pub(crate) owner: u32,
    /// What is behind it.
    pub(crate) backing: Backing,
}

impl Record {
    /// Where `address` lies in the region, if all of `size` bytes from there do.
    pub(crate) fn offset_of(&self, address: Address, size: usize) -> Option<u64> {
        let offset = address.offset_from(self.region.base())?;
        let end = offset.checked_add(size as u64)?;
        (end <= self.region.size() as u64).then_some(offset)
    }
}

struct Node {
    link: RBTreeLink,
    number: u32,
    record: Record,
}

intrusive_adapter!(ByBase = UnsafeRef<Node>: Node { link: RBTreeLink });

impl<'a> KeyAdapter<'a> for ByBase {
    type Key = u64;
    fn get_key(&self, node: &'a Node) -> u64 {
        node.record.region.base().to_bits()
    }
}

/// The live regions, by address.
pub(crate) struct Records {
    /// `None` until the first region: a tree cannot be made in a `const`.
    tree: Option<RBTree<ByBase>>,
    nodes: Nodes<Node>,
}

// SAFETY: the tree's nodes lie in `nodes`, which moves along, and nobody else points to them.
unsafe impl Send for Records {}

impl Records {
    /// No regions; maps nothing.
    pub(crate) const fn new() -> Self {
        Self { tree: None, nodes: Nodes::new() }
    }

    /// Makes sure that `more` records can be inserted without an error.
    pub(crate) fn ensure(&mut self, more: u32) -> Result<()> {
        self.nodes.ensure(more)
    }

    /// Adds a region.
    pub(crate) fn insert(&mut self, record: Record) -> Result<()> {
        let node: NonNull<Node> =
            self.nodes.insert(|number| Node { link: RBTreeLink::new(), number, record })?;
        // SAFETY: the node stays at its place until `remove` has taken it out of the tree.
        let node = unsafe { UnsafeRef::from_raw(node.as_ptr()) };
        self.tree.get_or_insert_with(|| RBTree::new(ByBase::NEW)).insert(node);
        Ok(())
    }

    /// The record of exactly this region.
    pub(crate) fn get(&self, owner: u32, region: &Region) -> Result<&Record> {
        let address = region.base();
        let foreign = Error::ForeignAddress { address, owner: "this host provider" };
        let tree = self.tree.as_ref().ok_or(foreign)?;
        let node = tree.find(&address.to_bits()).get().ok_or(foreign)?;
        if node.record.owner != owner {
            return Err(foreign);
        }
        if node.record.region != *region {
            // The address is in use again: what the caller has is older.
            return Err(Error::NotAllocated { address });
        }
        Ok(&node.record)
    }

    /// The record of the region that holds `size` bytes from `address`.
    pub(crate) fn holding(&self, owner: u32, address: Address, size: usize) -> Result<&Record> {
        let foreign = Error::ForeignAddress { address, owner: "this host provider" };
        let tree = self.tree.as_ref().ok_or(foreign)?;
        let cursor = tree.upper_bound(Bound::Included(&address.to_bits()));
        let record = &cursor.get().ok_or(foreign)?.record;
        if record.owner != owner || !record.region.contains(address) {
            return Err(foreign);
        }
        if record.offset_of(address, size).is_none() {
            return Err(Error::InvalidArgument { what: "range", why: "must lie inside one live region" });
        }
        Ok(record)
    }

    /// Takes a region out.
    pub(crate) fn remove(&mut self, owner: u32, region: &Region) -> Result<Record> {
        self.get(owner, region)?;
        let gone = Error::NotAllocated { address: region.base() };
        let tree = self.tree.as_mut().ok_or(gone)?;
        let node = tree.find_mut(&region.base().to_bits()).remove().ok_or(gone)?;
        // SAFETY: the node is out of the tree, and the reference to it is not used any more.
        let node = unsafe { self.nodes.remove(node.number) };
        node.map(|node| node.record).ok_or(gone)
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // What is still live stays mapped; the files behind it are let go of.
        while let Some(node) = self.tree.as_mut().and_then(|tree| tree.front_mut().remove()) {
            // SAFETY: as in `remove`.
            drop(unsafe { self.nodes.remove(node.number) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(base: usize, size: usize) -> Record {
        let region = Region::new(Address::new(base).unwrap(), size);
        Record { region, owner: 7, backing: Backing::Anonymous }
    }

    #[test]
    fn finds_by_base_and_by_content() {
        let mut records = Records::new();
        let all: Vec<Record> = (1..100).map(|i| record(i * 0x3000, 0x2000)).collect();
        for record in &all {
            records.insert(record.clone()).unwrap();
        }
        let one = &all[50];
        let inside = one.region.base().checked_add(0x1fff).unwrap();
        assert_eq!(records.holding(7, inside, 1).unwrap().region, one.region);
        assert!(records.holding(7, inside, 2).is_err());
        assert!(records.holding(7, inside.checked_add(1).unwrap(), 1).is_err());
        assert!(records.holding(7, Address::new(0).unwrap(), 1).is_err());
        assert!(matches!(records.get(8, &one.region), Err(Error::ForeignAddress { .. })));
        records.remove(7, &one.region).unwrap();
        assert!(matches!(records.remove(7, &one.region), Err(Error::ForeignAddress { .. })));
        let newer = Record { region: Region::new(one.region.base(), 0x2000), ..one.clone() };
        records.insert(newer.clone()).unwrap();
        assert!(matches!(records.remove(7, &one.region), Err(Error::NotAllocated { .. })));
        assert!(records.get(7, &newer.region).is_ok());
    }
}
