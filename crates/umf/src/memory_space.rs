//! Memory on the nodes of a memory space.
//!
//! ```
//! use umf::memory_space::{self, Policy};
//! use umf::topology::{Initiator, Topology};
//!
//! # fn main() -> umf::Result<()> {
//! let topology = Topology::of_this_machine()?;
//! let near = topology.lowest_latency(Initiator::Process)?;
//! let provider = memory_space::provider(&near.space, &Policy::Bind)?;
//! let pool = umf::Pool::builder().provider(provider).build()?;
//! let block = pool.allocate(4096)?;
//! # drop(block);
//! # Ok(())
//! # }
//! ```
//!
//! For shared memory and huge pages, pass the placement to the builder of the host provider:
//! `HostProvider::builder().visibility(Visibility::Shared).numa(policy.on(&space)?)`. The keys of
//! `umf.toml` are `numa = "bind"` and `numa_space = ["lowest-latency"]`.

use std::sync::Arc;

use umf_core::Error;
use umf_provider_host::{HostProvider, NodeSet, NodeShare, Numa};
#[doc(inline)]
pub use umf_topology::{Attribute, Choice, Initiator, MemorySpace, SpaceName};
use umf_topology::{IdList, Node};

use crate::Result;

/// Makes a provider of private memory on the nodes of a space.
///
/// # Errors
/// As [`Policy::on`]; [`crate::Error::Memory`] if a node is offline, or outside of the cpuset.
pub fn provider(space: &MemorySpace, policy: &Policy) -> Result<Arc<HostProvider>> {
    Ok(HostProvider::builder().name(space.to_string()).numa(policy.on(space)?).build()?)
}

/// The placement of memory on the nodes of a memory space.
///
/// For first-touch placement on any node use [`Numa::Local`]. For the nearest node of a space use
/// [`Policy::PreferredMany`], or [`Policy::Bind`] if other nodes must not be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// On the nodes of the space only. A page lies on the node nearest to the thread that first
    /// touches it, while that node has free memory. When all nodes are full, touching a page
    /// triggers the OOM killer.
    #[default]
    Bind,
    /// On the first node of the space while it has free memory, then on others.
    Preferred,
    /// On the nodes of the space while they have free memory, the nearest first; then on others.
    /// Before Linux 5.15, the node with the lowest number is preferred.
    PreferredMany,
    /// Interleaved over the nodes of the space.
    Interleave {
        /// Bytes per turn, rounded up to pages; 0 is one page.
        part_size: usize,
    },
    /// Interleaved page by page, with the system's weights (Linux 6.9).
    WeightedInterleave,
    /// Each region is divided into one part per node, in the order of the space.
    Split(Weights),
}

impl Policy {
    /// Returns the placement on the nodes of `space`, for [`umf_provider_host::HostBuilder::numa`].
    ///
    /// # Errors
    /// [`crate::Error::Topology`]: the space is empty, or the firmware does not report the bandwidth that
    /// the weights need. [`crate::Error::Memory`]: the number of weights is not the number of
    /// nodes.
    pub fn on(&self, space: &MemorySpace) -> Result<Numa> {
        let Some(first) = space.ids().next() else {
            return Err(umf_topology::Error::Empty.into());
        };
        let nodes = NodeSet::from_nodes(space.ids())?;
        Ok(match self {
            Self::Bind => Numa::Bind(nodes),
            Self::Preferred => Numa::Preferred(NodeSet::from_nodes([first])?),
            Self::PreferredMany => Numa::Preferred(nodes),
            Self::Interleave { part_size } => Numa::Interleave { nodes, part_size: *part_size },
            Self::WeightedInterleave => Numa::WeightedInterleave(nodes),
            Self::Split(weights) => {
                let shares = space.ids().zip(weights.of(space)?);
                Numa::Split(shares.map(|(node, weight)| NodeShare { node, weight }).collect())
            }
        })
    }
}

/// The share of each region that a node gets with [`Policy::Split`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Weights {
    /// Equal shares.
    #[default]
    Equal,
    /// Proportional to the node's memory.
    Capacity,
    /// Proportional to the node's bandwidth from its nearest processors, so that all nodes finish a
    /// scan of a region at the same time. Needs an HMAT table.
    Bandwidth,
    /// One weight per node, in the order of the space; 0 is no share.
    Given(Vec<u32>),
}

impl Weights {
    /// Returns the weights of the nodes of a space, in its order.
    fn of(&self, space: &MemorySpace) -> Result<Vec<u32>> {
        let wide = match self {
            Self::Equal => vec![1; space.len()],
            Self::Capacity => space.into_iter().map(|node| node.memory.total).collect(),
            Self::Bandwidth => bandwidths(space)?,
            Self::Given(weights) if weights.len() == space.len() => return Ok(weights.clone()),
            Self::Given(_) => {
                let why = "must be one for each node of the memory space";
                return Err(Error::InvalidArgument { what: "weights", why }.into());
            }
        };
        Ok(narrow(&wide))
    }
}

fn bandwidths(space: &MemorySpace) -> Result<Vec<u64>> {
    let of = |node: &Node| Some(node.best_performance()?.bandwidth()?.0);
    let (known, unknown): (Vec<_>, Vec<_>) =
        space.into_iter().map(|node| (of(node), node.id)).partition(|(known, _)| known.is_some());
    if unknown.is_empty() {
        return Ok(known.into_iter().filter_map(|(bandwidth, _)| bandwidth).collect());
    }
    let nodes: IdList = unknown.into_iter().map(|(_, id)| id).collect();
    let alternative = "explicit weights";
    Err(umf_topology::Error::NoPerformanceData { attribute: Attribute::Bandwidth, nodes, alternative }.into())
}

/// Scales the weights to 32 bits. A weight above 0 stays above 0.
fn narrow(wide: &[u64]) -> Vec<u32> {
    let most = wide.iter().copied().max().unwrap_or(0);
    let shift = u64::from(u32::BITS).saturating_sub(u64::from(most.leading_zeros()));
    wide.iter()
        .map(|&weight| u32::try_from(weight >> shift).unwrap_or(u32::MAX).max(u32::from(weight > 0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use umf_topology::{Recording, Source, Topology};

    use super::*;
    use crate::Error;

    const HBM: &str = include_str!("../../umf-topology/tests/trees/hbm.txt");

    fn space(ids: &[u32]) -> MemorySpace {
        let topology = Topology::read(&Source::recording(Recording::new(HBM))).unwrap();
        topology.space(ids.iter().copied()).unwrap()
    }

    fn nodes(ids: &[u32]) -> NodeSet {
        NodeSet::from_nodes(ids.iter().copied()).unwrap()
    }

    #[test]
    fn each_policy_has_its_placement() {
        let space = space(&[2, 0]);
        for (policy, numa) in [
            (Policy::default(), Numa::Bind(nodes(&[0, 2]))),
            (Policy::Preferred, Numa::Preferred(nodes(&[2]))),
            (Policy::PreferredMany, Numa::Preferred(nodes(&[0, 2]))),
            (Policy::WeightedInterleave, Numa::WeightedInterleave(nodes(&[0, 2]))),
            (
                Policy::Interleave { part_size: 1 << 21 },
                Numa::Interleave { nodes: nodes(&[0, 2]), part_size: 1 << 21 },
            ),
        ] {
            assert_eq!(policy.on(&space).unwrap(), numa, "{policy:?}");
            assert!(matches!(
                policy.on(&MemorySpace::new()).unwrap_err(),
                Error::Topology(umf_topology::Error::Empty)
            ));
        }
    }

    #[test]
    fn split_follows_the_order_of_the_space() {
        let shares = |weights| match Policy::Split(weights).on(&space(&[3, 2, 0])) {
            Ok(Numa::Split(shares)) => {
                shares.iter().map(|share| (share.node, share.weight)).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(shares(Weights::Equal), [(3, 1), (2, 1), (0, 1)]);
        assert_eq!(shares(Weights::Given(vec![5, 0, 7])), [(3, 5), (2, 0), (0, 7)]);
        assert_eq!(shares(Weights::Bandwidth), [(3, 30_720), (2, 819_200), (0, 204_800)]);
        let by_size = shares(Weights::Capacity);
        assert!(by_size[0].1 > by_size[2].1 && by_size[2].1 > by_size[1].1, "{by_size:?}");
    }

    #[test]
    fn narrow_keeps_proportions() {
        assert_eq!(narrow(&[1, 3]), [1, 3]);
        assert_eq!(narrow(&[1 << 40, 3 << 40, 1, 0]), [1 << 30, 3 << 30, 1, 0]);
        assert_eq!(narrow(&[u64::MAX, u64::MAX / 2]), [u32::MAX, u32::MAX / 2]);
    }

    #[test]
    fn weights_without_hmat_or_of_wrong_length_are_errors() {
        let recording = include_str!("../../umf-topology/tests/trees/four-nodes.txt");
        let all = Topology::read(&Source::recording(Recording::new(recording))).unwrap().all();
        let error = Weights::Bandwidth.of(&all).unwrap_err().to_string();
        assert!(error.contains("bandwidth") && error.contains("0-3") && error.contains("weights"), "{error}");
        assert!(Weights::Given(vec![1]).of(&all).is_err());
        assert_eq!(Weights::Equal.of(&all).unwrap(), [1, 1, 1, 1]);
    }
}
