//! Results of the campaigns: [`Tally`] for producers and importers, [`FailpointTally`] for domains
//! and links.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use umf_sync::failpoint;

use super::Failpoint;
use super::plan::{self, Target};

pub(crate) struct Tally {
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
    begun: Instant,
    took: Option<Duration>,
    /// Processes killed at each failpoint.
    pub(crate) kills: BTreeMap<Failpoint, u64>,
    /// Kills planned at each failpoint.
    pub(crate) planned: BTreeMap<Failpoint, u64>,
    pub(crate) at_random: u64,
    /// Kills at a failpoint at which the process was stopped first.
    pub(crate) stopped: u64,
    /// Processes started with the pid of a killed one.
    pub(crate) same_pid: u64,
    /// Rounds in which the victim did not reach the planned failpoint.
    pub(crate) not_reached: u64,
    /// Names in `/dev/shm` that killed processes left, which the provider documents.
    pub(crate) names_left: u64,
    /// Blocks opened by importers that were not killed.
    pub(crate) opened: u64,
    pub(crate) violations: Vec<String>,
}

impl Tally {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            rounds: 0,
            begun: Instant::now(),
            took: None,
            kills: BTreeMap::new(),
            planned: BTreeMap::new(),
            at_random: 0,
            stopped: 0,
            same_pid: 0,
            not_reached: 0,
            names_left: 0,
            opened: 0,
            violations: Vec::new(),
        }
    }

    pub(crate) fn end(&mut self) {
        self.took = Some(self.begun.elapsed());
    }

    pub(crate) fn violation(&mut self, text: String) {
        println!("violation: {text}");
        self.violations.push(text);
    }

    /// Adds the answer of a worker.
    pub(crate) fn answer(&mut self, text: &str) {
        let opened = text.split(' ').find_map(|word| word.strip_prefix("opened="));
        self.opened += opened.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    }

    pub(crate) fn failpoints_without_kill(&self) -> Vec<Failpoint> {
        plan::failpoints().iter().copied().filter(|failpoint| !self.kills.contains_key(failpoint)).collect()
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        let tries = |failpoint| self.planned.get(&failpoint).copied().unwrap_or(0);
        self.failpoints_without_kill()
            .into_iter()
            .map(|failpoint| Target { failpoint, tries: tries(failpoint) })
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_failpoints: u64 = self.kills.values().sum();
        write!(
            f,
            "kill matrix: {} rounds, {} killed at {} of {} failpoints ({} stopped first), {} at random, {} planned failpoints not \
             reached, {} pids reused, {} names left, {} opened, {} violations, seed {}, {:.1} s",
            self.rounds,
            at_failpoints,
            self.kills.len(),
            plan::failpoints().len(),
            self.stopped,
            self.at_random,
            self.not_reached,
            self.same_pid,
            self.names_left,
            self.opened,
            self.violations.len(),
            self.seed,
            self.took.unwrap_or_else(|| self.begun.elapsed()).as_secs_f64()
        )?;
        if self.took.is_some() {
            let failpoints: Vec<_> =
                self.kills.iter().map(|(failpoint, count)| format!("{failpoint} {count}")).collect();
            write!(f, "; by failpoint: {}", failpoints.join(", "))?;
        }
        Ok(())
    }
}

/// Kills at the failpoints of one crate.
pub(crate) struct FailpointTally {
    subject: &'static str,
    belongs: fn(Failpoint) -> bool,
    pub(crate) rounds: u64,
    killed: BTreeMap<Failpoint, u64>,
}

impl FailpointTally {
    pub(crate) const fn new(subject: &'static str, belongs: fn(Failpoint) -> bool) -> Self {
        Self { subject, belongs, rounds: 0, killed: BTreeMap::new() }
    }

    /// Returns all failpoints of the crate.
    pub(crate) fn failpoints(&self) -> impl Iterator<Item = Failpoint> + use<> {
        let belongs = self.belongs;
        failpoint::names().into_iter().filter(move |failpoint| belongs(failpoint))
    }

    pub(crate) fn count(&mut self, failpoint: Failpoint) {
        *self.killed.entry(failpoint).or_default() += 1;
    }

    pub(crate) fn failpoints_without_kill(&self) -> Vec<Failpoint> {
        self.failpoints().filter(|failpoint| !self.killed.contains_key(failpoint)).collect()
    }
}

impl fmt::Display for FailpointTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failpoints: Vec<_> =
            self.killed.iter().map(|(failpoint, count)| format!("{failpoint} {count}")).collect();
        write!(f, "{}: {} rounds; by failpoint: {}", self.subject, self.rounds, failpoints.join(", "))
    }
}
