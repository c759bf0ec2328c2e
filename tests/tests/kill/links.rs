//! The campaign for links: one of two processes is killed at each failpoint while they connect,
//! exchange messages and close, as the two ends of a link, as ranks of a job or as meshes. The other process
//! must get an error, and hold afterwards what it held before. A second campaign is of sockets in a
//! directory.

use std::path::Path;

use super::Failpoint;
use umf_tests::{Actor, Failure, Outcome, ProcessSnapshot, Rng};

use super::plan;
use super::tally::FailpointTally;
use super::workers::{bound, in_directory, is_kill_status, spawn_in};

/// Tries for a kill at each failpoint, a third of them with each engine.
const TRIES: u64 = 8;
/// The same at failpoints of ranks, which only one of two ranks reaches, by chance.
const TRIES_OF_RANKS: u64 = 32;

/// Returns the engine with which both processes reach a failpoint.
fn engine_of(failpoint: Failpoint, rng: &mut Rng) -> &'static str {
    match failpoint {
        "link.filled" | "link.bounce_asked" | "link.emptied" => "bounce",
        "link.asked" | "link.served" => "bounce",
        "link.pushed" | "link.push_asked" | "link.pulled" => "both",
        "link.range_entered" | "link.range_left" => ["auto", "both"][rng.below(2) as usize],
        _ => ["auto", "bounce", "both"][rng.below(3) as usize],
    }
}

/// Kills a process at each failpoint, `times` times.
pub(crate) fn run(seed: u64, times: u64) -> FailpointTally {
    campaign(seed, times, None, plan::is_of_links_without_directory)
}

/// As [`run`], for links and ranks that find each other in a directory. The kills are at the
/// failpoints of finding and leaving; those of messages are the same without a directory.
pub(crate) fn run_in_directory(seed: u64, times: u64) -> FailpointTally {
    in_directory(|path| campaign(seed, times, Some(path), plan::is_of_links_in_directory))
}

fn campaign(
    seed: u64,
    times: u64,
    directory: Option<&Path>,
    is_of_campaign: fn(Failpoint) -> bool,
) -> FailpointTally {
    let mut rng = Rng::new(seed);
    let mut tally = FailpointTally::new("links", is_of_campaign);
    for engine in ["auto", "bounce", "both"] {
        let spawn = || {
            let spawn = spawn_in(directory).env("UMF_LINK_ENGINE", engine);
            spawn.env("UMF_LINK_BOTH_MIN", "16KiB").start()
        };
        let mut survivor = spawn();
        // The first links create objects that stay until the process ends. They need a live peer.
        for accepts in [true, false] {
            let mut first = spawn();
            assert!(!round(&mut survivor, &mut first, accepts, 1));
            assert!(!round_of_ranks(&mut survivor, &mut first, u64::from(accepts), spawn));
            assert!(!round_of_meshes(&mut survivor, &mut first, accepts, 1));
            first.finish();
        }
        survivor.ok("evict");
        let rest = ProcessSnapshot::of(&survivor);
        for _ in 0..times {
            for failpoint in tally.failpoints() {
                let is_of_ranks = failpoint.starts_with("link.rank_");
                for _ in 0..if is_of_ranks { TRIES_OF_RANKS } else { TRIES } {
                    if engine_of(failpoint, &mut rng) != engine {
                        continue;
                    }
                    tally.rounds += 1;
                    let accepts = accepts(failpoint).unwrap_or_else(|| rng.one_in(2));
                    let nth = if is_repeated(failpoint) { *rng.choose(&[1, 1, 2, 7]) } else { 1 };
                    let mut victim = spawn();
                    victim.ok(&format!("arm {failpoint} {nth} kill"));
                    let killed = if is_of_ranks || rng.one_in(6) {
                        round_of_ranks(&mut survivor, &mut victim, rng.below(2), spawn)
                    } else if failpoint == "link.mesh_met" || rng.one_in(4) {
                        round_of_meshes(&mut survivor, &mut victim, accepts, rng.next_u64())
                    } else {
                        round(&mut survivor, &mut victim, accepts, rng.next_u64())
                    };
                    if killed {
                        tally.count(failpoint);
                        break;
                    }
                }
                survivor.ok("evict");
                rest.assert_restored(&survivor);
            }
        }
        survivor.finish();
    }
    tally
}

/// Returns whether the victim must accept (or must connect) to reach a failpoint.
fn accepts(failpoint: Failpoint) -> Option<bool> {
    match failpoint {
        "link.listening" | "link.accepted" | "link.answering" | "link.welcomed" | "link.mesh_met" => {
            Some(true)
        }
        "link.connected" | "link.proven" | "link.lane_made" | "link.proposed" => Some(false),
        _ => None,
    }
}

/// Returns whether a process reaches a failpoint often in a round.
fn is_repeated(failpoint: Failpoint) -> bool {
    matches!(
        failpoint,
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

/// Runs a command of the victim. Returns its answer, or `None` if the victim was killed.
fn command_victim(victim: &mut Actor, command: &str) -> Option<Result<String, Failure>> {
    if victim.is_reaped() {
        return None;
    }
    match victim.try_send(command).then(|| victim.outcome(bound())) {
        Some(Outcome::Answer(answer)) => Some(answer),
        None | Some(Outcome::Ended) => {
            let how = victim.reap();
            assert!(is_kill_status(&how), "{command}: {how}");
            None
        }
        Some(Outcome::TimedOut) => panic!("{command}: a hang"),
    }
}

/// Waits for the survivor's answer to a command that needs both processes. It must succeed, or fail
/// because the victim is gone.
fn await_survivor(survivor: &mut Actor, command: &str) {
    match survivor.outcome(bound()) {
        Outcome::Answer(Ok(_)) => {}
        Outcome::Answer(Err(failure)) => {
            // The kernel refuses copies from an exiting process before its pidfd becomes readable.
            // A forced engine is then impossible.
            let known = ["PeerGone", "Closed", "TimedOut", "NotListening", "Unknown", "EngineImpossible"];
            assert!(known.contains(&failure.variant.as_str()), "{command}: {failure}");
        }
        other => panic!("{command}: {other:?}"),
    }
}

/// Runs a round of a link. Returns whether the victim was killed.
fn round(survivor: &mut Actor, victim: &mut Actor, accepts: bool, seed: u64) -> bool {
    // The accepting process makes the address.
    let address = if accepts {
        let Some(address) = command_victim(victim, "link-bind end") else { return true };
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
    let _ = command_victim(victim, &theirs);
    await_survivor(survivor, &mine);
    for alone in ["link-watch link", "link-child link", "link-withdraw link"] {
        let _ = command_victim(victim, alone);
    }
    let seed = seed % 1000;
    let mine = format!("link-exchange link {seed} {} 8", seed + 1);
    survivor.send(&mine);
    let _ = command_victim(victim, &format!("link-exchange link {} {seed} 8", seed + 1));
    await_survivor(survivor, &mine);
    let mine = format!("link-traffic link {seed} {} 300", seed + 1);
    survivor.send(&mine);
    let _ = command_victim(victim, &format!("link-traffic link {} {seed} 300", seed + 1));
    await_survivor(survivor, &mine);
    let _ = command_victim(victim, "link-unbind end");
    survivor.ok("link-drop link");
    survivor.ok("link-unbind end");
    if !victim.is_reaped() {
        victim.ok("disarm");
    }
    victim.is_reaped()
}

/// Runs a round of two meshes, of which one accepts, and sends when it has got a message. Returns
/// whether the victim was killed.
fn round_of_meshes(survivor: &mut Actor, victim: &mut Actor, accepts: bool, seed: u64) -> bool {
    let own = survivor.ok("mesh-new mesh");
    if let Some(address) = command_victim(victim, "mesh-new mesh") {
        let [mine, theirs] = if accepts { ["sends", "answers"] } else { ["answers", "sends"] };
        let seed = seed % 1000;
        let mine = format!("mesh-exchange mesh {} {mine} 40 {seed} {}", address.unwrap(), seed + 1);
        survivor.send(&mine);
        let _ = command_victim(victim, &format!("mesh-exchange mesh {own} {theirs} 40 {} {seed}", seed + 1));
        await_survivor(survivor, &mine);
        let _ = command_victim(victim, "mesh-drop mesh");
    }
    survivor.ok("mesh-drop mesh");
    if !victim.is_reaped() {
        victim.ok("disarm");
    }
    victim.is_reaped()
}

/// Runs a round of two ranks of a job, of which `rank` is the victim. Returns whether it was
/// killed.
///
/// Another process then joins as this rank: a killed rank must leave nothing that prevents this.
fn round_of_ranks(survivor: &mut Actor, victim: &mut Actor, rank: u64, spawn: impl Fn() -> Actor) -> bool {
    let (job, other) = (format!("kill-{}", survivor.pid()), 1 - rank);
    survivor.ok(&format!("comm-join {job} {other} 2 -> comm"));
    if command_victim(victim, &format!("comm-join {job} {rank} 2 -> comm")).is_some() {
        if rank == 0 {
            // The victim connects first, and not the survivor.
            let _ = command_victim(victim, &format!("comm-send comm {other} 9 1"));
        }
        survivor.send("comm-rounds comm 2");
        let _ = command_victim(victim, "comm-rounds comm 2");
        await_survivor(survivor, "comm-rounds");
        let _ = command_victim(victim, "comm-drop comm");
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
