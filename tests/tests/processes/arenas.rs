//! Regions in one file: they need few fds and mappings, open without system calls, and are leased
//! one by one.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]

use std::time::Duration;

use umf_tests::{Actor, ProcessSnapshot, actor, machine};

const PATIENCE: Duration = Duration::from_secs(120);
const SIZE: usize = 4096;

/// Starts a producer with `count` regions and a block that holds their handles. Returns the block's
/// handle.
fn producer(count: usize) -> (Actor, String) {
    let mut producer = actor!();
    producer.ok("pool p shared");
    producer.ok(&format!("alloc p {} -> p.control", count * 256));
    let control = producer.ok("handle p.control");
    producer.ask_within(&format!("regions {count} {SIZE} -> r"), PATIENCE).unwrap();
    producer.ask_within(&format!("handles-into p.control r {count}"), PATIENCE).unwrap();
    (producer, control)
}

fn importer(control: &str) -> Actor {
    let mut importer = actor!();
    importer.ok("rlimit nofile 1024");
    importer.ok(&format!("open {control} -> c"));
    importer
}

fn maps(actor: &Actor) -> usize {
    std::fs::read_to_string(format!("/proc/{}/maps", actor.pid())).unwrap().lines().count()
}

#[test]
fn ten_thousand_regions_need_few_fds_and_mappings() {
    let regions = 10_000;
    let count = if machine::is_long() { 64 } else { 8 };
    let (mut producer, control) = producer(regions);
    let mut importers: Vec<_> = (0..count).map(|_| importer(&control)).collect();
    for importer in &mut importers {
        importer.send(&format!("open-from c 0 {regions} -> m"));
    }
    for importer in &mut importers {
        importer.answer(PATIENCE).unwrap();
    }
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    for importer in &importers {
        let (fds, maps) = (ProcessSnapshot::of(importer).fd_count(), maps(importer));
        assert!(fds < 32 && maps < 200 && maps < most, "{fds} fds, {maps} mappings");
    }
    let (fds, mapped) = (ProcessSnapshot::of(&importers[0]).fd_count(), maps(&importers[0]));
    println!("{count} importers of {regions} regions: {fds} fds, {mapped} mappings each");
    // Frees all regions while all importers have them open. Every free must be deferred.
    let begun = std::time::Instant::now();
    producer.ask_within(&format!("free-regions r 0 {regions}"), PATIENCE).unwrap();
    println!("freed while leased: {:?}", begun.elapsed());
    assert_eq!(producer.number("held", "regions"), regions as u64);
    let (fds, mapped) = (ProcessSnapshot::of(&producer).fd_count(), maps(&producer));
    println!("the producer: {fds} fds, {mapped} mappings");
    assert!(fds < 64 + count && mapped < most, "{fds} fds, {mapped} mappings");
    let last = importers.pop().unwrap();
    importers.clear();
    assert_eq!(producer.ask_within("drain 0", PATIENCE).unwrap(), (regions * SIZE).to_string());
    last.finish();
    let begun = std::time::Instant::now();
    assert_eq!(producer.ask_within("drain 60000", PATIENCE).unwrap(), "0");
    println!("drained: {:?}", begun.elapsed());
}

/// The importer has no free fd, and must not map anything further.
#[test]
fn second_region_of_window_opens_without_system_call() {
    let (mut producer, control) = producer(2000);
    let mut importer = importer(&control);
    importer.ok("open-from c 0 1 -> m");
    importer.ok("take-fds 0");
    let before = ProcessSnapshot::of(&importer);
    importer.ok("open-from c 1 2000 -> m");
    before.assert_restored(&importer);
    producer.ok("fill r1999 7");
    importer.check("m1999", 7);
    importer.ok("close-some m 1 2000");
    importer.ok("open-from c 1 2000 -> m");
    before.assert_restored(&importer);
    importer.ok("give-fds-back");
}

#[test]
fn freed_range_is_reused_only_after_its_lease_ends() {
    let (mut producer, control) = producer(200);
    let mut importer = importer(&control);
    importer.ok("open-from c 0 100 -> m");
    for number in [0, 50, 99] {
        producer.ok(&format!("fill r{number} {number}"));
    }
    producer.ok("free-regions r 0 100");
    assert_eq!(producer.number("held", "regions"), 100);
    assert_eq!(producer.ok(&format!("regions-again 300 {SIZE}")), "0");
    for number in [0, 50, 99] {
        importer.check(&format!("m{number}"), number);
    }
    // Half of the regions are closed and reused.
    importer.ok("close-some m 0 50");
    producer.ok("drain 0");
    assert_eq!(producer.number("held", "regions"), 50);
    assert_eq!(producer.ok(&format!("regions-again 300 {SIZE}")), "50");
    importer.check("m50", 50);
    importer.check("m99", 99);
    importer.ok("close-some m 50 100");
    producer.ok("drain 0");
    assert_eq!(producer.ok(&format!("regions-again 300 {SIZE}")), "100");
}

#[test]
fn window_outlives_its_first_region() {
    let (mut producer, control) = producer(3);
    let mut importer = importer(&control);
    importer.ok("open-from c 0 1 -> m");
    let one = ProcessSnapshot::of(&importer).mappings;
    producer.ok("fill r1 1");
    producer.ok("fill r2 2");
    importer.ok("open-from c 1 2 -> m");
    importer.ok("close-some m 0 1");
    producer.ok("free-regions r 0 1");
    assert_eq!(producer.number("held", "regions"), 0);
    importer.check("m1", 1);
    importer.ok("close-some m 1 2");
    // No region of the window is open now.
    importer.ok("open-from c 2 3 -> m");
    importer.check("m2", 2);
    assert_eq!(ProcessSnapshot::of(&importer).mappings, one);
    importer.fails("open-from c 0 1 -> m", "Stale");
    importer.check("m2", 2);
    assert_eq!(ProcessSnapshot::of(&importer).mappings, one);
}
