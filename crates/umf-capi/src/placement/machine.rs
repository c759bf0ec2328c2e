//! The NUMA nodes of this machine that have memory, and how fast it is.

use umf_topology::{Initiator, MemorySpace, Quality, Topology};

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) id: u32,
    /// Bytes of memory.
    pub(super) capacity: usize,
}

/// The machine as it is now; `None`, and a line in the log, where it cannot be read.
fn topology() -> Option<Topology> {
    Topology::of_this_machine().inspect_err(|error| tracing::error!("{error}")).ok()
}

fn in_order(space: &MemorySpace) -> Vec<Node> {
    let node = |node: &umf_topology::Node| Node {
        id: node.id,
        capacity: usize::try_from(node.memory.total).unwrap_or(usize::MAX),
    };
    space.nodes().iter().map(|shared| node(shared)).collect()
}

/// The nodes with memory that this process may use, by number. Where nothing can be read that is node 0, of unknown size.
pub(super) fn nodes() -> Vec<Node> {
    topology().map_or_else(|| vec![Node { id: 0, capacity: 0 }], |topology| in_order(&topology.all()))
}

/// The node of that number, if it has memory.
pub(super) fn node(id: u32) -> Option<Node> {
    let topology = topology()?;
    in_order(&topology.space([id]).ok()?).first().copied()
}

/// For each initiator the best of the nodes, all together; `None` where the firmware says nothing about that (HMAT).
pub(super) fn best(quality: Quality) -> Option<Vec<Node>> {
    let topology = topology().filter(Topology::has_figures)?;
    let choice = topology.best(&topology.all(), quality, Initiator::Any).ok()?;
    Some(in_order(&choice.space)).filter(|nodes| !nodes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let nodes = nodes();
        assert!(!nodes.is_empty() && nodes[0].capacity > 1 << 20);
        assert_eq!(node(nodes[0].id), Some(nodes[0]));
        assert_eq!(node(1 << 20), None);
    }
}
