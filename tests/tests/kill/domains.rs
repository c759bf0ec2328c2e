//! The campaign for domains: a process is killed at each failpoint while others create, register
//! and unregister objects.
//!
//! A witness has an object, the index, which holds the numbers of the other objects. In a round two
//! processes use these objects, and a third one is killed as it joins or later. In other rounds the
//! victim is the first process of a new domain, which another process joins after the kill. Then
//! the table of the domain must list the index and its registrants, and nothing else.
//!
//! A second campaign is of domains in a directory, of which no file must be left.

use std::path::{Path, PathBuf};

use super::Failpoint;
use umf_tests::domain::{assert_nothing_left, name};
use umf_tests::{Actor, Outcome, ProcessSnapshot, Rng};

use super::plan;
use super::tally::FailpointTally;
use super::workers::{bound, in_directory, is_kill_status, spawn_in};

/// Tries for a kill at each failpoint.
const TRIES: u64 = 12;

/// Returns whether usually only the first process of a domain reaches a failpoint.
fn is_reached_by_first_process(failpoint: Failpoint) -> bool {
    matches!(failpoint, "domain.table_file_made" | "domain.table_made" | "domain.table_grown")
        || is_of_leftovers(failpoint)
}

/// Returns whether a process reaches a failpoint if another one was killed before.
fn is_of_leftovers(failpoint: Failpoint) -> bool {
    matches!(failpoint, "directory.dead_locked" | "directory.leftover_removed")
}

fn member(directory: Option<&Path>, domain: &str) -> Actor {
    let mut actor = spawn_in(directory).start();
    actor.ok(&format!("join {domain} 9000"));
    actor
}

struct Rounds {
    directory: Option<PathBuf>,
    domain: String,
    witness: Actor,
    index: String,
    rng: Rng,
    round: u64,
}

/// Kills a process at each failpoint, `times` times.
pub(crate) fn run(seed: u64, times: u64) -> FailpointTally {
    campaign(seed, times, None, plan::is_of_domains)
}

/// As [`run`], for domains in a directory.
pub(crate) fn run_in_directory(seed: u64, times: u64) -> FailpointTally {
    in_directory(|path| campaign(seed, times, Some(path), plan::is_of_domains_in_directory))
}

fn campaign(
    seed: u64,
    times: u64,
    directory: Option<&Path>,
    is_of_campaign: fn(Failpoint) -> bool,
) -> FailpointTally {
    let domain = name(if directory.is_some() { "kill-directory" } else { "kill" });
    let mut witness = member(directory, &domain);
    let before = ProcessSnapshot::of(&witness);
    let index = witness.ok(&format!("create {domain} 128 77 -> index"));
    let clean = ProcessSnapshot::of(&witness);
    let rng = Rng::new(seed);
    let directory = directory.map(Path::to_owned);
    let mut rounds = Rounds { directory, domain: domain.clone(), witness, index, rng, round: 0 };
    let mut tally = FailpointTally::new("domains", is_of_campaign);
    for _ in 0..times {
        for failpoint in tally.failpoints() {
            if (0..TRIES).any(|_| rounds.kills(failpoint)) {
                tally.count(failpoint);
            }
            clean.assert_restored(&rounds.witness);
        }
    }
    tally.rounds = rounds.round;
    rounds.witness.ok("drop-object index");
    before.assert_restored(&rounds.witness);
    rounds.witness.finish();
    assert_nothing_left(&domain);
    tally
}

impl Rounds {
    /// Runs a round. Returns whether the victim was killed at the failpoint.
    fn kills(&mut self, failpoint: Failpoint) -> bool {
        self.round += 1;
        let first = is_reached_by_first_process(failpoint) || self.rng.one_in(6);
        let nth = *self.rng.choose(&[1, 1, 2, 5]);
        if is_of_leftovers(failpoint) {
            member(self.directory.as_deref(), &format!("{}-left", self.domain)).kill();
        }
        let mut victim = spawn_in(self.directory.as_deref()).start();
        victim.ok(&format!("arm {failpoint} {} kill", if first { 1 } else { nth }));
        if first {
            self.kill_first_process(failpoint, victim)
        } else {
            self.kill_among_members(failpoint, victim)
        }
    }

    /// Runs commands of the victim. Returns the last answer, or `None` if the victim was killed.
    fn run_commands(victim: &mut Actor, commands: &[String]) -> Option<String> {
        let mut answer = String::new();
        for command in commands {
            let outcome = victim.try_send(command).then(|| victim.outcome(bound()));
            match outcome {
                Some(Outcome::Answer(Ok(text))) => answer = text,
                None | Some(Outcome::Ended) => {
                    let how = victim.reap();
                    assert!(is_kill_status(&how), "{command}: {how}");
                    return None;
                }
                Some(other) => panic!("{command}: {other:?}"),
            }
        }
        Some(answer)
    }

    /// Kills the victim as the only process of a domain, which another process then joins.
    fn kill_first_process(&mut self, failpoint: Failpoint, mut victim: Actor) -> bool {
        let domain = format!("{}-{}", self.domain, self.round);
        let commands = [
            format!("join {domain} 9000"),
            format!("create {domain} 5000 77 -> index"),
            format!("domain-stress {domain} index {} 20", self.round),
            "drop-object index".to_owned(),
        ];
        let answer = Self::run_commands(&mut victim, &commands);
        let mut next = member(self.directory.as_deref(), &domain);
        if answer.is_none() {
            assert_eq!(next.ok(&format!("objects {domain}")), "", "after {failpoint}");
        }
        next.ok(&format!("create {domain} 5000 77 -> index"));
        next.finish();
        let killed = Self::end(victim, answer);
        assert_nothing_left(&domain);
        killed
    }

    fn kill_among_members(&mut self, failpoint: Failpoint, mut victim: Actor) -> bool {
        let Self { directory, domain, witness, index, round, .. } = self;
        let mut others: Vec<Actor> = (0..2).map(|_| member(directory.as_deref(), domain)).collect();
        for (seed, other) in others.iter_mut().enumerate() {
            other.ok(&format!("register {domain} {index} 77 -> index"));
            other.send(&format!("domain-stress {domain} index {} 60", *round << 8 | seed as u64));
        }
        let commands = [
            format!("join {domain} 9000"),
            format!("register {domain} {index} 77 -> index"),
            format!("domain-stress {domain} index {} 40", *round << 8 | 9),
            "drop-object index".to_owned(),
            // Finds dead processes.
            format!("objects {domain}"),
            format!("leave {domain}"),
        ];
        let answer = Self::run_commands(&mut victim, &commands);
        for other in &mut others {
            let outcome = other.outcome(bound());
            assert!(matches!(outcome, Outcome::Answer(Ok(_))), "round {round}, {failpoint}: {outcome:?}");
        }
        let listed = witness.ok(&format!("objects {domain}"));
        assert_eq!(listed, format!("{index}:77:4096:3"), "round {round}, {failpoint}");
        for other in others {
            other.finish();
        }
        assert_eq!(witness.ok(&format!("objects {domain}")), format!("{index}:77:4096:1"), "{failpoint}");
        Self::end(victim, answer)
    }

    /// Returns whether the victim was killed, and ends it otherwise.
    fn end(mut victim: Actor, answer: Option<String>) -> bool {
        if answer.is_none() {
            return true;
        }
        victim.ok("disarm");
        victim.finish();
        false
    }
}
