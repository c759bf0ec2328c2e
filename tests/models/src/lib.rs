//! Explicit-state models of the protocols of umf.
//!
//! A model lists the atomic steps that every process can take in a state. [`explore`] takes every
//! step in every reachable state, breadth first, and checks invariants. A fault is reported with
//! the shortest trace that leads to it, in words.
//!
//! Every rule of a protocol has a switch that leaves the rule out. The tests show which invariant
//! then fails. A rule that can be left out without a fault is a rule that the protocol does not
//! need.
//!
//! The models assume sequential consistency. They complement `loom`, which runs the real code at
//! small sizes. Tickets (handles in transit) get a model of their own later.
//!
//! | module | protocol |
//! |---|---|
//! | [`leases`] | opens, closes, frees and kills at one ledger slot |

pub mod leases;

use std::fmt;

/// A protocol as states and atomic steps.
pub trait Model {
    /// A state with all its fields.
    type State;
    /// The name of an invariant that a state violates.
    type Fault: Copy + fmt::Debug;

    /// Returns the initial state.
    fn start(&self) -> Self::State;

    /// Calls `next` for each step that is possible in `state`, with the state after the step.
    fn steps(&self, state: &Self::State, next: &mut impl FnMut(Self::State, fmt::Arguments<'_>));

    /// Returns the invariant that `state` violates.
    fn fault(&self, state: &Self::State) -> Option<Self::Fault>;

    /// Returns a compact form of a state. Symmetric states have the same form.
    fn pack(&self, state: &Self::State) -> u128;

    /// Returns one of the symmetric states with this packed form.
    fn unpack(&self, packed: u128) -> Self::State;
}

/// What an exploration has seen.
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
    let mut seen = Seen::new(model.pack(&start));
    let mut fault = model.fault(&start).map(|fault| (fault, 0));
    let (mut steps, mut depth, mut end_of_level, mut at) = (0, 0, 1, 0);
    while fault.is_none() && at < seen.states.len() {
        if at == end_of_level {
            (depth, end_of_level) = (depth + 1, seen.states.len());
        }
        let state = model.unpack(seen.states[at]);
        model.steps(&state, &mut |after, _| {
            steps += 1;
            if let Some(index) = seen.insert(model.pack(&after), at)
                && fault.is_none()
            {
                fault = model.fault(&after).map(|fault| (fault, index));
            }
        });
        at += 1;
    }
    let found = fault.map(|(fault, index)| Violation { fault, trace: trace(model, &seen.path(index)) });
    Explored { states: seen.states.len(), steps, depth, found }
}

/// Returns the words of the steps along `path`.
///
/// Packed states forget which of several symmetric processes is which. The path is therefore walked
/// again from the initial state, with states that are not unpacked.
fn trace<M: Model>(model: &M, path: &[u128]) -> Vec<String> {
    let mut state = model.start();
    let mut words = Vec::new();
    for &packed in &path[1..] {
        let mut following = None;
        model.steps(&state, &mut |after, step| {
            if following.is_none() && model.pack(&after) == packed {
                words.push(step.to_string());
                following = Some(after);
            }
        });
        state = following.expect("symmetric states have symmetric steps");
    }
    words
}

/// The states seen so far: a list in the order of discovery and a hash table of indices into it.
struct Seen {
    states: Vec<u128>,
    /// For each state, the index of the state from which it was first reached.
    parents: Vec<u32>,
    /// Open addressing with linear probing: 0, or the index of a state plus 1. The length is a
    /// power of two.
    table: Vec<u32>,
}

impl Seen {
    fn new(start: u128) -> Self {
        let mut seen = Self { states: Vec::new(), parents: Vec::new(), table: vec![0; 1 << 16] };
        seen.insert(start, 0);
        seen
    }

    /// Adds a state that was reached from the state `parent`. Returns its index if it is new.
    fn insert(&mut self, state: u128, parent: usize) -> Option<usize> {
        let mut place = self.place(state);
        while self.table[place] != 0 {
            if self.states[self.table[place] as usize - 1] == state {
                return None;
            }
            place = (place + 1) & (self.table.len() - 1);
        }
        let index = self.states.len();
        self.states.push(state);
        self.parents.push(u32::try_from(parent).expect("more than 2^32 states"));
        self.table[place] = u32::try_from(index + 1).expect("more than 2^32 states");
        if self.states.len() * 2 > self.table.len() {
            self.grow();
        }
        Some(index)
    }

    fn place(&self, state: u128) -> usize {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (state as u64).wrapping_mul(FACTOR) ^ (state >> 64) as u64;
        // The high half of a product depends on all bits of the factors.
        let product = u128::from(mixed) * u128::from(FACTOR);
        ((product >> 64) as u64 ^ product as u64) as usize & (self.table.len() - 1)
    }

    fn grow(&mut self) {
        self.table = vec![0; self.table.len() * 2];
        for index in 0..self.states.len() {
            let mut place = self.place(self.states[index]);
            while self.table[place] != 0 {
                place = (place + 1) & (self.table.len() - 1);
            }
            self.table[place] = index as u32 + 1;
        }
    }

    /// Returns the states from the initial one to `index`.
    fn path(&self, mut index: usize) -> Vec<u128> {
        let mut path = vec![self.states[index]];
        while index != 0 {
            index = self.parents[index] as usize;
            path.push(self.states[index]);
        }
        path.reverse();
        path
    }
}
