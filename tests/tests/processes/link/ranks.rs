//! Communicators: processes as ranks of a job.

use std::time::{Duration, Instant};

use umf_tests::{Actor, Outcome, ProcessSnapshot, Rng, actor, machine};

use super::BOUND;

fn job(what: &str) -> String {
    format!("{what}-{}", std::process::id())
}

fn join(actors: &mut [Actor], job: &str) {
    let size = actors.len();
    for (rank, actor) in actors.iter_mut().enumerate() {
        actor.ok(&format!("comm-join {job} {rank} {size} -> f"));
    }
}

/// Receives from any rank. The first call may report the end of the process `gone`.
fn received(actor: &mut Actor, gone: &str) -> String {
    actor.ask("comm-recv-any f").unwrap_or_else(|failure| {
        assert!(failure.variant == "PeerGone" && failure.to_string().contains(gone), "{failure}");
        actor.ok("comm-recv-any f")
    })
}

#[test]
fn ranks_communicate_and_leak_nothing() {
    let mut actors = [actor!(), actor!(), actor!()];
    let mut before = [const { None }; 3];
    for round in 0..4 {
        join(&mut actors, &job("together"));
        for actor in &mut actors {
            actor.send("comm-rounds f 5");
        }
        for actor in &mut actors {
            assert_eq!(actor.answer(BOUND).unwrap(), "5");
        }
        // From each rank to each other rank.
        for to in 0..3 {
            for from in (0..3).filter(|from| *from != to) {
                actors[from].ok(&format!("comm-send f {to} 1 {}", 10 * from + to));
            }
            let mut seen: Vec<_> = (0..2).map(|_| actors[to].ok("comm-recv-any f")).collect();
            seen.sort();
            let expected: Vec<_> =
                (0..3).filter(|from| *from != to).map(|from| format!("{from} {}", 10 * from + to)).collect();
            assert_eq!(seen, expected);
        }
        for actor in &mut actors {
            actor.ok("comm-drop f");
            actor.ok("evict");
        }
        if round > 0 {
            for (before, actor) in before.iter_mut().zip(&actors) {
                before.get_or_insert_with(|| ProcessSnapshot::of(actor)).assert_restored(actor);
            }
        }
    }
    for before in before.iter().flatten() {
        assert!(before.mappings.keys().all(|name| !name.contains("umf-link")));
    }
    actors.into_iter().for_each(Actor::finish);
}

/// Kills one of three ranks during collectives. The others get an error that names it, and can
/// still exchange messages.
#[test]
fn kill_of_rank_ends_collective_on_all_ranks() {
    let rounds = if machine::is_long() { 300 } else { 8 };
    let mut rng = Rng::new(u64::from(std::process::id()) + 1);
    let [mut one, mut other] = [actor!(), actor!()];
    let (mut rest, mut slowest) = (None, Duration::ZERO);
    for round in 0..rounds {
        let mut actors = [one, other, actor!()];
        let pids = actors.each_ref().map(Actor::pid);
        // Rotates the ranks, so that the victim has each of them.
        let turn = usize::try_from(rng.below(3)).unwrap();
        actors.rotate_left(turn);
        let name = job("kill");
        join(&mut actors, &name);
        actors.rotate_right(turn);
        // The barrier connects all ranks: the end of an unconnected rank is reported in another
        // way.
        for command in ["comm-barrier f", "comm-rounds f 1000000"] {
            for actor in &mut actors {
                actor.send(command);
            }
            if command == "comm-barrier f" {
                actors.iter_mut().for_each(|actor| drop(actor.answer(BOUND).unwrap()));
            }
        }
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
        let [first, second, mut victim] = actors;
        if rng.one_in(5) {
            victim.stop();
            std::thread::sleep(Duration::from_millis(rng.below(40)));
        }
        let start = Instant::now();
        victim.kill_unreaped();
        let mut survivors = [first, second];
        for survivor in &mut survivors {
            match survivor.outcome(BOUND) {
                Outcome::Answer(Err(failure)) => {
                    assert_eq!(failure.variant, "PeerGone", "{round}: {failure}");
                    assert!(failure.to_string().contains(&pids[2].to_string()), "{round}: {failure}");
                }
                other => panic!("{round}: {other:?}"),
            }
            slowest = slowest.max(start.elapsed());
        }
        drop(victim);
        for survivor in &mut survivors {
            assert!(survivor.ask("comm-barrier f").is_err(), "collectives are over");
        }
        // The survivors can still exchange messages.
        let [first, second] = &mut survivors;
        let ranks = [0, 1].map(|place: usize| (place + 3 - turn) % 3);
        first.ok(&format!("comm-send f {} 4 77", ranks[1]));
        assert_eq!(received(second, &pids[2].to_string()), format!("{} 77", ranks[0]));
        for survivor in &mut survivors {
            survivor.ok("comm-drop f");
            survivor.ok("evict");
        }
        if round >= 2 {
            match &rest {
                None => rest = Some(survivors.each_ref().map(ProcessSnapshot::of)),
                Some(rest) => {
                    rest.iter().zip(&survivors).for_each(|(rest, actor)| rest.assert_restored(actor))
                }
            }
        }
        [one, other] = survivors;
    }
    println!("{rounds} rounds, the slowest error took {slowest:?}");
    one.finish();
    other.finish();
}

#[test]
fn dead_rank_is_replaced_by_new_process() {
    let mut actors = [actor!(), actor!()];
    let name = job("replaced");
    join(&mut actors, &name);
    let [mut one, mut other] = actors;
    other.ok("comm-send f 0 1 5");
    assert_eq!(one.ok("comm-recv-any f"), "1 5");
    let mut late = actor!();
    let taken = late.fails(&format!("comm-join {name} 1 2 -> f"), "RankTaken");
    assert!(taken.contains(&other.pid().to_string()), "{taken}");
    other.kill();
    late.ok(&format!("comm-join {name} 1 2 -> f"));
    one.fails("comm-recv-any f", "PeerGone");
    late.ok("comm-send f 0 1 6");
    one.ok("comm-forget f 1");
    assert_eq!(one.ok("comm-recv-any f"), "1 6");
    // A rank that does not join causes a timeout.
    late.kill();
    one.ok("comm-forget f 1");
    one.ok("comm-timeout f 100");
    let absent = one.fails("comm-send f 1 1 7", "RankAbsent");
    assert!(absent.contains("rank 1") && absent.contains(&name) && absent.contains("100 ms"), "{absent}");
    one.fails("comm-barrier f", "RankAbsent");
    one.finish();
}

#[test]
fn names_bound_by_other_users_are_skipped() {
    if !machine::is_root() {
        return machine::skip("names_bound_by_other_users_are_skipped", "changing the user needs root");
    }
    let name = job("squatted");
    let mut squatter = actor!();
    squatter.ok("setuid 65534");
    for rank in 0..2 {
        squatter.ok(&format!("bind umf-link-0-{name}:{rank}:0123456789abcdef"));
    }
    let mut actors = [actor!(), actor!()];
    join(&mut actors, &name);
    for actor in &mut actors {
        actor.send("comm-rounds f 2");
    }
    for actor in &mut actors {
        assert_eq!(actor.answer(BOUND).unwrap(), "2");
    }
    // A process of this user that binds a name but does not answer is not a rank.
    let mut silent = actor!();
    silent.ok(&format!("bind umf-link-0-{name}:9:0123456789abcdef"));
    actors.into_iter().for_each(Actor::finish);
    squatter.finish();
    silent.finish();
}

#[test]
fn forked_child_cannot_use_communicator() {
    let mut actors = [actor!(), actor!()];
    join(&mut actors, &job("forked"));
    let [one, other] = &mut actors;
    one.ok("comm-send f 1 1 5");
    other.ok("comm-recv-any f");
    one.fork();
    for command in ["comm-barrier f", "comm-send f 1 1 6", "comm-recv-any f"] {
        let failure = one.ask(&format!("child {command}")).unwrap_err();
        assert_eq!(failure.variant, "Forked", "{command}: {failure}");
    }
    assert_eq!(one.ok("comm-child-calls f"), "0");
    one.ok("child comm-drop f");
    one.send("comm-rounds f 2");
    other.ok("comm-rounds f 2");
    assert_eq!(one.answer(BOUND).unwrap(), "2");
    one.ok("child linger");
    let [mut one, mut other] = actors;
    one.kill();
    other.fails("comm-recv-any f", "PeerGone");
    other.finish();
}

/// Kills a rank before any other rank has a link with it. Ranks that wait for it get an error, and
/// so do ranks that wait later.
#[test]
fn kill_of_unconnected_rank_is_reported_to_all() {
    let rounds: u64 = if machine::is_long() { 200 } else { 6 };
    let waits = ["comm-send f 2 1 7", "comm-recv-any f", "comm-barrier f"];
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        // The victim joins first, in the middle or last.
        let mut actors = [actor!(), actor!(), actor!()];
        let name = job("unmet");
        let turn = usize::try_from(round % 3).unwrap();
        for rank in (0..3).map(|place| (place + turn) % 3) {
            actors[rank].ok(&format!("comm-join {name} {rank} 3 -> f"));
        }
        let [mut one, mut other, mut victim] = actors;
        let (waits_before, pid) = (round % 2 == 0, victim.pid().to_string());
        let wait = waits[turn];
        if waits_before {
            // A stopped process does not answer, so that no rank gets a link with it.
            victim.stop();
            one.send(wait);
            std::thread::sleep(Duration::from_millis(30));
        }
        let start = Instant::now();
        victim.kill_unreaped();
        if !waits_before {
            one.send(wait);
        }
        let failure = one.answer(BOUND).unwrap_err();
        slowest = slowest.max(start.elapsed());
        assert_eq!(failure.variant, "PeerGone", "{round} {wait}: {failure}");
        assert!(failure.to_string().contains(&pid), "{round} {wait}: {failure}");
        // The other rank has not waited for the victim before.
        let failure = other.fails(waits[(turn + 1) % 3], "PeerGone");
        assert!(failure.contains(&pid), "{round}: {failure}");
        drop(victim);
        one.ok("comm-send f 1 1 77");
        assert_eq!(received(&mut other, &pid), "0 77");
        one.finish();
        other.finish();
    }
    println!("{rounds} rounds, the slowest error took {slowest:?}");
}

/// Many more ranks than processors: collectives complete, and all ranks report the end of a killed
/// one.
#[test]
fn many_ranks_on_few_processors_complete_and_report_kill() {
    let size = if machine::is_long() { 64 } else { 12 };
    let mut actors: Vec<Actor> = (0..size).map(|_| actor!()).collect();
    join(&mut actors, &job("many"));
    for command in ["comm-barrier f", "comm-rounds f 1", "comm-barrier f"] {
        for actor in &mut actors {
            actor.send(command);
        }
        for actor in &mut actors {
            actor.answer(BOUND).unwrap();
        }
    }
    let mut victim = actors.swap_remove(size / 2);
    let pid = victim.pid().to_string();
    for actor in &mut actors {
        actor.send("comm-barrier f");
    }
    let start = Instant::now();
    victim.kill_unreaped();
    for actor in &mut actors {
        let failure = actor.answer(BOUND).unwrap_err();
        assert!(failure.variant == "PeerGone" && failure.to_string().contains(&pid), "{failure}");
    }
    println!("{size} ranks: all reported the kill within {:?}", start.elapsed());
    drop(victim);
    actors.into_iter().for_each(Actor::finish);
}

/// A rank without fds, or a stopped rank, causes a timeout. Afterwards both ranks communicate
/// again.
#[test]
fn unresponsive_rank_causes_timeout_then_recovers() {
    let mut actors = [actor!(), actor!()];
    let name = job("silent");
    join(&mut actors, &name);
    let [mut one, mut other] = actors;
    one.ok("take-fds 0");
    let why = one.fails("comm-send f 1 1 5", "System");
    assert!(why.contains("RLIMIT_NOFILE"), "{why}");
    other.ok("comm-timeout f 200");
    let absent = other.fails("comm-send f 0 1 6", "RankAbsent");
    assert!(absent.contains("rank 0") && absent.contains("200 ms"), "{absent}");
    other.ok("comm-timeout f 60000");
    other.send("comm-send f 0 1 7");
    one.ok("give-fds-back");
    assert_eq!(one.ok("comm-recv-any f"), "1 7");
    other.answer(BOUND).unwrap();
    // The same with a stopped rank, in a new job.
    for actor in [&mut one, &mut other] {
        actor.ok("comm-drop f");
    }
    let mut actors = [one, other];
    join(&mut actors, &name);
    let [mut one, mut other] = actors;
    one.stop();
    other.ok("comm-timeout f 200");
    other.fails("comm-send f 0 1 8", "RankAbsent");
    other.fails("comm-recv-any f", "TimedOut");
    other.ok("comm-timeout f 60000");
    other.send("comm-send f 0 1 9");
    one.signal(libc::SIGCONT);
    assert_eq!(one.ok("comm-recv-any f"), "1 9");
    other.answer(BOUND).unwrap();
    one.finish();
    other.finish();
}

/// Many ranks exchange messages, and a random one is killed at a random time. All others get an
/// error, continue, and connect to the process that replaces it.
#[test]
fn random_kills_are_reported_to_all_ranks() {
    const SIZE: usize = 16;
    let rounds = if machine::is_long() { 200 } else { 3 };
    let seed = u64::from(std::process::id());
    let mut rng = Rng::new(seed);
    let mut actors: Vec<Actor> = (0..SIZE).map(|_| actor!()).collect();
    let name = job("many-kills");
    join(&mut actors, &name);
    let all = |actors: &mut [Actor], command: &str| {
        actors.iter_mut().for_each(|actor| actor.send(command));
        actors.iter_mut().map(|actor| actor.answer(BOUND).unwrap()).collect::<Vec<_>>()
    };
    all(&mut actors, "comm-meet f");
    // Snapshots of rank 0, which is never killed: without the killed rank, and with its
    // replacement.
    let mut rest: [Option<ProcessSnapshot>; 2] = [None, None];
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let number = rng.next_u64();
        actors.iter_mut().for_each(|actor| actor.send(&format!("comm-chatter f 60000 {number}")));
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
        let rank = 1 + usize::try_from(rng.below(SIZE as u64 - 1)).unwrap();
        let pid = actors[rank].pid();
        let start = Instant::now();
        actors[rank].kill_unreaped();
        for (survivor, actor) in actors.iter_mut().enumerate().filter(|(survivor, _)| *survivor != rank) {
            let answer = actor.answer(BOUND);
            let failure = answer.expect_err("the end of a rank");
            assert_eq!(failure.variant, "PeerGone", "{seed} {round}: {survivor}: {failure}");
            assert!(failure.to_string().contains(&pid.to_string()), "{seed} {round}: {survivor}: {failure}");
            slowest = slowest.max(start.elapsed());
        }
        let victim = std::mem::replace(&mut actors[rank], actor!());
        drop(victim);
        let (before, after) = actors.split_at_mut(rank);
        let mut survivors: Vec<&mut Actor> = before.iter_mut().chain(&mut after[1..]).collect();
        for command in [format!("comm-chatter f 20 {number}"), format!("comm-forget f {rank}")] {
            survivors.iter_mut().for_each(|actor| actor.send(&command));
            for actor in &mut survivors {
                let answer = actor.answer(BOUND).unwrap();
                assert!(!answer.starts_with("0 "), "{seed} {round}: no message was sent");
            }
        }
        let compare = |rest: &mut Option<ProcessSnapshot>, actor: &Actor| match rest {
            // The first rounds allocate memory of the library itself.
            None if round > 0 => *rest = Some(ProcessSnapshot::of(actor)),
            None => {}
            Some(rest) => rest.assert_restored(actor),
        };
        compare(&mut rest[0], &actors[0]);
        actors[rank].ok(&format!("comm-join {name} {rank} {SIZE} -> f"));
        actors[rank].ok("comm-meet f");
        all(&mut actors, "comm-meet f");
        compare(&mut rest[1], &actors[0]);
    }
    println!("{rounds} kills of {SIZE} ranks, the slowest error took {slowest:?}");
    actors.into_iter().for_each(Actor::finish);
}

/// With each number of free fds that is too low, a rank reports the limit and leaves nothing open.
#[test]
fn rank_without_fds_reports_rlimit() {
    let mut actors = [actor!(), actor!()];
    join(&mut actors, &job("few"));
    let [mut one, mut other] = actors;
    let (mut before, mut refused) = (None, 0);
    for left in 0..20 {
        one.ok(&format!("take-fds {left}"));
        let sent = one.ask("comm-send f 1 1 5");
        one.ok("give-fds-back");
        match sent {
            Ok(_) => break,
            Err(failure) => {
                assert_eq!(failure.variant, "System", "{left}: {failure}");
                assert!(failure.to_string().contains("RLIMIT_NOFILE"), "{left}: {failure}");
                before.get_or_insert_with(|| ProcessSnapshot::of(&one)).assert_restored(&one);
                refused += 1;
            }
        }
    }
    assert!((4..20).contains(&refused), "{refused}");
    assert_eq!(other.ok("comm-recv-any f"), "0 5");
    one.finish();
    other.finish();
}
