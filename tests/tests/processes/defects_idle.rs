//! Defect W5 of the C library, without limits: closed memory whose producer freed it or died is unmapped.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use umf_tests::{ProcessSnapshot, actor, spawn};

/// Regions that were freed. If they stayed mapped, they would keep their pages, slow down each free of
/// the producer, and reach `vm.max_map_count`.
#[test]
fn w5_freed_regions_are_unmapped() {
    for pool in ["isolated", "proxy"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok(&format!("pool p {pool}"));
        for live in 0..5 {
            producer.ok(&format!("alloc p 65536 -> p.live{live}"));
            producer.ok(&format!("fill p.live{live} {live}"));
            let handle = producer.ok(&format!("handle p.live{live}"));
            importer.ok(&format!("open {handle} -> live{live}"));
        }
        for round in 0..300 {
            producer.ok("alloc p 1048576 -> p.b");
            let handle = producer.ok("handle p.b");
            importer.ok(&format!("open {handle} -> m"));
            importer.ok("close m");
            producer.ok("free p p.b");
            let mapped = ProcessSnapshot::of(&importer).mappings["/memfd:umf (deleted)"];
            assert!(mapped <= 64, "{pool}, round {round}: {mapped} mapped");
        }
        for live in 0..5 {
            importer.check(&format!("live{live}"), live);
        }
    }
}

/// Producers that were killed. Each would leave its memory, its ledger and a pidfd in the importer.
#[test]
fn w5_memory_of_killed_producers_is_unmapped() {
    for mode in ["pidfd", "socket"] {
        let mut importer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        importer.ok("settings");
        let clean = ProcessSnapshot::of(&importer);
        for round in 0..100 {
            let mut producer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
            producer.ok("pool p shared");
            producer.ok("alloc p 4096 -> p.b");
            let handle = producer.ok("handle p.b");
            importer.ok(&format!("open {handle} -> m"));
            importer.ok("close m");
            producer.kill();
            let now = ProcessSnapshot::of(&importer);
            let (fds, mapped) = (now.fd_count() - clean.fd_count(), now.mappings.values().sum::<usize>());
            assert!(fds <= 64 && mapped <= 128, "{mode}, round {round}: {fds} fds, {mapped} mappings");
        }
    }
}
