//! What came of a campaign.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::Failpoint;

use super::plan::{self, Todo};

pub(crate) struct Tally {
    pub(crate) seed: u64,
    pub(crate) rounds: u64,
    begun: Instant,
    took: Option<Duration>,
    /// Processes that ended at a step.
    pub(crate) by_step: BTreeMap<Failpoint, u64>,
    /// How often it was planned that one does.
    pub(crate) planned: BTreeMap<Failpoint, u64>,
    pub(crate) at_random: u64,
    /// Of those that ended at a step: stopped there first.
    pub(crate) stopped: u64,
    /// Processes that took the pid of one that was killed.
    pub(crate) same_pid: u64,
    /// Rounds in which the step that was planned was not reached.
    pub(crate) not_reached: u64,
    /// Names in `/dev/shm` that killed processes left, as the provider's documentation says they do.
    pub(crate) names_left: u64,
    /// What importers opened, of those that came to rest by themselves.
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
            by_step: BTreeMap::new(),
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

    /// What a member says of its work.
    pub(crate) fn answer(&mut self, text: &str) {
        let opened = text.split(' ').find_map(|word| word.strip_prefix("opened="));
        self.opened += opened.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    }

    pub(crate) fn steps_without_kill(&self) -> Vec<Failpoint> {
        plan::steps().iter().copied().filter(|step| !self.by_step.contains_key(step)).collect()
    }

    pub(crate) fn todo(&self) -> Vec<Todo> {
        let tries = |step| self.planned.get(&step).copied().unwrap_or(0);
        self.steps_without_kill().into_iter().map(|step| Todo { step, tries: tries(step) }).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_steps: u64 = self.by_step.values().sum();
        write!(
            f,
            "kill matrix: {} rounds, {} killed at {} of {} steps ({} stopped first), {} at random, {} planned steps not \
             reached, {} pids used again, {} names left, {} opened, {} violations, seed {}, {:.1} s",
            self.rounds,
            at_steps,
            self.by_step.len(),
            plan::steps().len(),
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
            let steps: Vec<_> = self.by_step.iter().map(|(step, count)| format!("{step} {count}")).collect();
            write!(f, "; by step: {}", steps.join(", "))?;
        }
        Ok(())
    }
}
