//! CUDA memory shared between processes: handles, the slab pool, killed processes. Runs on the
//! software driver, or on a GPU (`tests/cuda/run`).

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, Spawn, machine, scenarios, spawn};

const KINDS: [&str; 2] = ["virtual", "device"];

fn with_driver() -> Spawn {
    machine::with_cuda_driver(spawn!(), env!("CARGO_TARGET_TMPDIR"))
}

fn in_mode(mode: &str) -> Actor {
    with_driver().env("UMF_IPC_EXCHANGE", mode).start()
}

/// Takes a snapshot of a process after the threads of its driver have ended.
fn at_rest(actor: &Actor) -> ProcessSnapshot {
    let mut before = ProcessSnapshot::of(actor);
    loop {
        std::thread::sleep(std::time::Duration::from_millis(120));
        let now = ProcessSnapshot::of(actor);
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Allocates blocks of several sizes. The last is too large for a slab.
fn blocks(producer: &mut Actor, kind: &str) -> Vec<Handle> {
    scenarios::blocks(producer, &format!("cuda {kind}"), (2 << 20) + 4096)
}

#[test]
fn processes_read_each_others_writes_through_handles() {
    for kind in KINDS {
        // Memory without an fd can be opened in any mode.
        let modes: &[_] =
            if kind == "virtual" { &["pidfd", "socket", "auto"] } else { &["pidfd", "procfs", "auto"] };
        for mode in modes {
            let mut producer = in_mode(mode);
            let handles = blocks(&mut producer, kind);
            let mut importers = [in_mode(mode), in_mode(mode)];
            // The first open starts the driver, with its threads and files.
            for importer in &mut importers {
                importer.ok(&format!("open {} -> first", handles[0]));
                importer.check("first", 1);
                importer.ok("close first");
                importer.ok("evict");
            }
            let clean: Vec<_> = importers.iter().map(at_rest).collect();
            for handle in &handles {
                assert_eq!(handle.provider_kind().as_str(), "cuda");
                assert_eq!(handle.data_fd().is_some(), kind == "virtual");
            }
            scenarios::share(&mut producer, &mut importers, &handles);
            for (importer, clean) in importers.into_iter().zip(clean) {
                if !machine::has_gpu() {
                    clean.assert_restored(&importer);
                }
                importer.finish();
            }
            producer.finish();
        }
    }
}

#[test]
fn handle_of_freed_region_is_stale_after_address_reuse() {
    for kind in KINDS {
        let (mut producer, mut importer) = (in_mode("auto"), in_mode("auto"));
        producer.ok(&format!("pool p cuda {kind}"));
        let mut old = Vec::new();
        for round in 1..30_u64 {
            // A region of its own, usually at the same address.
            producer.ok(&format!("alloc p {} -> p.b", 12 << 20));
            producer.ok(&format!("fill p.b {round}"));
            let handle = producer.handle("handle p.b");
            importer.ok(&format!("open {handle} -> m"));
            importer.check("m", round);
            importer.ok("close m");
            producer.ok("free p p.b");
            producer.ok("trim p");
            old.push(handle);
            for handle in old.iter().rev().take(3) {
                importer.fails(&format!("open {handle} -> again"), "Stale");
            }
        }
        importer.finish();
        producer.finish();
    }
}

#[test]
fn freed_block_is_reused_only_after_last_close() {
    for kind in KINDS {
        // A block in a shared region, and a block in a region of its own.
        for (size, others) in [(4096_u64, 300), ((12 << 20) + 4096, 3)] {
            let (mut producer, mut importer) = (in_mode("auto"), in_mode("auto"));
            producer.ok(&format!("pool p cuda {kind}"));
            producer.ok("alloc p 4096 -> p.stays");
            producer.ok(&format!("alloc p {size} -> p.b"));
            producer.ok("fill p.b 1");
            let address = producer.ok("address p.b");
            importer.ok(&format!("open {} -> m", producer.handle("handle p.b")));
            producer.ok("free p p.b");
            let held = producer.number("held", "bytes");
            assert!(held >= size, "{kind}: {size} bytes are open, but only {held} bytes are deferred");
            assert_eq!(importer.ok("is_current m"), "false");
            assert_eq!(producer.ok(&format!("reused p {size} {address} {others}")), "no", "{kind}");
            producer.ok("trim p");
            assert_ne!(producer.ok("drain 30"), "0", "{kind}");
            importer.check("m", 1);
            importer.ok("close m");
            assert_eq!(producer.ok("drain 5000"), "0", "{kind}");
            importer.finish();
            producer.finish();
        }
    }
}

#[test]
fn import_cache_stays_within_limit() {
    for kind in KINDS {
        let mut producer = in_mode("auto");
        producer.ok(&format!("pool p cuda {kind}"));
        let mut importer = with_driver().env("UMF_MAX_OPENED_IPC_HANDLES", "2").start();
        let mut handles = Vec::new();
        for number in 0..6_u64 {
            producer.ok(&format!("alloc p {} -> p.b{number}", 12 << 20));
            producer.ok(&format!("fill p.b{number} {number}"));
            handles.push(producer.handle(&format!("handle p.b{number}")));
        }
        for _ in 0..3 {
            for (number, handle) in (0..).zip(&handles) {
                importer.ok(&format!("open {handle} -> m"));
                importer.check("m", number);
                importer.ok("close m");
                assert!(importer.number("importer", "entries") <= 2, "{kind}");
            }
        }
        assert!(importer.number("importer", "evictions") >= 10, "{kind}");
        importer.finish();
        producer.finish();
    }
}

#[test]
fn killed_importer_leaves_nothing() {
    for kind in KINDS {
        let mut producer = in_mode("auto");
        let handles = blocks(&mut producer, kind);
        let mut before = None;
        // Each kill must leave the producer as the one before did.
        for _ in 0..3 {
            scenarios::kill_importer(&mut producer, in_mode("auto"), &handles);
            before.get_or_insert_with(|| at_rest(&producer)).assert_restored(&producer);
        }
        producer.finish();
    }
}

#[test]
fn killed_producer_leaves_open_memory_only() {
    for kind in KINDS {
        let mut importer = in_mode("auto");
        let mut clean = None;
        for _ in 0..3 {
            let mut producer = in_mode("auto");
            let handles = blocks(&mut producer, kind);
            importer.ok(&format!("open {} -> m", handles[2]));
            producer.kill();
            // Open memory keeps its content; other memory cannot be opened.
            importer.check("m", 3);
            importer.ok("fill m 9");
            importer.check("m", 9);
            // This block is in another region, which the importer has not opened.
            importer.fails(&format!("open {} -> other", handles[3]), "ProducerGone");
            importer.ok("close m");
            importer.ok("evict");
            clean.get_or_insert_with(|| at_rest(&importer)).assert_restored(&importer);
        }
        importer.finish();
    }
}

#[test]
fn export_open_close_cycles_leak_nothing() {
    let cycles = if machine::is_long() || machine::has_gpu() { 10_000 } else { 400 };
    for kind in KINDS {
        let (mut producer, mut importer) = (in_mode("auto"), in_mode("auto"));
        producer.ok(&format!("pool p cuda {kind}"));
        producer.ok("alloc p 4096 -> p.stays");
        let mut cycle = |number: u64| {
            producer.ok(&format!("alloc p {} -> p.b", (12 << 20) + number % 7));
            let handle = producer.handle("handle p.b");
            importer.ok(&format!("open {handle} -> m"));
            importer.ok("close m");
            importer.ok("evict");
            producer.ok("free p p.b");
            producer.ok("trim p");
            // Takes snapshots at the end of a cycle.
            (number == u64::MAX).then(|| (at_rest(&producer), at_rest(&importer)))
        };
        (0..5).for_each(|number| drop(cycle(number)));
        let before = cycle(u64::MAX).unwrap();
        (0..cycles).for_each(|number| drop(cycle(number)));
        let after = cycle(u64::MAX).unwrap();
        assert_eq!(before.0.fds, after.0.fds, "{kind}");
        assert_eq!(before.1.fds, after.1.fds, "{kind}");
        assert_eq!(before.0.mappings, after.0.mappings, "{kind}");
        assert_eq!(before.1.mappings, after.1.mappings, "{kind}");
        importer.finish();
        producer.finish();
    }
}

#[test]
fn device_is_found_by_uuid_not_by_index() {
    if machine::has_gpu() {
        return machine::skip(
            "device_is_found_by_uuid_not_by_index",
            "the test needs two devices, which a machine may not have",
        );
    }
    for kind in KINDS {
        let visible = |devices: &str| with_driver().env("CUDA_VISIBLE_DEVICES", devices).start();
        let mut producer = visible("1");
        let handles = blocks(&mut producer, kind);
        for devices in ["0,1", "1,0", "1"] {
            let mut importer = visible(devices);
            importer.ok(&format!("open {} -> m", handles[1]));
            importer.check("m", 2);
            importer.finish();
        }
        let mut blind = visible("0");
        let message = blind.fails(&format!("open {} -> m", handles[1]), "NotSupported");
        assert!(message.contains("CUDA_VISIBLE_DEVICES"), "{message}");
        blind.finish();
        // Without any device.
        let mut none = visible("");
        let message = none.fails(&format!("open {} -> m", handles[1]), "Driver");
        assert!(message.contains("CUDA_ERROR_NO_DEVICE"), "{message}");
        producer.finish();
    }
}

#[test]
fn fabric_handles_need_no_descriptor() {
    if machine::has_gpu() {
        return machine::skip("fabric_handles_need_no_descriptor", "few machines have a fabric");
    }
    let start = |lacks: &str| {
        let spawn = with_driver().env("CUDA_SOFT_LACKS", lacks).env("UMF_POOL_FRAMES_PROVIDER", "cuda");
        spawn.env("UMF_PROVIDER_CUDA_MEMORY", "virtual").env("UMF_PROVIDER_CUDA_HANDLES", "opaque").start()
    };
    let (mut producer, mut importer) = (start("fds"), start("fds"));
    producer.ok("pool p settings frames");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 5");
    let handle = producer.handle("handle p.b");
    assert_eq!((handle.data_fd(), handle.native().len()), (None, 64));
    for _ in 0..3 {
        importer.ok(&format!("open {handle} -> m"));
        importer.check("m", 5);
        importer.ok("close m");
        importer.ok("evict");
    }
    producer.ok("free p p.b");
    importer.fails(&format!("open {handle} -> m"), "Stale");
    let message = start("fabric").fails("pool p settings frames", "NotSupported");
    assert!(message.contains("nvidia-imex"), "{message}");
}

#[test]
fn open_without_driver_names_missing_library() {
    if machine::has_gpu() {
        return;
    }
    let mut producer = in_mode("auto");
    let handle = blocks(&mut producer, "virtual").remove(0);
    let mut importer = spawn!().env("LD_LIBRARY_PATH", "").start();
    match importer.ask(&format!("open {handle} -> m")) {
        Ok(_) => machine::skip("open_without_driver_names_missing_library", "this machine has one"),
        Err(failure) => assert!(failure.to_string().contains("libcuda.so.1"), "{failure}"),
    }
}

#[test]
fn settings_choose_memory_kind() {
    let with = |keys: &[(&str, &str)]| {
        let mut spawn =
            with_driver().env("UMF_POOL_FRAMES_PROVIDER", "gpu").env("UMF_PROVIDER_GPU_KIND", "cuda");
        for (key, value) in keys {
            spawn = spawn.env(&format!("UMF_PROVIDER_GPU_{key}"), value);
        }
        spawn.start()
    };
    for (memory, has_fd) in [("virtual", true), ("device", false)] {
        let mut producer = with(&[("MEMORY", memory)]);
        producer.ok("pool p settings frames");
        producer.ok("alloc p 4096 -> p.b");
        let handle = producer.handle("handle p.b");
        assert_eq!((handle.provider_kind().as_str(), handle.data_fd().is_some()), ("cuda", has_fd));
        producer.finish();
    }
    for memory in ["host", "managed"] {
        let mut producer = with(&[("MEMORY", memory)]);
        producer.ok("pool p settings frames");
        producer.ok("alloc p 4096 -> p.b");
        producer.ok("fill p.b 7");
        producer.check("p.b", 7);
        producer.fails("handle p.b", "NotExportable");
        producer.finish();
    }
    for (keys, why) in [
        (&[("NUMA", "local")] as &[_], "of kind \"host\""),
        (&[("FREE_POLICY", "deferred")], "level-zero"),
        (&[("PARAMS", "{ a = 1 }")], "of kind \"plugin\""),
    ] {
        let message = with(keys).fails("pool p settings frames", "UnknownKey");
        assert!(message.contains(why), "{message}");
    }
    with(&[("DEVICE", "77")]).fails("pool p settings frames", "Driver");
}
