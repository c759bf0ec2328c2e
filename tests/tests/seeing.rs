//! `umf ps`, `umf top`, `umf why` and `umf gc`: what running and killed processes did, without asking them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use umf_tests::forge::{self, field};
use umf_tests::{Actor, ProcessSnapshot, actor, command, machine};

/// What `umf ps` says of a process; the first if it has several lines there.
fn seen(pid: u32) -> Option<Value> {
    let outcome = command::run(&["ps", "--json"]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    let document: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(document["format"], 1);
    document["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid).cloned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// What `umf why` says, which must be an answer.
fn why(handle: &str) -> String {
    let outcome = command::run(&["why", handle]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""), "{outcome:?}");
    outcome.out
}

#[track_caller]
fn begins(text: &str, with: &str) {
    assert!(text.starts_with(with), "should begin with {with:?}: {text}");
}

#[track_caller]
fn has(text: &str, part: &str) {
    assert!(text.contains(part), "should have {part:?}: {text}");
}

fn block(producer: &mut Actor, name: &str) -> String {
    producer.ok(&format!("alloc p 5000 -> p.{name}"));
    producer.ok(&format!("handle p.{name}"))
}

/// The text form of a handle with one field changed.
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
    assert_eq!(seen(producer.pid()), None, "who neither exports nor opens has nothing to show");
    producer.ok("pool p shared");
    let first = block(&mut producer, "b1");
    importer.ok(&format!("open {first} -> m1"));

    let it = seen(producer.pid()).unwrap();
    assert_eq!((&it["state"], &it["name"]), (&"runs".into(), &"umf-actor".into()));
    // The block, and its region.
    assert_eq!((number(&it["exports"]), number(&it["exporter"]["entries"])), (2, 1));
    let pool = it["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "shared").unwrap();
    assert_eq!((&pool["provider"], number(&pool["live_blocks"])), (&"host".into(), 1));
    assert!(number(&pool["live_bytes"]) >= 5000 && number(&pool["reserved_bytes"]) >= 5000);
    assert!(it["known_to"].as_array().unwrap().contains(&importer.pid().into()));

    let it = seen(importer.pid()).unwrap();
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
    let it = seen(producer.pid()).unwrap();
    assert_eq!(number(&it["exports"]), 5);
    let pool = it["pools"].as_array().unwrap().iter().find(|pool| pool["name"] == "shared").unwrap();
    assert_eq!(number(&pool["live_blocks"]), 5, "as it was at the last export");
    assert_eq!(number(&seen(importer.pid()).unwrap()["importer"]["stale"]), 1);

    let [before_producer, before_importer] = [ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)];

    // The same for people.
    let table = command::run(&["ps"]).out;
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(&producer.pid().to_string()));
    has(line.unwrap_or_else(|| panic!("{table}")), "umf-actor");
    let picture = command::run(&["top", "--once"]);
    assert_eq!((picture.code, picture.err.as_str()), (Some(0), ""));
    has(&picture.out, "umf top: ");
    has(&picture.out, "LAST EVENTS");
    has(&picture.out, &producer.pid().to_string());
    has(&picture.out, &importer.pid().to_string());
    assert!(!picture.out.contains('\u{1b}'), "text is text");

    // Looking leaves nothing behind.
    assert_eq!(
        [ProcessSnapshot::of(&producer), ProcessSnapshot::of(&importer)],
        [before_producer, before_importer]
    );
}

/// Neither a stopped process nor one that hangs in the middle of something can keep the looker waiting.
#[test]
fn stopped_process_is_listed() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    producer.stop();
    assert_eq!(seen(producer.pid()).unwrap()["state"], "runs");
    begins(&why(&handle), "current: exported ");
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
        assert_eq!(ledgers, 2, "the producer's, so that it outlives it, and its own");
        importer.ok("close m");
        assert!(seen(importer.pid()).is_some());
        importer.ok("evict");
        assert_eq!(ProcessSnapshot::of(&importer), clean);
        assert_eq!(seen(importer.pid()), None);
    }
}

#[test]
fn why_reports_current_or_stale_with_reason() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    let text = why(&handle);
    begins(&text, "current: exported ");
    has(&text, &format!(" ago by pid {} (umf-actor), slot ", producer.pid()));
    has(&text, "names: a block of ");
    has(&text, "provider host");
    has(&text, "no other process has its ledger");
    importer.ok(&format!("open {handle} -> m"));
    has(&why(&handle), &format!("producer's memory opened by: pid {} (umf-actor)", importer.pid()));

    // Freed, and kept for the importer that has it open.
    producer.ok("free p p.b");
    let text = why(&handle);
    begins(&text, "stale: freed ");
    has(&text, "open: once in an importer that calls itself pid ");
    has(&text, "held: 5 KiB, until the last process closes it");

    // Its slot is used again by others once it is closed.
    importer.ok("close m");
    assert!(!why(&handle).contains("held: "));
    producer.ok("drain 1000");
    let again: Vec<String> = (0..5).map(|number| block(&mut producer, &format!("c{number}"))).collect();
    importer.fails(&format!("open {handle} -> n"), "Stale");
    let text = why(&handle);
    begins(&text, "stale: freed ");
    let parsed: umf::Handle = handle.parse().unwrap();
    has(
        &text,
        &format!(
            " ago, slot {}, generation {}, now {}",
            parsed.slot(),
            parsed.generation(),
            parsed.generation() + 2
        ),
    );
    for handle in &again {
        begins(&why(handle), "current: ");
    }
    let outcome = command::run_with_input(&["why", "-"], format!("  {handle}\n").as_bytes());
    begins(&outcome.out, "stale: freed ");

    // With its pool, and so with its region.
    producer.ok("drop-pool p");
    begins(&why(&again[0]), "stale: ");

    // A region of its own.
    producer.ok("region 1048576 -> r");
    let region = producer.ok("handle r");
    has(&why(&region), "names: a region of 1 MiB");
    producer.ok("free-region r");
    let text = why(&region);
    begins(&text, "stale: freed ");
    has(&text, "with its whole region");

    // Evicted: the memory is still there.
    producer.ok("pool p shared");
    producer.ok("alloc p 5000 -> p.e");
    let evicted = producer.ok("export p.e -> guard");
    producer.ok("unexport guard");
    begins(&why(&evicted), "current: ");
    assert_eq!(producer.ok("evict-exports"), "1");
    let text = why(&evicted);
    begins(&text, "stale: evicted ");
    has(&text, "the memory may still be there");
    importer.fails(&format!("open {evicted} -> n"), "Stale");
}

/// What a slot does not say any more is said to be that, and never guessed.
#[test]
fn why_reports_overwritten_history_as_unknown() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let old = block(&mut producer, "old");
    producer.ok("free p p.old");
    begins(&why(&old), "stale: freed ");
    // The slot of the old one, which is the last that was given back.
    let next = block(&mut producer, "next");
    begins(&why(&old), "stale: freed ");
    producer.ok("free p p.next");
    begins(&why(&old), "stale: ended before the last export of its slot that ended");
    begins(&why(&next), "stale: freed ");
}

#[test]
fn why_explains_a_killed_producer_through_its_importers() {
    for how in ["kill", "zombie", "exit"] {
        let mut producer = actor!();
        let mut importer = actor!();
        producer.ok("pool p shared");
        let freed = block(&mut producer, "freed");
        let kept = block(&mut producer, "kept");
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
        begins(
            &text,
            &format!("producer gone: pid {pid} (umf-actor) ended; its ledger is still open in pid "),
        );
        has(&text, &format!("open in pid {} (umf-actor)", importer.pid()));
        has(&text, "this export: freed ");
        let text = why(&kept);
        begins(&text, "producer gone: ");
        if how == "exit" {
            has(&text, "this export: ");
        } else {
            has(&text, "this export: still current when it ended");
        }
        let ps = seen(pid).unwrap();
        assert_eq!((&ps["state"], &ps["name"]), (&"ended".into(), &"umf-actor".into()));
        assert_eq!(number(&ps["exporter"]["misses"]), 1, "what it counted is still there");

        // With the last importer goes all that is known.
        importer.ok("close m");
        importer.ok("evict");
        begins(&why(&freed), &format!("producer gone: pid {pid} ended, and no process "));
        assert_eq!(seen(pid), None);
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
    begins(&text, &format!("producer gone: pid {} (umf-actor) runs, but called exec", producer.pid()));
    has(&text, "still current when it ended");
    assert_eq!(seen(producer.pid()).unwrap()["state"], "left");
    importer.ok("close m");
    importer.ok("evict");
    begins(&why(&handle), &format!("producer gone: pid {} (umf-actor) runs, but gave up", producer.pid()));
}

#[test]
fn why_refuses_malformed_and_forged_handles() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    for text in ["", "hello", "umf1.", &handle[..100], "\u{1b}[2J", "--", "umf2.AAAA"] {
        let outcome = command::run_with_input(&["why", "-"], text.as_bytes());
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""), "{text:?}");
        begins(&outcome.err, "umf: unknown: not a handle: ");
        assert!(!outcome.err.contains('\u{1b}'), "{}", outcome.err);
    }
    let endless = command::run_with_input(&["why", "-"], &vec![b'u'; 1 << 20]);
    assert_eq!(endless.code, Some(1));
    let not_text = command::run_with_input(&["why", "-"], &[0xFF; 300]);
    assert_eq!(not_text.code, Some(1));
    begins(&why(&forged(&handle, field::BOOT_ID, 5)), "unknown: the handle comes from another machine");
    let text = why(&forged(&handle, field::GENERATION, 1001));
    begins(&text, "unknown: slot ");
    has(&text, "never had that");
    begins(&why(&forged(&handle, field::SLOT, 4_000_000_000)), "unknown: slot 4000000000");
    let text = why(&forged(&handle, field::REGION_ID, 77));
    begins(&text, "unknown: slot ");
    has(&text, "disagree");
    // Another nonce: nobody has such a ledger, though the process runs.
    begins(&why(&forged(&handle, field::NONCE, 12345)), "producer gone: ");
}

/// A child has none of its parent's: neither in its own name, nor as somebody who keeps it alive.
#[test]
fn forked_children_are_listed_separately() {
    let mut producer = actor!();
    let mut importer = actor!();
    producer.ok("pool p shared");
    let handle = block(&mut producer, "b");
    importer.ok(&format!("open {handle} -> m"));
    let heir = producer.fork();
    assert_eq!(seen(heir), None);
    let child = importer.fork();
    assert_eq!(seen(child), None, "it opened nothing yet");
    assert_eq!(importer.ok("child check m 1"), importer.ok("check m 1"));
    // It opens for itself, and appears by that.
    let other = block(&mut producer, "c");
    let mut third = actor!();
    third.ok("pool p isolated");
    let foreign = block(&mut third, "f");
    importer.ok(&format!("child open {other} -> n"));
    importer.ok(&format!("child open {foreign} -> f"));
    let it = seen(child).unwrap();
    assert_eq!((&it["state"], number(&it["importer"]["in_use"]) > 0), (&"runs".into(), true));
    assert_eq!(seen(importer.pid()).unwrap()["state"], "runs");
    importer.ok("child close n");
    importer.ok("child close f");
    assert_eq!(importer.ok("reap"), "0");
    assert_eq!(seen(child), None);
    assert_eq!(seen(importer.pid()).unwrap()["state"], "runs");
    begins(&why(&handle), "current: ");
    importer.ok(&format!("open {foreign} -> f"));
    has(&why(&foreign), &format!("opened by: pid {} (umf-actor)", importer.pid()));
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
    // Where an ordinary user can run it. Not by this process: a program that it had open for writing as another test
    // started a process could not be run.
    let copy: PathBuf = std::env::temp_dir().join(format!("umf-seeing-{}", std::process::id()));
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
    has(&ps.out, "may not be looked into");
    has(&ps.out, "run as root");
    assert!(!ps.out.contains(&format!("{} ", producer.pid())), "{}", ps.out);
    begins(&answer.out, &format!("unknown: pid {}", producer.pid()));
    has(&answer.out, "run as root");
}

struct Name(String);

impl Name {
    fn new(what: &str) -> Self {
        Self(format!("umf-seeing-{}-{what}", std::process::id()))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/dev/shm").join(&self.0)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

/// `umf gc` removes what all killed processes left: only one of these tests runs at a time.
fn one_gc_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// iceoryx2 #601, #1584; iceoryx #324, #2183: names in /dev/shm stay behind after kill -9. Here only who asks for a name
/// can leave one, and `umf gc` takes away exactly those.
#[test]
fn gc_removes_names_of_killed_processes_only() {
    let _turn = one_gc_at_a_time();
    const TEST: &str = "gc_removes_names_of_killed_processes_only";
    let (left, used, living, foreign) =
        (Name::new("left"), Name::new("used"), Name::new("living"), Name::new("foreign"));
    let named = |name: &Name| {
        let mut actor = actor!();
        actor.ok(&format!("pool p named /{}", name.0));
        actor.ok("alloc p 100000 -> p.b");
        actor.ok("fill p.b 1");
        actor
    };
    let mut killed = [named(&left), named(&used)];
    let mut alive = named(&living);
    std::fs::write(foreign.path(), b"somebody else's").unwrap();
    let gc = |arguments: &[&str]| {
        let outcome = command::run(&[&["gc"], arguments].concat());
        assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
        outcome.out
    };
    if gc(&["--dry-run"]).contains("have no marks") {
        killed.iter_mut().for_each(Actor::kill);
        let _ = gc(&[]);
        assert!(left.path().exists(), "what is not certain stays");
        return machine::skip(TEST, "this kernel keeps no extended attributes in /dev/shm (Linux 6.6)");
    }
    has(&gc(&[]), &format!("{}: stays: pid {}, which made it, runs", left.path().display(), killed[0].pid()));
    killed.iter_mut().for_each(Actor::kill);
    // Somebody has one of them open.
    let user = std::fs::File::open(used.path()).unwrap();
    let text = gc(&["--dry-run"]);
    has(&text, &format!("KiB, left by pid {}, which has ended: would be removed", killed[0].pid()));
    has(
        &text,
        &format!(
            "{}: stays: pid {} has ended, but another process has it",
            used.path().display(),
            killed[1].pid()
        ),
    );
    assert!(left.path().exists());
    let text = gc(&[]);
    has(&text, &format!("KiB, left by pid {}, which has ended: removed", killed[0].pid()));
    assert!(!left.path().exists());
    for name in [&used, &living, &foreign] {
        assert!(name.path().exists(), "{}", name.0);
    }
    assert!(!text.contains(&foreign.0), "{text}");
    drop(user);
    has(&gc(&[]), &format!("left by pid {}, which has ended: removed", killed[1].pid()));
    assert!(!used.path().exists() && living.path().exists() && foreign.path().exists());
    alive.ok("drop-pool p");
    assert!(!living.path().exists(), "whoever drops its pool leaves nothing");
    has(&gc(&[]), "ledgers and sockets have nothing that could stay");
}

/// A process that made named memory and called `exec` lives on, and does not know of it.
#[test]
fn gc_removes_name_forgotten_across_exec() {
    let _turn = one_gc_at_a_time();
    const TEST: &str = "gc_removes_name_forgotten_across_exec";
    let (forgotten, open) = (Name::new("forgotten"), Name::new("open"));
    for name in [&forgotten, &open] {
        std::mem::forget(umf::host::HostProvider::builder().named(format!("/{}", name.0)).build().unwrap());
    }
    // As `exec` does it.
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_of =
        |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|path| path == forgotten.path());
    let fd = fds.filter(is_of).find_map(|fd| fd.file_name().to_str()?.parse().ok()).unwrap();
    // SAFETY: nobody uses it: its provider was forgotten above.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    let outcome = command::run(&["gc"]);
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(0), ""));
    if outcome.out.contains("have no marks") {
        return machine::skip(TEST, "this kernel keeps no extended attributes in /dev/shm (Linux 6.6)");
    }
    has(&outcome.out, &format!("pid {}, which is another program now (exec): removed", std::process::id()));
    has(
        &outcome.out,
        &format!("{}: stays: pid {}, which made it, runs", open.path().display(), std::process::id()),
    );
    assert!(!forgotten.path().exists() && open.path().exists());
}

/// A name that leads somewhere else, and an attribute that anybody could have set: nothing of that is believed.
#[test]
fn gc_ignores_symlinks_and_foreign_names() {
    let _turn = one_gc_at_a_time();
    let (link, target, odd) = (Name::new("link"), Name::new("target"), Name::new("odd"));
    std::fs::write(target.path(), b"precious").unwrap();
    std::os::unix::fs::symlink(target.path(), link.path()).unwrap();
    std::fs::create_dir(odd.path()).unwrap();
    let outcome = command::run(&["gc"]);
    assert_eq!(outcome.code, Some(0));
    assert!(target.path().exists() && link.path().is_symlink() && odd.path().is_dir());
    assert!(!outcome.out.contains(&target.0) && !outcome.out.contains(&link.0), "{}", outcome.out);
    std::fs::remove_dir(odd.path()).unwrap();
}
