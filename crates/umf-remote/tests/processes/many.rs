//! Many importers of one producer.

use std::time::Instant;

use crate::child::Child;
use crate::machine;

const SIZE: usize = 1 << 20;

/// Prints the throughput, which depends on the machine.
#[test]
fn sixty_four_importers_read_the_right_contents() {
    let test = "sixty_four_importers_read_the_right_contents";
    let megabytes = machine::number("TESTS_REMOTE_MEGABYTES").unwrap_or(512) as usize;
    let Some(mut producer) = Child::start(test, "producer", "idle_ms=600000") else { return };
    let blocks: Vec<String> = (0..4).map(|_| producer.ask(&format!("allocate {SIZE}"))).collect();
    for count in [2, 64] {
        let mut importers: Vec<Child> = Vec::new();
        for number in 0..count {
            let Some(mut importer) = Child::start(test, "importer", "timeout_ms=30000") else { return };
            importer.does(&format!("open {}", blocks[number % 4]), "0");
            importer.does(&format!("read 0 0 {SIZE}"), "good");
            importer.does("read 0 3 1000", "good");
            importers.push(importer);
        }
        let now = producer.ask("statistics");
        assert!(now.starts_with(&format!("importers={count} ")), "{now}");
        let reads = megabytes.div_ceil(count);
        let begun = Instant::now();
        for importer in &mut importers {
            importer.tell(&format!("bulk 0 {SIZE} {reads}"));
        }
        for importer in &mut importers {
            assert_eq!(importer.reply(), "good");
        }
        let rate = (reads * count) as f64 / begun.elapsed().as_secs_f64();
        println!("{test}: {count} importers: {rate:.0} MiB/s in all, with checks of the contents");
        for importer in &mut importers {
            importer.does("close", "closed");
        }
        producer.ask_until("statistics", |now| now.starts_with("importers=0 "));
    }
}
