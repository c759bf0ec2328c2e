//! The campaign for tickets: a process is killed at each failpoint while a message goes from its
//! producer over a second process to a third one.
//!
//! The producer frees its block before the message is read, and the second process closes it before
//! the third one opens it. What a process opens must have the content that was sent. As long as the
//! producer lives, its memory must be free again once the others have closed it or ended.

use std::time::Duration;

use super::Failpoint;
use umf_tests::{Actor, Outcome, Patience, ProcessSnapshot, Rng, spawn};

use super::plan;
use super::tally::FailpointTally;
use super::workers::{bound, is_kill_status};

/// The processes of a round.
struct Processes {
    producer: Actor,
    middle: Actor,
    reader: Actor,
}

/// A step of a round: a process and its command.
enum Step {
    /// It answered.
    Done(String),
    /// Another process has ended, and this one got an error for that.
    Refused,
    /// The victim ended.
    Killed,
}

/// Kills each of the processes at each failpoint, `times` times.
pub(crate) fn run(seed: u64, times: u64) -> FailpointTally {
    let mut tally = FailpointTally::new("tickets", plan::is_of_tickets);
    let mut rng = Rng::new(seed);
    for _ in 0..times {
        for failpoint in tally.failpoints() {
            for victim in 0..3 {
                // Once as the first message of its processes, once as a later one.
                for earlier in [0, 2] {
                    tally.rounds += 1;
                    let mode = *rng.choose(&["pidfd", "procfs", "socket", "auto"]);
                    // The number of connections to a producer changes with the death of a process.
                    let compares = earlier > 0 && mode != "socket" && mode != "auto";
                    if Processes::start(mode).round(failpoint, victim, earlier, compares, &mut rng) {
                        tally.count(failpoint);
                    }
                }
            }
        }
    }
    tally
}

impl Processes {
    fn start(mode: &str) -> Self {
        let start = || spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_IPC_OPEN_TIMEOUT_MS", "400").start();
        let mut producer = start();
        producer.ok("pool p shared");
        Self { producer, middle: start(), reader: start() }
    }

    fn all(&mut self) -> [&mut Actor; 3] {
        [&mut self.producer, &mut self.middle, &mut self.reader]
    }

    /// Runs a round. Returns whether the victim was killed at the failpoint.
    fn round(
        mut self,
        failpoint: Failpoint,
        victim: usize,
        earlier: u64,
        compares: bool,
        rng: &mut Rng,
    ) -> bool {
        for seed in 0..earlier {
            assert!(!self.pass_message(seed, usize::MAX), "no process is armed");
        }
        let before = self.all().map(|actor| ProcessSnapshot::of(actor));
        self.all()[victim].ok(&format!("arm {failpoint} 1 kill"));
        let killed = self.pass_message(100 + rng.below(100), victim);
        if killed {
            let status = self.all()[victim].reap();
            assert!(is_kill_status(&status), "{failpoint}: {status}");
        }
        self.check_rest(failpoint, killed.then_some(victim), compares.then_some(&before));
        killed
    }

    /// Passes a message from the producer to the reader. Returns whether the victim was killed.
    fn pass_message(&mut self, seed: u64, victim: usize) -> bool {
        const STEPS: usize = 12;
        let (mut message, mut passed_on, mut killed) = (String::new(), String::new(), false);
        for number in 0..STEPS {
            let (at, command) = match number {
                0 => (0, "alloc p 10240 -> p.block".to_owned()),
                1 => (0, format!("fill p.block {seed}")),
                2 => (0, "send p.block 1".to_owned()),
                3 => (0, "free p p.block".to_owned()),
                4 => (1, format!("open {message} -> got")),
                5 => (1, format!("check got {seed}")),
                6 => (1, format!("pass-on got {message} 1")),
                7 => (1, "close got".to_owned()),
                8 => (2, format!("open {passed_on} -> got")),
                9 => (2, format!("check got {seed}")),
                10 => (2, "close got".to_owned()),
                // A message that no process reads.
                _ => (0, "alloc p 10240 -> p.unread".to_owned()),
            };
            let has_handle = match number {
                4..=7 => !message.is_empty(),
                8..=10 => !passed_on.is_empty(),
                _ => true,
            };
            if !has_handle || (killed && at == victim) {
                continue;
            }
            match step(self.all()[at], &command, at == victim, killed) {
                Step::Done(answer) if number == 2 => message = answer,
                Step::Done(answer) if number == 6 => passed_on = answer,
                Step::Done(_) | Step::Refused => {}
                Step::Killed => killed = true,
            }
        }
        if !(killed && victim == 0) {
            killed |= self.cancel_unread(victim);
        }
        // What a killed process did not read stays in transit until its sender cancels it.
        for (at, handle) in [(0, message), (1, passed_on)] {
            let has_ended = killed && at == victim;
            if !(handle.is_empty() || has_ended) {
                let cancelled = step(self.all()[at], &format!("cancel {handle}"), at == victim, killed);
                assert!(killed || !matches!(&cancelled, Step::Done(answer) if answer == "true"));
                killed |= matches!(cancelled, Step::Killed);
            }
        }
        for at in 0..3 {
            if !(killed && at == victim) {
                killed |= matches!(step(self.all()[at], "in-transit", at == victim, killed), Step::Killed);
            }
        }
        killed
    }

    /// Sends a message that no process reads, and cancels it. Returns whether the producer was
    /// killed.
    fn cancel_unread(&mut self, victim: usize) -> bool {
        let is_victim = victim == 0;
        let handle = match step(&mut self.producer, "send p.unread 2", is_victim, false) {
            Step::Done(handle) => handle,
            Step::Refused => return false,
            Step::Killed => return true,
        };
        ["free p p.unread".to_owned(), format!("cancel {handle}")]
            .iter()
            .any(|command| matches!(step(&mut self.producer, command, is_victim, false), Step::Killed))
    }

    /// Checks what the survivors of a round hold.
    fn check_rest(
        &mut self,
        failpoint: Failpoint,
        killed: Option<usize>,
        before: Option<&[ProcessSnapshot; 3]>,
    ) {
        for (at, actor) in self.all().into_iter().enumerate().filter(|(at, _)| Some(*at) != killed) {
            assert_eq!(actor.ok("in-transit"), "0", "{failpoint}: process {at}, {killed:?} killed");
        }
        if killed == Some(0) {
            return;
        }
        let mut patience = Patience::new(Duration::from_secs(20));
        while self.producer.ok("drain 0") != "0" {
            assert!(patience.sleep(), "{failpoint}: memory is held, {killed:?} killed");
        }
        let Some(before) = before else { return };
        for (at, actor) in self.all().into_iter().enumerate().filter(|(at, _)| Some(*at) != killed) {
            before[at].assert_restored(actor);
        }
    }
}

/// Runs a command. `may_end`: the process is the victim. `may_fail`: another process has ended.
fn step(actor: &mut Actor, command: &str, may_end: bool, may_fail: bool) -> Step {
    actor.send(command);
    match actor.outcome(bound()) {
        Outcome::Answer(Ok(answer)) => Step::Done(answer),
        Outcome::Answer(Err(failure)) => {
            let is_expected = matches!(
                failure.variant.as_str(),
                // The last: a command for a mapping that could not be opened.
                "ProducerGone" | "TicketClaimed" | "TimedOut" | "NotPermitted" | "Unknown"
            );
            assert!(may_fail && is_expected, "{command}: {failure}");
            Step::Refused
        }
        Outcome::Ended if may_end => Step::Killed,
        outcome => panic!("{command}: {outcome:?}"),
    }
}
