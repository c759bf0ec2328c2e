//! Importers and producers at their limits: fds, cache entries, bytes, file size, address space.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, actor, spawn};

/// Allocates blocks with a region and a file each, filled with the seeds 1, 2, ...
fn isolated(producer: &mut Actor, count: u64, size: u64) -> Vec<Handle> {
    producer.ok("pool p isolated");
    (1..=count)
        .map(|seed| {
            producer.ok(&format!("alloc p {size} -> p.b{seed}"));
            producer.ok(&format!("fill p.b{seed} {seed}"));
            producer.handle(&format!("handle p.b{seed}"))
        })
        .collect()
}

fn targets(handles: &[Handle]) -> String {
    handles.iter().zip(1..).map(|(handle, seed)| format!(" {seed}={handle}")).collect()
}

#[test]
fn importer_without_fds_reports_rlimit_and_recovers() {
    for mode in ["pidfd", "procfs", "socket", "auto"] {
        let mut producer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        let handles = isolated(&mut producer, 2, 4096);
        // With each number of free fds the open fails at another call.
        for left in 0..8 {
            let mut importer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
            // The first use reads the settings.
            importer.ok("settings");
            let clean = ProcessSnapshot::of(&importer);
            importer.ok(&format!("take-fds {left}"));
            let taken = ProcessSnapshot::of(&importer);
            match importer.ask(&format!("open {} -> m", handles[0])) {
                Ok(_) => {
                    importer.check("m", 1);
                    importer.ok("close m");
                }
                Err(failure) => {
                    // An open needs a pidfd or a connection, the ledger, the lease table, and a
                    // temporary fd to map the memory and a row.
                    assert!(left < 5, "mode {mode}, {left} fds left: {failure}");
                    assert_eq!(failure.variant, "System", "mode {mode}, {left} fds left: {failure}");
                    assert!(failure.message.contains("RLIMIT_NOFILE"), "mode {mode}, {left}: {failure}");
                }
            }
            importer.ok("evict");
            taken.assert_restored(&importer);
            importer.ok("give-fds-back");
            clean.assert_restored(&importer);
            importer.ok(&format!("open {} -> m", handles[1]));
            importer.check("m", 2);
            importer.finish();
        }
        // An open of a cached region needs no fd.
        let mut importer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        importer.ok(&format!("open {} -> m", handles[0]));
        importer.ok("close m");
        importer.ok("take-fds 0");
        importer.ok(&format!("open {} -> m", handles[0]));
        importer.check("m", 1);
        let message = importer.fails(&format!("open {} -> n", handles[1]), "System");
        assert!(message.contains("RLIMIT_NOFILE"), "{message}");
    }
}

#[test]
fn producer_without_fds_reports_rlimit_and_recovers() {
    let mut producer = actor!();
    producer.ok("pool p isolated");
    producer.ok("alloc p 4096 -> p.first");
    producer.ok("settings");
    // No fd for the ledger.
    producer.ok("take-fds 0");
    let open = ProcessSnapshot::of(&producer).fd_count();
    let message = producer.fails("handle p.first", "System");
    assert!(message.contains("RLIMIT_NOFILE"), "{message}");
    // No fd for the file of another region.
    let message = producer.fails("alloc p 4096 -> p.second", "Native");
    assert!(message.contains("raise RLIMIT_NOFILE"), "{message}");
    assert_eq!(ProcessSnapshot::of(&producer).fd_count(), open);
    producer.ok("give-fds-back");
    producer.ok("fill p.first 3");
    let handle = producer.handle("handle p.first");
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 3);
}

/// UMF ipc cache, as read: no limit by default, and entries in use are replaced. Here an entry in
/// use is never evicted, and a hard limit is an error that names the setting.
#[test]
fn open_over_hard_limit_is_an_error() {
    let mut producer = actor!();
    let handles = isolated(&mut producer, 4, 4096);
    let mut importer = spawn!().env("UMF_MAX_OPENED_IPC_HANDLES", "2").env("UMF_IPC_LIMIT", "hard").start();
    importer.ok(&format!("open {} -> m1", handles[0]));
    importer.ok(&format!("open {} -> m2", handles[1]));
    for _ in 0..3 {
        let message = importer.fails(&format!("open {} -> m3", handles[2]), "LimitReached");
        assert!(
            message.contains("limit of 2") && message.contains("UMF_MAX_OPENED_IPC_HANDLES"),
            "{message}"
        );
    }
    importer.check("m1", 1);
    importer.check("m2", 2);
    // A second open of an open region needs no further entry. An idle entry is evicted.
    importer.ok(&format!("open {} -> again", handles[0]));
    importer.ok("close m1");
    importer.fails(&format!("open {} -> m3", handles[2]), "LimitReached");
    importer.ok("close again");
    importer.ok(&format!("open {} -> m3", handles[2]));
    importer.check("m3", 3);
    importer.check("m2", 2);
    assert_eq!(importer.number("importer", "entries"), 2);
    assert_eq!(ProcessSnapshot::of(&importer).mappings.get("/memfd:umf (deleted)"), Some(&2));
}

#[test]
fn byte_limit_counts_whole_regions() {
    let mut producer = actor!();
    let handles = isolated(&mut producer, 4, 64 << 10);
    let mut importer =
        spawn!().env("UMF_IPC_MAX_OPENED_BYTES", "128KiB").env("UMF_IPC_LIMIT", "hard").start();
    importer.ok(&format!("open {} -> m1", handles[0]));
    importer.ok(&format!("open {} -> m2", handles[1]));
    let message = importer.fails(&format!("open {} -> m3", handles[2]), "LimitReached");
    assert!(message.contains("UMF_IPC_MAX_OPENED_BYTES"), "{message}");
    importer.ok("close m1");
    importer.ok(&format!("open {} -> m3", handles[2]));
    assert_eq!(importer.number("importer", "bytes"), 128 << 10);
    // A soft limit is exceeded while all entries are in use, and kept again afterwards.
    let mut importer = spawn!().env("UMF_IPC_MAX_OPENED_BYTES", "128KiB").start();
    for (handle, name) in handles.iter().zip(1..) {
        importer.ok(&format!("open {handle} -> m{name}"));
    }
    assert_eq!(importer.number("importer", "bytes"), 256 << 10);
    for name in 1..=4 {
        importer.check(&format!("m{name}"), name);
        importer.ok(&format!("close m{name}"));
    }
    importer.ok(&format!("open {} -> m1", handles[0]));
    importer.ok("close m1");
    producer.ok("alloc p 65536 -> p.b5");
    let fifth = producer.handle("handle p.b5");
    importer.ok(&format!("open {fifth} -> m5"));
    assert!(importer.number("importer", "bytes") <= 128 << 10);
}

/// UMF ipc cache, as read: a hit with another handle id replaces an entry that is still in use.
#[test]
fn cache_of_one_entry_serves_ten_thousand_opens() {
    let mut producer = actor!();
    let handles = isolated(&mut producer, 12, 4096);
    for (mode, shards) in [("auto", "1"), ("socket", "16")] {
        let mut importer =
            spawn!().env("UMF_MAX_OPENED_IPC_HANDLES", "1").env("UMF_IPC_IMPORTER_SHARDS", shards).start();
        let clean = ProcessSnapshot::of(&importer);
        // These stay open and must keep their content.
        for (handle, held) in handles.iter().zip(0..3) {
            importer.ok(&format!("open {handle} -> held{held}"));
        }
        let command = format!("open-storm 1 10000{}", targets(&handles));
        assert_eq!(importer.ask_within(&command, Duration::from_secs(60)).unwrap(), "10000");
        for (held, seed) in (0..3).zip(1..) {
            importer.check(&format!("held{held}"), seed);
            importer.ok(&format!("close held{held}"));
        }
        importer.ok(&format!("open {} -> last", handles[11]));
        assert_eq!(importer.number("importer", "entries"), 1, "mode {mode}");
        importer.ok("close last");
        importer.ok("evict");
        clean.assert_restored(&importer);
    }
}

/// UMF #1003: the producer-side cache has no limit and no eviction.
#[test]
fn export_cache_stays_within_limit() {
    for (limit, policy) in [("2", "soft"), ("2", "hard")] {
        let mut producer =
            spawn!().env("UMF_MAX_CREATED_IPC_HANDLES", limit).env("UMF_IPC_LIMIT", policy).start();
        producer.ok("pool p isolated");
        let mut importer = actor!();
        let mut before: Option<Handle> = None;
        for round in 0..50 {
            producer.ok(&format!("alloc p 4096 -> p.b{round}"));
            producer.ok(&format!("fill p.b{round} {round}"));
            let handle = producer.handle(&format!("export p.b{round} -> e"));
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", round);
            producer.ok("unexport e");
            if let Some(old) = before.replace(handle) {
                // The idle export may have been evicted. It is then stale.
                if let Err(failure) = importer.ask(&format!("open {old} -> old")) {
                    assert_eq!(failure.variant, "Stale");
                } else {
                    importer.check("old", round - 1);
                    importer.ok("close old");
                }
            }
            importer.ok("close m");
            assert!(producer.number("exporter", "entries") <= 2);
        }
        assert!(producer.number("exporter", "evictions") >= 48);
        // A block whose export was evicted can be exported again.
        let handle = producer.handle("export p.b0 -> e");
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 0);
        // An export in use is never evicted. A further export exceeds the soft limit, or fails at
        // the hard one.
        let second = producer.handle("export p.b1 -> e1");
        match producer.ask("export p.b2 -> e2") {
            Ok(text) => {
                assert_eq!(policy, "soft");
                importer.ok(&format!("open {text} -> m2"));
                importer.check("m2", 2);
            }
            Err(failure) => {
                assert_eq!((policy, failure.variant.as_str()), ("hard", "LimitReached"));
                assert!(failure.message.contains("UMF_MAX_CREATED_IPC_HANDLES"), "{failure}");
            }
        }
        for (handle, seed) in [(handle, 0), (second, 1)] {
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", seed);
        }
    }
}

/// RLIMIT_FSIZE and RLIMIT_AS cause an error at allocation, and no signal at the first access.
#[test]
fn file_size_and_address_space_limits_are_errors() {
    let mut producer = actor!();
    producer.ok("rlimit fsize 1000000");
    // The ledger and the memory files are made smaller to fit.
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 1");
    let handle = producer.handle("handle p.b");
    let failure = producer.ask("alloc p 4000000 -> p.large").unwrap_err();
    assert!(["LimitReached", "OutOfMemory", "Native"].contains(&failure.variant.as_str()), "{failure}");
    producer.check("p.b", 1);
    let mut importer = actor!();
    importer.ok("rlimit fsize 0");
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 1);

    let mut large = actor!();
    large.ok("pool p isolated");
    large.ok("alloc p 1073741824 -> p.b");
    let handle = large.handle("handle p.b");
    let clean = ProcessSnapshot::of(&importer);
    importer.ok("rlimit as 700000000");
    let failure = importer.ask(&format!("open {handle} -> n")).unwrap_err();
    assert!(["OutOfMemory", "System", "Native"].contains(&failure.variant.as_str()), "{failure}");
    importer.ok("rlimit as max");
    importer.ok("evict");
    assert_eq!(ProcessSnapshot::of(&importer).mappings, clean.mappings);
    importer.ok(&format!("open {handle} -> n"));
    // A producer with little address space lacks memory for the region or for the ledger.
    let mut producer = actor!();
    producer.ok("rlimit as 100000000");
    match producer.ask("pool p shared").and_then(|_| producer.ask("alloc p 4096 -> p.b")) {
        Ok(_) => {
            let failure = producer.ask("handle p.b").unwrap_err();
            assert!(["OutOfMemory", "System"].contains(&failure.variant.as_str()), "{failure}");
        }
        Err(failure) => assert!(["OutOfMemory", "Native"].contains(&failure.variant.as_str()), "{failure}"),
    }
    producer.ok("rlimit as max");
    producer.ok("pool q shared");
    producer.ok("alloc q 4096 -> q.b");
    producer.ok("handle q.b");
}
