//! A hostile importer, which writes to a producer's lease table, and the limits of its effect
//! (`docs/leases.md`).

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf_tests::{ProcessSnapshot, actor};

/// Random writes to the lease table while the producer allocates, exports and frees, and while
/// importers open and close. Current blocks keep their content, and no process faults or hangs.
/// After the end of all importers, all frees complete.
#[test]
fn corrupted_lease_table_harms_no_current_block() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.control");
    producer.ok("alloc p 65536 -> p.b");
    producer.ok("fill p.b 1");
    let control = producer.handle("handle p.control");
    let handle = producer.handle("handle p.b");
    let clean = ProcessSnapshot::of(&producer);
    let mut consumers = [actor!(), actor!()];
    for consumer in &mut consumers {
        consumer.ok(&format!("open {control} -> c"));
        consumer.ok(&format!("open {handle} -> m"));
    }
    let mut opener = actor!();
    let mut hostile = actor!();
    let pids = [producer.pid(), consumers[0].pid(), consumers[1].pid(), opener.pid(), hostile.pid(), 1];
    let pids = pids.map(|pid| pid.to_string()).join(" ");
    let (pid, time, patience) = (producer.pid(), 1500, Duration::from_secs(20));
    hostile.send(&format!("scribble-leases {pid} body {time} {pids}"));
    producer.send(&format!("race-produce p p.control {time}"));
    opener.send(&format!("try-storm {handle} {time}"));
    for consumer in &mut consumers {
        consumer.send(&format!("race-consume c {time}"));
    }
    let rounds: u64 = producer.answer(patience).unwrap().parse().unwrap();
    let words: u64 = hostile.answer(patience).unwrap().parse().unwrap();
    let opened = opener.answer(patience).unwrap();
    assert!(rounds > 100 && words > 1000 && !opened.starts_with("opened=0"), "{rounds} {words} {opened}");
    println!("{rounds} blocks, {words} words written, {opened}");
    for consumer in &mut consumers {
        println!("{}", consumer.answer(patience).unwrap());
        // A live block keeps its content.
        consumer.check("m", 1);
        assert_eq!(consumer.ok("is_current m"), "true");
    }
    producer.check("p.b", 1);
    // Also overwrites the words that identify the table.
    hostile.send(&format!("scribble-leases {pid} all 200 {pids}"));
    opener.ok(&format!("try-storm {handle} 200"));
    hostile.answer(patience).unwrap();
    hostile.kill();
    opener.finish();
    for consumer in consumers {
        consumer.finish();
    }
    assert_eq!(producer.ok("drain 5000"), "0");
    assert_eq!(producer.ok("held"), "blocks=0 regions=0 bytes=0");
    let now = ProcessSnapshot::of(&producer);
    assert!(now.fd_count() <= clean.fd_count() + 16, "{now:?}");
    // The producer works with the same table. An importer that finds another nonce there opens
    // nothing.
    let mut newcomer = actor!();
    let opened = newcomer.ask(&format!("open {handle} -> m"));
    assert!(opened.as_ref().map_or_else(|failure| failure.variant == "Misbehaved", |_| true), "{opened:?}");
    // The next export restores the header.
    producer.ok("alloc p 4096 -> p.c");
    let next = producer.handle("handle p.c");
    newcomer.ok(&format!("open {next} -> m2"));
    producer.ok("free p p.b");
}

/// A hostile importer that clears the lease of another importer makes the producer reuse the
/// memory. The other importer sees that its mapping is not current.
#[test]
fn lease_cleared_by_another_importer_ends() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 65536 -> p.b");
    producer.ok("fill p.b 1");
    let address = producer.ok("address p.b");
    let handle = producer.handle("handle p.b");
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    let mut hostile = actor!();
    hostile.ok(&format!("empty-leases {}", producer.pid()));
    producer.ok("free p p.b");
    assert_eq!(producer.ok("held"), "blocks=0 regions=0 bytes=0");
    assert_eq!(producer.ok(&format!("reused p 65536 {address} 300")), "yes");
    assert_eq!(importer.ok("is_current m"), "false");
    importer.ok("check m 1");
    importer.fails(&format!("open {handle} -> n"), "Stale");
    importer.ok("close m");
    importer.ok("evict");
    // Later leases work as before.
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

/// Counts in rows without an owner process: the producer defers no free, and opens no fds.
#[test]
fn counts_in_unowned_rows_hold_nothing() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("rlimit nofile 256");
    let mut importer = actor!();
    let mut hostile = actor!();
    for _ in 0..5 {
        producer.ok("alloc p 65536 -> p.b");
        let handle = producer.handle("handle p.b");
        importer.ok(&format!("open {handle} -> m"));
        hostile.ok(&format!("claim-rows {} only", producer.pid()));
        producer.ok("free p p.b");
        importer.ok("close m");
        assert_eq!(producer.ok("drain 5000"), "0");
        assert!(ProcessSnapshot::of(&producer).fd_count() < 128);
    }
    producer.ok("region 65536 -> r");
    let handle = producer.handle("handle r");
    importer.ok(&format!("open {handle} -> r"));
    importer.ok("close r");
}

/// A process that locks all rows makes opens of other importers fail, and holds memory until it
/// ends.
#[test]
fn process_that_locks_all_rows_refuses_importers_until_it_ends() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 65536 -> p.b");
    let handle = producer.handle("handle p.b");
    let mut early = actor!();
    early.ok(&format!("open {handle} -> m"));
    let mut hostile = actor!();
    hostile.ok(&format!("claim-rows {} lock", producer.pid()));
    let mut importers: Vec<_> = (0..8).map(|_| actor!()).collect();
    let opened = importers
        .iter_mut()
        .map(|it| usize::from(it.ask(&format!("open {handle} -> m")).is_ok()))
        .sum::<usize>();
    // The hostile process does not lock the first eight rows, of which the early importer has one.
    assert!(opened < 8, "{opened}");
    importers[7].fails(&format!("open {handle} -> n"), "NoLeaseRow");
    producer.ok("free p p.b");
    assert_ne!(producer.ok("drain 30"), "0");
    early.ok("close m");
    for importer in importers {
        importer.finish();
    }
    assert_ne!(producer.ok("drain 30"), "0");
    hostile.kill();
    assert_eq!(producer.ok("drain 5000"), "0");
    producer.ok("alloc p 65536 -> p.c");
    let handle = producer.handle("handle p.c");
    early.ok(&format!("open {handle} -> m"));
}
