//! Tests for defects in the C library's shared memory and in its state after a fork, named after
//! the defect's number in `docs/reports.md`. Also tests that mappings, sockets and leases of freed
//! memory and of dead processes are released.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, ShmName, actor, machine, spawn};

/// Returns the bytes of memory that a file of the producer occupies.
fn bytes_of(producer: &Actor, fd: i32) -> u64 {
    std::fs::metadata(format!("/proc/{}/fd/{fd}", producer.pid())).unwrap().blocks() * 512
}

/// W16: freed ranges of the shared file are not reused and keep their pages, and the file stays
/// open after its provider. Here a freed range is punched and reused, and a provider closes its
/// fds.
#[test]
fn w16_freed_range_is_punched_and_reused() {
    const SIZE: u64 = 16 << 20;
    let mut producer = actor!();
    producer.ok("pool first shared");
    producer.ok("alloc first 64 -> first.b");
    producer.ok("handle first.b");
    let clean = ProcessSnapshot::of(&producer);
    producer.ok("pool p proxy");
    let mut offsets = Vec::new();
    for round in 0..16 {
        producer.ok(&format!("alloc p {SIZE} -> p.b"));
        producer.ok("fill p.b 1");
        let handle = producer.handle("handle p.b");
        let file = handle.data_fd().unwrap();
        assert_eq!(bytes_of(&producer, file), SIZE, "round {round}");
        producer.ok("free p p.b");
        assert_eq!(bytes_of(&producer, file), 0, "round {round}");
        offsets.push(handle.data_offset());
    }
    offsets.dedup();
    assert_eq!(offsets.len(), 1, "the same range each time");
    for kind in ["proxy", "shared", "isolated", "read-only"] {
        for _ in 0..20 {
            producer.ok(&format!("pool p {kind}"));
            producer.ok("alloc p 65536 -> p.b");
            producer.ok("handle p.b");
            producer.ok("drop-pool p");
        }
        clean.assert_restored(&producer);
    }
}

/// W17: with an alignment above a page, importers map the wrong bytes. Here they read the right
/// ones.
#[test]
fn w17_aligned_block_opens_at_right_offset() {
    let mut producer = actor!();
    let mut importer = actor!();
    for pool in ["proxy", "shared", "isolated"] {
        producer.ok(&format!("pool {pool} {pool}"));
        for (seed, shift) in (1..=11).zip(12..) {
            let align = 1_u64 << shift;
            let name = format!("{pool}.b{seed}");
            // A page before each block makes its default offset unaligned.
            producer.ok(&format!("alloc {pool} 4096 -> {pool}.gap{seed}"));
            let address = producer.ok(&format!("alloc-aligned {pool} {} {align} -> {name}", align + 4096));
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
            assert_eq!(address % align, 0, "{pool}, {align}");
            producer.ok(&format!("fill {name} {seed}"));
        }
        for seed in 1..=11 {
            let handle = producer.handle(&format!("handle {pool}.b{seed}"));
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", seed);
            importer.ok(&format!("fill m {}", seed + 100));
            producer.check(&format!("{pool}.b{seed}"), seed + 100);
        }
    }
}

/// W18: the first open of named memory unlinks the name, so that later opens fail. A second
/// provider with the name takes it from the first. Here the name belongs to its creator.
#[test]
fn w18_opening_named_memory_keeps_its_name() {
    let mut producer = actor!();
    let object = ShmName::new(&producer, "w18");
    let name = object.to_string();
    producer.ok(&format!("pool p named {name}"));
    let handles: Vec<Handle> = (1..=3)
        .map(|seed| {
            producer.ok(&format!("alloc p 100000 -> p.b{seed}"));
            producer.ok(&format!("fill p.b{seed} {seed}"));
            producer.handle(&format!("handle p.b{seed}"))
        })
        .collect();
    for _ in 0..3 {
        let mut importer = actor!();
        importer.ok("allow-unsealed");
        for _ in 0..2 {
            for (handle, seed) in handles.iter().zip(1..) {
                importer.ok(&format!("open {handle} -> m"));
                importer.check("m", seed);
                importer.ok("close m");
            }
            importer.ok("evict");
        }
        assert_eq!(ProcessSnapshot::of(&producer).names, [&name[1..]]);
    }
    // The name leads to the same memory as the handles.
    let file = std::fs::metadata(format!("/dev/shm{name}")).unwrap();
    assert_eq!((file.dev(), file.ino()), handles[0].data_identity());
    let mut second = actor!();
    assert!(second.fails(&format!("pool q named {name}"), "Native").contains("the name exists"));
    second.finish();
    assert_eq!(ProcessSnapshot::of(&producer).names, [&name[1..]]);
    producer.ok("drop-pool p");
    assert_eq!(ProcessSnapshot::of(&producer).names, Vec::<String>::new());
}

/// Returns a field of `smaps` for each mapping of umf memory in a process, in KiB.
fn smaps(actor: &Actor, field: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps", actor.pid())).unwrap();
    let mut values = Vec::new();
    let mut is_umf = false;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if !first.ends_with(':') {
            is_umf = line.contains("/memfd:umf (deleted)");
        } else if is_umf && first.trim_end_matches(':') == field {
            values.push(line.split_whitespace().nth(1).unwrap().parse().unwrap());
        }
    }
    values
}

/// W19: shared memory is locked and unaccounted (`memfd_secret`), and a purge fails or keeps the
/// content. Here it is ordinary shared memory, and a purge frees the pages in all processes.
#[test]
fn w19_purge_of_shared_memory_frees_its_pages() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("region 1048576 -> r");
    producer.ok("fill r 1");
    let handle = producer.handle("handle r");
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 1);
    for actor in [&producer, &importer] {
        assert_eq!(smaps(actor, "Locked"), [0]);
        assert_eq!(smaps(actor, "Rss"), [1024]);
    }
    let file = handle.data_fd().unwrap();
    assert_eq!(bytes_of(&producer, file), 1 << 20);
    producer.ok("purge-region r");
    assert_eq!(bytes_of(&producer, file), 0);
    assert_eq!(smaps(&importer, "Rss"), [0]);
    let zeros = "00".repeat(4096);
    for place in ["0", "524288", "1044480"] {
        assert_eq!(importer.ok(&format!("read-at m {place} 4096")), zeros);
    }
    // The mapping still shares memory with the producer.
    assert_eq!(importer.ok("is_current m"), "true");
    producer.ok("fill r 2");
    importer.check("m", 2);
}

/// W36: after a fork the child uses the parent's state: handles name the parent's pid and fds, and
/// a lock may stay taken forever. Here the child has its own exports, and inherited pools are
/// frozen.
#[test]
fn w36_handles_of_forked_child_name_the_child() {
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", "pidfd,socket").start();
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 1");
    let parents = producer.handle("handle p.b");
    let mut importer = actor!();
    importer.ok(&format!("open {parents} -> parents"));
    for round in 0..5 {
        let child = producer.fork();
        // The cache has a handle for this block of the parent, which the child must not use.
        for command in ["handle p.b", "export p.b -> e"] {
            producer.fails(&format!("child {command}"), "Frozen");
        }
        producer.ok("child pool r shared");
        producer.ok("child alloc r 4096 -> r.b");
        producer.ok(&format!("child fill r.b {round}"));
        let childs = producer.handle("child handle r.b");
        assert_eq!((childs.pid(), parents.pid()), (child, producer.pid()));
        assert_ne!(childs.nonce(), parents.nonce());
        importer.ok(&format!("open {childs} -> childs"));
        importer.check("childs", round);
        // The parent's cached handle is unchanged, and the child can open it.
        assert_eq!(producer.handle("handle p.b"), parents);
        producer.ok(&format!("child open {parents} -> parents"));
        assert_eq!(producer.ok("child check parents 1"), "same");
        assert_eq!(producer.ok("reap"), "0");
        importer.check("childs", round);
        importer.ok("close childs");
        importer.ok("evict");
        importer.fails(&format!("open {childs} -> childs"), "ProducerGone");
        assert_eq!(importer.ok("is_current parents"), "true");
    }
}

/// Regions that were freed. If they stayed mapped, they would keep their pages, slow down each free
/// of the producer, and reach `vm.max_map_count`.
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

/// The socket thread owns its fds until it ends, and fork handlers must close them in children
/// until then. A child with such an fd would keep the name of a socket bound that no thread serves.
#[test]
fn child_forked_while_exporter_ends_inherits_no_socket() {
    let mut actor = actor!();
    let command = "fork-while-exporters-end 1500";
    let answer = actor.ask_within(command, Duration::from_secs(60)).unwrap();
    assert_eq!(answer, "with_socket=0 children=1500");
    actor.finish();
}

/// An importer in another pid namespace that closes everything and opens again costs the producer
/// no further fd. The producer still notices its death.
#[test]
fn reopening_importer_costs_producer_no_more_fds() {
    const TEST: &str = "reopening_importer_costs_producer_no_more_fds";
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users");
    }
    let socket = || spawn!().env("UMF_IPC_EXCHANGE", "socket");
    let mut producer = socket().start();
    let Some(mut importer) = machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID) else { return };
    producer.ok("pool p shared");
    producer.ok("alloc p 100 -> b");
    let handle = producer.handle("handle b");
    importer.ok(&format!("open {handle} -> m"));
    let before = ProcessSnapshot::of(&producer).fd_count();
    for _ in 0..60 {
        importer.ok("close m");
        importer.ok("evict");
        importer.ok(&format!("open {handle} -> m"));
    }
    assert!(ProcessSnapshot::of(&producer).fd_count() <= before + 1);
    producer.ok("free p b");
    assert_ne!(producer.number("held", "bytes"), 0);
    importer.kill();
    assert_eq!(producer.ok("drain 5000"), "0");
    producer.finish();
}

/// The leases of a dead importer end, also if many importers took leases after it before the
/// producer looked for dead importers.
#[test]
fn leases_of_dead_importer_end_after_many_later_importers() {
    const TEST: &str = "leases_of_dead_importer_end_after_many_later_importers";
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users");
    }
    let socket = || spawn!().env("UMF_IPC_EXCHANGE", "socket");
    let mut producer = socket().start();
    producer.ok("pool p shared");
    producer.ok("alloc p 100 -> b");
    producer.ok("alloc p 100 -> c");
    let (first, second) = (producer.handle("handle b"), producer.handle("handle c"));
    let inside = || machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID);
    let (Some(mut one), Some(mut other)) = (inside(), inside()) else { return };
    one.ok(&format!("open {first} -> m"));
    one.kill();
    for _ in 0..40 {
        other.ok(&format!("open {second} -> m"));
        other.ok("close m");
        other.ok("evict");
    }
    producer.ok("free p b");
    assert_eq!(producer.ok("drain 2000"), "0");
    other.finish();
    producer.finish();
}
