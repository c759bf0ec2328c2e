//! Explicit-state models of the protocols of umf.
//!
//! A model lists the atomic steps that every process can take in a state. [`explore`] takes every
//! step in every reachable state, breadth first, and checks invariants. A fault is reported with
//! the shortest trace that leads to it, in words.
//!
//! Every rule of a protocol has a switch that leaves the rule out. The tests show which invariant
//! then fails. If no invariant fails, the protocol does not need the rule.
//!
//! The models assume sequential consistency. They complement `loom`, which runs the real code at
//! small sizes.
//!
//! | module | protocol |
//! |---|---|
//! | [`collector`] | release of a dead producer's memory, at one slot |
//! | [`lanes`] | messages and requests of ranks whose lanes are full |
//! | [`leases`] | opens, closes, frees and kills at one ledger slot |
//! | [`remote`] | validated reads and granted writes of a block on another machine |
//! | [`tickets`] | sends, claims, releases, frees and kills of handles in transit, at one slot |

pub mod collector;
pub mod lanes;
pub mod leases;
pub mod remote;
pub mod tickets;

use std::fmt;
use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// A protocol, described by its states and atomic steps.
pub trait Model {
    /// A state with all its fields.
    type State;
    /// The compact form of a state.
    type Packed: Clone + Eq + Hash;
    /// The name of an invariant that a state violates.
    type Fault: Copy + fmt::Debug;

    /// Returns the initial state.
    fn start(&self) -> Self::State;

    /// Calls `next` for each step that is possible in `state`, with the state after the step.
    fn steps(&self, state: &Self::State, next: &mut impl FnMut(Self::State, fmt::Arguments<'_>));

    /// Returns the invariant that `state` violates.
    fn fault(&self, state: &Self::State) -> Option<Self::Fault>;

    /// Returns the compact form of a state. Symmetric states have the same form.
    fn pack(&self, state: &Self::State) -> Self::Packed;

    /// Returns one of the symmetric states with this packed form.
    fn unpack(&self, packed: Self::Packed) -> Self::State;
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Explored<F> {
    /// Number of distinct states, up to symmetry.
    pub states: usize,
    /// Number of steps taken.
    pub steps: u64,
    /// Number of steps of the shortest path to the farthest state.
    pub depth: usize,
    /// The first violation, if any. An exploration stops there.
    pub found: Option<Violation<F>>,
}

/// A violated invariant and a shortest path to it.
#[derive(Debug)]
pub struct Violation<F> {
    /// The invariant.
    pub fault: F,
    /// The steps from the initial state, in words.
    pub trace: Vec<String>,
}

impl<F: fmt::Debug> fmt::Display for Explored<F> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} states, {} steps, depth {}", self.states, self.steps, self.depth)?;
        let Some(violation) = &self.found else { return out.write_str(": the invariants hold") };
        write!(out, ": {:?}", violation.fault)?;
        for (at, step) in violation.trace.iter().enumerate() {
            write!(out, "\n  {:2}. {step}", at + 1)?;
        }
        Ok(())
    }
}

/// Explores every reachable state of `model`, breadth first, until a state violates an invariant.
///
/// # Panics
///
/// Panics after 2^32 - 1 states.
pub fn explore<M: Model>(model: &M) -> Explored<M::Fault> {
    let start = model.start();
    let mut states = States::new(model.pack(&start));
    let mut fault = model.fault(&start).map(|fault| (fault, 0));
    let (mut steps, mut depth, mut end_of_level, mut at) = (0, 0, 1, 0);
    while fault.is_none() && at < states.packed.len() {
        if at == end_of_level {
            (depth, end_of_level) = (depth + 1, states.packed.len());
        }
        let state = model.unpack(states.packed[at].clone());
        model.steps(&state, &mut |after, _| {
            steps += 1;
            if let Some(index) = states.insert(model.pack(&after), at)
                && fault.is_none()
            {
                fault = model.fault(&after).map(|fault| (fault, index));
            }
        });
        at += 1;
    }
    let found = fault.map(|(fault, index)| Violation { fault, trace: trace(model, &states.path(index)) });
    Explored { states: states.packed.len(), steps, depth, found }
}

/// Returns the words of the steps along `path`.
///
/// A packed state does not tell symmetric processes apart. The path is therefore walked again from
/// the initial state, with states that are not packed.
fn trace<M: Model>(model: &M, path: &[M::Packed]) -> Vec<String> {
    let mut state = model.start();
    let mut words = Vec::new();
    for packed in &path[1..] {
        let mut following = None;
        model.steps(&state, &mut |after, step| {
            if following.is_none() && model.pack(&after) == *packed {
                words.push(step.to_string());
                following = Some(after);
            }
        });
        state = following.expect("symmetric states have symmetric steps");
    }
    words
}

/// The states found so far, in the order of discovery.
struct States<P> {
    packed: Vec<P>,
    /// For each state, the index of the state from which it was first reached.
    parents: Vec<u32>,
    /// Indices of the states.
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl<P: Clone + Eq + Hash> States<P> {
    fn new(start: P) -> Self {
        let (table, hasher) = (HashTable::new(), DefaultHashBuilder::default());
        let mut states = Self { packed: Vec::new(), parents: Vec::new(), table, hasher };
        states.insert(start, 0);
        states
    }

    /// Adds a state that was reached from the state `parent`. Returns its index if it is new.
    fn insert(&mut self, state: P, parent: usize) -> Option<usize> {
        let Self { packed, parents, table, hasher } = self;
        let hash = hasher.hash_one(&state);
        if table.find(hash, |&other| packed[other as usize] == state).is_some() {
            return None;
        }
        let index = packed.len();
        let narrow = u32::try_from(index).expect("more than 2^32 states");
        table.insert_unique(hash, narrow, |&other| hasher.hash_one(&packed[other as usize]));
        packed.push(state);
        parents.push(parent as u32);
        Some(index)
    }

    /// Returns the states from the initial one to `index`.
    fn path(&self, mut index: usize) -> Vec<P> {
        let mut path = vec![self.packed[index].clone()];
        while index != 0 {
            index = self.parents[index] as usize;
            path.push(self.packed[index].clone());
        }
        path.reverse();
        path
    }
}
