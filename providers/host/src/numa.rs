//! [`Numa`]: placement of memory on NUMA nodes (`mbind(2)`).

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::Mapping;

use crate::sys::{self, NumaPolicy};

/// A set of NUMA nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeSet {
    words: [u64; Self::LIMIT / 64],
}

impl NodeSet {
    /// Node numbers are below this.
    pub const LIMIT: usize = 1024;
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; Self::LIMIT / 64] };

    /// Returns the set with `node` added, or `None` if the number is not below [`NodeSet::LIMIT`].
    #[must_use]
    pub const fn with(mut self, node: u32) -> Option<Self> {
        if node as usize >= Self::LIMIT {
            return None;
        }
        self.words[node as usize / 64] |= 1 << (node % 64);
        Some(self)
    }

    /// Returns the set of these nodes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a number is not below [`NodeSet::LIMIT`].
    pub fn from_nodes(nodes: impl IntoIterator<Item = u32>) -> Result<Self> {
        let outside = Error::InvalidArgument { what: "NUMA node", why: "must be below 1024" };
        nodes.into_iter().try_fold(Self::EMPTY, |set, node| set.with(node).ok_or(outside))
    }

    /// Returns whether the set contains `node`.
    #[must_use]
    pub const fn contains(&self, node: u32) -> bool {
        (node as usize) < Self::LIMIT && self.words[node as usize / 64] & (1 << (node % 64)) != 0
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == Self::EMPTY.words
    }

    /// Returns the nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        (0..Self::LIMIT as u32).filter(|&node| self.contains(node))
    }

    fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(crate) const fn words(&self) -> &[u64; Self::LIMIT / 64] {
        &self.words
    }

    pub(crate) const fn words_mut(&mut self) -> &mut [u64; Self::LIMIT / 64] {
        &mut self.words
    }
}

impl core::fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The placement of memory on NUMA nodes.
///
/// Building a provider fails for nodes that do not exist or are outside of the cpuset. A kernel
/// without NUMA ignores the placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// By the thread's policy (`set_mempolicy(2)`), which is first touch unless it was changed.
    #[default]
    Default,
    /// On these nodes only.
    Bind(NodeSet),
    /// Interleaved over these nodes.
    Interleave {
        /// The nodes.
        nodes: NodeSet,
        /// Bytes per part, rounded up to pages. With 0 the kernel interleaves single pages. Larger
        /// parts are bound one by one, and the sequence continues from region to region.
        part_size: usize,
    },
    /// Interleaved over these nodes, with the system's weight of each as the number of consecutive
    /// pages (`/sys/kernel/mm/mempolicy/weighted_interleave`; Linux 6.9).
    WeightedInterleave(NodeSet),
    /// On these nodes while they have free memory (`MPOL_PREFERRED_MANY`; before Linux 5.15 the
    /// first of them only). Without nodes, as [`Numa::Local`].
    Preferred(NodeSet),
    /// On the node of the thread that first touches a page, regardless of the thread's policy.
    Local,
    /// Each region is divided into one part per node, in this order, proportional to the weights.
    Split(Box<[NodeShare]>),
}

/// The share of a node in each region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShare {
    /// The node.
    pub node: u32,
    /// The share, relative to the sum of all weights.
    pub weight: u32,
}

impl Numa {
    fn nodes(&self) -> Result<NodeSet> {
        match self {
            Self::Default | Self::Local => Ok(NodeSet::EMPTY),
            Self::Bind(nodes)
            | Self::Preferred(nodes)
            | Self::WeightedInterleave(nodes)
            | Self::Interleave { nodes, .. } => Ok(*nodes),
            Self::Split(shares) => NodeSet::from_nodes(shares.iter().map(|share| share.node)),
        }
    }

    /// Checks that the set is not empty and that this process may use its nodes.
    pub(crate) fn check(&self) -> Result<()> {
        let nodes = self.nodes()?;
        match self {
            Self::Default | Self::Local => return Ok(()),
            Self::Preferred(_) => {}
            Self::Split(shares) if shares.iter().all(|share| share.weight == 0) => {
                return Err(Error::InvalidArgument { what: "NUMA split", why: "needs a weight above 0" });
            }
            _ if nodes.is_empty() => {
                return Err(Error::InvalidArgument { what: "NUMA nodes", why: "at least one is needed" });
            }
            _ => {}
        }
        let allowed = match sys::allowed_nodes() {
            Ok(allowed) => allowed,
            Err(Errno::NOSYS) if !has_numa() => return Ok(()),
            Err(errno) => return Err(refused("get_mempolicy", errno)),
        };
        if nodes.iter().all(|node| allowed.contains(node)) {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: "NUMA node",
            why: "does not exist or is outside this process's cpuset (Mems_allowed in /proc/self/status)",
        })
    }

    /// Returns the node of the first page of a region, if the placement determines it.
    pub(crate) fn first_node(&self) -> Option<u32> {
        match self {
            Self::Default | Self::Local => None,
            Self::Split(shares) => shares.iter().find(|share| share.weight > 0).map(|share| share.node),
            _ => self.nodes().ok()?.iter().next(),
        }
    }

    /// Sets the placement of a new mapping, in units of `granularity` bytes. `turn` counts the
    /// interleaved parts of the provider.
    pub(crate) fn apply(&self, mapping: &Mapping, granularity: usize, turn: &AtomicU64) -> Result<()> {
        let bound = match self {
            Self::Default => Ok(()),
            Self::Bind(nodes) => bind(mapping, 0, mapping.size(), NumaPolicy::Bind, nodes),
            Self::Local => bind(mapping, 0, mapping.size(), NumaPolicy::Local, &NodeSet::EMPTY),
            Self::Preferred(nodes) => prefer(mapping, nodes),
            Self::WeightedInterleave(nodes) => {
                bind(mapping, 0, mapping.size(), NumaPolicy::WeightedInterleave, nodes)
            }
            Self::Interleave { nodes, part_size: 0 } => {
                bind(mapping, 0, mapping.size(), NumaPolicy::Interleave, nodes)
            }
            Self::Interleave { nodes, part_size } => {
                interleave(mapping, nodes, *part_size, granularity, turn)
            }
            Self::Split(shares) => split(mapping, shares, granularity),
        };
        match bound {
            Ok(()) => Ok(()),
            Err(Errno::NOSYS) if !has_numa() => Ok(()),
            // The nodes were there when the provider was built.
            Err(Errno::INVAL) if matches!(self, Self::WeightedInterleave(_)) => Err(Error::NotSupported {
                what: "interleaving by weight (Linux 6.9 or newer)",
                owner: "this kernel",
                native: Errno::INVAL.raw_os_error(),
            }),
            Err(errno) => Err(refused("mbind", errno)),
        }
    }
}

/// Returns whether the kernel places memory on nodes. Without that all memory is on one node, and a
/// system call that is missing changes nothing.
fn has_numa() -> bool {
    std::path::Path::new("/sys/devices/system/node").exists()
}

fn refused(call: &'static str, errno: Errno) -> Error {
    let hint = match errno {
        Errno::PERM | Errno::NOSYS => {
            "a seccomp filter refuses it, as the default profiles of container engines do: docker or podman run \
             --cap-add=SYS_NICE, in Kubernetes securityContext.capabilities.add: [SYS_NICE], or leave NUMA at its default"
        }
        Errno::INVAL => "a node is missing or outside this process's cpuset",
        _ => "",
    };
    Error::Native { call, native: errno.raw_os_error(), hint }
}

fn bind(
    mapping: &Mapping,
    start: usize,
    size: usize,
    policy: NumaPolicy,
    nodes: &NodeSet,
) -> Result<(), Errno> {
    debug_assert!(start + size <= mapping.size());
    // SAFETY: `start` lies inside of the mapping.
    let base = unsafe { mapping.base().add(start) };
    sys::bind(base, size, policy, nodes)
}

fn prefer(mapping: &Mapping, nodes: &NodeSet) -> Result<(), Errno> {
    let whole = |policy, nodes: &NodeSet| bind(mapping, 0, mapping.size(), policy, nodes);
    match nodes.len() {
        0 => whole(NumaPolicy::Local, nodes),
        1 => whole(NumaPolicy::Preferred, nodes),
        _ => match whole(NumaPolicy::PreferredMany, nodes) {
            // Before Linux 5.15: the first node only.
            Err(Errno::INVAL) => whole(NumaPolicy::Preferred, nodes),
            other => other,
        },
    }
}

fn interleave(
    mapping: &Mapping,
    nodes: &NodeSet,
    part_size: usize,
    granularity: usize,
    turn: &AtomicU64,
) -> Result<(), Errno> {
    let part_size = part_size.checked_next_multiple_of(granularity).unwrap_or(mapping.size());
    let parts = mapping.size().div_ceil(part_size) as u64;
    let first = turn.fetch_add(parts, Ordering::Relaxed);
    let mut turns = nodes.iter().cycle().skip((first % nodes.len() as u64) as usize);
    for start in (0..mapping.size()).step_by(part_size) {
        let size = part_size.min(mapping.size() - start);
        bind(mapping, start, size, NumaPolicy::Bind, &single(turns.next()))?;
    }
    Ok(())
}

fn split(mapping: &Mapping, shares: &[NodeShare], granularity: usize) -> Result<(), Errno> {
    let pages = mapping.size() / granularity;
    let mut start = 0;
    for (share, end) in shares.iter().zip(split_ends(pages, shares)) {
        let end = end * granularity;
        if end > start {
            bind(mapping, start, end - start, NumaPolicy::Bind, &single(Some(share.node)))?;
        }
        start = end;
    }
    Ok(())
}

/// Returns the end of each share of `pages`. The rounding error is carried along, so each share is
/// off by less than a page.
fn split_ends(pages: usize, shares: &[NodeShare]) -> impl Iterator<Item = usize> {
    let total: u128 = shares.iter().map(|share| u128::from(share.weight)).sum::<u128>().max(1);
    shares.iter().scan(0_u128, move |sum, share| {
        *sum += u128::from(share.weight);
        usize::try_from(pages as u128 * *sum / total).ok()
    })
}

fn single(node: Option<u32>) -> NodeSet {
    node.and_then(|node| NodeSet::EMPTY.with(node)).unwrap_or(NodeSet::EMPTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_set_has_its_nodes_in_order() {
        let set = NodeSet::from_nodes([0, 63, 64, 1023]).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 1023]);
        assert_eq!(set.len(), 4);
        assert!(NodeSet::from_nodes([1024]).is_err());
        assert_eq!(format!("{set:?}"), "{0, 63, 64, 1023}");
    }

    #[test]
    fn split_shares_add_up() {
        let shares = [1, 2, 0, 1].map(|weight| NodeShare { node: 0, weight });
        assert_eq!(split_ends(8, &shares).collect::<Vec<_>>(), [2, 6, 6, 8]);
        assert_eq!(split_ends(3, &shares).collect::<Vec<_>>(), [0, 2, 2, 3]);
        assert_eq!(split_ends(1, &shares).collect::<Vec<_>>(), [0, 0, 0, 1]);
    }

    #[test]
    fn check_rejects_missing_nodes_and_empty_sets() {
        let missing = NodeSet::from_nodes([1000]).unwrap();
        assert!(matches!(Numa::Bind(missing).check(), Err(Error::InvalidArgument { .. })));
        assert!(Numa::Bind(NodeSet::EMPTY).check().is_err());
        assert!(Numa::Preferred(NodeSet::EMPTY).check().is_ok());
        assert!(Numa::Split(Box::new([NodeShare { node: 0, weight: 0 }])).check().is_err());
    }
}
