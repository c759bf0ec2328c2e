//! What users of other systems report of memory that stays behind, and of memory that others see, one test for each, named
//! after the reports: `docs/reports.md` says what happens there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::{Duration, Instant};

use umf::Handle;
use umf_tests::{Actor, Census, actor, machine, spawn};

/// Names in `/dev/shm` that any part of umf could have made, except those of other tests that run now.
fn names() -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("umf") && !name.starts_with("umf-tests-")).collect()
}

/// What a job does: memory of each kind, exported.
fn work(producer: &mut Actor) -> Vec<Handle> {
    ["shared", "proxy", "isolated", "read-only"]
        .map(|pool| {
            producer.ok(&format!("pool {pool} {pool}"));
            producer.ok(&format!("alloc {pool} 1000000 -> {pool}.b"));
            producer.ok(&format!("fill {pool}.b 1"));
            producer.handle(&format!("handle {pool}.b"))
        })
        .to_vec()
}

/// iceoryx2 #601, #1584; rmw_zenoh #224; iceoryx #324, #2183: after kill -9, names in `/dev/shm` stay behind, keep programs from
/// starting again, or fill the memory. Here nothing has a name, on either side and in no mode, and the same job starts again.
#[test]
fn iceoryx2_601_1584_iceoryx_324_2183_rmw_zenoh_224_nothing_stays_after_kill() {
    let before = names();
    for mode in ["auto", "socket"] {
        for _ in 0..5 {
            let start = || spawn!().env("UMF_IPC_EXCHANGE", mode).start();
            let (mut producer, mut importer) = (start(), start());
            let handles = work(&mut producer);
            for (handle, number) in handles.iter().zip(0..) {
                importer.ok(&format!("open-read {handle} -> m{number}"));
                importer.check(&format!("m{number}"), 1);
            }
            assert_eq!(names(), before, "no names even while all is in use");
            let sockets = Census::of(&producer).sockets;
            assert_eq!(sockets.len(), usize::from(mode == "socket"));
            // The importer is in the middle of it, too.
            importer.send(&format!("cycle {} 100000", handles[0]));
            producer.kill();
            importer.kill();
            assert_eq!(names(), before);
            assert!(!sockets.iter().any(|name| Census::is_bound(name)), "{sockets:?}");
        }
    }
}

/// KiB of shared memory in the machine.
fn shared_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Waits until the machine has at least so many KiB of shared memory less than `from`.
fn falls_by(from: u64, less: u64) -> bool {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        if shared_memory() + less <= from {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// iceoryx2 #1584, iceoryx #2183: the memory of killed processes is lost until somebody deletes it. Here the kernel counts its
/// users, and the last of them may be killed, too.
#[test]
fn iceoryx2_1584_iceoryx_2183_the_memory_of_killed_processes_comes_back() {
    const KIB: u64 = 192 << 10;
    // Others use shared memory as well: one time of three has to show it.
    let shown = (0..3).any(|_| {
        let (mut producer, mut importer) = (actor!(), actor!());
        producer.ok("pool p isolated");
        producer.ok(&format!("alloc p {} -> p.b", KIB << 10));
        producer.ok("fill p.b 1");
        let handle = producer.ok("handle p.b");
        importer.ok(&format!("open {handle} -> m"));
        let full = shared_memory();
        producer.kill();
        // The importer still has it.
        importer.check("m", 1);
        let kept = shared_memory() + KIB / 2 > full;
        importer.kill();
        kept && falls_by(full, KIB / 2)
    });
    assert!(shown, "{KIB} KiB did not come back");
}

/// CUDA guide; vLLM #42609, #45611; NVIDIA Fuser #3799: a handle of a block opens its whole pool, at the pool's beginning, and what
/// lies around it is seen. Here a handle opens the block, at its own place and length; a pool that isolates shows nothing else.
#[test]
fn vllm_42609_45611_fuser_3799_a_handle_opens_its_block() {
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

/// MPICH #7821, UMF as read: memory is unmapped while somebody uses it. Here threads read and write a mapping while its block is
/// freed, its pool is dropped and its producer is killed, and none of them faults.
#[test]
fn mpich_7821_umf_unmapping_memory_that_is_in_use_faults_nobody() {
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

/// UMF #979, PyTorch #130890: under yama scope 1, siblings may not attach to each other. Here the error says so, and the order
/// that is the default finds a way that needs no such right.
#[test]
fn umf_979_pytorch_130890_yama_between_siblings() {
    const TEST: &str = "umf_979_pytorch_130890_yama_between_siblings";
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
