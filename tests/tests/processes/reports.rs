//! Tests for problems that users of other projects reported, named after the reports in
//! `docs/reports.md`. Leftover and exposed memory is in `reports_memory.rs`; defects of the C
//! library are in `defects.rs` and `defects_memory.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::MetadataExt;

use umf::{Handle, Importer};
use umf_tests::forge::{self, field};
use umf_tests::{Actor, CountingImport, ProcessSnapshot, ShmName, actor, machine, spawn};

/// Allocates and fills a block `p.<name>` of the pool `p`.
fn block(producer: &mut Actor, name: &str, size: u64, seed: u64) -> Handle {
    producer.ok(&format!("alloc p {size} -> p.{name}"));
    producer.ok(&format!("fill p.{name} {seed}"));
    producer.handle(&format!("handle p.{name}"))
}

/// oneCCL #212, vLLM #41663: a cached handle is used after the peer freed and reallocated the
/// buffer. Here the old handle is stale, and the new one opens the new content, with the cache
/// enabled.
#[test]
fn oneccl_212_vllm_41663_cached_handle_of_freed_buffer_is_stale() {
    for pool in ["shared", "proxy", "isolated"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok(&format!("pool p {pool}"));
        let mut addresses = Vec::new();
        let mut old: Vec<Handle> = Vec::new();
        for seed in 1..=50 {
            let handle = block(&mut producer, "b", 65536, seed);
            addresses.push(producer.ok("address p.b"));
            let hits = importer.number("importer", "hits");
            for _ in 0..3 {
                importer.ok(&format!("open {handle} -> m"));
                importer.check("m", seed);
                importer.ok("close m");
            }
            assert_eq!(importer.number("importer", "hits"), hits + 2, "the cache is in use");
            producer.ok("free p p.b");
            old.push(handle);
            for old in &old {
                importer.fails(&format!("open {old} -> m"), "Stale");
            }
        }
        addresses.sort();
        addresses.dedup();
        assert!(addresses.len() < 50, "{pool}: no address was reused");
    }
}

/// MPICH #6071: the cache finds an old entry by the address of a new allocation. Here the cache
/// does not use addresses, and region ids are unique.
#[test]
fn mpich_6071_new_allocation_at_old_address_is_another_region() {
    let mut producer = actor!();
    let mut importer = actor!();
    let mut before: Option<(Handle, String)> = None;
    let mut same = 0;
    for seed in 1..=50 {
        producer.ok("region 1048576 -> r");
        producer.ok(&format!("fill r {seed}"));
        let handle = producer.handle("handle r");
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", seed);
        importer.ok("close m");
        let address = producer.ok("address r");
        if let Some((old, old_address)) = before.replace((handle, address.clone())) {
            assert_ne!(old.region_id(), handle.region_id());
            same += u32::from(old_address == address);
            importer.fails(&format!("open {old} -> old"), "Stale");
        }
        producer.ok("free-region r");
    }
    assert!(same > 0, "no address was reused at once");
}

/// MPICH #7821, #7862, #7887: destroying an exported handle invalidates mappings of the peer, and
/// keeping it leaks device memory and fds. Here the mapping stays valid and reports that it is not
/// current. The memory is freed when both processes have released it.
#[test]
fn mpich_7821_7862_mapping_survives_free_and_leaks_nothing() {
    for pool in ["shared", "proxy", "isolated"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok(&format!("pool p {pool}"));
        let first = block(&mut producer, "first", 65536, 1);
        importer.ok(&format!("open {first} -> first"));
        importer.ok("close first");
        importer.ok("evict");
        let mut before = None;
        for round in 0..20 {
            let handle = block(&mut producer, "b", 65536, round);
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", round);
            producer.ok("free p p.b");
            assert_eq!(importer.ok("is_current m"), "false");
            // Access does not fault, also after the producer has trimmed its pool.
            importer.ok("read-at m 0 65536");
            producer.ok("trim p");
            importer.ok("fill m 77");
            importer.ok("read-at m 0 65536");
            importer.fails(&format!("open {handle} -> n"), "Stale");
            importer.ok("close m");
            importer.ok("evict");
            // No process has the block open, so that its free completes.
            assert_eq!(producer.ok("drain 9000"), "0");
            producer.ok("trim p");
            // In the first round, both processes map rows of the lease table.
            before.get_or_insert_with(|| [ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)]);
        }
        let before = before.unwrap();
        for (actor, before) in [(&producer, &before[0]), (&importer, &before[1])] {
            // The slab pool may keep its region or free it.
            assert_eq!(ProcessSnapshot::of(actor).fds, before.fds, "{pool}");
            let [now, then] =
                [ProcessSnapshot::of(actor), before.clone()].map(|it| it.mappings.values().sum::<usize>());
            assert!(now <= then, "{pool}: {now} {then}");
        }
        importer.ok(&format!("open {first} -> first"));
        importer.check("first", 1);
    }
}

/// MPICH #7977, #7980, #7947: with a full cache, an entry of one direction is used for the other or
/// evicted in use, and data are wrong. Here both sides have a cache of one entry and get the right
/// data.
#[test]
fn mpich_7977_7947_cache_of_one_entry_returns_right_data() {
    for policy in ["soft", "hard"] {
        let start = || {
            spawn!()
                .env("UMF_MAX_OPENED_IPC_HANDLES", "1")
                .env("UMF_MAX_CREATED_IPC_HANDLES", "1")
                .env("UMF_IPC_LIMIT", policy)
                .start()
        };
        let mut sides = [start(), start()];
        sides.iter_mut().for_each(|side| assert_eq!(side.ok("pool p isolated"), ""));
        for round in 0..60 {
            let seeds = [4 * round + 1, 4 * round + 2];
            let mut handles = Vec::new();
            for (side, seed) in sides.iter_mut().zip(seeds) {
                handles.push(block(side, "b", 20000, seed));
            }
            let [left, right] = &mut sides;
            for (side, other) in [(left, 1), (right, 0)] {
                // The peer's buffer, this side's, and the peer's again: each open evicts the last
                // one.
                for turn in [other, 1 - other, other] {
                    side.ok(&format!("open {} -> m", handles[turn]));
                    side.check("m", seeds[turn]);
                    side.ok("close m");
                }
                assert_eq!(side.number("importer", "entries"), 1);
                // With the only entry in use, another open fails or exceeds the limit.
                side.ok(&format!("open {} -> held", handles[other]));
                if policy == "hard" {
                    side.fails(&format!("open {} -> n", handles[1 - other]), "LimitReached");
                } else {
                    side.ok(&format!("open {} -> n", handles[1 - other]));
                    side.check("n", seeds[1 - other]);
                    side.ok("close n");
                }
                side.check("held", seeds[other]);
                side.ok("close held");
            }
            sides.iter_mut().for_each(|side| assert_eq!(side.ok("free p p.b"), ""));
        }
    }
}

/// UMF #1003: the export cache has no limit and no eviction. Here it has a limit, which is set by
/// default if each export needs an fd. Evicted exports are stale, and exports in use are not
/// evicted.
#[test]
fn umf_1003_export_cache_is_bounded() {
    let mut importer = actor!();
    for (variable, driver, limit) in [(Some("4"), "one-fd", 4), (None, "fd-each", 33)] {
        let spawn = spawn!();
        let mut producer =
            variable.map_or(spawn.clone(), |it| spawn.env("UMF_MAX_CREATED_IPC_HANDLES", it)).start();
        producer.ok("rlimit nofile 64");
        producer.ok(&format!("driver-pool p host {driver}"));
        let mut handles = vec![block(&mut producer, "kept", 4096, 100)];
        for number in 0..60 {
            producer.ok(&format!("alloc p 4096 -> p.b{number}"));
            handles.push(producer.handle(&format!("export p.b{number} -> e")));
            producer.ok("unexport e");
            assert!(producer.number("exporter", "entries") <= limit);
            assert!(producer.number("native-counts", "outstanding") <= limit);
        }
        importer.ok(&format!("open {} -> m", handles[0]));
        importer.check("m", 100);
        importer.fails(&format!("open {} -> n", handles[1]), "Stale");
        importer.ok(&format!("open {} -> n", handles[60]));
    }
}

/// UMF's cache of opened handles: entries in use are replaced, eviction closes the wrong one, there
/// is one lock and no limit (W1, W2, W5, W6 in `defects.rs`). Here threads open, keep and evict
/// with two entries.
#[test]
fn umf_ipc_cache_entry_in_use_is_not_evicted() {
    let mut producer = actor!();
    producer.ok("pool p isolated");
    let handles: Vec<_> = (1..=6).map(|seed| block(&mut producer, &format!("b{seed}"), 4096, seed)).collect();
    let targets: String = handles.iter().zip(1..).map(|(handle, seed)| format!(" {seed}={handle}")).collect();
    let mut importer = spawn!().env("UMF_MAX_OPENED_IPC_HANDLES", "2").start();
    importer.ok(&format!("open {} -> held", handles[0]));
    let address = importer.ok("mapped-at held");
    importer.ok(&format!("open-storm 4 2000{targets}"));
    importer.check("held", 1);
    assert_eq!(importer.ok("mapped-at held"), address);
    assert!(importer.number("importer", "evictions") > 0);
    importer.ok("close held");
    // The cache exceeds its limit while all entries are in use, and returns to it at the next open.
    let last = block(&mut producer, "last", 4096, 7);
    importer.ok(&format!("open {last} -> last"));
    importer.check("last", 7);
    assert!(importer.number("importer", "entries") <= 2);
}

/// UMF #979, PyTorch #130890: `pidfd_getfd: Operation not permitted`, without a reason. Here the
/// error names the reason and a remedy, which works.
#[test]
fn umf_979_pytorch_130890_refusal_names_cause_and_working_remedy() {
    const TEST: &str = "umf_979_pytorch_130890_refusal_names_cause_and_working_remedy";
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", "pidfd").start();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 4096, 1);
    let Some(mut importer) = machine::in_namespaces(TEST, spawn!(), libc::CLONE_NEWUSER) else { return };
    let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
    for part in ["pidfd: ", "user namespace", "remedy: ", "UMF_IPC_EXCHANGE=socket"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", "socket").start();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 4096, 2);
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 2);
}

/// UMF #859, #831: an importer has to create a pool. Here it needs the handle alone.
#[test]
fn umf_859_831_importer_needs_no_pool() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 4096, 1);
    let mut importer = actor!();
    importer.ok("settings");
    let before = ProcessSnapshot::of(&importer);
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 1);
    let after = ProcessSnapshot::of(&importer);
    let parts =
        "the region, the producer's ledger, its lease table and a row there, this process's own ledger";
    assert_eq!(after.mappings.values().sum::<usize>(), 5, "{parts}: {after:?}");
    let fds = "a pidfd, two ledgers and the lease table";
    assert_eq!((after.fd_count(), after.threads), (before.fd_count() + 4, before.threads), "{fds}");
}

/// UMF #1187: the provider over a user's buffer cannot export. Here memory of an application can be
/// exported if it has an fd.
#[test]
fn umf_1187_application_memory_exports() {
    for fds in ["one-fd", "fd-each"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok(&format!("driver-pool p host {fds}"));
        for seed in 1..=5 {
            let handle = block(&mut producer, &format!("b{seed}"), 65536, seed);
            assert_eq!(handle.data_offset(), (seed - 1) * 65536, "the offset in the buffer");
            importer.ok(&format!("open {handle} -> m{seed}"));
        }
        for seed in 1..=5 {
            importer.check(&format!("m{seed}"), seed);
        }
        producer.ok("free p p.b3");
        assert_eq!(importer.ok("is_current m3"), "false");
        assert_eq!(importer.ok("is_current m4"), "true");
    }
}

/// UMF #414: the native handle inside is not accessible. Here fd, identity and native bytes have
/// accessors, and the importer gets them.
#[test]
fn umf_414_native_handle_is_accessible() {
    let mut producer = actor!();
    producer.ok("driver-pool p left one-fd");
    let handle = block(&mut producer, "b", 4096, 1);
    assert_eq!(handle.native(), b"native 1");
    assert_eq!(handle.allocation_id(), handle.region_id());
    let file = format!("/proc/{}/fd/{}", producer.pid(), handle.data_fd().unwrap());
    let file = std::fs::metadata(file).unwrap();
    assert_eq!((file.dev(), file.ino()), handle.data_identity());
    let import = CountingImport::new("left");
    let importer = Importer::builder().import(import.clone()).build().unwrap();
    let _mapping = importer.open(&handle).unwrap();
    assert_eq!(import.native_bytes(), [b"native 1"]);
}

/// oneCCL #213: the chosen exchange mode is silently replaced, and the process then aborts. Here
/// the mode is used or refused with an error.
#[test]
fn oneccl_213_chosen_mode_is_used_or_refused() {
    for (mode, refused) in [("pidfd", "socket"), ("procfs", "socket")] {
        let mut producer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        producer.ok("pool p shared");
        let handle = block(&mut producer, "b", 4096, 1);
        assert_eq!(
            (ProcessSnapshot::of(&producer).threads, ProcessSnapshot::of(&producer).sockets.len()),
            (1, 0)
        );
        let mut importer = spawn!().env("UMF_IPC_EXCHANGE", refused).start();
        let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
        for other in ["pidfd: ", "procfs: "] {
            assert!(!message.contains(other), "{other} was not chosen: {message}");
        }
        importer.ok("ping");
        importer.finish();
        let mut importer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 1);
    }
    let mut wrong = spawn!().env("UMF_IPC_EXCHANGE", "drmfd").start();
    let message = wrong.ask("settings").unwrap_err().message;
    for part in ["UMF_IPC_EXCHANGE", "drmfd", "pidfd"] {
        assert!(message.contains(part), "{part} in {message}");
    }
    wrong.ok("ping");
}

/// compute-runtime #448: handles cannot be copied by value between processes. Here 256 bytes in a
/// file suffice for any number of unrelated processes.
#[test]
fn compute_runtime_448_handles_are_bytes() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b", 4096, 1);
    let path = std::env::temp_dir().join(format!("umf-handle-{}", producer.pid()));
    std::fs::write(&path, handle.as_bytes()).unwrap();
    for seed in 1..=4 {
        let mut importer = actor!();
        importer.ok(&format!("open-file {} -> m", path.display()));
        importer.check("m", seed);
        importer.ok(&format!("fill m {}", seed + 1));
        producer.check("p.b", seed + 1);
        assert_eq!(importer.ok(&format!("parse {handle}")), handle.to_string());
    }
    std::fs::remove_file(&path).unwrap();
}

/// compute-runtime #974: opening and closing handles leaks fds. Here neither process has more fds
/// after any number of opens, failed ones included.
#[test]
fn compute_runtime_974_opening_and_closing_leaks_no_fd() {
    for mode in ["pidfd", "procfs", "socket"] {
        let mut producer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        let mut importer =
            spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_MAX_OPENED_IPC_HANDLES", "1").start();
        producer.ok("pool p isolated");
        let handles = [1, 2].map(|seed| block(&mut producer, &format!("b{seed}"), 4096, seed));
        let forged = forge::with(&handles[0], field::DATA_INODE, 1);
        // A handle whose file the importer fetches and then rejects.
        let name = ShmName::new(&producer, "974");
        producer.ok(&format!("pool n named {name}"));
        producer.ok("alloc n 4096 -> n.b");
        let untrusted = producer.ok("handle n.b");
        let mut before = [None, None];
        for round in 0..300 {
            for (handle, seed) in handles.iter().zip(1..) {
                importer.ok(&format!("open {handle} -> m"));
                importer.check("m", seed);
                importer.ok("close m");
            }
            importer.fails(&format!("open {forged} -> m"), "Misbehaved");
            importer.fails(&format!("open {untrusted} -> m"), "Untrusted");
            if round % 50 == 0 {
                for (before, actor) in before.iter_mut().zip([&producer, &importer]) {
                    before.get_or_insert_with(|| ProcessSnapshot::of(actor)).assert_restored(actor);
                }
            }
        }
        // The importer tries once whether the file of named memory has windows.
        assert_eq!(importer.number("importer", "misses"), 901, "each open fetched the file again");
        let connection = u64::from(mode == "socket");
        // A pidfd, two ledgers, the lease table.
        assert_eq!(importer.number("importer", "fds"), 4 + connection);
        producer.ok("drop-pool n");
    }
}

/// libfabric #8592: some drivers return the same fd for each export, others a new one, and the
/// caller cannot know whether to close it. Here each native export is released to its driver once.
#[test]
fn libfabric_8592_native_handle_is_released_once() {
    for fds in ["one-fd", "fd-each"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok(&format!("driver-pool p host {fds}"));
        producer.ok("alloc p 64 -> p.first");
        producer.ok("handle p.first");
        producer.ok("free p p.first");
        let mut clean = None;
        for round in 0..50 {
            let kept = block(&mut producer, "kept", 4096, 1);
            producer.ok("alloc p 4096 -> p.idle");
            producer.ok("export p.idle -> e");
            // A second export of the block uses the same native export.
            producer.ok("export p.idle -> again");
            assert_eq!(producer.number("native-counts", "outstanding"), 2);
            importer.ok(&format!("open {kept} -> m"));
            producer.ok("unexport e");
            producer.ok("unexport again");
            assert_eq!(producer.ok("evict-exports"), "1");
            assert_eq!(producer.number("native-counts", "outstanding"), 1);
            producer.ok("free p p.kept");
            producer.ok("free p p.idle");
            // Releasing the native export could end the importer's mapping.
            assert_eq!(producer.number("native-counts", "outstanding"), 1, "{fds}, round {round}");
            importer.ok("close m");
            assert_eq!(producer.ok("drain 9000"), "0");
            assert_eq!(producer.number("native-counts", "outstanding"), 0, "{fds}, round {round}");
            importer.ok("evict");
            // In the first round, both processes map rows of the lease table.
            clean.get_or_insert_with(|| ProcessSnapshot::of(&producer));
        }
        assert_eq!(producer.number("native-counts", "released"), 101);
        clean.unwrap().assert_restored(&producer);
        // A dropped pool releases outstanding exports. The driver asserts that this precedes the
        // free.
        block(&mut producer, "kept", 4096, 1);
        producer.ok("drop-pool p");
        assert_eq!(producer.number("native-counts", "outstanding"), 0);
    }
}
