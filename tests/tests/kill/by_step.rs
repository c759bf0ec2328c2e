//! [`ByStep`]: at which steps of one part of umf somebody was killed.

use std::collections::BTreeMap;
use std::fmt;

use umf_sync::failpoint;

use super::Failpoint;

pub(crate) struct ByStep {
    part: &'static str,
    is_of_part: fn(Failpoint) -> bool,
    pub(crate) rounds: u64,
    killed: BTreeMap<Failpoint, u64>,
}

impl ByStep {
    pub(crate) const fn new(part: &'static str, is_of_part: fn(Failpoint) -> bool) -> Self {
        Self { part, is_of_part, rounds: 0, killed: BTreeMap::new() }
    }

    /// All steps of the part.
    pub(crate) fn steps(&self) -> impl Iterator<Item = Failpoint> + use<> {
        let is_of_part = self.is_of_part;
        failpoint::names().into_iter().filter(move |step| is_of_part(step))
    }

    pub(crate) fn count(&mut self, step: Failpoint) {
        *self.killed.entry(step).or_default() += 1;
    }

    pub(crate) fn steps_without_kill(&self) -> Vec<Failpoint> {
        self.steps().filter(|step| !self.killed.contains_key(step)).collect()
    }
}

impl fmt::Display for ByStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.killed.iter().map(|(step, count)| format!("{step} {count}")).collect();
        write!(f, "{}: {} rounds; by step: {}", self.part, self.rounds, steps.join(", "))
    }
}
