//! A producer frees and reuses its blocks as fast as it can while importers read them.

use std::time::Instant;

use crate::child::{Child, note_time};
use crate::machine;

/// Every 8 bytes of a block tell which block it is, and when it was allocated.
#[test]
fn no_stale_or_torn_read_is_good() {
    let test = "no_stale_or_torn_read_is_good";
    let reads = machine::number("TESTS_REMOTE_READS").unwrap_or(20_000);
    let seed = machine::number("TESTS_REMOTE_SEED").unwrap_or(1);
    const IMPORTERS: u64 = 3;
    // Few blocks are replaced at once, many live for some time.
    for (round, blocks) in [4, 64].into_iter().enumerate() {
        // The importers know few keys.
        let Some(mut producer) = Child::start(test, "producer", "max_registered=40 idle_ms=3000") else {
            return;
        };
        let path = producer.ask(&format!("churn {blocks}"));
        let mut importers: Vec<Child> = Vec::new();
        for number in 0..IMPORTERS {
            let importer = Child::start(
                test,
                "importer",
                &format!("timeout_ms=20000 max_registered={}", 2 + 10 * number),
            );
            importers.push(importer.unwrap());
        }
        let begun = Instant::now();
        let mut left = reads / 2 / IMPORTERS;
        let mut seed = seed * 1000 + round as u64 * 500;
        // In parts, so that each reply comes within the limit of a wait.
        while left > 0 {
            let part = left.min(5000);
            left -= part;
            for importer in &mut importers {
                seed += 1;
                importer.tell(&format!("campaign {path} {part} {seed}"));
            }
            for importer in &mut importers {
                let counts = importer.reply();
                if left == 0 {
                    println!("{test}: {blocks} blocks: {counts}");
                }
                assert!(counts.contains("wrong: None"), "{counts}");
                assert!(counts.contains("failed: 0"), "{counts}");
            }
        }
        note_time(&format!("{test}: {reads} reads, half of them of {blocks} blocks"), begun);
        let rounds = producer.ask("calm");
        println!("{test}: {rounds} blocks were allocated");
        for importer in &mut importers {
            importer.does("close", "closed");
        }
        let now = producer.ask_until("statistics", |now| now.starts_with("importers=0 registered=0 "));
        assert!(now.ends_with("deferred=0"), "{now}");
    }
}
