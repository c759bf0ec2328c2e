//! Read-only imports, sealed exports, isolated and named memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use umf_tests::forge::{self, field};
use umf_tests::{Actor, ProcessSnapshot, actor, machine, spawn};

/// Returns the permissions of the mappings of files whose name contains `part`.
fn permissions(actor: &mut Actor, part: &str) -> Vec<String> {
    let maps = actor.ok(&format!("maps {part}"));
    // Skips ledgers and lease tables.
    let lines = maps.split(" | ").filter(|line| !line.contains("-ledger") && !line.contains("-leases"));
    lines.filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect()
}

#[test]
fn read_only_import_cannot_write() {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 1");
    let handle = producer.handle("handle p.b");
    let mut importer = actor!();
    importer.ok(&format!("open-read {handle} -> m"));
    importer.check("m", 1);
    assert!(importer.fails("poke m", "ReadOnly").contains("Access::ReadWrite"));
    importer.fails("fill m 2", "ReadOnly");
    assert_eq!(permissions(&mut importer, "memfd:umf"), ["r--s"]);
    // A writable open makes another mapping.
    importer.ok(&format!("open {handle} -> w"));
    importer.ok("fill w 3");
    importer.check("m", 3);
    importer.fails("poke m", "ReadOnly");
    let mut both = permissions(&mut importer, "memfd:umf");
    both.sort();
    assert_eq!(both, ["r--s", "rw-s"]);
    // A cached open is read-only, too.
    importer.ok("close m");
    importer.ok(&format!("open-read {handle} -> m"));
    importer.fails("poke m", "ReadOnly");
}

#[test]
fn sealed_export_refuses_writers() {
    let mut producer = actor!();
    producer.ok("pool p read-only");
    producer.ok("alloc p 4096 -> p.b");
    producer.ok("fill p.b 1");
    let handle = producer.handle("handle p.b");
    assert!(handle.is_read_only() && handle.is_isolated());
    let mut importer = actor!();
    importer.fails(&format!("open {handle} -> m"), "ReadOnly");
    // A forged handle without the flag fails at the seal.
    let forged =
        forge::with(&handle, field::FLAGS, u64::from(u16::from_le_bytes([handle.to_bytes()[6] & !2, 0])));
    let failure = importer.ask(&format!("open {forged} -> m")).unwrap_err();
    assert!(["Native", "Untrusted", "Misbehaved"].contains(&failure.variant.as_str()), "{failure}");
    importer.ok(&format!("open-read {handle} -> m"));
    importer.check("m", 1);
    // The producer mapped the memory writable before it was sealed.
    producer.ok("fill p.b 2");
    importer.check("m", 2);
    assert_eq!(permissions(&mut importer, "memfd:umf"), ["r--s"]);
    // A process with the fd cannot write either.
    let path = format!("/proc/{}/fd/{}", producer.pid(), handle.data_fd().unwrap());
    use std::io::Write;
    let written =
        std::fs::OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"x"));
    assert!(written.is_err());
    importer.check("m", 2);
}

/// CUDA guide; vLLM #42609: exporting a block exposes its whole region. `isolate` gives each block
/// a region.
#[test]
fn isolated_block_exposes_nothing_else() {
    let mut producer = actor!();
    producer.ok("pool p isolated");
    producer.ok("alloc p 5000 -> p.b");
    producer.ok("alloc p 5000 -> p.secret");
    producer.ok("fill p.secret 9");
    let handle = producer.handle("handle p.b");
    assert!(handle.is_isolated());
    assert_eq!((handle.data_offset(), handle.offset()), (0, 0));
    let path = format!("/proc/{}/fd/{}", producer.pid(), handle.data_fd().unwrap());
    assert_eq!(std::fs::metadata(path).unwrap().len(), handle.region_size());
    assert_eq!(handle.region_size(), 8192);
    let secret = producer.handle("handle p.secret");
    assert_ne!(handle.data_identity(), secret.data_identity());
    // The handle of a block in a shared region is not marked as isolated.
    producer.ok("pool q shared");
    producer.ok("alloc q 5000 -> q.b");
    assert!(!producer.handle("handle q.b").is_isolated());
}

/// iceoryx2 #601, #1584; rmw_zenoh #224; iceoryx #324, #2183: names in `/dev/shm` stay after kill
/// -9. Here memory has a name only on request, and its provider removes it.
#[test]
fn memory_has_no_name_by_default_and_named_memory_removes_its_name() {
    let mut producer = spawn!().env("UMF_IPC_EXCHANGE", "socket").start();
    let own = format!("umf-tests-{}-", producer.pid());
    let before = names(&own);
    for pool in ["shared", "isolated", "read-only", "proxy"] {
        producer.ok(&format!("pool {pool} {pool}"));
        producer.ok(&format!("alloc {pool} 4096 -> {pool}.b"));
        producer.ok(&format!("handle {pool}.b"));
    }
    assert_eq!(names(&own), before);
    let name = format!("/{own}a");
    producer.ok(&format!("pool n named {name}"));
    assert_eq!(ProcessSnapshot::of(&producer).names, [&name[1..]]);
    assert!(producer.fails(&format!("pool again named {name}"), "Native").contains("the name exists"));
    producer.ok("alloc n 4096 -> n.b");
    producer.ok("fill n.b 4");
    // Named memory cannot be sealed, so that an importer must permit it.
    let handle = producer.handle("handle n.b");
    let mut importer = actor!();
    assert!(importer.fails(&format!("open {handle} -> m"), "Untrusted").contains("not sealed"));
    producer.ok("drop-pool n");
    assert_eq!(ProcessSnapshot::of(&producer).names, Vec::<String>::new());
    producer.kill();
    assert_eq!(names(&own), before, "after kill -9");
}

fn names(own: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    // The named memory of a concurrent run may come and go.
    names.retain(|name| name.contains("umf") && (!name.starts_with("umf-tests-") || name.starts_with(own)));
    names.sort();
    names
}

/// A full tmpfs causes an error at an allocation that populates pages. Other memory is not
/// affected.
#[test]
fn full_tmpfs_is_out_of_memory_error() {
    const TEST: &str = "full_tmpfs_is_out_of_memory_error";
    if !machine::is_root() {
        return machine::skip(TEST, "mounting needs root");
    }
    let Some(mut producer) = machine::in_namespaces(TEST, spawn!(), libc::CLONE_NEWNS) else { return };
    producer.ok("mount tmpfs /dev/shm size=1m");
    producer.ok("pool p reserved /umf-tests");
    producer.ok("alloc p 500000 -> p.b");
    producer.ok("fill p.b 1");
    let message = producer.fails("alloc p 700000 -> p.c", "OutOfMemory");
    assert!(message.contains("out of memory"), "{message}");
    producer.check("p.b", 1);
    // The failed allocation has left nothing: a smaller one succeeds.
    producer.ok("alloc p 400000 -> p.c");
    producer.ok("fill p.c 2");
    producer.check("p.b", 1);
    producer.ok("free p p.c");
    producer.ok("alloc p 400000 -> p.d");
    // Unnamed memory and ledgers are not in /dev/shm.
    producer.ok("pool q shared");
    producer.ok("alloc q 4000000 -> q.b");
    producer.ok("fill q.b 3");
    let handle = producer.handle("handle q.b");
    let mut importer = actor!();
    importer.ok(&format!("open {handle} -> m"));
    importer.check("m", 3);
}
