//! [`MemorySpace`]: an ordered set of nodes for memory placement.

use std::fmt;
use std::sync::Arc;

use crate::{IdList, Node};

/// An ordered set of nodes for memory placement. Earlier nodes are preferred.
///
/// It holds the data of its nodes as of the reading of the topology, and does not depend on the
/// [`crate::Topology`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySpace {
    nodes: Vec<Arc<Node>>,
}

impl MemorySpace {
    /// Returns an empty space.
    #[must_use]
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Returns the nodes in order.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Returns the numbers of the nodes in order.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().map(|node| node.id)
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the space is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns whether the space has node `id`.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.ids().any(|node| node == id)
    }

    /// Appends a node. Returns `false` if the space already has it.
    pub fn insert(&mut self, node: Arc<Node>) -> bool {
        let is_new = !self.contains(node.id);
        if is_new {
            self.nodes.push(node);
        }
        is_new
    }

    /// Removes a node and returns it.
    pub fn remove(&mut self, id: u32) -> Option<Arc<Node>> {
        let index = self.ids().position(|node| node == id)?;
        Some(self.nodes.remove(index))
    }

    /// Returns the nodes of this space, then those that only `other` has.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.nodes.iter().chain(&other.nodes).cloned().collect()
    }

    /// Returns the nodes of both spaces, in the order of this one.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.filter(|node| other.contains(node.id))
    }

    /// Returns the nodes that `other` does not have, in order.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.filter(|node| !other.contains(node.id))
    }

    /// Returns the nodes that `predicate` accepts, in order.
    #[must_use]
    pub fn filter(&self, mut predicate: impl FnMut(&Node) -> bool) -> Self {
        self.nodes.iter().filter(|node| predicate(node)).cloned().collect()
    }

    /// Returns the nodes sorted by `key`, ascending. The sort is stable.
    #[must_use]
    pub fn sorted_by_key<K: Ord>(&self, mut key: impl FnMut(&Node) -> K) -> Self {
        let mut sorted = self.clone();
        sorted.nodes.sort_by_key(|node| key(node));
        sorted
    }

    /// Returns the first `count` nodes.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        self.nodes.iter().take(count).cloned().collect()
    }

    /// Returns the bytes of memory of all nodes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.memory.total))
    }

    /// Returns the numbers of the nodes in ascending order.
    #[must_use]
    pub fn id_list(&self) -> IdList {
        self.ids().collect()
    }
}

impl FromIterator<Arc<Node>> for MemorySpace {
    fn from_iter<I: IntoIterator<Item = Arc<Node>>>(nodes: I) -> Self {
        let mut space = Self::new();
        for node in nodes {
            space.insert(node);
        }
        space
    }
}

impl<'a> IntoIterator for &'a MemorySpace {
    type Item = &'a Arc<Node>;
    type IntoIter = std::slice::Iter<'a, Arc<Node>>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.iter()
    }
}

impl fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nodes[..] {
            [] => f.write_str("no nodes"),
            [node] => write!(f, "node {}", node.id),
            [first, rest @ ..] => {
                write!(f, "nodes {}", first.id)?;
                rest.iter().try_for_each(|node| write!(f, ", {}", node.id))
            }
        }
    }
}
