//! [`Topology`]: the nodes of a machine.

use std::sync::Arc;

use crate::read::{self, Allowed};
use crate::{Error, IdList, Initiator, MemorySpace, Node, Result, Source};

/// The nodes of a machine, as they were when it was read, and what this process may use of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// By number, ascending.
    nodes: Vec<Arc<Node>>,
    possible: IdList,
    tiers: Vec<Tier>,
    allowed: Allowed,
    has_numa: bool,
}

/// Nodes that the kernel counts to one memory tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Lower is faster.
    pub id: u32,
    /// Its nodes.
    pub nodes: IdList,
}

impl Topology {
    /// Reads the topology of this machine, as this process sees it: a few files per node.
    ///
    /// A kernel without NUMA is one node, 0, with all processors and all memory ([`Topology::has_numa`]).
    ///
    /// # Errors
    /// [`Error::NoSysfs`] where sysfs is not mounted; others if a file cannot be read or makes no sense.
    pub fn of_this_machine() -> Result<Self> {
        Self::read(&Source::system())
    }

    /// Reads the topology of a source.
    ///
    /// # Errors
    /// As [`Topology::of_this_machine`].
    pub fn read(source: &Source) -> Result<Self> {
        read::read(source)
    }

    pub(crate) fn new(
        nodes: Vec<Node>,
        possible: IdList,
        tiers: Vec<Tier>,
        allowed: Allowed,
        has_numa: bool,
    ) -> Self {
        let nodes = nodes.into_iter().map(Arc::new).collect();
        Self { nodes, possible, tiers, allowed, has_numa }
    }

    /// The nodes that are online, by number.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// The node of this number, if it is online.
    #[must_use]
    pub fn node(&self, id: u32) -> Option<&Arc<Node>> {
        let place = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(place)
    }

    /// The numbers of the nodes that are online.
    #[must_use]
    pub fn online(&self) -> IdList {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// The numbers of the nodes that could be, and are not.
    #[must_use]
    pub fn offline(&self) -> IdList {
        self.possible.iter().filter(|&id| self.node(id).is_none()).collect()
    }

    /// The memory tiers, fastest first; none where the kernel shows none.
    #[must_use]
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Whether the kernel knows nodes. If not, there is one, and placing memory on it does nothing.
    #[must_use]
    pub const fn has_numa(&self) -> bool {
        self.has_numa
    }

    /// The node of a processor that is online.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: u32) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu))
    }

    /// Whether the firmware rates the memory of a node (HMAT).
    #[must_use]
    pub fn has_performance(&self) -> bool {
        self.nodes.iter().any(|node| node.best_performance().is_some())
    }

    /// All nodes with memory that this process may use, by number.
    #[must_use]
    pub fn all(&self) -> MemorySpace {
        self.nodes.iter().filter(|node| node.memory.total > 0 && node.is_allowed).cloned().collect()
    }

    /// The space of these nodes, in this order; a node that is named again stands where it was named first.
    ///
    /// # Errors
    /// [`Error::UnknownNode`], [`Error::NoMemory`], [`Error::NotAllowed`].
    pub fn space(&self, ids: impl IntoIterator<Item = u32>) -> Result<MemorySpace> {
        ids.into_iter().map(|id| self.usable(id)).collect()
    }

    fn usable(&self, id: u32) -> Result<Arc<Node>> {
        let node = self.node(id).ok_or_else(|| Error::UnknownNode { node: id, online: self.online() })?;
        if node.memory.total == 0 {
            let with_memory = self.nodes.iter().filter(|node| node.memory.total > 0).map(|node| node.id);
            return Err(Error::NoMemory { node: id, with_memory: with_memory.collect() });
        }
        match &self.allowed.nodes {
            Some(allowed) if !node.is_allowed => {
                Err(Error::NotAllowed { node: id, allowed: allowed.clone() })
            }
            _ => Ok(Arc::clone(node)),
        }
    }

    /// The nodes from whose processors or devices memory is looked at.
    pub(crate) fn initiators(&self, from: Initiator) -> Result<Vec<&Arc<Node>>> {
        let with_cpus = |node: &&Arc<Node>| !node.cpus.is_empty();
        match from {
            Initiator::Any => Ok(self.nodes.iter().filter(with_cpus).collect()),
            Initiator::Process => {
                let allowed = |node: &&Arc<Node>| match &self.allowed.cpus {
                    Some(cpus) => node.cpus.intersects(cpus),
                    None => with_cpus(node),
                };
                Ok(self.nodes.iter().filter(allowed).collect())
            }
            Initiator::Node(id) => {
                let node = self.node(id);
                Ok(vec![node.ok_or_else(|| Error::UnknownNode { node: id, online: self.online() })?])
            }
            Initiator::Cpu(cpu) => {
                let online = || IdList::union(self.nodes.iter().map(|node| &node.cpus));
                let node = self.node_of_cpu(cpu);
                Ok(vec![node.ok_or_else(|| Error::UnknownCpu { cpu, online: online() })?])
            }
        }
    }
}
