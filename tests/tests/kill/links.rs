//! The steps of links: one of two processes is killed at each, while they meet, exchange messages and part,
//! as the two ends of a link or as ranks of a job. The other process gets an error, and has afterwards what
//! it had before.

use super::Failpoint;
use umf_tests::{Actor, Census, Failure, Outcome, Sequence, spawn};

use super::by_step::ByStep;
use super::crew::{bound, was_killed};
use super::plan;

/// So often each step is tried until somebody is killed there.
const TRIES: u64 = 8;

/// The engine with which both get to a step.
fn engine_of(step: Failpoint, sequence: &mut Sequence) -> &'static str {
    match step {
        "link.filled" | "link.bounce_asked" | "link.emptied" => "bounce",
        "link.asked" | "link.served" => "bounce",
        "link.pushed" | "link.push_asked" | "link.pulled" => "both",
        "link.range_entered" | "link.range_left" => ["auto", "both"][sequence.below(2) as usize],
        _ => ["auto", "bounce", "both"][sequence.below(3) as usize],
    }
}

/// Kills at each step so many times.
pub(crate) fn run(seed: u64, times: u64) -> ByStep {
    let mut sequence = Sequence::new(seed);
    let mut tally = ByStep::new("links", plan::is_of_links);
    for engine in ["auto", "bounce", "both"] {
        let spawn = || spawn!().env("UMF_LINK_ENGINE", engine).env("UMF_LINK_BOTH_MIN", "16KiB").start();
        let mut survivor = spawn();
        // What is made once is made with somebody who lives.
        for accepts in [true, false] {
            let mut first = spawn();
            assert!(!round(&mut survivor, &mut first, accepts, 1));
            assert!(!round_of_ranks(&mut survivor, &mut first, u64::from(accepts), spawn));
            first.finish();
        }
        survivor.ok("evict");
        let rest = Census::of(&survivor);
        for _ in 0..times {
            for step in tally.steps() {
                for _ in 0..TRIES {
                    if engine_of(step, &mut sequence) != engine {
                        continue;
                    }
                    tally.rounds += 1;
                    let accepts = accepts(step).unwrap_or_else(|| sequence.one_in(2));
                    let nth = if is_repeated(step) { *sequence.of(&[1, 1, 2, 7]) } else { 1 };
                    let mut victim = spawn();
                    victim.ok(&format!("arm {step} {nth} kill"));
                    let killed = if step.starts_with("link.rank_") || sequence.one_in(6) {
                        round_of_ranks(&mut survivor, &mut victim, sequence.below(2), spawn)
                    } else {
                        round(&mut survivor, &mut victim, accepts, sequence.number())
                    };
                    if killed {
                        tally.count(step);
                        break;
                    }
                }
                survivor.ok("evict");
                rest.comes_back(&survivor);
            }
        }
        survivor.finish();
    }
    tally
}

/// Whether the victim has to be who accepts (or who connects) to get to a step.
fn accepts(step: Failpoint) -> Option<bool> {
    match step {
        "link.listening" | "link.accepted" | "link.answering" | "link.welcomed" => Some(true),
        "link.connected" | "link.lane_made" | "link.proposed" => Some(false),
        _ => None,
    }
}

/// Whether a process gets to a step often in a round.
fn is_repeated(step: Failpoint) -> bool {
    matches!(
        step,
        "link.sent"
            | "link.offered"
            | "link.filled"
            | "link.pulled"
            | "link.taken"
            | "link.emptied"
            | "link.asked"
            | "link.served"
            | "link.range_entered"
            | "link.range_left"
    )
}

/// What the victim answers, if it is not killed; it may be refused.
fn says(victim: &mut Actor, command: &str) -> Option<Result<String, Failure>> {
    if victim.is_reaped() {
        return None;
    }
    match victim.try_send(command).then(|| victim.outcome(bound())) {
        Some(Outcome::Answer(answer)) => Some(answer),
        None | Some(Outcome::Ended) => {
            let how = victim.reap();
            assert!(was_killed(&how), "{command}: {how}");
            None
        }
        Some(Outcome::Silent) => panic!("{command}: a hang"),
    }
}

/// The survivor's part of something that both do: it works, or the other one is gone.
fn survives(survivor: &mut Actor, command: &str) {
    match survivor.outcome(bound()) {
        Outcome::Answer(Ok(_)) => {}
        Outcome::Answer(Err(failure)) => {
            // (The kernel refuses copies of a process that is ending before its pidfd tells; an engine that was chosen
            // is impossible then.)
            let known = ["PeerGone", "Closed", "TimedOut", "NobodyThere", "Unknown", "EngineImpossible"];
            assert!(known.contains(&failure.variant.as_str()), "{command}: {failure}");
        }
        other => panic!("{command}: {other:?}"),
    }
}

/// Whether the victim was killed in it.
fn round(survivor: &mut Actor, victim: &mut Actor, accepts: bool, seed: u64) -> bool {
    // The address comes from whoever accepts.
    let address = if accepts {
        let Some(address) = says(victim, "link-bind end") else { return true };
        address.unwrap()
    } else {
        survivor.ok("link-bind end")
    };
    let mut both =
        ["link-accept end 3000 -> link".to_owned(), format!("link-connect {address} 3000 -> link")];
    if !accepts {
        both.reverse();
    }
    let [theirs, mine] = both;
    survivor.send(&mine);
    let _ = says(victim, &theirs);
    survives(survivor, &mine);
    for alone in ["link-watch link", "link-child link", "link-withdraw link"] {
        let _ = says(victim, alone);
    }
    let seed = seed % 1000;
    let mine = format!("link-board link {seed} {} 8", seed + 1);
    survivor.send(&mine);
    let _ = says(victim, &format!("link-board link {} {seed} 8", seed + 1));
    survives(survivor, &mine);
    let mine = format!("link-traffic link {seed} {} 300", seed + 1);
    survivor.send(&mine);
    let _ = says(victim, &format!("link-traffic link {} {seed} 300", seed + 1));
    survives(survivor, &mine);
    let _ = says(victim, "link-unbind end");
    survivor.ok("link-drop link");
    survivor.ok("link-unbind end");
    if !victim.is_reaped() {
        victim.ok("disarm");
    }
    victim.is_reaped()
}

/// As [`round`], with two ranks of a job. Another process then takes the place of the victim, which is
/// `rank`: a kill leaves no word of the job that prevents this.
fn round_of_ranks(survivor: &mut Actor, victim: &mut Actor, rank: u64, spawn: impl Fn() -> Actor) -> bool {
    let (job, other) = (format!("kill-{}", survivor.pid()), 1 - rank);
    survivor.ok(&format!("comm-join {job} {other} 2 -> comm"));
    if says(victim, &format!("comm-join {job} {rank} 2 -> comm")).is_some() {
        if rank == 0 {
            // The victim makes the link, and not the survivor.
            let _ = says(victim, &format!("comm-send comm {other} 9 1"));
        }
        survivor.send("comm-rounds comm 2");
        let _ = says(victim, "comm-rounds comm 2");
        survives(survivor, "comm-rounds");
        let _ = says(victim, "comm-drop comm");
    }
    survivor.ok(&format!("comm-forget comm {rank}"));
    let mut next = spawn();
    next.ok(&format!("comm-join {job} {rank} 2 -> comm"));
    survivor.ok(&format!("comm-send comm {rank} 5 77"));
    assert_eq!(next.ok("comm-recv-any comm"), format!("{other} 77"));
    next.ok("comm-drop comm");
    next.finish();
    survivor.ok("comm-drop comm");
    if !victim.is_reaped() {
        victim.ok("disarm");
    }
    victim.is_reaped()
}
