//! `umf ps`, `umf top`, `umf why` and `umf gc`: reports about running and killed processes, from
//! their ledgers alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use umf_tests::forge::{self, field};
use umf_tests::{Actor, ProcessSnapshot, actor, command, machine};

/// Returns the first entry of `umf ps` for a process.
fn ps_entry(pid: u32) -> Option<Value> {
    let outcome = command::run(&["ps", "--json"]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    let document: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(document["format"], 1);
    document["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid).cloned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Returns the output of `umf why`, which must succeed.
fn why(handle: &str) -> String {
    let outcome = command::run(&["why", handle]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{outcome:?}");
    outcome.out
}

#[track_caller]
fn assert_begins(text: &str, with: &str) {
    assert!(text.starts_with(with), "should begin with {with:?}: {text}");
}

#[track_caller]
fn assert_has(text: &str, part: &str) {
    assert!(text.contains(part), "should have {part:?}: {text}");
}

fn block(producer: &mut Actor, name: &str) -> String {
    producer.ok(&format!("alloc p 5000 -> p.{name}"));
    producer.ok(&format!("handle p.{name}"))
}

/// Returns the text of a handle with one field changed.
fn forged(handle: &str, range: std::ops::Range<usize>, value: u64) -> String {
    let hex = forge::with(&handle.parse().unwrap(), range, value);
    let bytes: Vec<u8> =
        (0..256).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    umf::Handle::from_bytes(&bytes).unwrap().to_string()
}

#[test]
fn ps_shows_producer_and_importer_with_counters() {
    let mut producer = actor!();
    let mut importer = actor!();
    assert_eq!(ps_entry(producer.pid()), None, "a process without exports and imports has no entry");
    producer.ok("pool p shared");
    let first = block(&mut producer, "b1");
    importer.ok(&format!("open {first} -> m1"));

    let it = ps_entry(producer.pid()).unwrap();
    assert_eq!((&it["state"], &it["name"]), (&"runs".into(), &"umf-actor".into()));
    // One export for the block, one for its region.
    assert_eq!((number(&it["exports"]), number(&it["exporter"]["entries"])), (2, 1));
    let pool = it["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "shared").unwrap();
    assert_eq!((&pool["provider"], number(&pool["live_blocks"])), (&"host".into(), 1));
    assert!(number(&pool["live_bytes"]) >= 5000 && number(&pool["reserved_bytes"]) >= 5000);
    assert!(it["known_to"].as_array().unwrap().contains(&importer.pid().into()));

    let it = ps_entry(importer.pid()).unwrap();
    assert_eq!((number(&it["importer"]["entries"]), number(&it["importer"]["in_use"])), (1, 1));
    assert_eq!((number(&it["importer"]["misses"]), number(&it["importer"]["stale"])), (1, 0));
    assert_eq!(number(&it["importer"]["fds"]), importer.number("importer", "fds"));
    assert_eq!(number(&it["exports"]), 0);

    for seed in 2..=5 {
        let handle = block(&mut producer, &format!("b{seed}"));
        importer.ok(&format!("open {handle} -> m{seed}"));
    }
    producer.ok("free p p.b1");
    importer.fails(&format!("open {first} -> again"), "Stale");
    let it = ps_entry(producer.pid()).unwrap();
    assert_eq!(number(&it["exports"]), 5);
    let pool = it["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "shared").unwrap();
    assert_eq!(number(&pool["live_blocks"]), 5, "the number at the last export");
    assert_eq!(number(&ps_entry(importer.pid()).unwrap()["importer"]["stale"]), 1);

    let [before_producer, before_importer] = [ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)];

    // The same as text.
    let table = command::run(&["ps"]).out;
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(&producer.pid().to_string()));
    assert_has(line.unwrap_or_else(|| panic!("{table}")), "umf-actor");
    let picture = command::run(&["top", "--once"]);
    assert_eq!((picture.code, picture.err.as_str()), (Some(0), ""));
    assert_has(&picture.out, "umf top: ");
    assert_has(&picture.out, "LAST EVENTS");
    assert_has(&picture.out, &producer.pid().to_string());
    assert_has(&picture.out, &importer.pid().to_string());
    assert!(!picture.out.contains('\u{1b}'), "no escape sequences");

    // The commands leave nothing in the processes.
    before_producer.assert_restored(&producer);
    before_importer.assert_restored(&importer);
}

/// The commands do not wait for a stopped process.
#[test]
fn stopped_process_is_listed() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    producer.stop();
    assert_eq!(ps_entry(producer.pid()).unwrap()["state"], "runs");
    assert_begins(&why(&handle), "current: exported ");
    producer.signal(libc::SIGCONT);
}

#[test]
fn ledger_of_importer_ends_with_its_mappings() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    let clean = ProcessSnapshot::of(&importer);
    for _ in 0..3 {
        importer.ok(&format!("open {handle} -> m"));
        let ledgers = ProcessSnapshot::of(&importer).fds["/memfd:umf-ledger (deleted)"];
        assert_eq!(ledgers, 2, "the ledgers of the producer and of the importer");
        importer.ok("close m");
        assert!(ps_entry(importer.pid()).is_some());
        importer.ok("evict");
        clean.assert_restored(&importer);
        assert_eq!(ps_entry(importer.pid()), None);
    }
}

#[test]
fn why_and_ps_report_handles_in_transit() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    block(&mut producer, "b");
    let message = producer.ok("send p.b 2");
    assert_has(&why(&message), "in transit: 2 readers have not opened it yet");
    assert_eq!(ps_entry(producer.pid()).unwrap()["in_transit"], 1);
    producer.ok("free p p.b");
    importer.ok(&format!("open {message} -> first"));
    let text = why(&message);
    assert_begins(&text, "stale: freed ");
    assert_has(&text, "in transit: one reader has not opened it yet");
    assert_has(&text, &format!("sent: 1 in messages of a process that calls itself pid {} ", producer.pid()));
    assert_has(&text, "open: once in an importer that calls itself pid ");
    assert_has(&text, "held: 5 KiB, until ");
    importer.ok(&format!("open {message} -> second"));
    assert_has(&why(&message), "its ticket: opened by all its readers, cancelled, or its sender ended");
    assert_eq!(producer.ok("in-transit"), "0");
    assert!(!why(&message).contains("sent: "));
    let passed_on = importer.ok(&format!("pass-on first {message} 1"));
    assert_has(&why(&passed_on), "in transit: one reader has not opened it yet");
    importer.kill();
    assert_has(&why(&passed_on), "its ticket: opened by all");
}

#[test]
fn why_reports_current_or_stale_with_reason() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    let text = why(&handle);
    assert_begins(&text, "current: exported ");
    assert_has(&text, &format!(" ago by pid {} (umf-actor), slot ", producer.pid()));
    assert_has(&text, "names: a block of ");
    assert_has(&text, "provider host");
    assert_has(&text, "no other process has its ledger");
    importer.ok(&format!("open {handle} -> m"));
    assert_has(&why(&handle), &format!("producer's memory opened by: pid {} (umf-actor)", importer.pid()));

    // The block is freed while the importer has it open.
    producer.ok("free p p.b");
    let text = why(&handle);
    assert_begins(&text, "stale: freed ");
    assert_has(&text, "open: once in an importer that calls itself pid ");
    assert_has(&text, "held: 5 KiB, until the last process closes it and the last message was read");

    // Other exports reuse the slot after the close.
    importer.ok("close m");
    assert!(!why(&handle).contains("held: "));
    producer.ok("drain 1000");
    let again: Vec<String> = (0..5).map(|number| block(&mut producer, &format!("c{number}"))).collect();
    importer.fails(&format!("open {handle} -> n"), "Stale");
    let text = why(&handle);
    assert_begins(&text, "stale: freed ");
    let parsed: umf::Handle = handle.parse().unwrap();
    assert_has(
        &text,
        &format!(
            " ago, slot {}, generation {}, now {}",
            parsed.slot(),
            parsed.generation(),
            parsed.generation() + 2
        ),
    );
    for handle in &again {
        assert_begins(&why(handle), "current: ");
    }
    let outcome = command::run_with_input(&["why", "-"], format!("  {handle}\n").as_bytes());
    assert_begins(&outcome.out, "stale: freed ");

    // Dropping the pool frees the region.
    producer.ok("drop-pool p");
    assert_begins(&why(&again[0]), "stale: ");

    // A region without a pool.
    producer.ok("region 1048576 -> r");
    let region = producer.ok("handle r");
    assert_has(&why(&region), "names: a region of 1 MiB");
    producer.ok("free-region r");
    let text = why(&region);
    assert_begins(&text, "stale: freed ");
    assert_has(&text, "with its whole region");

    // The export is evicted, and the memory is still allocated.
    producer.ok("pool p shared");
    producer.ok("alloc p 5000 -> p.e");
    let evicted = producer.ok("export p.e -> guard");
    producer.ok("unexport guard");
    assert_begins(&why(&evicted), "current: ");
    assert_eq!(producer.ok("evict-exports"), "1");
    let text = why(&evicted);
    assert_begins(&text, "stale: evicted ");
    assert_has(&text, "the memory may still be there");
    importer.fails(&format!("open {evicted} -> n"), "Stale");
}

/// If the slot no longer contains the history of an export, `umf why` reports that instead of
/// guessing.
#[test]
fn why_reports_overwritten_history_as_unknown() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let old = block(&mut producer, "old");
    producer.ok("free p p.old");
    assert_begins(&why(&old), "stale: freed ");
    // This export reuses the slot, which was freed last.
    let next = block(&mut producer, "next");
    assert_begins(&why(&old), "stale: freed ");
    producer.ok("free p p.next");
    assert_begins(&why(&old), "stale: ended before the last export of its slot that ended");
    assert_begins(&why(&next), "stale: freed ");
}

#[test]
fn why_explains_a_killed_producer_through_its_importers() {
    for how in ["kill", "zombie", "exit"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok("pool p shared");
        let freed = block(&mut producer, "freed");
        let live = block(&mut producer, "live");
        importer.ok(&format!("open {freed} -> m"));
        producer.ok("free p p.freed");
        let pid = producer.pid();
        let mut zombie = None;
        match how {
            "kill" => producer.kill(),
            "exit" => producer.finish(),
            _ => {
                producer.kill_unreaped();
                zombie = Some(producer);
            }
        }
        let text = why(&freed);
        assert_begins(
            &text,
            &format!("producer gone: pid {pid} (umf-actor) ended; its ledger is still open in pid "),
        );
        assert_has(&text, &format!("open in pid {} (umf-actor)", importer.pid()));
        assert_has(&text, "this export: freed ");
        let text = why(&live);
        assert_begins(&text, "producer gone: ");
        if how == "exit" {
            assert_has(&text, "this export: ");
        } else {
            assert_has(&text, "this export: still current when it ended");
        }
        let ps = ps_entry(pid).unwrap();
        assert_eq!((&ps["state"], &ps["name"]), (&"ended".into(), &"umf-actor".into()));
        assert_eq!(number(&ps["exporter"]["misses"]), 1, "the counters are still readable");

        // The ledger is freed with the last importer.
        importer.ok("close m");
        importer.ok("evict");
        assert_begins(&why(&freed), &format!("producer gone: pid {pid} ended, and no process "));
        assert_eq!(ps_entry(pid), None);
        drop(zombie);
    }
}

#[test]
fn why_distinguishes_exec_from_exit() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    importer.ok(&format!("open {handle} -> m"));
    producer.ok("exec");
    producer.ok("ping");
    let text = why(&handle);
    assert_begins(&text, &format!("producer gone: pid {} (umf-actor) runs, but called exec", producer.pid()));
    assert_has(&text, "still current when it ended");
    assert_eq!(ps_entry(producer.pid()).unwrap()["state"], "left");
    importer.ok("close m");
    importer.ok("evict");
    assert_begins(
        &why(&handle),
        &format!("producer gone: pid {} (umf-actor) runs, but gave up", producer.pid()),
    );
}

#[test]
fn why_refuses_malformed_and_forged_handles() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    for text in ["", "hello", "umf1.", &handle[..100], "\u{1b}[2J", "--", "umf2.AAAA"] {
        let outcome = command::run_with_input(&["why", "-"], text.as_bytes());
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""), "{text:?}");
        assert_begins(&outcome.err, "umf: unknown: not a handle: ");
        assert!(!outcome.err.contains('\u{1b}'), "{}", outcome.err);
    }
    let endless = command::run_with_input(&["why", "-"], &vec![b'u'; 1 << 20]);
    assert_eq!(endless.code, Some(1));
    let not_text = command::run_with_input(&["why", "-"], &[0xFF; 300]);
    assert_eq!(not_text.code, Some(1));
    assert_begins(
        &why(&forged(&handle, field::BOOT_ID, 5)),
        "unknown: the handle comes from another machine",
    );
    let text = why(&forged(&handle, field::GENERATION, 1001));
    assert_begins(&text, "unknown: slot ");
    assert_has(&text, "never had that");
    assert_begins(&why(&forged(&handle, field::SLOT, 4_000_000_000)), "unknown: slot 4000000000");
    let text = why(&forged(&handle, field::REGION_ID, 77));
    assert_begins(&text, "unknown: slot ");
    assert_has(&text, "disagree");
    // Another nonce: no process has such a ledger, though the producer runs.
    assert_begins(&why(&forged(&handle, field::NONCE, 12345)), "producer gone: ");
}

/// A forked child is not listed with its parent's exports and imports, and does not keep its parent
/// listed.
#[test]
fn forked_children_are_listed_separately() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    importer.ok(&format!("open {handle} -> m"));
    let child = producer.fork();
    assert_eq!(ps_entry(child), None);
    let child = importer.fork();
    assert_eq!(ps_entry(child), None, "the child has not opened anything");
    assert_eq!(importer.ok("child check m 1"), importer.ok("check m 1"));
    // The child is listed after an open of its own.
    let other = block(&mut producer, "c");
    let mut third = actor!();
    third.ok("pool p isolated");
    let foreign = block(&mut third, "f");
    importer.ok(&format!("child open {other} -> n"));
    importer.ok(&format!("child open {foreign} -> f"));
    let it = ps_entry(child).unwrap();
    assert_eq!((&it["state"], number(&it["importer"]["in_use"]) > 0), (&"runs".into(), true));
    assert_eq!(ps_entry(importer.pid()).unwrap()["state"], "runs");
    importer.ok("child close n");
    importer.ok("child close f");
    assert_eq!(importer.ok("reap"), "0");
    assert_eq!(ps_entry(child), None);
    assert_eq!(ps_entry(importer.pid()).unwrap()["state"], "runs");
    assert_begins(&why(&handle), "current: ");
    importer.ok(&format!("open {foreign} -> f"));
    assert_has(&why(&foreign), &format!("opened by: pid {} (umf-actor)", importer.pid()));
}

#[test]
fn unreadable_processes_are_counted_with_remedy() {
    const TEST: &str = "unreadable_processes_are_counted_with_remedy";
    if !machine::is_root() {
        return machine::skip(TEST, "running a command as another user needs root");
    }
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    // Copies the program to a folder of all users. `cp` writes it, as exec fails with ETXTBSY if a
    // process forked by another test inherits a writable fd of the program.
    let copy: PathBuf = std::env::temp_dir().join(format!("umf-inspect-{}", std::process::id()));
    let copied =
        std::process::Command::new("cp").arg(command::umf().get_program()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let as_other_user = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&copy);
        command::finished(command.args(arguments).uid(65534).gid(65534).current_dir("/"))
    };
    let ps = as_other_user(&["ps"]);
    let answer = as_other_user(&["why", &handle]);
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(ps.code, Some(0), "{ps:?}");
    assert_has(&ps.out, "cannot be inspected");
    assert_has(&ps.out, "run as root");
    assert!(!ps.out.contains(&format!("{} ", producer.pid())), "{}", ps.out);
    assert_begins(&answer.out, &format!("unknown: pid {}", producer.pid()));
    assert_has(&answer.out, "run as root");
}

/// Name in `/dev/shm`. Dropping it removes the name.
struct ShmFile(String);

impl ShmFile {
    fn new(purpose: &str) -> Self {
        Self(format!("umf-inspect-{}-{purpose}", std::process::id()))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/dev/shm").join(&self.0)
    }
}

impl Drop for ShmFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

/// Serializes the tests of `umf gc`, which removes the names of all killed processes.
fn serialize_gc() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// iceoryx2 #601, #1584; iceoryx #324, #2183: names in /dev/shm stay after kill -9. Here only
/// memory with a requested name can leave one, and `umf gc` removes exactly those.
#[test]
fn gc_removes_names_of_killed_processes_only() {
    let _serial = serialize_gc();
    const TEST: &str = "gc_removes_names_of_killed_processes_only";
    let (left, used, living, foreign) =
        (ShmFile::new("left"), ShmFile::new("used"), ShmFile::new("living"), ShmFile::new("foreign"));
    let named = |name: &ShmFile| {
        let mut actor = actor!();
        actor.ok(&format!("pool p named /{}", name.0));
        actor.ok("alloc p 100000 -> p.b");
        actor.ok("fill p.b 1");
        actor
    };
    let mut killed = [named(&left), named(&used)];
    let mut alive = named(&living);
    std::fs::write(foreign.path(), b"another program's").unwrap();
    let gc = |arguments: &[&str]| {
        let outcome = command::run(&[&["gc"], arguments].concat());
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
        outcome.out
    };
    if gc(&["--dry-run"]).contains("have no marks") {
        killed.iter_mut().for_each(Actor::kill);
        let _ = gc(&[]);
        assert!(left.path().exists(), "a name of unknown origin stays");
        return machine::skip(TEST, "this kernel keeps no extended attributes in /dev/shm (Linux 6.6)");
    }
    assert_has(
        &gc(&[]),
        &format!("{}: stays: pid {}, which made it, runs", left.path().display(), killed[0].pid()),
    );
    killed.iter_mut().for_each(Actor::kill);
    // Another process has one of them open.
    let user = std::fs::File::open(used.path()).unwrap();
    let text = gc(&["--dry-run"]);
    assert_has(&text, &format!("1 MiB, left by pid {}, which has ended: would be removed", killed[0].pid()));
    assert_has(
        &text,
        &format!(
            "{}: stays: pid {} has ended, but another process has it",
            used.path().display(),
            killed[1].pid()
        ),
    );
    assert!(left.path().exists());
    let text = gc(&[]);
    assert_has(&text, &format!("1 MiB, left by pid {}, which has ended: removed", killed[0].pid()));
    assert!(!left.path().exists());
    for name in [&used, &living, &foreign] {
        assert!(name.path().exists(), "{}", name.0);
    }
    assert!(!text.contains(&foreign.0), "{text}");
    drop(user);
    assert_has(&gc(&[]), &format!("left by pid {}, which has ended: removed", killed[1].pid()));
    assert!(!used.path().exists() && living.path().exists() && foreign.path().exists());
    alive.ok("drop-pool p");
    assert!(!living.path().exists(), "a dropped pool leaves nothing");
    assert_has(&gc(&[]), "frees unnamed memory, ledgers and sockets");
}

/// A process that created named memory and then called `exec` lives, but does not use the memory.
#[test]
fn gc_removes_name_forgotten_across_exec() {
    let _serial = serialize_gc();
    const TEST: &str = "gc_removes_name_forgotten_across_exec";
    let (forgotten, open) = (ShmFile::new("forgotten"), ShmFile::new("open"));
    for name in [&forgotten, &open] {
        std::mem::forget(umf::host::HostProvider::builder().named(format!("/{}", name.0)).build().unwrap());
    }
    // Closes the fd, as `exec` does.
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_of =
        |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|path| path == forgotten.path());
    let fd = fds.filter(is_of).find_map(|fd| fd.file_name().to_str()?.parse().ok()).unwrap();
    // SAFETY: no object uses the fd: its provider was forgotten above.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    let outcome = command::run(&["gc"]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    if outcome.out.contains("have no marks") {
        return machine::skip(TEST, "this kernel keeps no extended attributes in /dev/shm (Linux 6.6)");
    }
    assert_has(
        &outcome.out,
        &format!("pid {}, which is another program now (exec): removed", std::process::id()),
    );
    assert_has(
        &outcome.out,
        &format!("{}: stays: pid {}, which made it, runs", open.path().display(), std::process::id()),
    );
    assert!(!forgotten.path().exists() && open.path().exists());
}

/// `umf gc` does not follow symlinks, and removes no file without its attribute.
#[test]
fn gc_ignores_symlinks_and_foreign_names() {
    let _serial = serialize_gc();
    let (link, target, odd) = (ShmFile::new("link"), ShmFile::new("target"), ShmFile::new("odd"));
    std::fs::write(target.path(), b"precious").unwrap();
    std::os::unix::fs::symlink(target.path(), link.path()).unwrap();
    std::fs::create_dir(odd.path()).unwrap();
    let outcome = command::run(&["gc"]);
    assert_eq!(outcome.code, Some(0));
    assert!(target.path().exists() && link.path().is_symlink() && odd.path().is_dir());
    assert!(!outcome.out.contains(&target.0) && !outcome.out.contains(&link.0), "{}", outcome.out);
    std::fs::remove_dir(odd.path()).unwrap();
}

/// An importer that does nothing keeps a whole pool of a killed producer for one block. `umf info`
/// names it, and `umf gc` releases what is not open.
#[test]
fn gc_releases_memory_of_killed_producer_that_is_not_open() {
    let _serial = serialize_gc();
    const TEST: &str = "gc_releases_memory_of_killed_producer_that_is_not_open";
    let (mut producer, mut importer) = (actor!(), actor!());
    producer.ok("pool p shared");
    for part in 0..8 {
        producer.ok(&format!("alloc p 1048576 -> p.large{part}"));
        producer.ok(&format!("fill p.large{part} {part}"));
    }
    let (open, other) = (block(&mut producer, "open"), block(&mut producer, "other"));
    producer.ok("fill p.open 7");
    importer.ok(&format!("open {open} -> m"));
    importer.ok(&format!("open {other} -> n"));
    importer.ok("close n");
    let pid = producer.pid();
    let named = |out: &str| {
        let line =
            out.lines().find(|line| line.contains(&format!("of pid {pid} (umf-actor), which has ended")));
        line.map(str::to_owned)
    };
    let gc = |arguments: &[&str]| {
        let outcome = command::run(&[&["gc"], arguments].concat());
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
        named(&outcome.out)
    };
    assert_eq!(gc(&[]), None, "the producer runs");
    producer.kill();
    let line = gc(&["--dry-run"]).unwrap();
    assert_has(
        &line,
        &format!("mapped by pid {}: what no importer has open would be released", importer.pid()),
    );
    let document: Value = serde_json::from_str(&command::run(&["info", "--json"]).out).unwrap();
    let found = document["limits"]["dead_memory"]["value"].as_array().unwrap();
    let found = found.iter().find(|found| found["pid"] == pid).unwrap();
    assert_eq!(found["holders"], serde_json::json!([importer.pid()]));
    assert!(number(&found["reserved_bytes"]) >= 8 << 20, "{found}");
    let line = gc(&[]).unwrap();
    if found["bytes"].is_null() {
        assert_has(&line, "stays: opening what other processes have mapped needs CAP_CHECKPOINT_RESTORE");
        return machine::skip(TEST, "this process may not open what others have mapped");
    }
    assert!(number(&found["bytes"]) >= 8 << 20, "{found}");
    assert_has(&line, "released 8");
    let line = gc(&[]).unwrap();
    assert_has(&line, "released 0");
    importer.check("m", 7);
    for handle in [&open, &other] {
        importer.fails(&format!("open {handle} -> n"), "ProducerGone");
    }
    importer.check("m", 7);
    importer.ok("close m");
    assert_eq!(gc(&[]), None, "the last close ends it");
}
