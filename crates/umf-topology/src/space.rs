//! [`MemorySpace`]: nodes to place memory on.

use std::fmt;
use std::sync::Arc;

use crate::{IdList, Node};

/// Nodes to place memory on, each once, in an order that says which is meant first.
///
/// A value like any other: it holds what was known of its nodes when the topology was read, and outlives that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySpace {
    nodes: Vec<Arc<Node>>,
}

impl MemorySpace {
    /// No nodes.
    #[must_use]
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// The nodes, in order.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Their numbers, in order.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().map(|node| node.id)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether node `id` is in it.
    #[must_use]
    pub fn contains(&self, id: u32) -> bool {
        self.ids().any(|member| member == id)
    }

    /// Puts a node behind the others; `false` if it is in it already.
    pub fn add(&mut self, node: Arc<Node>) -> bool {
        let new = !self.contains(node.id);
        if new {
            self.nodes.push(node);
        }
        new
    }

    /// Takes a node out.
    pub fn remove(&mut self, id: u32) -> Option<Arc<Node>> {
        let place = self.ids().position(|member| member == id)?;
        Some(self.nodes.remove(place))
    }

    /// What is in one of them: this one's nodes, then what the other has besides.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.nodes.iter().chain(&other.nodes).cloned().collect()
    }

    /// What is in both, in this one's order.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.filter(|node| other.contains(node.id))
    }

    /// What is in this one alone, in its order.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.filter(|node| !other.contains(node.id))
    }

    /// The nodes that `wanted` accepts, in order.
    #[must_use]
    pub fn filter(&self, wanted: impl FnMut(&Node) -> bool) -> Self {
        let mut wanted = wanted;
        self.nodes.iter().filter(|node| wanted(node)).cloned().collect()
    }

    /// The nodes sorted by what `key` says of them, smallest first; those of equal keys stay in order.
    #[must_use]
    pub fn sorted_by_key<K: Ord>(&self, mut key: impl FnMut(&Node) -> K) -> Self {
        let mut sorted = self.clone();
        sorted.nodes.sort_by_key(|node| key(node));
        sorted
    }

    /// The first `most` of them.
    #[must_use]
    pub fn first(&self, most: usize) -> Self {
        self.nodes.iter().take(most).cloned().collect()
    }

    /// Bytes of memory that they have together.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.memory.total))
    }

    /// Their numbers as a list, which is ascending.
    #[must_use]
    pub fn id_list(&self) -> IdList {
        self.ids().collect()
    }
}

impl FromIterator<Arc<Node>> for MemorySpace {
    fn from_iter<I: IntoIterator<Item = Arc<Node>>>(nodes: I) -> Self {
        let mut space = Self::new();
        for node in nodes {
            space.add(node);
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
