//! What tests of every kind of memory do with blocks of it, between processes.

use umf::Handle;

use crate::Actor;

/// Handles of blocks of several sizes in a new pool `p`, which is of this kind, the last of `largest` bytes. They are called `p.b1`
/// to `p.b4`, and each is filled with its number.
pub fn blocks(producer: &mut Actor, kind: &str, largest: u64) -> Vec<Handle> {
    producer.ok(&format!("pool p {kind}"));
    (1..)
        .zip([64, 4096, 100_000, largest])
        .map(|(number, size)| {
            producer.ok(&format!("alloc p {size} -> p.b{number}"));
            producer.ok(&format!("fill p.b{number} {number}"));
            producer.handle(&format!("handle p.b{number}"))
        })
        .collect()
}

/// Every importer opens those blocks, for writing and for reading only, and sees what is in them; so do all when the first has written
/// there. What is freed is stale for all of them. In the end nothing is open.
pub fn share(producer: &mut Actor, importers: &mut [Actor], handles: &[Handle]) {
    for (number, handle) in (1..).zip(handles) {
        for importer in &mut *importers {
            importer.ok(&format!("open {handle} -> m{number}"));
            importer.check(&format!("m{number}"), number);
            importer.ok(&format!("open-read {handle} -> r{number}"));
            importer.fails(&format!("poke r{number}"), "ReadOnly");
        }
        importers[0].ok(&format!("fill m{number} {}", number + 100));
        for importer in &mut *importers {
            importer.check(&format!("r{number}"), number + 100);
        }
        producer.check(&format!("p.b{number}"), number + 100);
    }
    // What is freed is stale, and not what lies there next.
    producer.ok("free p p.b2");
    for next in [None, Some("alloc p 4096 -> p.b5")] {
        next.map(|next| producer.ok(next));
        for importer in &mut *importers {
            assert_eq!(importer.ok("is_current m2"), "false");
            importer.fails(&format!("open {} -> again", handles[1]), "Stale");
            importer.fails(&format!("try {}", handles[1]), "Stale");
        }
    }
    for importer in importers {
        for number in 1..=handles.len() {
            importer.ok(&format!("close m{number}"));
            importer.ok(&format!("close r{number}"));
        }
        importer.ok("evict");
    }
}

/// An importer is killed while it has all of those blocks open, and one that was freed meanwhile: that is nobody's any more, and the
/// producer works on.
pub fn kill_importer(producer: &mut Actor, mut importer: Actor, handles: &[Handle]) {
    for handle in handles {
        importer.ok(&format!("open {handle} -> {}", handle.slot()));
    }
    producer.ok("alloc p 100000 -> p.more");
    importer.ok(&format!("open {} -> more", producer.handle("handle p.more")));
    producer.ok("free p p.more");
    importer.kill();
    assert_eq!(producer.ok("drain 5000"), "0");
    for number in (1..).take(handles.len()) {
        producer.check(&format!("p.b{number}"), number);
    }
}
