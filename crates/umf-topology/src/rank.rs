//! Ranking of nodes by capacity, bandwidth or latency, as seen from an initiator.

use std::fmt;
use std::sync::Arc;

use crate::{Error, MemorySpace, Node, Result, Topology};

/// The attribute by which nodes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Attribute {
    /// Size of the memory; more is better.
    Capacity,
    /// Read bandwidth, then write bandwidth; more is better. Needs an HMAT table.
    Bandwidth,
    /// Read latency, then write latency; less is better. Without an HMAT table, distances are
    /// compared.
    Latency,
}

/// The initiator from which memory is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Initiator {
    /// The processors that this process was allowed to run on when the topology was read (affinity
    /// and cpuset).
    #[default]
    Process,
    /// Each processor of the machine.
    Any,
    /// One processor.
    Cpu(u32),
    /// The processors or devices of a node.
    Node(u32),
}

/// The data on which a choice is based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Basis {
    /// The sizes of the nodes.
    Capacity,
    /// The firmware's performance data (HMAT).
    Performance,
    /// Distances (SLIT), for at least one initiator to which no node with performance data is near.
    Distances,
    /// No data: there was only one candidate.
    NothingToChoose,
}

/// The chosen nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The nodes.
    pub space: MemorySpace,
    /// The data on which the choice is based.
    pub basis: Basis,
}

/// The rank of a node; less is better. Performance data (0) rank before distances (1).
type Score = (u8, (u64, u64));

impl Topology {
    /// Returns the best nodes of a space: the union, over all initiators, of the best nodes of
    /// each. It has several nodes if nodes are equal, or if initiators differ.
    ///
    /// The kernel reports the performance of a node only as seen from its nearest initiators. So an
    /// initiator compares the nodes to which it is nearest. If there are none, it is ignored for
    /// bandwidth, and compares distances for latency.
    ///
    /// # Errors
    /// - [`Error::NoPerformanceData`]: the machine has no data for the comparison.
    /// - [`Error::Empty`]: the space has no nodes.
    /// - [`Error::UnknownNode`], [`Error::UnknownCpu`]: the initiator does not exist.
    pub fn best(&self, of: &MemorySpace, attribute: Attribute, from: Initiator) -> Result<Choice> {
        let scores = self.scores(of, attribute, from)?;
        let mut space = MemorySpace::new();
        for scores in &scores.by_initiator {
            let best = scores.iter().flatten().min();
            let nodes = of.nodes().iter().zip(scores);
            for (node, _) in nodes.filter(|(_, score)| score.is_some() && score.as_ref() == best) {
                space.insert(Arc::clone(node));
            }
        }
        Ok(Choice { space, basis: scores.basis })
    }

    /// Returns all nodes of a space, best first. The rank of a node is the best over all
    /// initiators; nodes without a rank come last.
    ///
    /// # Errors
    /// As [`Topology::best`].
    pub fn ranked(&self, of: &MemorySpace, attribute: Attribute, from: Initiator) -> Result<Choice> {
        let scores = self.scores(of, attribute, from)?;
        let best = |index: usize| scores.by_initiator.iter().filter_map(|scores| scores[index]).min();
        let mut ranked: Vec<_> = of.nodes().iter().enumerate().collect();
        // A stable sort; nodes without a score come last.
        ranked.sort_by_key(|&(index, _)| best(index).map_or((1, None), |score| (0, Some(score))));
        let space = ranked.into_iter().map(|(_, node)| Arc::clone(node)).collect();
        Ok(Choice { space, basis: scores.basis })
    }

    /// Returns the nodes with the most memory that this process may use.
    ///
    /// # Errors
    /// [`Error::Empty`].
    pub fn highest_capacity(&self) -> Result<Choice> {
        self.best(&self.all(), Attribute::Capacity, Initiator::Any)
    }

    /// Returns the nodes with the highest bandwidth that this process may use.
    ///
    /// # Errors
    /// As [`Topology::best`]. Without an HMAT table, [`Error::NoPerformanceData`] unless there is
    /// only one node.
    pub fn highest_bandwidth(&self, from: Initiator) -> Result<Choice> {
        self.best(&self.all(), Attribute::Bandwidth, from)
    }

    /// Returns the nodes with the lowest latency that this process may use.
    ///
    /// # Errors
    /// As [`Topology::best`].
    pub fn lowest_latency(&self, from: Initiator) -> Result<Choice> {
        self.best(&self.all(), Attribute::Latency, from)
    }

    fn scores(&self, of: &MemorySpace, attribute: Attribute, from: Initiator) -> Result<Scores> {
        let one = |scores, basis| Ok(Scores { by_initiator: vec![scores], basis });
        match of.nodes() {
            [] => return Err(Error::Empty),
            nodes if attribute == Attribute::Capacity => {
                let scores = nodes.iter().map(|node| Some((0, (u64::MAX - node.memory.total, 0))));
                return one(scores.collect(), Basis::Capacity);
            }
            _ => {}
        }
        let initiators = self.initiators(from)?;
        if of.len() == 1 {
            return one(vec![Some((0, (0, 0)))], Basis::NothingToChoose);
        }
        let mut scores = Scores { by_initiator: Vec::new(), basis: Basis::Performance };
        for initiator in initiators {
            let measured: Vec<_> =
                of.nodes().iter().map(|node| performance_score(node, attribute, initiator.id)).collect();
            if measured.iter().any(Option::is_some) {
                let completed = |(index, score): (usize, &Option<Score>)| match attribute {
                    Attribute::Latency => score.or_else(|| distance_score(initiator, of.nodes()[index].id)),
                    _ => *score,
                };
                scores.by_initiator.push(measured.iter().enumerate().map(completed).collect());
            } else if attribute == Attribute::Latency {
                let distances: Vec<_> = of.ids().map(|id| distance_score(initiator, id)).collect();
                if distances.iter().any(Option::is_some) {
                    scores.by_initiator.push(distances);
                    scores.basis = Basis::Distances;
                }
            }
        }
        if scores.by_initiator.is_empty() {
            let alternative = match attribute {
                Attribute::Bandwidth => "lowest latency, which distances approximate",
                _ => "capacity",
            };
            return Err(Error::NoPerformanceData { attribute, nodes: of.id_list(), alternative });
        }
        Ok(scores)
    }
}

/// The score of each node of a space, as seen from each initiator; `None` if it is unknown.
struct Scores {
    by_initiator: Vec<Vec<Option<Score>>>,
    basis: Basis,
}

fn performance_score(node: &Node, attribute: Attribute, initiator: u32) -> Option<Score> {
    let performance = node.performance_from(initiator)?;
    match attribute {
        Attribute::Latency => Some((0, performance.latency()?)),
        _ => performance.bandwidth().map(|(read, write)| (0, (u64::MAX - read, u64::MAX - write))),
    }
}

fn distance_score(initiator: &Node, node: u32) -> Option<Score> {
    initiator.distance_to(node).map(|distance| (1, (u64::from(distance), 0)))
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capacity => "capacity",
            Self::Bandwidth => "bandwidth",
            Self::Latency => "latency",
        })
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capacity => "by capacity",
            Self::Performance => "by the firmware's figures (HMAT)",
            Self::Distances => "by distances",
            Self::NothingToChoose => "nothing to choose",
        })
    }
}
