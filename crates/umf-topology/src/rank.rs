//! Which nodes are the best, seen from where.

use std::fmt;
use std::sync::Arc;

use crate::{Error, MemorySpace, Node, Result, Topology};

/// What makes a node better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Attribute {
    /// More memory.
    Capacity,
    /// More bytes per second, of reading; of writing where that is equal. Only firmware tells (HMAT): distances say
    /// nothing of it.
    Bandwidth,
    /// Less time for the first byte. Where no firmware tells, distances decide.
    Latency,
}

/// From where memory is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Initiator {
    /// From the processors that this process might run on when the topology was read (its affinity and cpuset).
    #[default]
    Process,
    /// From each processor of the machine.
    Any,
    /// From one processor.
    Cpu(u32),
    /// From a node's processors, or from its devices.
    Node(u32),
}

/// What a choice rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Basis {
    /// The sizes of the nodes.
    Capacity,
    /// What the firmware rates them at (HMAT).
    Performance,
    /// Distances (SLIT), from one initiator at least: the firmware rates nothing that is near to it.
    Distances,
    /// Nothing: there was nothing to choose.
    NothingToChoose,
}

/// Nodes that were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The nodes.
    pub space: MemorySpace,
    /// What the choice rests on.
    pub basis: Basis,
}

/// How good a node is; less is better, whatever is asked for. What is measured comes before what is guessed.
type Score = (u8, (u64, u64));

impl Topology {
    /// The best nodes of a space: for each initiator those that none excels, all together. Several if they are equal, or if
    /// initiators differ.
    ///
    /// The kernel shows the figures of a node as its nearest initiators see them, and those alone: an initiator chooses among
    /// the nodes that it is nearest to. If that is none, it has no say about bandwidth, and goes by distance for
    /// latency.
    ///
    /// # Errors
    /// [`Error::NoPerformanceData`] if the machine does not tell what it takes; [`Error::Empty`];
    /// [`Error::UnknownNode`] and [`Error::UnknownCpu`] for initiators that are not there.
    pub fn best(&self, of: &MemorySpace, attribute: Attribute, from: Initiator) -> Result<Choice> {
        let scores = self.scores(of, attribute, from)?;
        let mut space = MemorySpace::new();
        for scores in &scores.by_initiator {
            let best = scores.iter().flatten().min();
            let nodes = of.nodes().iter().zip(scores);
            for (node, _) in nodes.filter(|(_, score)| score.is_some() && score.as_ref() == best) {
                space.add(Arc::clone(node));
            }
        }
        Ok(Choice { space, basis: scores.basis })
    }

    /// All nodes of a space, best first: each as its best initiator sees it. What no initiator knows comes last.
    ///
    /// # Errors
    /// As [`Topology::best`].
    pub fn ranked(&self, of: &MemorySpace, attribute: Attribute, from: Initiator) -> Result<Choice> {
        let scores = self.scores(of, attribute, from)?;
        let best = |place: usize| scores.by_initiator.iter().filter_map(|scores| scores[place]).min();
        let mut ranked: Vec<_> = of.nodes().iter().enumerate().collect();
        // Stable, and an unknown one (None) goes behind.
        ranked.sort_by_key(|&(place, _)| best(place).map_or((1, None), |score| (0, Some(score))));
        let space = ranked.into_iter().map(|(_, node)| Arc::clone(node)).collect();
        Ok(Choice { space, basis: scores.basis })
    }

    /// The nodes with most memory that this process may use.
    ///
    /// # Errors
    /// [`Error::Empty`].
    pub fn highest_capacity(&self) -> Result<Choice> {
        self.best(&self.all(), Attribute::Capacity, Initiator::Any)
    }

    /// The nodes with the highest bandwidth that this process may use.
    ///
    /// # Errors
    /// As [`Topology::best`]; without HMAT, [`Error::NoPerformanceData`], unless there is one node.
    pub fn highest_bandwidth(&self, from: Initiator) -> Result<Choice> {
        self.best(&self.all(), Attribute::Bandwidth, from)
    }

    /// The nodes with the lowest latency that this process may use.
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
                of.nodes().iter().map(|node| measured(node, attribute, initiator.id)).collect();
            if measured.iter().any(Option::is_some) {
                let guessed = |(place, score): (usize, &Option<Score>)| match attribute {
                    Attribute::Latency => score.or_else(|| far(initiator, of.nodes()[place].id)),
                    _ => *score,
                };
                scores.by_initiator.push(measured.iter().enumerate().map(guessed).collect());
            } else if attribute == Attribute::Latency {
                let far: Vec<_> = of.ids().map(|id| far(initiator, id)).collect();
                if far.iter().any(Option::is_some) {
                    scores.by_initiator.push(far);
                    scores.basis = Basis::Distances;
                }
            }
        }
        if scores.by_initiator.is_empty() {
            let instead = match attribute {
                Attribute::Bandwidth => "lowest latency, for which distances do",
                _ => "capacity",
            };
            return Err(Error::NoPerformanceData { attribute, among: of.id_list(), instead });
        }
        Ok(scores)
    }
}

/// How good each node of a space is, as each initiator sees it; `None` if it does not know.
struct Scores {
    by_initiator: Vec<Vec<Option<Score>>>,
    basis: Basis,
}

fn measured(node: &Node, attribute: Attribute, initiator: u32) -> Option<Score> {
    let figures = node.performance_from(initiator)?;
    match attribute {
        Attribute::Latency => Some((0, figures.latency()?)),
        _ => figures.bandwidth().map(|(read, write)| (0, (u64::MAX - read, u64::MAX - write))),
    }
}

fn far(initiator: &Node, node: u32) -> Option<Score> {
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
