//! Links between real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

mod ranks;

use std::time::{Duration, Instant};

use umf_tests::{Actor, Outcome, ProcessSnapshot, Rng, actor, machine, spawn};

/// Limit for an answer. Long enough for a machine that runs other tests.
const BOUND: Duration = Duration::from_secs(60);

/// Connects two actors. Both name the link `link`.
fn join(one: &mut Actor, other: &mut Actor) {
    let address = one.ok("link-bind end");
    one.send("link-accept end 30000 -> link");
    let peer_of_other: u32 = other.ok(&format!("link-connect {address} 30000 -> link")).parse().unwrap();
    let peer_of_one: u32 = one.answer(BOUND).unwrap().parse().unwrap();
    assert_eq!((peer_of_one, peer_of_other), (other.pid(), one.pid()));
    one.ok("link-unbind end");
}

fn traffic(one: &mut Actor, other: &mut Actor, seed: u64, count: u64) {
    one.send(&format!("link-traffic link {seed} {} {count}", seed + 1));
    other.send(&format!("link-traffic link {} {seed} {count}", seed + 1));
}

#[test]
fn link_transfers_messages_and_leaks_nothing() {
    let (mut one, mut other) = (actor!(), actor!());
    let mut before = [None, None];
    for round in 0..4 {
        join(&mut one, &mut other);
        for (size, seed) in [(8, 1), (4000, 2), (300_000, 3), (5 << 20, 4)] {
            other.send(&format!("link-recv link {seed} {size} {seed}"));
            one.ok(&format!("link-send link {seed} {size} {seed}"));
            let answer = other.answer(BOUND).unwrap();
            assert!(answer.starts_with(&format!("{size} ")) && answer.ends_with(" same"), "{answer}");
        }
        one.ok("link-drop link");
        assert!(other.fails("link-recv link 9 8 9", "Closed").contains("closed"));
        other.ok("link-drop link");
        if round > 0 {
            for (before, actor) in before.iter_mut().zip([&one, &other]) {
                before.get_or_insert_with(|| ProcessSnapshot::of(actor)).assert_restored(actor);
            }
        }
    }
    let before = before.map(Option::unwrap);
    assert!(before[0].mappings.keys().all(|name| !name.contains("umf-link")));
    one.finish();
    other.finish();
}

#[test]
fn named_endpoint_is_found_by_name() {
    let (mut one, mut other) = (actor!(), actor!());
    let name = format!("test-{}", one.pid());
    assert!(
        other.fails(&format!("link-connect name:{name} 100 -> link"), "NotListening").contains("listens")
    );
    one.ok(&format!("link-bind end named {name}"));
    other.fails(&format!("link-bind end named {name}"), "NameTaken");
    one.send("link-accept end 30000 -> link");
    other.ok(&format!("link-connect name:{name} 30000 -> link"));
    one.answer(BOUND).unwrap();
    // A killed process leaves no name.
    one.kill();
    assert!(other.fails("link-recv link any 8 1", "PeerGone").contains("gone"));
    other.ok(&format!("link-bind end named {name}"));
    other.finish();
}

/// Messages of random sizes and forms, with pauses, in both directions. Each arrives once, in
/// order, intact.
#[test]
fn random_messages_arrive_once_in_order() {
    let count: u64 = if machine::is_long() { 5_000_000 } else { 20_000 };
    for (number, engine) in ["auto", "bounce", "cma", "both"].into_iter().enumerate() {
        let count = if engine == "auto" { count } else { count / 10 };
        let spawn = || spawn!().env("UMF_LINK_ENGINE", engine).env("UMF_LINK_BOTH_MIN", "16KiB");
        let (mut one, mut other) = (spawn().start(), spawn().start());
        join(&mut one, &mut other);
        if engine == "cma" && one.ok("link-engines link").contains("process_vm_readv") {
            machine::skip("random_messages_arrive_once_in_order by cma", "process_vm_readv is refused");
            continue;
        }
        let mut rest = None;
        for round in 0..2 {
            traffic(&mut one, &mut other, 50 + 10 * number as u64 + round, count / 2);
            for actor in [&mut one, &mut other] {
                let answer = actor.answer(Duration::from_secs(4000)).unwrap();
                assert_eq!(answer, format!("sent={0} received={0} refused=0", count / 2), "{engine}");
            }
            // The number of mapped regions of the peer depends on timing.
            one.ok("evict");
            match &rest {
                None => rest = Some(ProcessSnapshot::of(&one)),
                Some(rest) => rest.assert_restored(&one),
            }
            if round == 0 {
                join(&mut one, &mut other);
            }
        }
        one.finish();
        other.finish();
    }
}

/// Kills the peer during transfers. The survivor gets an error and leaks nothing.
#[test]
fn kill_of_peer_is_reported_to_survivor() {
    let rounds = if machine::is_long() { 1000 } else { 12 };
    let mut rng = Rng::new(std::process::id().into());
    let mut survivor = actor!();
    let (mut rest, mut times) = (None, Vec::new());
    for round in 0..rounds {
        let engine = *rng.choose(&["auto", "bounce"]);
        let mut victim = spawn!().env("UMF_LINK_ENGINE", engine).start();
        if rng.one_in(2) {
            join(&mut survivor, &mut victim);
        } else {
            join(&mut victim, &mut survivor);
        }
        let seed = rng.below(1000);
        // The first rounds create objects that stay.
        if round == 0 || round != 1 && rng.one_in(3) {
            survivor.send(&format!("link-exchange link {seed} {} {}", seed + 1, 1_u64 << 40));
            victim.send(&format!("link-exchange link {} {seed} {}", seed + 1, 1_u64 << 40));
        } else {
            traffic(&mut survivor, &mut victim, seed, 1 << 40);
        }
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
        let stops = rng.one_in(5);
        if stops {
            victim.stop();
            std::thread::sleep(Duration::from_millis(rng.below(60)));
        }
        let start = Instant::now();
        victim.kill_unreaped();
        match survivor.outcome(BOUND) {
            Outcome::Answer(Err(failure)) => assert_eq!(failure.variant, "PeerGone", "{round}: {failure}"),
            other => panic!("{round}: {other:?}"),
        }
        times.push(start.elapsed());
        drop(victim);
        survivor.ok("link-drop link");
        // Regions of a dead peer are unmapped by an eviction.
        survivor.ok("evict");
        let now = ProcessSnapshot::of(&survivor);
        match &rest {
            None if round < 2 => {}
            None => rest = Some(now),
            Some(rest) => rest.assert_restored(&survivor),
        }
    }
    times.sort();
    let late = times.iter().filter(|time| **time > Duration::from_millis(100)).count();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{rounds} rounds; the error took {median:?} in the median, {slowest:?} at most, {late} times more than 100 ms"
    );
    survivor.finish();
}

#[test]
fn stopped_peer_causes_timeout() {
    let (mut one, mut other) = (actor!(), actor!());
    join(&mut one, &mut other);
    one.ok("link-send link 1 8 1");
    other.ok("link-recv link 1 8 1");
    other.stop();
    one.ok("link-timeout link 100");
    one.fails("link-recv link any 8 1", "TimedOut");
    one.fails("link-send link 2 1000000 2", "TimedOut");
    let mut sent = 0;
    while one.ask(&format!("link-send link 3 2000 {sent}")).is_ok() {
        sent += 1;
    }
    assert!((10..40).contains(&sent), "{sent} messages fill a ring");
    one.ok("link-timeout link 0");
    one.send("link-send link 4 1000000 4");
    other.signal(18);
    for seed in 0..sent {
        assert_eq!(other.ok(&format!("link-recv link 3 2000 {seed}")), "2000 inline same");
    }
    assert!(
        other.ok("link-recv link any 1000000 4").ends_with(" same"),
        "the message that timed out was withdrawn"
    );
    one.answer(BOUND).unwrap();
    one.finish();
    other.finish();
}

#[test]
fn exec_or_exit_of_peer_ends_link() {
    let mut one = actor!();
    for command in ["exec", "exit"] {
        let mut other = actor!();
        join(&mut one, &mut other);
        other.ok("link-send link 1 8 1");
        one.send("link-recv link 2 8 1");
        if command == "exec" {
            other.ok("exec");
        } else {
            // The actor drops its links before it exits.
            other.send("exit");
        }
        let failure = one.answer(BOUND).unwrap_err();
        assert_eq!(failure.variant, if command == "exec" { "PeerGone" } else { "Closed" }, "{failure}");
        assert_eq!(one.ok("link-recv link 1 8 1"), "8 inline same", "an earlier message can be received");
        one.ok("link-drop link");
    }
    one.finish();
}

#[test]
fn forked_child_cannot_use_link() {
    let (mut one, mut other) = (actor!(), actor!());
    join(&mut one, &mut other);
    one.fork();
    for command in
        ["link-send link 1 8 1", "link-recv link 1 8 1", "link-check-alive link", "link-lend link 1 4096 1"]
    {
        let failure = one.ask(&format!("child {command}")).unwrap_err();
        assert_eq!(failure.variant, "Forked", "{command}: {failure}");
    }
    one.ok("child link-drop link");
    other.ok("link-check-alive link");
    one.ok("link-send link 1 8 1");
    assert_eq!(other.ok("link-recv link 1 8 1"), "8 inline same");
    // A live child does not delay the error of the peer.
    one.ok("child linger");
    one.kill();
    other.fails("link-recv link any 8 1", "PeerGone");
    other.finish();
}

#[test]
fn handed_over_memory_arrives_mapped() {
    let (mut one, mut other) = (actor!(), actor!());
    join(&mut one, &mut other);
    one.ok("link-lend link 5 1000000 7");
    assert_eq!(one.ok("link-lent link"), "released=0 pending=1");
    assert_eq!(other.ok("link-recv link 5 1000000 7"), "1000000 mapped same");
    assert_eq!(one.ok("link-lent link"), "released=1 pending=0");
    // Memory of a dead process that was not opened cannot be received.
    one.ok("link-lend link 6 1000000 8");
    one.kill();
    other.fails("link-recv link 6 1000000 8", "PeerGone");
    other.fails("link-recv link 7 8 8", "PeerGone");
    other.finish();
}

#[test]
fn registered_range_is_accessible_to_peer() {
    for engine in ["auto", "mapped", "cma", "bounce"] {
        let (mut owner, mut other) = (actor!(), spawn!().env("UMF_LINK_ENGINE", engine).start());
        join(&mut owner, &mut other);
        if engine == "cma" && other.ok("link-engines link").contains("process_vm_readv") {
            machine::skip("registered_range_is_accessible_to_peer by cma", "process_vm_readv is refused");
            continue;
        }
        let (key, reads) = (owner.ok("link-expose link 100000 both"), owner.ok("link-expose link 1000 get"));
        let by = match engine {
            "auto" => "mapped",
            engine => engine,
        };
        if by == "bounce" {
            // The owner copies, in its calls.
            other.send(&format!("link-put link {key} 500 90000 7"));
            owner.ok("link-serve link 100");
            assert_eq!(other.answer(BOUND).unwrap(), "bounce");
            other.send(&format!("link-get link {key} 500 90000 7"));
            owner.ok("link-serve link 100");
            assert_eq!(other.answer(BOUND).unwrap(), "bounce same");
            other.ok("link-timeout link 50");
            other.fails(&format!("link-get link {key} 500 90000 7"), "TimedOut");
            other.ok("link-timeout link 0");
            owner.ok("link-serve link 1");
        } else {
            // The owner takes no part, and may be stopped.
            owner.stop();
            assert_eq!(other.ok(&format!("link-put link {key} 500 90000 7")), by);
            assert_eq!(other.ok(&format!("link-get link {key} 500 90000 7")), format!("{by} same"));
            owner.signal(18);
        }
        assert!(other.fails(&format!("link-put link {reads} 0 8 1"), "NotAllowed").contains("put"));
        assert!(other.fails(&format!("link-get link {key} 99999 2 1"), "OutOfBounds").contains("100000"));
        let damaged = format!("00{}", &key[2..]);
        assert!(other.fails(&format!("link-get link {damaged} 0 2 1"), "Key").contains("UMFR"));
        owner.ok("link-unexpose link");
        assert!(other.fails(&format!("link-get link {key} 0 8 7"), "Expired").contains("has ended"));
        let key = owner.ok("link-expose link 100000 both");
        owner.kill();
        other.fails(&format!("link-get link {key} 0 8 7"), "PeerGone");
        other.finish();
    }
}

/// Both processes put and get at the same time, and leak nothing.
#[test]
fn concurrent_puts_and_gets_transfer_right_data() {
    let count = if machine::is_long() { 20_000 } else { 60 };
    for engine in ["auto", "cma", "bounce"] {
        let spawn = || spawn!().env("UMF_LINK_ENGINE", engine).start();
        let (mut one, mut other) = (spawn(), spawn());
        let mut rest = None;
        for _ in 0..2 {
            join(&mut one, &mut other);
            if engine == "cma" && one.ok("link-engines link").contains("process_vm_readv") {
                machine::skip(
                    "concurrent_puts_and_gets_transfer_right_data by cma",
                    "process_vm_readv is refused",
                );
                break;
            }
            one.send(&format!("link-exchange link 5 6 {count}"));
            let by = if engine == "auto" { "mapped" } else { engine };
            let answer = other.ask_within(&format!("link-exchange link 6 5 {count}"), 10 * BOUND).unwrap();
            assert_eq!(answer, format!("{by}={}", 2 * count), "{engine}");
            assert_eq!(one.answer(BOUND).unwrap(), answer);
            one.ok("link-drop link");
            other.ok("link-drop link");
            one.ok("evict");
            match &rest {
                None => rest = Some(ProcessSnapshot::of(&one)),
                Some(rest) => rest.assert_restored(&one),
            }
        }
        one.finish();
        other.finish();
    }
}
