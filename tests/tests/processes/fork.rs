//! Forks of producers and importers.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf_tests::{Actor, ProcessSnapshot, actor, spawn};

const MODES: [&str; 4] = ["auto", "pidfd", "procfs", "socket"];

fn in_mode(mode: &str) -> Actor {
    spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_IPC_OPEN_TIMEOUT_MS", "1500").start()
}

#[test]
fn forked_importer_and_parent_keep_their_mappings() {
    for mode in MODES {
        let mut producer = in_mode(mode);
        producer.ok("pool p isolated");
        let handles: Vec<_> = (1..=3)
            .map(|seed| {
                producer.ok(&format!("alloc p 4096 -> p.b{seed}"));
                producer.ok(&format!("fill p.b{seed} {seed}"));
                producer.ok(&format!("handle p.b{seed}"))
            })
            .collect();
        let mut importer = in_mode(mode);
        let clean = ProcessSnapshot::of(&importer);
        importer.ok(&format!("open {} -> m1", handles[0]));
        importer.ok(&format!("open {} -> m2", handles[1]));
        importer.ok("close m2");
        importer.fork();
        // An open, an idle and a new mapping, in the child and in the parent.
        for target in ["child ", "", "child "] {
            assert_eq!(importer.ok(&format!("{target}check m1 1")), "same");
            assert_eq!(importer.ok(&format!("{target}is_current m1")), "true");
            for (handle, seed) in handles.iter().zip(1..) {
                importer.ok(&format!("{target}open {handle} -> n{seed}"));
                assert_eq!(importer.ok(&format!("{target}check n{seed} {seed}")), "same");
                importer.ok(&format!("{target}close n{seed}"));
            }
            importer.ok(&format!("{target}importer"));
        }
        // Both processes see writes and the free.
        importer.ok("child fill m1 11");
        importer.check("m1", 11);
        producer.check("p.b1", 11);
        producer.ok("free p p.b1");
        for target in ["child ", ""] {
            assert_eq!(importer.ok(&format!("{target}is_current m1")), "false");
            importer.fails(&format!("{target}open {} -> n", handles[0]), "Stale");
            importer.ok(&format!("{target}close m1"));
            importer.ok(&format!("{target}evict"));
            importer.ok(&format!("{target}open {} -> n", handles[2]));
            assert_eq!(importer.ok(&format!("{target}check n 3")), "same");
            importer.ok(&format!("{target}close n"));
        }
        assert_eq!(importer.ok("reap"), "0");
        importer.ok("evict");
        clean.assert_restored(&importer);
    }
}

#[test]
fn forked_producer_exports_under_its_own_nonce() {
    for mode in MODES {
        let mut producer = in_mode(mode);
        producer.ok("pool p shared");
        producer.ok("pool q private");
        producer.ok("alloc p 4096 -> p.b");
        producer.ok("alloc q 4096 -> q.b");
        producer.ok("fill p.b 1");
        producer.ok("fill q.b 2");
        let handle = producer.handle("handle p.b");
        let before = ProcessSnapshot::of(&producer);
        let child = producer.fork();
        // A shared pool is frozen in the child, as both would allocate the same block. A free does
        // nothing, as the block belongs to the parent.
        let message = producer.fails("child alloc p 64 -> p.c", "Frozen");
        assert!(message.contains("fork"), "{message}");
        producer.ok("child free p p.b");
        producer.check("p.b", 1);
        // Both processes can use a private pool, of which each has a copy.
        producer.ok("child fill q.b 22");
        producer.check("q.b", 2);
        producer.ok("child free q q.b");
        producer.ok("child alloc q 100 -> q.c");
        producer.check("q.b", 2);
        // Exports of the child have another ledger, another nonce and its pid.
        producer.ok("child pool r shared");
        producer.ok("child alloc r 4096 -> r.b");
        producer.ok("child fill r.b 3");
        let childs = producer.handle("child handle r.b");
        assert_ne!(childs.nonce(), handle.nonce());
        assert_eq!((childs.pid(), handle.pid()), (child, producer.pid()));
        let mut importer = in_mode(mode);
        for (handle, seed) in [(handle, 1), (childs, 3)] {
            importer.ok(&format!("open {handle} -> m{seed}"));
            importer.check(&format!("m{seed}"), seed);
        }
        // The child imports handles of the parent, and the parent imports those of the child.
        producer.ok(&format!("child open {handle} -> parents"));
        assert_eq!(producer.ok("child check parents 1"), "same");
        producer.ok(&format!("open {childs} -> childs"));
        producer.check("childs", 3);
        // A free in the child retires exports of the child alone.
        producer.ok("child free r r.b");
        assert_eq!(importer.ok("is_current m3"), "false");
        assert_eq!(importer.ok("is_current m1"), "true");
        producer.ok("close childs");
        assert_eq!(producer.ok("reap"), "0");
        importer.fails(&format!("open {childs} -> n"), "Stale");
        assert_eq!(importer.ok("is_current m1"), "true");
        importer.finish();
        producer.ok("evict");
        // The parent is not affected.
        producer.ok("alloc p 64 -> p.d");
        producer.ok("free p p.d");
        before.assert_restored(&producer);
        let mut importer = in_mode(mode);
        importer.ok(&format!("open {handle} -> m"));
        producer.ok("free p p.b");
        assert_eq!(importer.ok("is_current m"), "false");
    }
}

#[test]
fn forked_child_does_not_hold_parents_socket() {
    let mut producer = in_mode("socket");
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 1");
    let handle = producer.handle("handle p.b");
    let nonce = producer.ok("nonce");
    let name = nonce.split(' ').next().unwrap();
    let mut importer = in_mode("socket");
    importer.ok(&format!("open {handle} -> m"));
    let child = producer.fork();
    producer.ok("child ping");
    let snapshot = ProcessSnapshot::of_pid(child);
    assert_eq!(snapshot.sockets, Vec::<String>::new());
    assert_eq!(snapshot.fds.get("/memfd:umf-ledger (deleted)"), None, "nor the ledger: {snapshot:?}");
    // A page of it, whose lock says that a child has the producer's memory.
    assert_eq!(snapshot.mappings.get("/memfd:umf-ledger (deleted)"), Some(&1));
    // The child lives, in the middle of a command, while the parent dies.
    producer.send("child sleep 8000");
    assert!(ProcessSnapshot::is_bound(name));
    producer.kill();
    assert!(!ProcessSnapshot::is_bound(name), "the name is gone with the parent");
    importer.check("m", 1);
    importer.ok("close m");
    importer.ok("evict");
    importer.fails(&format!("open {handle} -> n"), "ProducerGone");
}

/// A child must not wait for a thread of its parent that waits for a stopped producer at the fork.
#[test]
fn fork_while_another_thread_waits_for_producer() {
    let mut producer = in_mode("socket");
    producer.ok("pool p isolated");
    let handles: Vec<_> = (1..=2)
        .map(|seed| {
            producer.ok(&format!("alloc p 4096 -> p.b{seed}"));
            producer.ok(&format!("fill p.b{seed} {seed}"));
            producer.ok(&format!("handle p.b{seed}"))
        })
        .collect();
    let mut importer = in_mode("socket");
    importer.ok(&format!("open {} -> m", handles[0]));
    producer.stop();
    importer.ok(&format!("background-open {}", handles[1]));
    importer.ok("sleep 300");
    importer.fork();
    producer.signal(libc::SIGCONT);
    importer.ok(&format!("child open {} -> n", handles[1]));
    assert_eq!(importer.ok("child check n 2"), "same");
    importer.ok("child importer");
    importer.ok("child close n");
    importer.ok("child evict");
    assert_eq!(importer.ok("reap"), "0");
}

/// An export in use at the fork belongs to the parent: `keep` and drop in the child do nothing.
#[test]
fn fork_with_export_in_use_keeps_export_of_parent() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    let handle = producer.ok("export p.b -> e");
    producer.fork();
    producer.ok("child unexport e");
    producer.ok("child exporter");
    producer.ok("child evict-exports");
    assert_eq!(producer.ok("reap"), "0");
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    producer.fork();
    producer.ok("child keep e");
    assert_eq!(producer.ok("reap"), "0");
    producer.ok("keep e");
    assert_eq!(importer.ok("is_current m"), "true");
}

#[test]
fn fork_while_threads_export_and_open() {
    for mode in ["auto", "socket"] {
        let mut producer = in_mode(mode);
        producer.ok("pool o isolated");
        let targets: String = (1..=4)
            .map(|seed| {
                producer.ok(&format!("alloc o 4096 -> o.b{seed}"));
                producer.ok(&format!("fill o.b{seed} {seed}"));
                format!(" {seed}={}", producer.ok(&format!("handle o.b{seed}")))
            })
            .collect();
        let mut forker = spawn!()
            .env("UMF_IPC_EXCHANGE", mode)
            .env("UMF_IPC_OPEN_TIMEOUT_MS", "5000")
            .env("UMF_MAX_OPENED_IPC_HANDLES", "2")
            .start();
        forker.ok("pool p shared");
        let rounds = forker
            .ask_within(&format!("fork-storm p 60{targets}"), Duration::from_secs(60))
            .unwrap_or_else(|failure| panic!("mode {mode}: {failure}"));
        assert!(rounds.parse::<u64>().unwrap() > 0);
        assert_eq!(ProcessSnapshot::of(&forker).children, 0);
        forker.finish();
        producer.finish();
    }
}
