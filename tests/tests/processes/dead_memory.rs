//! Memory of producers that were killed: it is released but for what importers have open.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use umf::Handle;
use umf_tests::{Actor, Patience, ProcessSnapshot, actor, machine, spawn};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What a pool may have in the whole pages and size classes around a small block.
const AROUND_BLOCK: u64 = 64 * KIB;
/// Blocks of 1 MiB of a [`producer`].
const LARGE: u64 = 16;

/// A producer with many blocks in a pool `p`, its handles, and the file of its memory.
struct Producer {
    actor: Actor,
    /// Handles of blocks of 4 KiB, whose contents have the seeds 0, 1, ...
    small: Vec<Handle>,
    file: File,
}

impl Producer {
    fn new(actor: Actor, small: u64) -> Self {
        let mut producer = Self { actor, small: Vec::new(), file: File::open("/dev/null").unwrap() };
        producer.actor.ok("pool p shared");
        for seed in 0..small {
            // Large blocks around the small ones.
            for part in 0..LARGE / small {
                producer.block(&format!("p.large{seed}.{part}"), MIB, 100);
            }
            let handle = producer.block(&format!("p.small{seed}"), 4 * KIB, seed);
            producer.small.push(handle);
        }
        producer.file = open_data(producer.actor.pid(), &producer.small[0]);
        assert!(producer.bytes() >= LARGE * MIB);
        producer
    }

    fn block(&mut self, name: &str, size: u64, seed: u64) -> Handle {
        self.actor.ok(&format!("alloc p {size} -> {name}"));
        self.actor.ok(&format!("fill {name} {seed}"));
        self.actor.handle(&format!("handle {name}"))
    }

    /// Returns the bytes of memory that its file has.
    fn bytes(&self) -> u64 {
        bytes_of(&self.file)
    }
}

/// Opens the file of a handle's memory.
fn open_data(pid: u32, handle: &Handle) -> File {
    File::open(format!("/proc/{pid}/fd/{}", handle.data_fd().unwrap())).unwrap()
}

fn bytes_of(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

/// Polls until `is_done`.
fn poll_until(importer: &mut Actor, what: &str, is_done: impl Fn() -> bool) {
    let mut patience = Patience::new(Duration::from_secs(10));
    loop {
        importer.ok("drain 0");
        if is_done() {
            return;
        }
        assert!(patience.sleep(), "{what}");
    }
}

#[test]
fn open_blocks_of_killed_producer_stay_and_the_rest_is_released() {
    for mode in ["auto", "pidfd", "procfs", "socket"] {
        let in_mode = || spawn!().env("UMF_IPC_EXCHANGE", mode).start();
        let mut producer = Producer::new(in_mode(), 4);
        let (mut importer, mut other) = (in_mode(), in_mode());
        let clean = ProcessSnapshot::of(&other);
        importer.ok(&format!("open {} -> m", producer.small[0]));
        other.ok(&format!("open {} -> m", producer.small[3]));
        // A handle that a thread remembers.
        other.ok(&format!("open {} -> closed", producer.small[1]));
        other.ok("close closed");
        producer.actor.kill();
        let what = format!("{mode}: memory of a killed producer stays");
        poll_until(&mut importer, &what, || producer.bytes() <= 2 * AROUND_BLOCK);
        importer.check("m", 0);
        other.check("m", 3);
        // No open gives released memory, not even the cached one of another importer.
        for handle in &producer.small {
            for actor in [&mut other, &mut importer] {
                let text = actor.fails(&format!("open {handle} -> n"), "ProducerGone");
                assert!(text.contains("existing mappings stay valid"), "{text}");
            }
        }
        importer.ok("fill m 77");
        importer.check("m", 77);
        other.check("m", 3);
        // The last close ends everything that an importer has of the producer.
        other.ok("close m");
        assert!(producer.bytes() <= AROUND_BLOCK, "{mode}: {} bytes", producer.bytes());
        assert_eq!(other.number("importer", "entries"), 0, "{mode}");
        importer.check("m", 77);
        importer.ok("close m");
        importer.ok("evict");
        other.ok("evict");
        clean.assert_restored(&other);
    }
}

/// A collection looks at the whole lease table, so that not each close may start one.
#[test]
fn closes_of_a_dead_producers_blocks_collect_seldom() {
    const BLOCKS: u64 = 1500;
    let mut producer = actor!();
    producer.ok("pool p shared");
    // Counts from the first plan on.
    let mut importer = spawn!().env("UMF_FAILPOINTS", "").start();
    let mut handle = None;
    for block in 0..BLOCKS {
        producer.ok(&format!("alloc p 4096 -> p.b{block}"));
        producer.ok(&format!("fill p.b{block} 1"));
        let exported = producer.handle(&format!("handle p.b{block}"));
        importer.ok(&format!("open {exported} -> m{block}"));
        handle = Some(exported);
    }
    let file = open_data(producer.pid(), &handle.unwrap());
    producer.kill();
    let collections = |importer: &mut Actor| importer.ok("reached collect.scanned").parse::<u64>().unwrap();
    importer.ok("drain 0");
    let before = collections(&mut importer);
    assert!(before > 0);
    importer.ok(&format!("close-some m 1 {BLOCKS}"));
    let collected = collections(&mut importer) - before;
    assert!(collected > 0 && collected < BLOCKS / 4, "{collected} collections in {BLOCKS} closes");
    importer.check("m0", 1);
    // The last one does.
    importer.ok("close m0");
    assert_eq!(importer.number("importer", "entries"), 0);
    assert_eq!(bytes_of(&file), 0);
}

#[test]
fn any_open_close_or_poll_finds_the_dead_producer() {
    for trigger in ["drain 0", "evict", "open", "stale", "close"] {
        let mut producer = Producer::new(actor!(), 4);
        let mut living = actor!();
        living.ok("pool p shared");
        let mut importer = actor!();
        importer.ok(&format!("open {} -> m", producer.small[0]));
        importer.ok(&format!("open {} -> other", producer.small[1]));
        producer.actor.kill();
        // Opens look for ended producers once in a tick of the kernel's clock.
        std::thread::sleep(Duration::from_millis(20));
        let mut patience = Patience::new(Duration::from_secs(10));
        for number in 0.. {
            match trigger {
                "open" => {
                    living.ok("alloc p 5000 -> p.b");
                    let handle = living.handle("handle p.b");
                    // The first mapping of the living producer, and cached windows.
                    importer.ok(&format!("open {handle} -> of-living{number}"));
                }
                "stale" => drop(importer.ask(&format!("open {} -> n", producer.small[2]))),
                "close" => {
                    if number == 0 {
                        importer.ok("drain 0");
                        assert!(producer.bytes() > AROUND_BLOCK / 16);
                    } else if number == 1 {
                        importer.ok("close other");
                    }
                }
                command => drop(importer.ok(command)),
            }
            let kept = if trigger == "close" { AROUND_BLOCK } else { 2 * AROUND_BLOCK };
            if producer.bytes() <= kept && (trigger != "close" || number > 0) {
                break;
            }
            assert!(patience.sleep(), "{trigger}: {} bytes stay", producer.bytes());
        }
        importer.check("m", 0);
    }
}

/// A forked child of the producer uses its memory, without any lease.
#[test]
fn memory_that_a_forked_child_has_inherited_stays() {
    let mut producer = Producer::new(actor!(), 2);
    let mut importer = actor!();
    importer.ok(&format!("open {} -> m", producer.small[0]));
    let before = producer.bytes();
    let child = producer.actor.fork();
    let child = i32::try_from(child).unwrap();
    // SAFETY: sends a signal to the child that this test forked. It stops, so that it does not see
    // the end of its parent.
    unsafe { libc::kill(child, libc::SIGSTOP) };
    producer.actor.kill_unreaped();
    for _ in 0..10 {
        importer.ok("drain 0");
        importer.check("m", 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(producer.bytes(), before, "a child of the producer has the memory");
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    poll_until(&mut importer, "the child has ended too", || producer.bytes() <= AROUND_BLOCK);
    importer.check("m", 0);
}

/// A child that was forked before the first export does not inherit the lock that tells of it.
#[test]
fn memory_that_a_child_inherited_before_the_first_export_stays() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 1000000 -> p.big");
    producer.ok("fill p.big 3");
    producer.ok("alloc p 4096 -> p.small");
    producer.ok("fill p.small 4");
    let child = i32::try_from(producer.fork()).unwrap();
    // SAFETY: sends a signal to the child that this test forked.
    unsafe { libc::kill(child, libc::SIGSTOP) };
    let handle = producer.handle("handle p.small");
    let file = open_data(producer.pid(), &handle);
    let before = bytes_of(&file);
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    producer.kill_unreaped();
    for _ in 0..10 {
        importer.ok("drain 0");
        importer.check("m", 4);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bytes_of(&file), before, "a child of the producer has the memory");
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

/// A file that is sealed against writing cannot be punched by any process.
#[test]
fn read_only_memory_stays_until_it_is_closed() {
    let mut producer = actor!();
    producer.ok("pool p read-only");
    producer.ok("alloc p 1000000 -> p.b");
    producer.ok("fill p.b 5");
    let handle = producer.handle("handle p.b");
    let file = open_data(producer.pid(), &handle);
    let mut importer = actor!();
    importer.ok(&format!("open-read {handle} -> m"));
    producer.kill();
    for _ in 0..5 {
        importer.ok("drain 0");
    }
    importer.check("m", 5);
    assert!(bytes_of(&file) >= 1_000_000);
}

/// Each region of an isolated pool is a file of its own. Those that are not open are unmapped.
#[test]
fn isolated_blocks_of_killed_producer_are_closed_at_once() {
    let mut producer = actor!();
    producer.ok("pool p isolated");
    let handles: Vec<_> = (0..3)
        .map(|seed| {
            producer.ok(&format!("alloc p 100000 -> p.b{seed}"));
            producer.ok(&format!("fill p.b{seed} {seed}"));
            producer.handle(&format!("handle p.b{seed}"))
        })
        .collect();
    let mut importer = actor!();
    for (seed, handle) in handles.iter().enumerate() {
        importer.ok(&format!("open {handle} -> m{seed}"));
    }
    for seed in [0, 2] {
        importer.ok(&format!("close m{seed}"));
    }
    assert_eq!(importer.number("importer", "entries"), 3);
    producer.kill();
    let mut patience = Patience::new(Duration::from_secs(10));
    while importer.number("importer", "entries") > 1 {
        importer.ok("drain 0");
        assert!(patience.sleep(), "idle mappings of a killed producer stay");
    }
    importer.check("m1", 1);
    importer.ok("close m1");
    assert_eq!(importer.number("importer", "entries"), 0, "the last close unmaps");
}

/// A message whose sender lives keeps its memory, although no process has it open.
#[test]
fn message_of_a_dead_producers_memory_is_kept() {
    let mut producer = Producer::new(actor!(), 4);
    let (mut sender, mut reader) = (actor!(), actor!());
    sender.ok(&format!("open {} -> m", producer.small[1]));
    let message = sender.handle(&format!("pass-on m {} 1", producer.small[1]));
    let own = producer.actor.handle("send p.small2 1");
    sender.ok("close m");
    // It has another block open, so that it still has the producer's memory mapped.
    reader.ok(&format!("open {} -> m", producer.small[0]));
    producer.actor.kill();
    poll_until(&mut reader, "memory stays", || producer.bytes() <= 2 * AROUND_BLOCK);
    // The sender has ended, and with it the message.
    reader.fails(&format!("open {own} -> lost"), "ProducerGone");
    sender.ok("drain 0");
    reader.ok("drain 0");
    let opened = reader.ask(&format!("open {message} -> got"));
    // The producer is not reachable any more, but what the reader has mapped is.
    match opened {
        Ok(_) => reader.check("got", 1),
        Err(failure) => assert_eq!(failure.variant, "ProducerGone"),
    }
    reader.check("m", 0);
}

/// Any process of the user can write the lease table. It cannot make a living producer look dead.
#[test]
fn dead_word_of_a_living_producer_is_not_believed() {
    let mut producer = Producer::new(actor!(), 2);
    let mut importer = actor!();
    importer.ok(&format!("open {} -> m", producer.small[0]));
    let leases = std::fs::read_dir(format!("/proc/{}/fd", producer.actor.pid())).unwrap();
    let leases: Vec<_> = leases.map(|entry| entry.unwrap().path()).collect();
    let is_table = |path: &&PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_str().unwrap().starts_with("/memfd:umf-leases"))
    };
    let table = leases.iter().find(is_table).unwrap();
    let table = std::fs::OpenOptions::new().read(true).write(true).open(table).unwrap();
    table.write_all_at(&1_u32.to_le_bytes(), 256).unwrap();
    for _ in 0..3 {
        for seed in [0, 1] {
            importer.ok(&format!("open {} -> n", producer.small[seed]));
            importer.check("n", seed as u64);
            importer.ok("close n");
        }
        importer.ok("drain 0");
    }
    importer.check("m", 0);
    assert!(producer.bytes() >= LARGE * MIB, "memory of a living producer is released");
    producer.actor.check("p.large0.0", 100);
}

/// A control group with a limit of memory, of version 1 or 2, removed when dropped.
struct Group(PathBuf);

impl Group {
    /// Makes a group, or returns why that is not possible.
    fn new(limit: u64) -> Result<Self, String> {
        let name = format!("umf-dead-memory-{}", std::process::id());
        let mut reason = "no control groups are mounted".to_owned();
        if machine::is_guest() && machine::is_root() {
            crate::shortage::mount_cgroups();
        }
        for (root, file) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ] {
            let folder = PathBuf::from(root).join(&name);
            if let Err(error) = std::fs::create_dir(&folder) {
                reason = format!("cannot make a control group in {root}: {error}");
                continue;
            }
            let group = Self(folder);
            match std::fs::write(group.0.join(file), limit.to_string()) {
                Ok(()) => return Ok(group),
                Err(error) => reason = format!("cannot limit memory in {root}: {file}: {error}"),
            }
        }
        Err(reason)
    }

    fn add(&self, actor: &Actor) -> std::io::Result<()> {
        std::fs::write(self.0.join("cgroup.procs"), actor.pid().to_string())
    }

    fn read(&self, names: [&str; 2]) -> String {
        let read = |name: &&str| std::fs::read_to_string(self.0.join(name)).ok();
        names.iter().find_map(read).unwrap()
    }

    /// Returns how many processes were killed for memory.
    fn kills(&self) -> u64 {
        let text = self.read(["memory.oom_control", "memory.events"]);
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }

    /// Returns the memory that is charged to the group, in bytes.
    fn used(&self) -> u64 {
        self.read(["memory.usage_in_bytes", "memory.current"]).trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut patience = Patience::new(Duration::from_secs(10));
        // The kernel removes the last process from it with a delay.
        while std::fs::remove_dir(&self.0).is_err() && patience.sleep() {}
    }
}

/// A producer with 64 MiB under a limit of 100 MiB is killed and starts again, while an importer
/// has a block of each of its lives open. What that importer keeps must not add up. The second life
/// would exceed the limit, so that a few lives do in a guest, where populating memory is slow.
#[test]
fn producer_that_restarts_under_a_limit_is_not_killed_for_memory() {
    const TEST: &str = "producer_that_restarts_under_a_limit_is_not_killed_for_memory";
    let lives = if machine::is_guest() && !machine::is_long() { 4 } else { 20 };
    let group = match Group::new(100 * MIB) {
        Ok(group) => group,
        Err(reason) => return machine::skip(TEST, &reason),
    };
    let mut importer = actor!();
    for life in 0..lives {
        let mut producer = actor!();
        if let Err(error) = group.add(&producer) {
            return machine::skip(TEST, &format!("cannot move a process into a control group: {error}"));
        }
        // Its pages are there without being written.
        producer.ok("pool p at-once");
        for part in 0..64 {
            producer.ok(&format!("alloc p {MIB} -> p.large{part}"));
        }
        producer.ok("alloc p 4096 -> p.small");
        producer.ok(&format!("fill p.small {life}"));
        let handle = producer.handle("handle p.small");
        importer.ok(&format!("open {handle} -> m{life}"));
        assert!(group.used() >= 64 * MIB, "{} bytes are charged to the group", group.used());
        producer.kill();
        importer.ok("drain 0");
        let used = group.used();
        assert!(used < 30 * MIB, "{used} bytes are charged after {life} restarts");
    }
    assert_eq!(group.kills(), 0);
    for life in 0..lives {
        importer.check(&format!("m{life}"), life);
        importer.ok(&format!("close m{life}"));
    }
    assert_eq!(importer.number("importer", "entries"), 0);
}
