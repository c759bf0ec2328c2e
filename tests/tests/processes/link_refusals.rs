//! Links under refused permissions, missing resources and hostile peers.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf_tests::{Actor, ProcessSnapshot, Rng, actor, machine, spawn};

const BOUND: Duration = Duration::from_secs(60);

fn join(one: &mut Actor, other: &mut Actor) {
    let address = one.ok("link-bind end");
    one.send("link-accept end 30000 -> link");
    other.ok(&format!("link-connect {address} 30000 -> link"));
    one.answer(BOUND).unwrap();
    one.ok("link-unbind end");
}

#[test]
fn bounce_engine_is_used_where_kernel_refuses_reads() {
    let (mut one, mut other) = (actor!(), actor!());
    for actor in [&mut one, &mut other] {
        // The kernel lets root read any process.
        if machine::is_root() {
            actor.ok("setuid 65534");
        }
        actor.ok("dumpable 0");
    }
    join(&mut one, &mut other);
    let engines = other.ok("link-engines link");
    assert!(engines.contains("cma     refused: process_vm_readv") && engines.contains("ptrace"), "{engines}");
    other.send("link-recv link 1 1000000 3");
    one.ok("link-send link 1 1000000 3");
    assert_eq!(other.answer(BOUND).unwrap(), "1000000 bounce same");
    one.finish();
    other.finish();
}

#[test]
fn forced_engine_is_not_replaced() {
    let forced = || spawn!().env("UMF_LINK_ENGINE", "cma").start();
    let (mut one, mut other) = (forced(), forced());
    for actor in [&mut one, &mut other] {
        if machine::is_root() {
            actor.ok("setuid 65534");
        }
        actor.ok("dumpable 0");
    }
    join(&mut one, &mut other);
    one.ok("link-timeout link 2000");
    one.send("link-send link 1 1000000 3");
    let why = other.fails("link-recv link 1 1000000 3", "EngineImpossible");
    assert!(why.contains("engine cma") && why.contains("ptrace") && why.contains("UMF_LINK_ENGINE"), "{why}");
    assert_eq!(one.answer(BOUND).unwrap_err().variant, "TimedOut");
    one.finish();
    other.finish();
}

#[test]
fn connection_from_another_user_is_refused() {
    if !machine::is_root() {
        machine::skip("connection_from_another_user_is_refused", "not root");
        return;
    }
    let (mut one, mut other) = (actor!(), actor!());
    one.ok("setuid 65534");
    other.ok("setuid 65533");
    let address = one.ok("link-bind end");
    one.send("link-accept end 300 -> link");
    let why = other.fails(&format!("link-connect {address} 5000 -> link"), "OtherUser");
    assert!(why.contains("65534") && why.contains("65533"), "{why}");
    assert_eq!(one.answer(BOUND).unwrap_err().variant, "TimedOut", "no peer connected");
    one.finish();
    other.finish();
}

#[test]
fn failed_connect_leaves_nothing() {
    let (mut one, mut other) = (actor!(), actor!());
    let address = one.ok("link-bind end");
    // The first link creates objects that stay.
    join(&mut actor!(), &mut other);
    other.ok("link-drop link");
    let before = ProcessSnapshot::of(&other);
    for left in 0..2 {
        other.ok(&format!("take-fds {left}"));
        let why = other.fails(&format!("link-connect {address} 300 -> link"), "System");
        assert!(why.contains("RLIMIT_NOFILE"), "{why}");
        other.ok("give-fds-back");
        before.assert_restored(&other);
    }
    other.ok("rlimit fsize 4096");
    let why = other.fails(&format!("link-connect {address} 300 -> link"), "System");
    assert!(why.contains("RLIMIT_FSIZE"), "{why}");
    before.assert_restored(&other);
    // Failed connections are not accepted; the next one is.
    let mut last = actor!();
    one.send("link-accept end 30000 -> link");
    last.ok(&format!("link-connect {address} 30000 -> link"));
    assert_eq!(one.answer(BOUND).unwrap(), last.pid().to_string());
}

#[test]
fn unreachable_addresses_have_own_errors() {
    let mut one = actor!();
    let address = one.ok("link-bind end");
    let damaged = format!("{}A", &address[..address.len() - 1]);
    if damaged != address {
        one.fails(&format!("link-connect {damaged} 100 -> link"), "Address");
    }
    one.fails("link-connect umfl2.AAAA 100 -> link", "Address");
    let why = one.fails(&format!("link-connect {address} 50 -> link"), "TimedOut");
    assert!(why.contains("50 ms"), "the endpoint does not accept: {why}");
    one.ok("link-unbind end");
    let why = one.fails(&format!("link-connect {address} 50 -> link"), "NotListening");
    assert!(why.contains(&one.pid().to_string()), "{why}");
    // An address of another boot.
    let address: umf::link::LinkAddress = address.parse().unwrap();
    let mut bytes = address.to_bytes();
    bytes[8] ^= 1;
    let sum = crc32fast::hash(&bytes[..60]).to_le_bytes();
    bytes[60..].copy_from_slice(&sum);
    let other = umf::link::LinkAddress::from_bytes(&bytes).unwrap();
    let why = one.fails(&format!("link-connect {other} 50 -> link"), "OtherMachine");
    assert!(why.contains("network"), "{why}");
    one.finish();
}

/// A peer that overwrites the shared memory of the link. Calls succeed or fail in time, and other
/// links are not affected.
#[test]
fn hostile_peer_causes_errors_only() {
    let rounds = if machine::is_long() { 300 } else { 8 };
    let mut rng = Rng::new(7);
    let mut good = actor!();
    for round in 0..rounds {
        // Each engine reads words that the peer writes.
        let engine = if round % 2 == 0 { "bounce" } else { "auto" };
        let mut hostile = spawn!().env("UMF_LINK_ENGINE", engine).start();
        join(&mut good, &mut hostile);
        good.ok("link-timeout link 40");
        let key = hostile.ok("link-expose link 300000 both");
        good.ok("link-expose link 300000 both");
        hostile.send(&format!("link-scribble {} 400", rng.next_u64()));
        let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
        for _ in 0..12 {
            let seed = rng.below(100);
            let size = *rng.choose(&[8, 3000, 200_000]);
            let command = match rng.below(7) {
                0 => format!("link-send link {seed} {size} {seed}"),
                1 => format!("link-lend link {seed} {size} {seed}"),
                2 => "link-recv link any 1000000 1".to_owned(),
                3 => "link-serve link 20".to_owned(),
                4 => format!("link-get link {key} {seed} {size} 1"),
                5 => format!("link-put link {key} {seed} {size} 1"),
                _ => format!("link-recv link {seed} 1000000 {seed}"),
            };
            let answer = good.ask_within(&command, BOUND);
            *outcomes
                .entry(answer.map_or_else(|failure| failure.variant, |_| "ok".to_owned()))
                .or_default() += 1;
        }
        println!("round {round}: {outcomes:?}");
        hostile.answer(BOUND).unwrap();
        hostile.kill();
        good.ok("link-drop link");
        // A link to another peer works.
        let mut other = actor!();
        join(&mut good, &mut other);
        other.send("link-recv link 1 300000 5");
        good.ok("link-send link 1 300000 5");
        assert!(other.answer(BOUND).unwrap().ends_with(" same"));
        good.ok("link-drop link");
    }
    good.finish();
}
