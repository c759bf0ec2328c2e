//! Tests for reports from users of other projects about leftover and exposed memory, named after
//! the reports in `docs/reports.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use umf::Handle;
use umf_tests::{Actor, ProcessSnapshot, actor, machine, spawn};

/// Starts an actor with a `/dev/shm` of its own, if this process may mount one.
fn with_own_dev_shm(mode: &str) -> Actor {
    let spawn = spawn!().env("UMF_IPC_EXCHANGE", mode);
    if machine::is_root()
        && let Ok(mut actor) = spawn.clone().namespaces(libc::CLONE_NEWNS).try_start()
    {
        actor.ok("mount tmpfs /dev/shm size=64m");
        return actor;
    }
    spawn.start()
}

/// Returns the names that an actor sees in `/dev/shm`. In a common `/dev/shm`, those with its pid.
fn names(actor: &Actor) -> Vec<String> {
    let folder = Path::new("/proc").join(actor.pid().to_string()).join("root").join("dev/shm");
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| machine::is_root() || name.contains(&actor.pid().to_string())).collect()
}

/// Allocates and exports memory of each kind.
fn export_all_kinds(producer: &mut Actor) -> Vec<Handle> {
    ["shared", "proxy", "isolated", "read-only"]
        .map(|pool| {
            producer.ok(&format!("pool {pool} {pool}"));
            producer.ok(&format!("alloc {pool} 1000000 -> {pool}.b"));
            producer.ok(&format!("fill {pool}.b 1"));
            producer.handle(&format!("handle {pool}.b"))
        })
        .to_vec()
}

/// iceoryx2 #601, #1584; rmw_zenoh #224; iceoryx #324, #2183: after kill -9, names stay in
/// `/dev/shm`, prevent a restart, or fill the memory. Here memory has no names, and the programs
/// start again.
#[test]
fn iceoryx2_601_1584_iceoryx_324_2183_rmw_zenoh_224_nothing_stays_after_kill() {
    for mode in ["auto", "socket"] {
        for _ in 0..5 {
            let (mut producer, mut importer) = (with_own_dev_shm(mode), with_own_dev_shm(mode));
            let handles = export_all_kinds(&mut producer);
            for (handle, number) in handles.iter().zip(0..) {
                importer.ok(&format!("open-read {handle} -> m{number}"));
                importer.check(&format!("m{number}"), 1);
            }
            // Memory without names leaves none, at whatever time the process is killed.
            assert_eq!([names(&producer), names(&importer)], [const { Vec::<String>::new() }; 2]);
            let sockets = ProcessSnapshot::of(&producer).sockets;
            assert_eq!(sockets.len(), usize::from(mode == "socket"));
            // The importer is opening and closing when it is killed.
            importer.send(&format!("cycle {} 100000", handles[0]));
            producer.kill();
            importer.kill();
            assert!(!sockets.iter().any(|name| ProcessSnapshot::is_bound(name)), "{sockets:?}");
        }
    }
}

/// Returns the pids of the processes that have this file open or mapped.
fn users_of((device, inode): (u64, u64)) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter(|it| it.file_name().to_string_lossy().parse::<u32>().is_ok());
    let mapped = format!("{:02x}:{:02x} {inode} ", libc::major(device), libc::minor(device));
    let uses = |process: &std::fs::DirEntry| {
        // A process may end while it is examined.
        let maps = std::fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        let fds = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut files = fds.filter_map(|fd| std::fs::metadata(fd.path()).ok());
        maps.contains(&mapped) || files.any(|file| (file.dev(), file.ino()) == (device, inode))
    };
    processes.filter(uses).map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

/// iceoryx2 #1584, iceoryx #2183: the memory of killed processes stays until a user deletes it.
/// Here it has no name, so that the kernel frees it when the last process that has it open or
/// mapped ends. A closed region is not kept open.
#[test]
fn iceoryx2_1584_iceoryx_2183_memory_of_killed_processes_is_freed() {
    for mode in ["auto", "socket"] {
        let start = || spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        let (mut producer, mut importer, mut closed) = (start(), start(), start());
        producer.ok("pool p isolated");
        producer.ok("alloc p 1000000 -> p.b");
        producer.ok("fill p.b 1");
        let handle = producer.handle("handle p.b");
        for actor in [&mut importer, &mut closed] {
            actor.ok(&format!("open {handle} -> m"));
        }
        closed.ok("close m");
        closed.ok("evict");
        let [first, second] = [producer.pid(), importer.pid()].map(|pid| pid.to_string());
        let mut users = users_of(handle.data_identity());
        users.sort();
        let mut both = [first, second.clone()];
        both.sort();
        assert_eq!(users, both);
        producer.kill();
        importer.check("m", 1);
        assert_eq!(users_of(handle.data_identity()), [second]);
        importer.kill();
        assert_eq!(users_of(handle.data_identity()), Vec::<String>::new());
    }
}

/// CUDA guide; vLLM #42609, #45611; NVIDIA Fuser #3799: a handle of a block opens its whole pool,
/// from the pool's start, and exposes other blocks. Here a mapping has offset and length of the
/// block. With an isolating pool, the file contains nothing else.
#[test]
fn vllm_42609_45611_fuser_3799_handle_opens_its_block_only() {
    let mut producer = actor!();
    let mut importer = actor!();
    for pool in ["shared", "isolated"] {
        producer.ok(&format!("pool {pool} {pool}"));
        let mut handles = Vec::new();
        for seed in 1..=20 {
            let name = format!("{pool}.b{seed}");
            producer.ok(&format!("alloc {pool} {} -> {name}", 100 * seed));
            producer.ok(&format!("fill {name} {seed}"));
            handles.push(producer.handle(&format!("handle {name}")));
        }
        for (handle, seed) in handles.iter().zip(1_u64..) {
            let length = importer.ok(&format!("open {handle} -> m"));
            assert_eq!(length, handle.length().to_string());
            assert!(
                handle.length() >= 100 * seed && handle.offset() + handle.length() <= handle.region_size()
            );
            importer.check("m", seed);
            importer.fails(&format!("read-at m {length} 1"), "OutOfBounds");
            importer.fails(&format!("read-at m 1 {length}"), "OutOfBounds");
            importer.fails(&format!("read-at m {} 1", u64::MAX), "OutOfBounds");
            importer.ok("fill m 0");
            for (other, number) in handles.iter().zip(1_u64..).skip(seed as usize) {
                assert_ne!(
                    (handle.data_identity(), handle.data_offset() + handle.offset()),
                    (other.data_identity(), other.data_offset() + other.offset())
                );
                producer.check(&format!("{pool}.b{number}"), number);
            }
        }
        assert_eq!(handles.iter().all(Handle::is_isolated), pool == "isolated");
        if pool == "isolated" {
            for handle in &handles {
                let path = format!("/proc/{}/fd/{}", producer.pid(), handle.data_fd().unwrap());
                assert_eq!(
                    std::fs::metadata(path).unwrap().len(),
                    handle.region_size(),
                    "the file is the block"
                );
            }
        }
    }
}

/// MPICH #7821, UMF as read: memory is unmapped while in use. Here threads access a mapping while
/// its block is freed, its pool is dropped and its producer is killed, and no access faults.
#[test]
fn mpich_7821_umf_memory_in_use_is_not_unmapped() {
    for pool in ["shared", "proxy", "isolated"] {
        let mut producer = actor!();
        let mut importers = [actor!(), spawn!().env("UMF_MAX_OPENED_IPC_HANDLES", "1").start()];
        producer.ok(&format!("pool p {pool}"));
        producer.ok("alloc p 262144 -> p.b");
        producer.ok("fill p.b 1");
        let handle = producer.ok("handle p.b");
        for importer in &mut importers {
            importer.ok(&format!("open {handle} -> m"));
            importer.send("touch m 300");
        }
        producer.ok("sleep 50");
        producer.ok("free p p.b");
        producer.ok("trim p");
        producer.ok("drop-pool p");
        producer.ok("sleep 50");
        producer.kill();
        for importer in &mut importers {
            let touched = importer.answer(Duration::from_secs(10)).unwrap();
            assert!(touched.parse::<u64>().unwrap() > 0);
            assert_eq!(importer.ok("is_current m"), "false");
            importer.ok("evict");
            importer.ok("read-at m 0 262144");
        }
    }
}

/// UMF #979, PyTorch #130890: under yama scope 1, siblings may not attach to each other. Here the
/// error names the scope, and the default order finds a mode that needs no such right.
#[test]
fn umf_979_pytorch_130890_yama_scope_between_siblings_has_remedy() {
    const TEST: &str = "umf_979_pytorch_130890_yama_scope_between_siblings_has_remedy";
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if ["", "0"].contains(&scope.trim()) {
        return machine::skip(TEST, "this kernel has no yama, or it is off");
    }
    let start = |mode: &str| {
        let mut actor = spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        if machine::is_root() {
            actor.ok("setuid 65534");
            actor.ok("dumpable 1");
        }
        actor
    };
    let mut producer = start("pidfd");
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 1");
    let handle = producer.ok("handle p.b");
    let message = start("pidfd").fails(&format!("open {handle} -> m"), "NotPermitted");
    assert!(message.contains("kernel.yama.ptrace_scope") && message.contains("remedy: "), "{message}");
    let mut importer = start("auto");
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 1);
}
