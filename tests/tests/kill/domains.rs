//! The steps of domains: processes are killed at each while others create, register and unregister.
//!
//! A witness has an object, in which the numbers of all others lie, from beginning to end. In each round two processes work
//! on them and a third one is killed, as it joins or later; or it is killed as the first one of another domain, which
//! somebody then joins. What the table then says is known: the witness's object, and who is registered for it.

use super::Failpoint;
use umf_tests::domain::{name, nothing_is_left};
use umf_tests::{Actor, Census, Outcome, Sequence, actor};

use super::by_step::ByStep;
use super::crew::{bound, was_killed};
use super::plan;

/// So often each step is tried until somebody is killed there.
const TRIES: u64 = 12;

/// Whether only the first process of a domain gets to a step, or it does so most often.
fn is_of_the_first(step: Failpoint) -> bool {
    matches!(step, "domain.table_file_made" | "domain.table_made" | "domain.table_grown")
}

fn member(domain: &str) -> Actor {
    let mut actor = actor!();
    actor.ok(&format!("join {domain} 9000"));
    actor
}

struct Rounds {
    domain: String,
    witness: Actor,
    board: String,
    sequence: Sequence,
    round: u64,
}

/// Kills at each step so many times.
pub(crate) fn run(seed: u64, times: u64) -> ByStep {
    let domain = name("kill");
    let mut witness = member(&domain);
    let before = Census::of(&witness);
    let board = witness.ok(&format!("create {domain} 128 77 -> board"));
    let clean = Census::of(&witness);
    let sequence = Sequence::new(seed);
    let mut rounds = Rounds { domain: domain.clone(), witness, board, sequence, round: 0 };
    let mut tally = ByStep::new("domains", plan::is_of_domains);
    for _ in 0..times {
        for step in tally.steps() {
            if (0..TRIES).any(|_| rounds.kills(step)) {
                tally.count(step);
            }
            clean.comes_back(&rounds.witness);
        }
    }
    tally.rounds = rounds.round;
    rounds.witness.ok("drop-object board");
    before.comes_back(&rounds.witness);
    rounds.witness.finish();
    nothing_is_left(&domain);
    tally
}

impl Rounds {
    /// A round; whether somebody was killed at the step in it.
    fn kills(&mut self, step: Failpoint) -> bool {
        self.round += 1;
        let first = is_of_the_first(step) || self.sequence.one_in(6);
        let nth = *self.sequence.of(&[1, 1, 2, 5]);
        let mut victim = actor!();
        victim.ok(&format!("arm {step} {} kill", if first { 1 } else { nth }));
        if first { self.at_the_first(step, victim) } else { self.among_others(step, victim) }
    }

    /// What the victim answers, if it is not killed.
    fn works(victim: &mut Actor, commands: &[String]) -> Option<String> {
        let mut answer = String::new();
        for command in commands {
            let outcome = victim.try_send(command).then(|| victim.outcome(bound()));
            match outcome {
                Some(Outcome::Answer(Ok(text))) => answer = text,
                None | Some(Outcome::Ended) => {
                    let how = victim.reap();
                    assert!(was_killed(&how), "{command}: {how}");
                    return None;
                }
                Some(other) => panic!("{command}: {other:?}"),
            }
        }
        Some(answer)
    }

    /// It is killed where nobody else is yet; somebody comes after it.
    fn at_the_first(&mut self, step: Failpoint, mut victim: Actor) -> bool {
        let domain = format!("{}-{}", self.domain, self.round);
        let commands = [
            format!("join {domain} 9000"),
            format!("create {domain} 5000 77 -> board"),
            format!("domain-storm {domain} board {} 20", self.round),
            "drop-object board".to_owned(),
        ];
        let answer = Self::works(&mut victim, &commands);
        let mut next = member(&domain);
        if answer.is_none() {
            assert_eq!(next.ok(&format!("objects {domain}")), "", "after {step}");
        }
        next.ok(&format!("create {domain} 5000 77 -> board"));
        next.finish();
        let killed = Self::end(victim, answer);
        nothing_is_left(&domain);
        killed
    }

    fn among_others(&mut self, step: Failpoint, mut victim: Actor) -> bool {
        let Self { domain, witness, board, round, .. } = self;
        let mut others: Vec<Actor> = (0..2).map(|_| member(domain)).collect();
        for (seed, other) in others.iter_mut().enumerate() {
            other.ok(&format!("register {domain} {board} 77 -> board"));
            other.send(&format!("domain-storm {domain} board {} 60", *round << 8 | seed as u64));
        }
        let commands = [
            format!("join {domain} 9000"),
            format!("register {domain} {board} 77 -> board"),
            format!("domain-storm {domain} board {} 40", *round << 8 | 9),
            "drop-object board".to_owned(),
            // Looks for the dead.
            format!("objects {domain}"),
            format!("leave {domain}"),
        ];
        let answer = Self::works(&mut victim, &commands);
        for other in &mut others {
            let outcome = other.outcome(bound());
            assert!(matches!(outcome, Outcome::Answer(Ok(_))), "round {round}, {step}: {outcome:?}");
        }
        let listed = witness.ok(&format!("objects {domain}"));
        assert_eq!(listed, format!("{board}:77:4096:3"), "round {round}, {step}");
        for other in others {
            other.finish();
        }
        assert_eq!(witness.ok(&format!("objects {domain}")), format!("{board}:77:4096:1"), "{step}");
        Self::end(victim, answer)
    }

    /// Whether the victim was killed at its step.
    fn end(mut victim: Actor, answer: Option<String>) -> bool {
        if answer.is_none() {
            return true;
        }
        victim.ok("disarm");
        victim.finish();
        false
    }
}
