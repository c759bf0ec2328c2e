//! Leases: a producer reuses a freed block only after all importers have closed it or ended.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Instant;

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, Spawn, actor, machine, spawn};

const SIZE: u64 = 65536;

/// Allocates and fills a block in an actor's pool `p`.
fn block(producer: &mut Actor, name: &str, seed: u64) -> Handle {
    producer.ok(&format!("alloc p {SIZE} -> p.{name}"));
    producer.ok(&format!("fill p.{name} {seed}"));
    producer.handle(&format!("handle p.{name}"))
}

fn held(producer: &mut Actor) -> u64 {
    producer.number("held", "bytes")
}

/// Returns whether one of the next blocks is at an address.
fn reused(producer: &mut Actor, address: &str) -> bool {
    // More blocks than were ever live, so that every free block is allocated.
    producer.ok(&format!("reused p {SIZE} {address} 600")) == "yes"
}

/// Asserts that all deferred frees complete.
#[track_caller]
fn assert_drains(producer: &mut Actor) {
    assert_eq!(producer.ok("drain 5000"), "0");
    assert_eq!(held(producer), 0);
}

/// Asserts that a free stays deferred.
#[track_caller]
fn assert_stays_held(producer: &mut Actor) {
    assert_ne!(producer.ok("drain 30"), "0");
}

/// Starts a producer with a pool `p` of this kind, and an importer.
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
        // The first round creates what stays: ledgers, lease tables, rows.
        for round in [0, 1] {
            let clean = (round > 0).then(|| (ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)));
            let handle = block(&mut producer, "b", 1);
            let address = producer.ok("address p.b");
            importer.ok(&format!("{open} {handle} -> m"));
            producer.ok("free p p.b");
            assert!(held(&mut producer) >= SIZE, "{kind}");
            assert_eq!(importer.ok("is_current m"), "false");
            importer.fails(&format!("{open} {handle} -> n"), "Stale");
            assert!(!reused(&mut producer, &address), "{kind}: reused while open");
            producer.ok("trim p");
            assert_stays_held(&mut producer);
            importer.check("m", 1);
            if kind != "read-only" {
                // The importer can still write. No live block shares this memory.
                importer.ok("fill m 2");
                importer.check("m", 2);
            }
            importer.ok("close m");
            assert_drains(&mut producer);
            // A pool with one file for each block frees the file. Other pools reuse the range.
            if kind == "shared" || kind.starts_with("small") {
                assert!(reused(&mut producer, &address), "{kind}: not reused");
            }
            producer.ok("trim p");
            importer.ok("evict");
            if let Some((produced, imported)) = clean {
                produced.assert_restored(&producer);
                imported.assert_restored(&importer);
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
    // Keeps the region allocated: an idle region may go back to the provider.
    let _neighbour = block(&mut producer, "neighbour", 2);
    let address = producer.ok("address p.b");
    importer.ok(&format!("open {handle} -> m"));
    let zeros = "00".repeat(SIZE as usize);
    let content = format!("read-at m 0 {SIZE}");
    assert_ne!(importer.ok(&content), zeros);
    producer.ok("free p p.b");
    assert_eq!(importer.ok(&content), zeros);
    assert!(!reused(&mut producer, &address));
    // Writes of the importer reach no live block, and their pages are released in the end.
    importer.ok("fill m 3");
    assert!(!reused(&mut producer, &address));
    importer.check("m", 3);
    importer.ok("close m");
    assert_drains(&mut producer);
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
        assert_stays_held(&mut producer);
        assert_eq!(producer.number("held", "blocks"), 1);
    }
    importer.ok("close o");
    assert_drains(&mut producer);
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
        assert_drains(&mut producer);
    }
    // A mapping opened by one thread and closed by another leaves counts in two rows, whose sum is
    // 0.
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
        // A block that is freed after the importer's death is not deferred.
        producer.ok("free p p.c");
        assert_eq!(producer.number("held", "blocks"), 1);
        // The next free that finds a lease completes the earlier deferred free.
        producer.ok("free p p.d");
        assert_eq!(producer.number("held", "blocks"), 1);
        other.check("o", 3);
        other.ok("close o");
        assert_drains(&mut producer);
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
    assert_stays_held(&mut producer);
    assert!(!reused(&mut producer, &address));
    importer.signal(libc::SIGCONT);
    importer.check("m", 1);
    importer.ok("close m");
    assert_drains(&mut producer);
    assert!(reused(&mut producer, &address));
}

#[test]
fn forked_importer_leases_its_own_opens_only() {
    let (mut producer, mut importer) = pair("shared");
    // The lease of an inherited mapping ends when the parent closes it.
    let handle = block(&mut producer, "b", 1);
    importer.ok(&format!("open {handle} -> m"));
    importer.fork();
    producer.ok("free p p.b");
    assert_stays_held(&mut producer);
    importer.ok("child close m");
    assert_stays_held(&mut producer);
    importer.ok("close m");
    assert_drains(&mut producer);
    assert_eq!(importer.ok("reap"), "0");
    // An open of the child has a lease of its own.
    let handle = block(&mut producer, "c", 2);
    importer.ok(&format!("open {handle} -> m"));
    importer.fork();
    importer.ok(&format!("child open {handle} -> n"));
    importer.ok("close m");
    producer.ok("free p p.c");
    assert_stays_held(&mut producer);
    assert_eq!(importer.ok("child check n 2"), "same");
    assert_eq!(importer.ok("child is_current n"), "false");
    importer.ok("child close n");
    assert_drains(&mut producer);
    // The lease ends with the child.
    let handle = block(&mut producer, "d", 3);
    importer.ok(&format!("child open {handle} -> n"));
    producer.ok("free p p.d");
    assert_stays_held(&mut producer);
    assert_eq!(importer.ok("reap"), "0");
    assert_drains(&mut producer);
}

/// A process that calls `exec` loses its leases, and can open again.
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
    assert_drains(&mut producer);
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
    // The end of the child changes nothing.
    assert_eq!(producer.ok("reap"), "0");
    assert_eq!(producer.number("held", "blocks"), 2);
    assert!(!reused(&mut producer, &address));
    importer.check("m", 1);
    importer.check("n", 2);
    importer.ok("close m");
    importer.ok("close n");
    assert_drains(&mut producer);
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
        assert_drains(producer);
    };
    warm_up(&mut producer, &mut importer);
    // A region without a pool.
    let clean = ProcessSnapshot::of(&producer);
    producer.ok("region 131072 -> r");
    producer.ok("fill r 5");
    let handle = producer.handle("handle r");
    importer.ok(&format!("open {handle} -> m"));
    producer.ok("free-region r");
    assert_eq!(producer.ok("held"), "blocks=0 regions=1 bytes=131072");
    importer.check("m", 5);
    importer.ok("close m");
    assert_drains(&mut producer);
    clean.assert_restored(&producer);
    // A dropped pool, with one freed and one live block that are open.
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
        assert_stays_held(&mut producer);
        importer.check("n", 9);
        importer.ok("close n");
        assert_drains(&mut producer);
        clean.assert_restored(&producer);
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
    // The thread's cache may still contain blocks.
    let mut given = 0;
    let failure = loop {
        match producer.ask(&format!("alloc p {SIZE} -> p.g{given}")) {
            Ok(_) => given += 1,
            Err(failure) => break failure,
        }
        assert!(given < 1000, "max_held has no effect");
    };
    assert_eq!(failure.variant, "HeldLimit", "{failure}");
    for number in 0..6 {
        importer.check(&format!("m{number}"), number);
    }
    // An importer that never closes can hold no more than this.
    assert!(held(&mut producer) <= 6 * SIZE);
    for number in 0..3 {
        importer.ok(&format!("close m{number}"));
    }
    // An allocation at the limit polls the deferred frees itself.
    producer.ok(&format!("alloc p {SIZE} -> p.last"));
    assert_eq!(producer.number("held", "blocks"), 3);
    importer.kill();
    assert_drains(&mut producer);
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
    assert_stays_held(&mut producer);
    assert!(!reused(&mut producer, &address));
    inside.check("t1", 1);
    inside.ok("close-elsewhere t1");
    assert_drains(&mut producer);
    // The importer dies with an open block, and later importers reuse its rows.
    let handle = block(&mut producer, "c", 2);
    inside.ok(&format!("open {handle} -> m"));
    producer.ok("free p p.c");
    assert_stays_held(&mut producer);
    inside.kill();
    assert_drains(&mut producer);
    assert!(reused(&mut producer, &address));
    let Some(mut again) = machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID) else { return };
    let handle = block(&mut producer, "d", 3);
    again.ok(&format!("open {handle} -> m"));
    outside.ok(&format!("open {handle} -> m"));
    producer.ok("free p p.d");
    outside.kill();
    assert_stays_held(&mut producer);
    again.check("m", 3);
    again.ok("close m");
    assert_drains(&mut producer);
}

/// A process with the pid of a dead importer does not keep its lease.
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
    // The default limit of a process.
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
    assert_eq!(producer.number("held", "blocks"), 1, "the block that is still open");
    living.check("m", 2);
    living.ok("close m");
    assert_drains(&mut producer);
    // The producer keeps no fds of dead importers.
    let now = ProcessSnapshot::of(&producer);
    assert!(now.fd_count() <= clean.fd_count() + 1, "{now:?}");
    // Later importers reuse the rows.
    let handle = block(&mut producer, "d", 3);
    assert_eq!(importer.ask_within(&format!("fork-importers 100 {handle}"), patience).unwrap(), "100");
    importer.ok("kill-importers");
    producer.ok("free p p.d");
    assert_eq!(held(&mut producer), 0);
}
