//! Leases: what one process has open another does not use again, and gets back when it is closed, however that happens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::Instant;

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, Spawn, actor, machine, spawn};

const SIZE: u64 = 65536;

/// A block in an actor's pool `p`, with this seed in it.
fn block(producer: &mut Actor, name: &str, seed: u64) -> Handle {
    producer.ok(&format!("alloc p {SIZE} -> p.{name}"));
    producer.ok(&format!("fill p.{name} {seed}"));
    producer.handle(&format!("handle p.{name}"))
}

fn held(producer: &mut Actor) -> u64 {
    producer.number("held", "bytes")
}

/// Whether one of the next blocks lies at an address.
fn reused(producer: &mut Actor, address: &str) -> bool {
    // More than were ever live, so that no free block is left out.
    producer.ok(&format!("reused p {SIZE} {address} 600")) == "yes"
}

/// That all that is held goes, now.
#[track_caller]
fn drains(producer: &mut Actor) {
    assert_eq!(producer.ok("drain 5000"), "0");
    assert_eq!(held(producer), 0);
}

/// That something is held, and stays so.
#[track_caller]
fn stays_held(producer: &mut Actor) {
    assert_ne!(producer.ok("drain 30"), "0");
}

/// A producer with a pool `p` of this kind, and an importer.
fn pair(kind: &str) -> (Actor, Actor) {
    let (mut producer, importer) = (actor!(), actor!());
    producer.ok(&format!("pool p {kind}"));
    (producer, importer)
}

fn on_free(value: &str) -> Spawn {
    spawn!()
        .env("UMF_POOL_SET_ON_FREE", value)
        .env("UMF_POOL_SET_PROVIDER", "sharing")
        .env("UMF_PROVIDER_SHARING_VISIBILITY", "shared")
}

#[test]
fn freed_block_is_reused_only_after_last_close() {
    for kind in ["shared", "isolated", "proxy", "read-only", "small 1048576"] {
        let (mut producer, mut importer) = pair(kind);
        let open = if kind == "read-only" { "open-read" } else { "open" };
        // Once for what stays: ledgers, lease tables, rows.
        for round in [0, 1] {
            let clean = (round > 0).then(|| (ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)));
            let handle = block(&mut producer, "b", 1);
            let address = producer.ok("address p.b");
            importer.ok(&format!("{open} {handle} -> m"));
            producer.ok("free p p.b");
            assert!(held(&mut producer) >= SIZE, "{kind}");
            assert_eq!(importer.ok("is_current m"), "false");
            importer.fails(&format!("{open} {handle} -> n"), "Stale");
            assert!(!reused(&mut producer, &address), "{kind}: used again while it is open");
            producer.ok("trim p");
            stays_held(&mut producer);
            importer.check("m", 1);
            if kind != "read-only" {
                // Written by whoever has it open: nobody else sees that.
                importer.ok("fill m 2");
                importer.check("m", 2);
            }
            importer.ok("close m");
            drains(&mut producer);
            // A file of its own goes for good; elsewhere the place is free again.
            if kind == "shared" || kind.starts_with("small") {
                assert!(reused(&mut producer, &address), "{kind}: never used again");
            }
            producer.ok("trim p");
            importer.ok("evict");
            if let Some((produced, imported)) = clean {
                assert_eq!(ProcessSnapshot::of(&producer), produced, "{kind}");
                assert_eq!(ProcessSnapshot::of(&importer), imported, "{kind}");
            }
        }
    }
}

#[test]
fn released_memory_reads_as_zeros_and_is_not_reused_while_open() {
    let mut producer = on_free("release").start();
    let mut importer = actor!();
    producer.ok("pool p settings set");
    let handle = block(&mut producer, "b", 1);
    // Its region stays: an idle one may go to the provider, and its addresses with it.
    let _neighbour = block(&mut producer, "neighbour", 2);
    let address = producer.ok("address p.b");
    importer.ok(&format!("open {handle} -> m"));
    let zeros = "00".repeat(SIZE as usize);
    let content = format!("read-at m 0 {SIZE}");
    assert_ne!(importer.ok(&content), zeros);
    producer.ok("free p p.b");
    assert_eq!(importer.ok(&content), zeros);
    assert!(!reused(&mut producer, &address));
    // What is written there goes nowhere, and its pages do not stay.
    importer.ok("fill m 3");
    assert!(!reused(&mut producer, &address));
    importer.check("m", 3);
    importer.ok("close m");
    drains(&mut producer);
    assert!(reused(&mut producer, &address));
}

#[test]
fn lease_ends_with_last_close_of_many_opens() {
    let (mut producer, mut importer) = pair("shared");
    let handle = block(&mut producer, "b", 1);
    for name in ["m", "n", "o"] {
        importer.ok(&format!("open {handle} -> {name}"));
    }
    importer.ok(&format!("open-read {handle} -> r"));
    producer.ok("free p p.b");
    for name in ["n", "m", "r"] {
        importer.ok(&format!("close {name}"));
        stays_held(&mut producer);
        assert_eq!(producer.number("held", "blocks"), 1);
    }
    importer.ok("close o");
    drains(&mut producer);
}

#[test]
fn opens_and_closes_count_across_threads() {
    let (mut producer, mut importer) = pair("shared");
    for (round, close) in ["close", "close-elsewhere", "close", "close-elsewhere"].into_iter().enumerate() {
        let handle = block(&mut producer, "b", 1);
        importer.ok(&format!("open-threads 8 {handle} -> t"));
        importer.ok(&format!("open {handle} -> m"));
        producer.ok("free p p.b");
        importer.ok(&format!("{close} m"));
        for thread in 0..8 {
            assert_ne!(producer.ok("drain 3"), "0", "round {round}, {thread} closed of 8");
            importer.ok(&format!("{close} t{thread}"));
        }
        drains(&mut producer);
    }
    // Opened by this thread, closed by others, and opened again: what is left in rows does not count.
    for _ in 0..20 {
        let handle = block(&mut producer, "b", 1);
        importer.ok(&format!("open {handle} -> m"));
        importer.ok("close-elsewhere m");
        producer.ok("free p p.b");
        assert_eq!(held(&mut producer), 0);
    }
}

#[test]
fn lease_of_killed_importer_ends_without_wait() {
    for unreaped in [false, true] {
        let (mut producer, mut importer) = pair("shared");
        let mut other = actor!();
        let before = block(&mut producer, "b", 1);
        let after = block(&mut producer, "c", 2);
        let third = block(&mut producer, "d", 3);
        importer.ok(&format!("open {before} -> m"));
        importer.ok(&format!("open {after} -> n"));
        other.ok(&format!("open {third} -> o"));
        producer.ok("free p p.b");
        assert_eq!(producer.number("held", "blocks"), 1);
        if unreaped {
            importer.kill_unreaped()
        } else {
            importer.kill()
        }
        // One that it has open is freed after its death, and is not held for a moment.
        producer.ok("free p p.c");
        assert_eq!(producer.number("held", "blocks"), 1);
        // The next free that finds a lease lets go of the one from before.
        producer.ok("free p p.d");
        assert_eq!(producer.number("held", "blocks"), 1);
        other.check("o", 3);
        other.ok("close o");
        drains(&mut producer);
    }
}

#[test]
fn stopped_importer_keeps_its_lease() {
    let (mut producer, mut importer) = pair("shared");
    let handle = block(&mut producer, "b", 1);
    let address = producer.ok("address p.b");
    importer.ok(&format!("open {handle} -> m"));
    importer.stop();
    producer.ok("free p p.b");
    stays_held(&mut producer);
    assert!(!reused(&mut producer, &address));
    importer.signal(libc::SIGCONT);
    importer.check("m", 1);
    importer.ok("close m");
    drains(&mut producer);
    assert!(reused(&mut producer, &address));
}

#[test]
fn forked_importer_leases_its_own_opens_only() {
    let (mut producer, mut importer) = pair("shared");
    // Its parent's mapping does not count once the parent has closed it.
    let handle = block(&mut producer, "b", 1);
    importer.ok(&format!("open {handle} -> m"));
    importer.fork();
    producer.ok("free p p.b");
    stays_held(&mut producer);
    importer.ok("child close m");
    stays_held(&mut producer);
    importer.ok("close m");
    drains(&mut producer);
    assert_eq!(importer.ok("reap"), "0");
    // Its own open does, by itself.
    let handle = block(&mut producer, "c", 2);
    importer.ok(&format!("open {handle} -> m"));
    importer.fork();
    importer.ok(&format!("child open {handle} -> n"));
    importer.ok("close m");
    producer.ok("free p p.c");
    stays_held(&mut producer);
    assert_eq!(importer.ok("child check n 2"), "same");
    assert_eq!(importer.ok("child is_current n"), "false");
    importer.ok("child close n");
    drains(&mut producer);
    // And goes with it.
    let handle = block(&mut producer, "d", 3);
    importer.ok(&format!("child open {handle} -> n"));
    producer.ok("free p p.d");
    stays_held(&mut producer);
    assert_eq!(importer.ok("reap"), "0");
    drains(&mut producer);
}

/// A process that calls `exec` has nothing open any more, and can open anew.
#[test]
fn exec_ends_leases() {
    let (mut producer, mut importer) = pair("shared");
    let first = block(&mut producer, "b", 1);
    let second = block(&mut producer, "c", 2);
    importer.ok(&format!("open {first} -> m"));
    importer.ok("exec");
    importer.ok("ping");
    producer.ok("free p p.b");
    assert_eq!(held(&mut producer), 0);
    importer.fails(&format!("open {first} -> m"), "Stale");
    importer.ok(&format!("open {second} -> m"));
    importer.check("m", 2);
    producer.ok("free p p.c");
    assert_eq!(producer.number("held", "blocks"), 1);
    importer.check("m", 2);
    importer.ok("close m");
    importer.finish();
    drains(&mut producer);
}

#[test]
fn forked_producer_keeps_deferred_frees_and_child_has_none() {
    let (mut producer, mut importer) = pair("shared");
    let before = block(&mut producer, "b", 1);
    let after = block(&mut producer, "c", 2);
    let address = producer.ok("address p.b");
    importer.ok(&format!("open {before} -> m"));
    importer.ok(&format!("open {after} -> n"));
    producer.ok("free p p.b");
    producer.fork();
    producer.ok("free p p.c");
    assert_eq!(producer.ok("child held"), "blocks=0 regions=0 bytes=0");
    assert_eq!(producer.ok("child drain 0"), "0");
    producer.fails("child alloc p 64 -> p.x", "Frozen");
    // The child ends, and that changes nothing.
    assert_eq!(producer.ok("reap"), "0");
    assert_eq!(producer.number("held", "blocks"), 2);
    assert!(!reused(&mut producer, &address));
    importer.check("m", 1);
    importer.check("n", 2);
    importer.ok("close m");
    importer.ok("close n");
    drains(&mut producer);
    assert!(reused(&mut producer, &address));
}

#[test]
fn deferred_regions_and_pools_are_freed_after_close() {
    let (mut producer, mut importer) = (actor!(), actor!());
    let warm_up = |producer: &mut Actor, importer: &mut Actor| {
        producer.ok("region 131072 -> w");
        let handle = producer.handle("handle w");
        importer.ok(&format!("open {handle} -> w"));
        producer.ok("free-region w");
        importer.ok("close w");
        drains(producer);
    };
    warm_up(&mut producer, &mut importer);
    // A region.
    let clean = ProcessSnapshot::of(&producer);
    producer.ok("region 131072 -> r");
    producer.ok("fill r 5");
    let handle = producer.handle("handle r");
    importer.ok(&format!("open {handle} -> m"));
    producer.ok("free-region r");
    assert_eq!(producer.ok("held"), "blocks=0 regions=1 bytes=131072");
    importer.check("m", 5);
    importer.ok("close m");
    drains(&mut producer);
    assert_eq!(ProcessSnapshot::of(&producer), clean);
    // A pool that is dropped, with a block that was freed and one that was not.
    for kind in ["shared", "proxy", "isolated"] {
        producer.ok(&format!("pool p {kind}"));
        let freed = block(&mut producer, "b", 8);
        let live = block(&mut producer, "c", 9);
        importer.ok(&format!("open {freed} -> m"));
        importer.ok(&format!("open {live} -> n"));
        producer.ok("free p p.b");
        producer.ok("drop-pool p");
        assert_ne!(held(&mut producer), 0, "{kind}");
        importer.check("m", 8);
        importer.check("n", 9);
        importer.ok("close m");
        stays_held(&mut producer);
        importer.check("n", 9);
        importer.ok("close n");
        drains(&mut producer);
        assert_eq!(ProcessSnapshot::of(&producer), clean, "{kind}");
    }
}

#[test]
fn allocation_fails_at_max_held_until_importer_closes() {
    let bound = (4 * SIZE).to_string();
    let mut producer = on_free("hold").env("UMF_POOL_SET_MAX_HELD", &bound).start();
    let mut importer = actor!();
    producer.ok("pool p settings set");
    for number in 0..6 {
        let handle = block(&mut producer, &format!("b{number}"), number);
        importer.ok(&format!("open {handle} -> m{number}"));
    }
    for number in 0..6 {
        producer.ok(&format!("free p p.b{number}"));
    }
    // What the thread has at hand it may still give out.
    let mut given = 0;
    let failure = loop {
        match producer.ask(&format!("alloc p {SIZE} -> p.g{given}")) {
            Ok(_) => given += 1,
            Err(failure) => break failure,
        }
        assert!(given < 1000, "the bound is none");
    };
    assert_eq!(failure.variant, "HeldLimit", "{failure}");
    for number in 0..6 {
        importer.check(&format!("m{number}"), number);
    }
    // The importer that never closes keeps that much, and no more.
    assert!(held(&mut producer) <= 6 * SIZE);
    for number in 0..3 {
        importer.ok(&format!("close m{number}"));
    }
    // Nobody drains: the allocation that would fail looks for itself.
    producer.ok(&format!("alloc p {SIZE} -> p.last"));
    assert_eq!(producer.number("held", "blocks"), 3);
    importer.kill();
    drains(&mut producer);
}

#[test]
fn lease_from_another_pid_namespace_holds_until_its_process_ends() {
    const TEST: &str = "lease_from_another_pid_namespace_holds_until_its_process_ends";
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users, and namespaces need root");
    }
    let socket = || spawn!().env("UMF_IPC_EXCHANGE", "socket");
    let mut producer = socket().start();
    producer.ok("pool p shared");
    let Some(mut inside) = machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID) else { return };
    let mut outside = socket().start();
    let handle = block(&mut producer, "b", 1);
    let address = producer.ok("address p.b");
    inside.ok(&format!("open {handle} -> m"));
    inside.ok(&format!("open-threads 2 {handle} -> t"));
    outside.ok(&format!("open {handle} -> m"));
    producer.ok("free p p.b");
    outside.ok("close m");
    inside.ok("close m");
    inside.ok("close-elsewhere t0");
    stays_held(&mut producer);
    assert!(!reused(&mut producer, &address));
    inside.check("t1", 1);
    inside.ok("close-elsewhere t1");
    drains(&mut producer);
    // It ends with something open, and others that come after it get its rows.
    let handle = block(&mut producer, "c", 2);
    inside.ok(&format!("open {handle} -> m"));
    producer.ok("free p p.c");
    stays_held(&mut producer);
    inside.kill();
    drains(&mut producer);
    assert!(reused(&mut producer, &address));
    let Some(mut again) = machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID) else { return };
    let handle = block(&mut producer, "d", 3);
    again.ok(&format!("open {handle} -> m"));
    outside.ok(&format!("open {handle} -> m"));
    producer.ok("free p p.d");
    outside.kill();
    stays_held(&mut producer);
    again.check("m", 3);
    again.ok("close m");
    drains(&mut producer);
}

/// A process that has the pid of a dead importer holds nothing for it.
#[test]
fn reused_pid_of_dead_importer_holds_nothing() {
    const TEST: &str = "reused_pid_of_dead_importer_holds_nothing";
    let (mut producer, mut importer) = pair("shared");
    let handle = block(&mut producer, "b", 1);
    importer.ok(&format!("open {handle} -> m"));
    let pid = importer.pid();
    importer.kill();
    let another = match spawn!().pid(pid).try_start() {
        Ok(another) => another,
        Err(error) => return machine::skip(TEST, &format!("pid {pid} cannot be had again: {error}")),
    };
    producer.ok("free p p.b");
    assert_eq!(held(&mut producer), 0);
    drop(another);
}

#[test]
fn one_free_reclaims_leases_of_thousand_dead_importers() {
    let (mut producer, mut importer) = pair("shared");
    // No more fds than a process has by default.
    producer.ok("rlimit nofile 1024");
    let count = 1000;
    let handle = block(&mut producer, "b", 1);
    let another = block(&mut producer, "c", 2);
    let mut living = actor!();
    living.ok(&format!("open {another} -> m"));
    let clean = ProcessSnapshot::of(&producer);
    let patience = std::time::Duration::from_secs(120);
    let command = format!("fork-importers {count} {handle}");
    assert_eq!(importer.ask_within(&command, patience).unwrap(), count.to_string());
    producer.ok("free p p.b");
    assert_eq!(producer.number("held", "blocks"), 1);
    let watched = ProcessSnapshot::of(&producer).fd_count();
    importer.ask_within("kill-importers", patience).unwrap();
    let begun = Instant::now();
    producer.ok("free p p.c");
    println!("{count} dead importers: {:?} for the next free, {watched} fds before", begun.elapsed());
    assert_eq!(producer.number("held", "blocks"), 1, "the one that is open still");
    living.check("m", 2);
    living.ok("close m");
    drains(&mut producer);
    // Nothing of them stays open.
    let now = ProcessSnapshot::of(&producer);
    assert!(now.fd_count() <= clean.fd_count() + 1, "{now:?}");
    // Their rows are others' now.
    let handle = block(&mut producer, "d", 3);
    assert_eq!(importer.ask_within(&format!("fork-importers 100 {handle}"), patience).unwrap(), "100");
    importer.ok("kill-importers");
    producer.ok("free p p.d");
    assert_eq!(held(&mut producer), 0);
}
