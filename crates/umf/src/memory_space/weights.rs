//! [`Weights`]: how much of each region a node gets.

use umf_core::Error;
use umf_topology::{Attribute, IdList, MemorySpace, Node};

use crate::Result;

/// How much of each region a node gets where regions are split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Weights {
    /// The same.
    #[default]
    Equal,
    /// By the memory that it has.
    Capacity,
    /// By its bandwidth as its nearest processors see it, so that reading all of a region keeps all nodes busy to its end. Needs
    /// firmware that tells it (HMAT).
    Bandwidth,
    /// One weight per node, in the order of the space; 0 is nothing.
    Given(Vec<u32>),
}

impl Weights {
    /// The weights of a space's nodes, in its order.
    pub(super) fn of(&self, space: &MemorySpace) -> Result<Vec<u32>> {
        let wide = match self {
            Self::Equal => vec![1; space.len()],
            Self::Capacity => space.into_iter().map(|node| node.memory.total).collect(),
            Self::Bandwidth => bandwidths(space)?,
            Self::Given(weights) if weights.len() == space.len() => return Ok(weights.clone()),
            Self::Given(_) => {
                let why = "give one for each node of the memory space";
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
    let among: IdList = unknown.into_iter().map(|(_, id)| id).collect();
    let instead = "weights of your own";
    Err(umf_topology::Error::NoPerformanceData { attribute: Attribute::Bandwidth, among, instead }.into())
}

/// The same proportions in numbers that fit; what is there at all stays above 0.
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

    #[test]
    fn proportions_survive() {
        assert_eq!(narrow(&[1, 3]), [1, 3]);
        assert_eq!(narrow(&[1 << 40, 3 << 40, 1, 0]), [1 << 30, 3 << 30, 1, 0]);
        assert_eq!(narrow(&[u64::MAX, u64::MAX / 2]), [u32::MAX, u32::MAX / 2]);
    }

    #[test]
    fn what_is_not_told_and_what_does_not_fit_is_refused() {
        let recording = include_str!("../../../umf-topology/tests/trees/four-nodes.txt");
        let all = Topology::read(&Source::recording(Recording::new(recording))).unwrap().all();
        let error = Weights::Bandwidth.of(&all).unwrap_err().to_string();
        assert!(error.contains("bandwidth") && error.contains("0-3") && error.contains("weights"), "{error}");
        assert!(Weights::Given(vec![1]).of(&all).is_err());
        assert_eq!(Weights::Equal.of(&all).unwrap(), [1, 1, 1, 1]);
    }
}
