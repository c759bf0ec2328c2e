//! [`Topology`]: the NUMA nodes of a machine.

use std::sync::Arc;

use crate::read::{self, Allowed};
use crate::{Error, IdList, Initiator, MemorySpace, Node, Result, Source};

/// A snapshot of the NUMA nodes of a machine, and of those that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// In ascending order of their numbers.
    nodes: Vec<Arc<Node>>,
    possible: IdList,
    tiers: Vec<Tier>,
    allowed: Allowed,
    has_numa: bool,
}

/// A memory tier of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    /// The number of the tier; lower is faster.
    pub id: u32,
    /// The nodes of the tier.
    pub nodes: IdList,
}

impl Topology {
    /// Reads the topology of this machine, as this process sees it. It reads a few files per node.
    ///
    /// A kernel without NUMA has one node, 0, with all processors and all memory
    /// ([`Topology::has_numa`]).
    ///
    /// # Errors
    /// [`Error::NoSysfs`] if sysfs is not mounted; others if a file cannot be read or is malformed.
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

    /// Returns the online nodes, by number.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Returns the node of this number, if it is online.
    #[must_use]
    pub fn node(&self, id: u32) -> Option<&Arc<Node>> {
        let index = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(index)
    }

    /// Returns the numbers of the online nodes.
    #[must_use]
    pub fn online(&self) -> IdList {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// Returns the numbers of the possible nodes that are not online.
    #[must_use]
    pub fn offline(&self) -> IdList {
        self.possible.iter().filter(|&id| self.node(id).is_none()).collect()
    }

    /// Returns the memory tiers, fastest first. Empty if the kernel reports none.
    #[must_use]
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Returns whether the kernel supports NUMA. If not, there is one node, and placing memory on
    /// it has no effect.
    #[must_use]
    pub const fn has_numa(&self) -> bool {
        self.has_numa
    }

    /// Returns the node of an online processor.
    #[must_use]
    pub fn node_of_cpu(&self, cpu: u32) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu))
    }

    /// Returns whether the firmware reports the performance of at least one node (HMAT).
    #[must_use]
    pub fn has_performance(&self) -> bool {
        self.nodes.iter().any(|node| node.best_performance().is_some())
    }

    /// Returns all nodes with memory that this process may use, by number.
    #[must_use]
    pub fn all(&self) -> MemorySpace {
        self.nodes.iter().filter(|node| node.memory.total > 0 && node.is_allowed).cloned().collect()
    }

    /// Returns the space of these nodes, in this order, without repetitions.
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

    /// Returns the nodes of the initiators.
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
