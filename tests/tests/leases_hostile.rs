//! What an importer that means harm can do to a producer and its other importers, at most (`docs/leases.md`, "Whom it
//! protects from whom").

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::Duration;

use umf_tests::{Census, actor};

/// Every word of the door changes while the producer allocates, exports and frees, and while others open and close: what
/// is current holds what it should, nobody faults or hangs, and when they are gone everything is given back.
#[test]
fn a_door_that_is_scribbled_over() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.control");
    producer.ok("alloc p 65536 -> p.b");
    producer.ok("fill p.b 1");
    let control = producer.handle("handle p.control");
    let handle = producer.handle("handle p.b");
    let clean = Census::of(&producer);
    let mut consumers = [actor!(), actor!()];
    for consumer in &mut consumers {
        consumer.ok(&format!("open {control} -> c"));
        consumer.ok(&format!("open {handle} -> m"));
    }
    let mut comer = actor!();
    let mut hostile = actor!();
    let pids = [producer.pid(), consumers[0].pid(), consumers[1].pid(), comer.pid(), hostile.pid(), 1];
    let pids = pids.map(|pid| pid.to_string()).join(" ");
    let (door, time, patience) = (producer.pid(), 1500, Duration::from_secs(20));
    hostile.send(&format!("scribble-door {door} body {time} {pids}"));
    producer.send(&format!("race-produce p p.control {time}"));
    comer.send(&format!("try-storm {handle} {time}"));
    for consumer in &mut consumers {
        consumer.send(&format!("race-consume c {time}"));
    }
    let rounds: u64 = producer.answer(patience).unwrap().parse().unwrap();
    let words: u64 = hostile.answer(patience).unwrap().parse().unwrap();
    let opened = comer.answer(patience).unwrap();
    assert!(rounds > 100 && words > 1000 && !opened.starts_with("opened=0"), "{rounds} {words} {opened}");
    println!("{rounds} blocks, {words} words written, {opened}");
    for consumer in &mut consumers {
        println!("{}", consumer.answer(patience).unwrap());
        // What was not freed is nobody else's.
        consumer.check("m", 1);
        assert_eq!(consumer.ok("is_current m"), "true");
    }
    producer.check("p.b", 1);
    // And what says whose door it is.
    hostile.send(&format!("scribble-door {door} all 200 {pids}"));
    comer.ok(&format!("try-storm {handle} 200"));
    hostile.answer(patience).unwrap();
    hostile.kill();
    comer.finish();
    for consumer in consumers {
        consumer.finish();
    }
    assert_eq!(producer.ok("drain 5000"), "0");
    assert_eq!(producer.ok("held"), "blocks=0 regions=0 bytes=0");
    let now = Census::of(&producer);
    assert!(now.fd_count() <= clean.fd_count() + 16, "{now:?}");
    // It works on, on the same door. (Who finds another's name in it counts nothing there.)
    let mut newcomer = actor!();
    let opened = newcomer.ask(&format!("open {handle} -> m"));
    assert!(opened.as_ref().map_or_else(|failure| failure.variant == "Misbehaved", |_| true), "{opened:?}");
    producer.ok("free p p.b");
}

/// The other side of the line: who clears another's lease makes the producer use the memory again. The other can see that,
/// and nothing worse comes of it.
#[test]
fn a_lease_that_another_importer_clears() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 65536 -> p.b");
    producer.ok("fill p.b 1");
    let address = producer.ok("address p.b");
    let handle = producer.handle("handle p.b");
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    let mut hostile = actor!();
    hostile.ok(&format!("empty-door {}", producer.pid()));
    producer.ok("free p p.b");
    assert_eq!(producer.ok("held"), "blocks=0 regions=0 bytes=0");
    assert_eq!(producer.ok(&format!("reused p 65536 {address} 300")), "yes");
    assert_eq!(importer.ok("is_current m"), "false");
    importer.ok("check m 1");
    importer.fails(&format!("open {handle} -> n"), "Stale");
    importer.ok("close m");
    importer.ok("evict");
    // Who comes after that is protected as before.
    producer.ok("alloc p 65536 -> p.c");
    producer.ok("fill p.c 2");
    let handle = producer.handle("handle p.c");
    importer.ok(&format!("open {handle} -> m"));
    producer.ok("free p p.c");
    assert_eq!(producer.ok("drain 30"), "65536");
    importer.check("m", 2);
    importer.ok("close m");
    assert_eq!(producer.ok("drain 5000"), "0");
}

/// Entries that name others, thousands of them: the producer does not run out of fds for them, nor hold anything for
/// processes that never came.
#[test]
fn owners_that_are_made_up() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("rlimit nofile 256");
    let mut importer = actor!();
    let mut hostile = actor!();
    for round in 0..20 {
        producer.ok("alloc p 65536 -> p.b");
        let handle = producer.handle("handle p.b");
        importer.ok(&format!("open {handle} -> m"));
        hostile.ok(&format!("claim-rows {} {round}", producer.pid()));
        producer.ok("free p p.b");
        importer.ok("close m");
        assert!(Census::of(&producer).fd_count() < 128);
    }
    // It still has fds for what it needs.
    producer.ok("region 65536 -> r");
    let handle = producer.handle("handle r");
    importer.ok(&format!("open {handle} -> r"));
    importer.ok("close r");
    hostile.kill();
    importer.kill();
    assert_eq!(producer.ok("drain 5000"), "0");
}
