//! Sequences of commands that blocks of every kind of memory must pass between processes.

use umf::Handle;

use crate::Actor;

/// Allocates blocks of several sizes in a new pool `p` of this kind, and returns their handles. The
/// last block has `largest` bytes. The blocks are named `p.b1` to `p.b4` and filled with their
/// number.
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

/// Opens those blocks in each importer, writable and read-only, and compares their content. Then
/// the first importer writes, and all processes must see it. A freed block must be stale for all
/// importers. Closes everything in the end.
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
    // A freed block is stale, also after another block was allocated at its address.
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

/// Kills an importer that has all of those blocks open, and one more that was freed. The producer
/// must then hold no deferred free, and its blocks must keep their content.
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
