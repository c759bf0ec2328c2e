//! Handles and mappings of freed memory, also after the memory is reused.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::{Duration, Instant};

use umf_tests::{Actor, Patience, ProcessSnapshot, actor, machine, spawn};

fn assert_stale(importer: &mut Actor, handle: &str) {
    let message = importer.fails(&format!("open {handle} -> stale"), "Stale");
    assert!(
        message.contains("the memory was freed since, or its export was evicted; get a new handle"),
        "{message}"
    );
}

/// Starts two actors with a common control block: `c.control` in the producer, `control` in the
/// importer.
fn pair(mode: &str, limit: &str) -> (Actor, Actor, umf::Handle) {
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
    let mut importer =
        spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_MAX_OPENED_IPC_HANDLES", limit).start();
    producer.ok("pool c shared");
    producer.ok("alloc c 4096 -> c.control");
    producer.ok("fill c.control 0");
    let control = producer.handle("handle c.control");
    importer.ok(&format!("open {control} -> control"));
    (producer, importer, control)
}

/// Runs cycles of allocate, export, open, check, close and free. Each old handle is opened once
/// more. Returns the number of different block addresses.
fn run(producer: &mut Actor, importer: &mut Actor, pool: &str, cycles: u64) -> u64 {
    let patience = Duration::from_secs(300);
    producer.ok("begin c.control");
    producer.send(&format!("produce {pool} c.control {cycles}"));
    importer.send(&format!("consume control {cycles}"));
    let consumed = importer.answer(patience);
    let produced = producer.answer(patience);
    assert_eq!(
        consumed.unwrap_or_else(|failure| panic!("{failure}, producer: {produced:?}")),
        cycles.to_string()
    );
    produced.unwrap_or_else(|failure| panic!("{failure}")).parse().unwrap()
}

/// Asserts that `work` adds no fds and threads to either process, and only few mappings and little
/// memory.
fn assert_no_growth(producer: &mut Actor, importer: &mut Actor, work: impl FnOnce(&mut Actor, &mut Actor)) {
    let numbers =
        |actor: &mut Actor| ["fds", "threads", "maps", "rss"].map(|key| actor.number("counts", key));
    let before = [numbers(producer), numbers(importer)];
    work(producer, importer);
    let mut after = [numbers(producer), numbers(importer)];
    // The producer's socket thread closes the connection of the last request with a delay.
    let mut patience = Patience::new(Duration::from_secs(10));
    while patience.sleep() {
        if before.iter().zip(&after).all(|(before, after)| before[..2] == after[..2]) {
            break;
        }
        after = [numbers(producer), numbers(importer)];
    }
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before[..2], after[..2], "fds and threads");
        assert!(after[2] <= before[2] + 4, "mappings: {before:?} {after:?}");
        assert!(after[3] <= before[3] + 2048, "KiB of memory: {before:?} {after:?}");
    }
}

/// oneCCL #212, vLLM #41663: a cached handle was used after the peer freed and reallocated the
/// buffer. MPICH #6071, #7821, #7862, #7980: false cache hits for a new allocation at an old
/// address. compute-runtime #974: opening and closing handles leaks fds.
///
/// In 140,000 cycles (ten million with `UMF_TESTS_LONG=1`) a block is freed, its address is reused,
/// and an importer opens the old and the new handle. A leak of 16 bytes a cycle would fail the
/// test. A busy machine does fewer cycles.
#[test]
fn handle_is_stale_after_block_is_reused_at_same_address() {
    const BATCH: u64 = 14_000;
    const ENOUGH: Duration = Duration::from_secs(30);
    let cycles = if machine::is_long() { 10_000_000 } else { 140_000 };
    for mode in ["auto", "socket"] {
        let (mut producer, mut importer, control) = pair(mode, "0");
        producer.ok("pool p shared");
        // Warms up: creates the ledgers and lease tables, which stay.
        run(&mut producer, &mut importer, "p", 5000);
        let before = [ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)];
        let mut done = 0;
        assert_no_growth(&mut producer, &mut importer, |producer, importer| {
            let begun = Instant::now();
            while done < cycles && (done == 0 || machine::is_long() || begun.elapsed() < ENOUGH) {
                let addresses = run(producer, importer, "p", BATCH);
                assert!(addresses < 100, "addresses must be reused: {addresses}");
                done += BATCH;
            }
            eprintln!("{mode}: {done} cycles in {:?}", begun.elapsed());
            importer.ok(&format!("cycle {control} {done}"));
        });
        before[0].assert_restored(&producer);
        before[1].assert_restored(&importer);
        assert!(importer.number("importer", "stale") >= done);
    }
}

/// The same cycles with a region, an fd and a mapping for each block.
#[test]
fn cycles_over_many_regions_leak_nothing() {
    let cycles = if machine::is_long() { 100_000 } else { 5000 };
    for mode in ["auto", "socket"] {
        let (mut producer, mut importer, _) = pair(mode, "4");
        producer.ok("pool p isolated");
        run(&mut producer, &mut importer, "p", 500);
        assert_no_growth(&mut producer, &mut importer, |producer, importer| {
            run(producer, importer, "p", cycles);
        });
    }
}

/// Blocks that are freed while they are opened. The open must return a current mapping or `Stale`,
/// and no other error or foreign content.
#[test]
fn open_during_free_is_current_or_stale() {
    for (pool, mode) in
        [("shared", "auto"), ("isolated", "pidfd"), ("isolated", "procfs"), ("isolated", "socket")]
    {
        let (mut producer, importer, control) = pair(mode, "1");
        // More processes than processors, so that each is preempted during opens.
        let mut importers = vec![importer];
        for _ in 0..3 {
            let spawn = spawn!().env("UMF_IPC_EXCHANGE", mode).env("UMF_MAX_OPENED_IPC_HANDLES", "1");
            let mut importer = spawn.start();
            importer.ok(&format!("open {control} -> control"));
            importers.push(importer);
        }
        producer.ok(&format!("pool p {pool}"));
        producer.ok("begin c.control");
        producer.send("race-produce p c.control 2000");
        importers.iter_mut().for_each(|importer| importer.send("race-consume control 1900"));
        for importer in &mut importers {
            let raced = importer.answer(Duration::from_secs(10));
            let raced = raced.unwrap_or_else(|failure| panic!("{pool}, {mode}: {failure}"));
            eprintln!("{pool}, {mode}: {raced}");
        }
        producer.answer(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn mapping_of_freed_block_does_not_fault() {
    for pool in ["shared", "isolated", "proxy"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok(&format!("pool p {pool}"));
        producer.ok("alloc p 100000 -> p.b");
        producer.ok("fill p.b 1");
        let handle = producer.ok("handle p.b");
        importer.ok(&format!("open {handle} -> m"));
        assert_eq!(importer.ok("is_current m"), "true");
        producer.ok("free p p.b");
        assert_eq!(importer.ok("is_current m"), "false");
        // The content is undefined, but access does not fault.
        let _ = importer.ok("check m 1");
        if pool == "isolated" {
            // A file of a single block keeps its pages while it is mapped.
            importer.check("m", 1);
        }
        producer.ok("trim p");
        let _ = importer.ok("check m 1");
        assert_stale(&mut importer, &handle);
        importer.ok("close m");
        assert_stale(&mut importer, &handle);
        importer.ok("evict");
        assert_stale(&mut importer, &handle);
    }
}

/// MPICH #7821: destroying an exported handle invalidates mappings of the peer. Here they stay
/// valid, and old handles do not open later regions.
#[test]
fn handle_of_freed_region_is_stale_when_address_is_reused() {
    for hold in [false, true] {
        let mut producer = actor!();
        let mut importer = actor!();
        let mut handles: Vec<String> = Vec::new();
        let mut addresses = Vec::new();
        for round in 0..20 {
            addresses.push(producer.ok("region 1048576 -> r"));
            producer.ok(&format!("fill r {round}"));
            let handle = producer.ok("handle r");
            for old in &handles {
                assert_stale(&mut importer, old);
            }
            importer.ok(&format!("open {handle} -> m{round}"));
            importer.check(&format!("m{round}"), round);
            if !hold {
                importer.ok(&format!("close m{round}"));
            }
            handles.push(handle);
            producer.ok("free-region r");
            if hold {
                assert_eq!(importer.ok(&format!("is_current m{round}")), "false");
            }
        }
        let count = |addresses: &[String]| addresses.iter().collect::<std::collections::HashSet<_>>().len();
        if hold {
            assert_eq!(count(&addresses), 20, "no address is reused while it is open: {addresses:?}");
            for round in 0..20 {
                importer.ok(&format!("close m{round}"));
            }
            assert_eq!(producer.ok("drain 9000"), "0");
            addresses.push(producer.ok("region 1048576 -> r"));
        }
        assert!(count(&addresses) < addresses.len(), "no address was reused: {addresses:?}");
    }
}

#[test]
fn dropped_pool_makes_exports_stale_and_leaks_nothing() {
    for pool in ["shared", "isolated", "proxy"] {
        let mut producer = actor!();
        let mut importer = actor!();
        let clean = ProcessSnapshot::of(&importer);
        let mut before = None;
        for round in 0..3 {
            producer.ok(&format!("pool p {pool}"));
            producer.ok("alloc p 4096 -> p.b");
            producer.ok("fill p.b 6");
            let handle = producer.ok("handle p.b");
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", 6);
            producer.ok("drop-pool p");
            assert_eq!(importer.ok("is_current m"), "false", "{pool}, round {round}");
            let _ = importer.ok("check m 6");
            assert_stale(&mut importer, &handle);
            importer.ok("close m");
            assert_eq!(producer.ok("drain 9000"), "0", "{pool}, round {round}: no process has it open");
            // The ledger, and the pidfd of the importer, stay after the first round.
            let now = ProcessSnapshot::of(&producer);
            assert_eq!(
                now,
                *before.get_or_insert(now.clone()),
                "{pool}: objects of the pool or its provider remain"
            );
        }
        importer.ok("evict");
        clean.assert_restored(&importer);
    }
}

/// CUDA guide; vLLM #42609, #45611; NVIDIA Fuser #3799: handles for suballocations are unclear.
/// Here a handle contains the offset of its block, and blocks of one region share a mapping.
#[test]
fn blocks_of_one_region_share_one_mapping() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    for seed in 1..=50 {
        producer.ok(&format!("alloc p 1000 -> p.b{seed}"));
        producer.ok(&format!("fill p.b{seed} {seed}"));
        let handle = producer.handle(&format!("handle p.b{seed}"));
        importer.ok(&format!("open {handle} -> m{seed}"));
    }
    assert_eq!(importer.number("importer", "entries"), 1);
    for seed in (1..=50).step_by(2) {
        producer.ok(&format!("free p p.b{seed}"));
    }
    for seed in 1..=50 {
        let current = seed % 2 == 0;
        assert_eq!(importer.ok(&format!("is_current m{seed}")), current.to_string());
        if current {
            importer.check(&format!("m{seed}"), seed);
        }
    }
}
