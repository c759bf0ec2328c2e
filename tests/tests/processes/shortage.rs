//! Out of memory: an allocation fails with reason and remedy and leaves nothing, and other
//! processes continue.
//!
//! The tests fill `/dev/shm` and a control group, and trigger the OOM killer. They run in a guest
//! of `tests/vm/run` only.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use umf_tests::{Actor, ProcessSnapshot, actor, machine};

const MIB: u64 = 1 << 20;

/// Serializes these tests, and skips them outside of a guest.
fn guest_only(test: &str) -> Option<MutexGuard<'static, ()>> {
    static LOCK: Mutex<()> = Mutex::new(());
    if !machine::is_guest() || !machine::is_root() {
        machine::skip(test, "fills the whole machine: tests/vm/run does it in a guest");
        return None;
    }
    Some(LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

fn mount(from: &str, target: &str, kind: &str, flags: libc::c_ulong, options: &str) {
    let text = |text: &str| CString::new(text).unwrap();
    let (from, target, kind, options) = (text(from), text(target), text(kind), text(options));
    // SAFETY: all pointers are to C strings.
    let result =
        unsafe { libc::mount(from.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    assert_eq!(result, 0, "{target:?}: {}", std::io::Error::last_os_error());
}

/// Producer and importer outside of the exhausted memory, with a block that they share.
struct Bystanders {
    producer: Actor,
    importer: Actor,
    rounds: u64,
}

impl Bystanders {
    fn new() -> Self {
        let (mut producer, mut importer) = (actor!(), actor!());
        producer.ok("pool p shared");
        producer.ok("alloc p 100000 -> p.b");
        producer.ok("fill p.b 1");
        let handle = producer.handle("handle p.b");
        importer.ok(&format!("open {handle} -> m"));
        Self { producer, importer, rounds: 1 }
    }

    /// Asserts that both still share the block, and can share another.
    #[track_caller]
    fn assert_working(&mut self) {
        self.importer.check("m", self.rounds);
        self.rounds += 1;
        self.importer.ok(&format!("fill m {}", self.rounds));
        self.producer.check("p.b", self.rounds);
        self.producer.ok("alloc p 5000 -> p.more");
        self.producer.ok("fill p.more 7");
        let handle = self.producer.handle("handle p.more");
        self.importer.ok(&format!("open {handle} -> more"));
        self.importer.check("more", 7);
        self.importer.ok("close more");
        self.producer.ok("free p p.more");
    }
}

#[test]
fn full_dev_shm_is_an_error_and_other_processes_continue() {
    let Some(_serial) = guest_only("full_dev_shm_is_an_error_and_other_processes_continue") else { return };
    mount("tmpfs", "/dev/shm", "tmpfs", libc::MS_REMOUNT, "size=8m");
    let mut bystanders = Bystanders::new();
    let mut actor = actor!();
    let clean = ProcessSnapshot::of(&actor);
    let name = format!("/umf-tests-{}-full", std::process::id());
    actor.ok(&format!("pool p reserved {name}"));
    actor.ok(&format!("alloc p {} -> p.a", 2 * MIB));
    actor.ok("fill p.a 3");
    let before = ProcessSnapshot::of(&actor);
    let assert_refused = |actor: &mut Actor, size: u64| {
        let message = actor.fails(&format!("alloc p {size} -> p.b"), "OutOfMemory");
        assert!(message.contains("/dev/shm, which is full: mount it larger"), "{message}");
    };
    // An allocation larger than the file system, and one in a file system that another file fills.
    assert_refused(&mut actor, 12 * MIB);
    let filler = Path::new("/dev/shm/umf-tests-filler");
    let wrote = std::fs::write(filler, vec![1_u8; 16 << 20]);
    assert_eq!(wrote.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_refused(&mut actor, 4096);
    // Populated pages stay writable, without a signal.
    actor.check("p.a", 3);
    actor.ok("fill p.a 4");
    actor.check("p.a", 4);
    // Unnamed memory is not in /dev/shm.
    bystanders.assert_working();
    before.assert_restored(&actor);
    std::fs::remove_file(filler).unwrap();
    actor.ok(&format!("alloc p {MIB} -> p.b"));
    actor.ok("fill p.b 5");
    actor.check("p.b", 5);
    actor.ok("drop-pool p");
    clean.assert_restored(&actor);
    bystanders.assert_working();
    let left = std::fs::read_dir("/dev/shm").unwrap().count();
    assert_eq!(left, 0, "names remain in /dev/shm");
    mount("tmpfs", "/dev/shm", "tmpfs", libc::MS_REMOUNT, "size=50%");
}

/// Mounts the control groups of a guest. Returns their folder.
pub(crate) fn mount_cgroups() -> &'static Path {
    let root = Path::new("/sys/fs/cgroup");
    if !root.join("cgroup.procs").exists() {
        mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "");
    }
    std::fs::write(root.join("cgroup.subtree_control"), "+memory").unwrap();
    root
}

/// A control group, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str, limit: u64) -> Self {
        let root = mount_cgroups();
        let this = Self(root.join(format!("umf-{name}-{}", std::process::id())));
        std::fs::create_dir(&this.0).unwrap();
        this.limit(limit);
        this
    }

    fn limit(&self, bytes: u64) {
        std::fs::write(self.0.join("memory.max"), bytes.to_string()).unwrap();
    }

    /// Moves an actor into the group.
    fn add(&self, actor: &Actor) {
        std::fs::write(self.0.join("cgroup.procs"), actor.pid().to_string()).unwrap();
    }

    /// Returns a counter of `memory.events`.
    fn events(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.0.join("memory.events")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap().parse().unwrap()
    }

    /// Returns the memory that is charged to the group, in bytes.
    fn used(&self) -> u64 {
        std::fs::read_to_string(self.0.join("memory.current")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A dead process leaves the group with a delay.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn allocation_beyond_cgroup_limit_fails_without_oom_kill() {
    let Some(_serial) = guest_only("allocation_beyond_cgroup_limit_fails_without_oom_kill") else { return };
    let group = Group::new("refused", 64 * MIB);
    let mut bystanders = Bystanders::new();
    let mut pools = vec!["at-once".to_owned(), format!("reserved /umf-tests-{}-group", std::process::id())];
    let sources = machine::dma_buf_sources("allocation_beyond_cgroup_limit_fails_without_oom_kill");
    pools.extend(sources.iter().map(|source| format!("dma-buf {source}")));
    for pool in pools {
        let mut actor = actor!();
        group.add(&actor);
        let clean = ProcessSnapshot::of(&actor);
        actor.ok(&format!("pool p {pool}"));
        actor.ok(&format!("alloc p {} -> p.a", 8 * MIB));
        actor.ok("fill p.a 3");
        let before = ProcessSnapshot::of(&actor);
        // The pages of a dma-buf heap are not charged to a group.
        let sizes: &[u64] = if pool.contains("heap:") { &[] } else { &[56 * MIB] };
        for size in sizes {
            let message = actor.fails(&format!("alloc p {size} -> p.b"), "OutOfMemory");
            assert!(message.contains("control group") && message.contains("memory.max"), "{pool}: {message}");
        }
        actor.check("p.a", 3);
        before.assert_restored(&actor);
        // A smaller block fits, and the larger one fits with a higher limit.
        actor.ok(&format!("alloc p {} -> p.b", 8 * MIB));
        actor.ok("free p p.b");
        group.limit(256 * MIB);
        actor.ok(&format!("alloc p {} -> p.b", 56 * MIB));
        actor.ok("fill p.b 5");
        actor.check("p.b", 5);
        actor.ok("drop-pool p");
        clean.assert_restored(&actor);
        actor.finish();
        group.limit(64 * MIB);
        bystanders.assert_working();
    }
    // A pool that reserves asks before it populates any page.
    let mut actor = actor!();
    group.add(&actor);
    actor.ok("pool p shared");
    for size in [80 * MIB, 160 * MIB] {
        let message = actor.fails(&format!("reserve p {size}"), "OutOfMemory");
        assert!(message.contains("control group") && message.contains("memory.max"), "{message}");
    }
    assert!(group.used() < 16 * MIB, "{} bytes of a refused reserve", group.used());
    actor.ok(&format!("reserve p {}", 24 * MIB));
    actor.finish();
    bystanders.assert_working();
    assert_eq!(group.events("oom_kill"), 0, "a process was killed");
    assert!(group.used() < 8 * MIB, "{} bytes are left in the group", group.used());
}

/// Named memory is populated when it is allocated. The default size of `/dev/shm` in containers is
/// 64 MiB, and an access to a page beyond it would raise SIGBUS.
#[test]
fn named_memory_beyond_dev_shm_is_an_error() {
    let Some(_serial) = guest_only("named_memory_beyond_dev_shm_is_an_error") else { return };
    mount("tmpfs", "/dev/shm", "tmpfs", libc::MS_REMOUNT, "size=16m");
    let mut actors = [actor!(), actor!()];
    let mut allocated = [const { Vec::new() }; 2];
    for (actor, allocated) in actors.iter_mut().zip(&mut allocated) {
        actor.ok(&format!("pool p named /umf-tests-{}-small", actor.pid()));
        let message = actor.fails(&format!("alloc p {} -> p.b", 32 * MIB), "OutOfMemory");
        assert!(message.contains("/dev/shm, which is full: mount it larger"), "{message}");
        for block in 0..8 {
            match actor.ask(&format!("alloc p {} -> p.{block}", 3 * MIB)) {
                Ok(_) => allocated.push(block),
                Err(failure) => assert_eq!(failure.variant, "OutOfMemory", "{failure}"),
            }
        }
    }
    let total = allocated.iter().flatten().count();
    assert!((1..=5).contains(&total), "{total} blocks of 3 MiB in 16 MiB");
    for (actor, allocated) in actors.iter_mut().zip(&allocated) {
        for block in allocated {
            actor.ok(&format!("fill p.{block} 3"));
            actor.check(&format!("p.{block}"), 3);
        }
        actor.ok("drop-pool p");
    }
    mount("tmpfs", "/dev/shm", "tmpfs", libc::MS_REMOUNT, "size=50%");
}

/// If pages are populated at the first access, the OOM killer ends a process that exceeds the
/// group's limit. Other processes keep their open memory, and the killed process leaves nothing.
#[test]
fn oom_killed_process_leaves_nothing() {
    let Some(_serial) = guest_only("oom_killed_process_leaves_nothing") else { return };
    let group = Group::new("killed", 48 * MIB);
    let mut bystanders = Bystanders::new();
    let mut importer = actor!();
    let clean = ProcessSnapshot::of(&importer);
    let mut producer = actor!();
    group.add(&producer);
    producer.ok("pool p isolated");
    producer.ok(&format!("alloc p {} -> p.a", 4 * MIB));
    producer.ok("fill p.a 3");
    let handle = producer.handle("handle p.a");
    producer.ok(&format!("alloc p {} -> p.b", 64 * MIB));
    let other = producer.handle("handle p.b");
    importer.ok(&format!("open {handle} -> m"));
    let pid = producer.pid();
    producer.send("fill p.b 4");
    assert_eq!(producer.reap(), "signal 9");
    assert_eq!(group.events("oom_kill"), 1);
    // Open memory keeps its content; other memory cannot be opened.
    importer.check("m", 3);
    importer.fails(&format!("open {other} -> other"), "ProducerGone");
    importer.ok("close m");
    importer.ok("evict");
    clean.assert_restored(&importer);
    bystanders.assert_working();
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten();
    assert_eq!(names.filter(|it| it.file_name().to_string_lossy().contains(&pid.to_string())).count(), 0);
    assert!(group.used() < 4 * MIB, "{} bytes are left in the group", group.used());
    // Another process in the group can use the memory. It needs twice the size, since an actor
    // copies the content that it writes.
    let mut next = actor!();
    group.add(&next);
    next.ok("pool p at-once");
    next.ok(&format!("alloc p {} -> p.a", 16 * MIB));
    next.ok("fill p.a 5");
    next.check("p.a", 5);
    next.finish();
}
