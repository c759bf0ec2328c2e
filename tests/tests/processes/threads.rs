//! Concurrent opens, closes, evictions, exports and frees of the same blocks in one process.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf_tests::{Actor, ProcessSnapshot, actor, spawn};

fn targets(producer: &mut Actor, pool: &str, count: u64) -> String {
    producer.ok(&format!("pool p {pool}"));
    (1..=count)
        .map(|seed| {
            producer.ok(&format!("alloc p 4096 -> p.b{seed}"));
            producer.ok(&format!("fill p.b{seed} {seed}"));
            format!(" {seed}={}", producer.ok(&format!("handle p.b{seed}")))
        })
        .collect()
}

/// UMF ipc cache, as read: entries in use are replaced, and an eviction passes the key of another
/// entry.
#[test]
fn threads_open_and_evict_same_handles() {
    for pool in ["isolated", "shared"] {
        let mut producer = actor!();
        let targets = targets(&mut producer, pool, 8);
        for (limit, shards, mode) in
            [("1", "1", "auto"), ("3", "1", "auto"), ("1", "16", "auto"), ("3", "16", "procfs")]
        {
            let mut importer = spawn!()
                .env("UMF_MAX_OPENED_IPC_HANDLES", limit)
                .env("UMF_IPC_IMPORTER_SHARDS", shards)
                .env("UMF_IPC_EXCHANGE", mode)
                .start();
            let clean = ProcessSnapshot::of(&importer);
            let opened = importer
                .ask_within(&format!("open-storm 6 3000{targets}"), Duration::from_secs(60))
                .unwrap_or_else(|failure| panic!("limit {limit}, {shards} shards: {failure}"));
            assert_eq!(opened, "18000");
            assert_eq!(importer.number("importer", "in_use"), 0);
            importer.ok("evict");
            assert_eq!(importer.number("importer", "entries"), 0);
            clean.assert_restored(&importer);
        }
    }
}

#[test]
fn threads_export_and_free_blocks_of_same_pool() {
    for (pool, limit, rounds) in [("shared", "0", 5000), ("shared", "1", 5000), ("isolated", "2", 800)] {
        let mut process =
            spawn!().env("UMF_MAX_CREATED_IPC_HANDLES", limit).env("UMF_MAX_OPENED_IPC_HANDLES", "2").start();
        process.ok(&format!("pool p {pool}"));
        process.ok("export-storm p 1 10");
        let done = process.ask_within(&format!("export-storm p 4 {rounds}"), Duration::from_secs(60));
        let done = done.unwrap_or_else(|failure| panic!("{pool}, limit {limit}: {failure}"));
        assert_eq!(done, (4 * rounds).to_string());
        assert_eq!(process.number("importer", "in_use"), 0);
        process.ok("evict");
        assert_eq!(process.number("exporter", "in_use"), 0);
        process.ok("drop-pool p");
        let snapshot = ProcessSnapshot::of(&process);
        assert_eq!(snapshot.mappings.get("/memfd:umf (deleted)"), None, "{snapshot:?}");
    }
}
