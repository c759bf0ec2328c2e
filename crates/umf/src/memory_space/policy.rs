//! [`Policy`]: how memory is placed on a space.

use umf_provider_host::{NodeSet, NodeShare, Numa};
use umf_topology::MemorySpace;

use super::Weights;
use crate::Result;

/// How memory is placed on the nodes of a memory space.
///
/// (Memory on whichever node touches it first, of all there are, is no question of a space: [`Numa::Local`]. The nearest of a
/// space's nodes is what [`Policy::PreferredMany`] takes, and [`Policy::Bind`] if it has to be one of them.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// On its nodes and no others; on the one nearest to whoever touches a page first, while that has memory left. When all are
    /// full, touching a page ends in the kernel's killer, as where memory is out.
    #[default]
    Bind,
    /// On its first node while that has memory left, then elsewhere.
    Preferred,
    /// On its nodes while they have memory left, the nearest first; then elsewhere. (Linux 5.15; before, the one with the
    /// lowest number is preferred.)
    PreferredMany,
    /// On its nodes in turn.
    Interleave {
        /// Bytes per turn, rounded up to pages; 0 is one page.
        part_size: usize,
    },
    /// On its nodes in turn, page by page, with the system's weights (Linux 6.9).
    WeightedInterleave,
    /// Each region is cut into one part per node, in the order of the space.
    Split(Weights),
}

impl Policy {
    /// What it comes to for the nodes of `space`, for [`umf_provider_host::HostBuilder::numa`].
    ///
    /// # Errors
    /// [`crate::Error::Topology`]: the space is empty, or weights are to come from figures that the machine does not tell.
    /// [`crate::Error::Memory`]: weights that do not fit the space.
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

#[cfg(test)]
mod tests {
    use umf_topology::{Recording, Source, Topology};

    use super::*;
    use crate::Error;

    const HBM: &str = include_str!("../../../umf-topology/tests/trees/hbm.txt");

    fn space(ids: &[u32]) -> MemorySpace {
        let topology = Topology::read(&Source::recording(Recording::new(HBM))).unwrap();
        topology.space(ids.iter().copied()).unwrap()
    }

    fn nodes(ids: &[u32]) -> NodeSet {
        NodeSet::from_nodes(ids.iter().copied()).unwrap()
    }

    #[test]
    fn policies_are_placements() {
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
    fn parts_are_in_the_order_of_the_space() {
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
}
