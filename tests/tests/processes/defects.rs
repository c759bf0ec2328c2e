//! Tests for defects in the caches and handles of the C library, named after the defect's number in
//! `docs/reports.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use umf::{Handle, Importer};
use umf_tests::forge::{self, field};
use umf_tests::{Actor, CountingImport, ProcessSnapshot, actor, machine, spawn};

/// Allocates a block in a pool of this kind and fills it.
fn block(producer: &mut Actor, pool: &str, size: u64, seed: u64) -> Handle {
    producer.ok(&format!("pool p {pool}"));
    producer.ok(&format!("alloc p {size} -> p.b"));
    producer.ok(&format!("fill p.b {seed}"));
    producer.handle("handle p.b")
}

/// Starts a producer that has the same addresses after each restart by `exec`, which keeps the pid.
/// Prints the reason and returns `None` if the kernel refuses fixed addresses.
fn repeatable(test: &str) -> Option<Actor> {
    let mut producer = actor!();
    if let Err(failure) = producer.ask("fixed-addresses") {
        machine::skip(test, &format!("personality(2) is refused: {failure}"));
        return None;
    }
    Some(producer)
}

/// Restarts the producer, which then allocates the same block with another content.
fn restart(producer: &mut Actor, seed: u64) -> Handle {
    producer.ok("exec");
    producer.ok("ping");
    block(producer, "isolated", 8192, seed)
}

/// Asserts that all fields that the C library compares are equal, and further ones.
fn assert_look_alike(first: &Handle, second: &Handle) {
    let compared = |it: &Handle| (it.pid(), it.region_size(), it.region_id(), it.offset());
    assert_eq!(compared(first), compared(second));
    let further = |it: &Handle| (it.slot(), it.generation(), it.data_fd(), it.data_offset(), it.ledger_fd());
    assert_eq!(further(first), further(second));
    assert_ne!(first.nonce(), second.nonce());
}

/// W1: an entry that is evicted by an open through another provider is closed by that provider.
/// Here each entry records its importer.
#[test]
fn w1_evicted_entry_is_closed_by_its_importer() {
    let mut producer = actor!();
    let imports = ["left", "right"].map(CountingImport::new);
    let mut handles = Vec::new();
    for kind in ["left", "right"] {
        producer.ok(&format!("driver-pool {kind} {kind} one-fd"));
        producer.ok(&format!("alloc {kind} 4096 -> {kind}.b"));
        handles.push(producer.handle(&format!("handle {kind}.b")));
    }
    let [left, right] = imports.clone();
    let importer = Importer::builder().import(left).import(right).max_opened_handles(1).build().unwrap();
    for round in 0..20 {
        let which = round % 2;
        drop(importer.open(&handles[which]).unwrap());
        assert_eq!((imports[which].open_count(), imports[1 - which].open_count()), (1, 0), "round {round}");
        assert_eq!(importer.statistics().entries, 1);
    }
    assert_eq!(importer.statistics().evictions, 19);
    drop(importer);
    assert_eq!(
        imports.each_ref().map(|import| (import.open_count(), import.foreign_release_count())),
        [(0, 0); 2]
    );
}

/// W2: a handle with equal key and another id replaces an entry in use, and the pointer of the old
/// mapping then reads the new memory. Here both have entries, and an entry in use stays over the
/// limit.
#[test]
fn w2_entry_in_use_is_not_replaced_by_lookalike() {
    let Some(mut producer) = repeatable("w2") else { return };
    let mut importer = spawn!().env("UMF_MAX_OPENED_IPC_HANDLES", "1").start();
    let first = restart(&mut producer, 1);
    importer.ok(&format!("open {first} -> old"));
    let second = restart(&mut producer, 2);
    assert_look_alike(&first, &second);
    importer.ok(&format!("open {second} -> new"));
    assert_ne!(importer.ok("mapped-at old"), importer.ok("mapped-at new"));
    importer.check("old", 1);
    importer.check("new", 2);
    importer.ok("fill new 3");
    importer.check("old", 1);
    importer.ok("fill old 4");
    producer.check("p.b", 3);
    assert_eq!(importer.number("importer", "in_use"), 2);
}

/// W3: a handle of a restarted producer with equal pid, addresses and counters opens the old
/// memory. Here the nonces differ.
#[test]
fn w3_restarted_producer_is_another_producer() {
    let Some(mut producer) = repeatable("w3") else { return };
    let mut importer = actor!();
    let mut before: Option<Handle> = None;
    for seed in 1..=4 {
        let handle = restart(&mut producer, seed);
        if let Some(before) = &before {
            assert_look_alike(before, &handle);
        }
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", seed);
        // The closed mapping stays in the cache.
        importer.ok("close m");
        if let Some(before) = before.replace(handle) {
            // While the old memory is cached, the old handle may open without a system call. It
            // must open the old memory.
            if importer.ask(&format!("open {before} -> old")).is_ok() {
                importer.check("old", seed - 1);
                importer.ok("close old");
            }
            importer.ok("evict");
            // The importer knows that it is the same process if pidfds have inodes (Linux 6.9).
            let variant = if before.pidfs_inode() == 0 { "ProducerReplaced" } else { "ProducerGone" };
            importer.fails(&format!("open {before} -> old"), variant);
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", seed);
            importer.ok("close m");
        }
    }
}

/// W4: a pid of the producer's namespace is looked up in another, where it is free or another
/// process. Here a handle contains the namespace of its pid.
#[test]
fn w4_pid_of_another_namespace_is_not_looked_up() {
    const TEST: &str = "w4_pid_of_another_namespace_is_not_looked_up";
    let flags = libc::CLONE_NEWPID | if machine::is_root() { 0 } else { libc::CLONE_NEWUSER };
    let spawn = |mode: &str| spawn!().env("UMF_IPC_EXCHANGE", mode);
    for mode in ["pidfd", "procfs"] {
        let Some(mut producer) = machine::in_namespaces(TEST, spawn(mode), flags) else { return };
        let handle = block(&mut producer, "shared", 4096, 1);
        assert_eq!(handle.pid(), 1);
        // In its own namespace, this importer has the pid of the producer, and the same fds and
        // slots.
        let Some(mut same_number) = machine::in_namespaces(TEST, spawn(mode), flags) else { return };
        let other = block(&mut same_number, "shared", 4096, 2);
        assert_eq!((other.pid(), other.slot(), other.data_fd()), (1, handle.slot(), handle.data_fd()));
        // In the outer namespace the pid is init.
        for importer in [&mut same_number, &mut spawn(mode).start()] {
            let message = importer.fails(&format!("open {handle} -> m"), "NotPermitted");
            assert!(message.contains("another pid namespace"), "{message}");
        }
    }
    if !machine::is_root() {
        return machine::skip(TEST, "the socket serves across pid namespaces for root only");
    }
    let Some(mut producer) = machine::in_namespaces(TEST, spawn("socket"), flags) else { return };
    let handle = block(&mut producer, "shared", 4096, 3);
    let mut importer = spawn("socket").start();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 3);
}

/// W5: a closed mapping stays mapped until the pool is destroyed. Here limits by number and by
/// bytes unmap idle entries, and so does `evict_idle`.
#[test]
fn w5_closed_mapping_is_unmapped_at_limit_or_on_request() {
    for (name, value) in [("UMF_MAX_OPENED_IPC_HANDLES", "8"), ("UMF_IPC_MAX_OPENED_BYTES", "8MiB")] {
        let mut producer = actor!();
        producer.ok("pool p isolated");
        let mut importer = spawn!().env(name, value).start();
        importer.ok("settings");
        let clean = ProcessSnapshot::of(&importer);
        for round in 0..300 {
            producer.ok("alloc p 1048576 -> p.b");
            let handle = producer.ok("handle p.b");
            importer.ok(&format!("open {handle} -> m"));
            importer.ok("close m");
            producer.ok("free p p.b");
            let mapped = ProcessSnapshot::of(&importer).mappings.get("/memfd:umf (deleted)").copied();
            assert!(mapped <= Some(8), "{name}, round {round}: {mapped:?} mapped");
        }
        assert_eq!(importer.number("importer", "evictions"), 292);
        assert_eq!(importer.ok("evict"), "8");
        clean.assert_restored(&importer);
    }
}

/// Fails to compile if the type is `Clone`, and so could be closed twice.
macro_rules! assert_not_clone {
    ($type:ty) => {
        const _: fn() = || {
            trait Ambiguous<A> {
                fn found() {}
            }
            struct Copied;
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + Clone> Ambiguous<Copied> for T {}
            let _ = <$type as Ambiguous<_>>::found;
        };
    };
}

assert_not_clone!(umf::Mapping<'static>);
assert_not_clone!(umf::Export<'static>);
assert_not_clone!(umf::Block<'static>);

/// W6: closing an entry twice wraps its use count, and the entry can never be evicted. Here a
/// mapping closes when it is dropped, so it closes once.
#[test]
fn w6_each_open_closes_once() {
    let mut producer = actor!();
    let handle = block(&mut producer, "isolated", 4096, 1);
    let mut importer = actor!();
    for name in ["a", "b", "c"] {
        importer.ok(&format!("open {handle} -> {name}"));
    }
    for (name, in_use) in [("a", 1), ("b", 1), ("c", 0)] {
        importer.ok(&format!("close {name}"));
        importer.fails(&format!("close {name}"), "Unknown");
        assert_eq!(importer.number("importer", "in_use"), in_use);
        if in_use == 1 {
            assert_eq!(importer.ok("evict"), "0", "c still has the entry in use");
            importer.check("c", 1);
        }
    }
    assert_eq!(importer.ok("evict"), "1");
    assert_eq!(importer.number("importer", "entries"), 0);
}

/// W7: an open that fails leaves an entry in use in the cache, and destroying the pool closes
/// memory that was never opened. Here a failed open leaves no entry.
#[test]
fn w7_failed_open_leaves_nothing() {
    let mut producer = actor!();
    producer.ok("driver-pool p left fd-each");
    producer.ok("alloc p 4096 -> p.b");
    let handle = producer.handle("handle p.b");
    let import = CountingImport::new("left");
    let importer =
        Importer::builder().import(import.clone()).max_opened_handles(1).limit(umf::ipc::LimitPolicy::Hard);
    let importer = importer.build().unwrap();
    import.set_failing(true);
    for _ in 0..10 {
        assert!(importer.open(&handle).unwrap_err().to_string().contains("out of memory"));
        let now = importer.statistics();
        assert_eq!((now.entries, now.in_use, now.bytes), (0, 0, 0));
    }
    import.set_failing(false);
    // The cache of one entry is empty.
    drop(importer.open(&handle).unwrap());
    assert_eq!((import.import_count(), import.open_count()), (1, 1));
    assert_eq!(importer.evict_idle(), 1);
    drop(importer);
    assert_eq!((import.open_count(), import.foreign_release_count()), (0, 0));
}

/// W11: handles are a raw structure without version, length or checksum. Unused bytes contain
/// memory of the producer, and the consumer trusts each number. Here each byte is defined and
/// verified.
#[test]
fn w11_every_byte_of_handle_is_defined_and_verified() {
    let mut producer = actor!();
    let handle = block(&mut producer, "shared", 4096, 1);
    let bytes = handle.to_bytes();
    assert_eq!(&bytes[..6], b"UMFH\x02\x00");
    assert_eq!(&bytes[field::PROVIDER_KIND], b"host\0\0\0\0\0\0\0\0\0\0\0\0");
    for unused in [168..188, 188..252] {
        assert!(bytes[unused.clone()].iter().all(|&byte| byte == 0), "{unused:?}");
    }
    let mut sealed = bytes;
    forge::seal(&mut sealed);
    assert_eq!(sealed, bytes, "the checksum is right");
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    importer.fails(&format!("open {} -> n", forge::hex(&bytes[..40])), "Length");
    importer.fails(&format!("open {} -> n", forge::with(&handle, field::VERSION, 7)), "Version");
    let mut flipped = bytes;
    flipped[130] ^= 1;
    importer.fails(&format!("open {} -> n", forge::hex(&flipped)), "Checksum");
    for (range, value, variant) in [
        (field::REGION_SIZE, handle.region_size() << 4, "Misbehaved"),
        (field::BLOCK_LENGTH, handle.region_size() + 1, "Field"),
        (field::DATA_OFFSET, handle.data_offset() + 4096, "Misbehaved"),
        (field::DATA_FD, 0, "Misbehaved"),
        (field::REGION_ID, handle.region_id() + 1, "Misbehaved"),
    ] {
        importer.fails(&format!("open {} -> n", forge::with(&handle, range, value)), variant);
    }
    importer.check("m", 1);
    assert_eq!(importer.number("importer", "entries"), 1);
}

/// W12: all failures are `INVALID_ARGUMENT`, a dead producer included. Here each has its own error.
#[test]
fn w12_each_failure_has_its_own_error() {
    let mut importer = actor!();
    let mut producer = actor!();
    let handle = block(&mut producer, "shared", 4096, 1);
    producer.ok("free p p.b");
    assert!(importer.fails(&format!("open {handle} -> m"), "Stale").contains("was freed since"));

    let mut producer = actor!();
    let handle = block(&mut producer, "isolated", 4096, 1);
    producer.ok(&format!("replace-fd {} /dev/null", handle.data_fd().unwrap()));
    importer.fails(&format!("open {handle} -> m"), "OtherObject");

    let mut producer = actor!();
    let handle = block(&mut producer, "shared", 4096, 1);
    // Another producer process.
    let mut another = actor!();
    let another_handle = block(&mut another, "shared", 4096, 1);
    let other = [
        (field::PID, u64::from(another_handle.pid())),
        (field::LEDGER_FD, u64::from(another_handle.ledger_fd().cast_unsigned())),
        (field::PIDFS_INODE, 0),
    ];
    importer.fails(&format!("open {} -> m", forge::with_all(&handle, &other)), "ProducerReplaced");
    importer.fails(&format!("open {} -> m", forge::with(&handle, field::BOOT_ID, 1)), "OtherBoot");
    let kind = u64::from_le_bytes(*b"absent\0\0");
    importer
        .fails(&format!("open {} -> m", forge::with(&handle, field::PROVIDER_KIND, kind)), "UnknownProvider");
    let mut socket_only = spawn!().env("UMF_IPC_EXCHANGE", "socket").start();
    socket_only.fails(&format!("open {handle} -> m"), "NotPermitted");
    producer.kill();
    assert!(importer.fails(&format!("open {handle} -> m"), "ProducerGone").contains("is gone"));
}
