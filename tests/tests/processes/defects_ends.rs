//! What ends, and leaves nothing: exporters while the process forks, importers that come back again and again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::Duration;

use umf_tests::{ProcessSnapshot, actor, machine, spawn};

/// The socket thread owns its fds until it ends, and fork handlers must close them in children until
/// then. A child with such an fd would keep the name of a socket bound that no thread serves.
#[test]
fn child_forked_while_exporter_ends_inherits_no_socket() {
    let mut actor = actor!();
    let command = "fork-while-exporters-end 1500";
    let answer = actor.ask_within(command, Duration::from_secs(60)).unwrap();
    assert_eq!(answer, "with_socket=0 children=1500");
    actor.finish();
}

/// An importer in another pid namespace that closes everything and opens again costs the producer no
/// further fd. The producer still notices its death.
#[test]
fn reopening_importer_costs_producer_no_more_fds() {
    const TEST: &str = "reopening_importer_costs_producer_no_more_fds";
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users");
    }
    let socket = || spawn!().env("UMF_IPC_EXCHANGE", "socket");
    let mut producer = socket().start();
    let Some(mut importer) = machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID) else { return };
    producer.ok("pool p shared");
    producer.ok("alloc p 100 -> b");
    let handle = producer.handle("handle b");
    importer.ok(&format!("open {handle} -> m"));
    let before = ProcessSnapshot::of(&producer).fd_count();
    for _ in 0..60 {
        importer.ok("close m");
        importer.ok("evict");
        importer.ok(&format!("open {handle} -> m"));
    }
    assert!(ProcessSnapshot::of(&producer).fd_count() <= before + 1);
    producer.ok("free p b");
    assert_ne!(producer.number("held", "bytes"), 0);
    importer.kill();
    assert_eq!(producer.ok("drain 5000"), "0");
    producer.finish();
}

/// The leases of a dead importer end, also if many importers took leases after it before the producer
/// looked for dead importers.
#[test]
fn leases_of_dead_importer_end_after_many_later_importers() {
    const TEST: &str = "leases_of_dead_importer_end_after_many_later_importers";
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users");
    }
    let socket = || spawn!().env("UMF_IPC_EXCHANGE", "socket");
    let mut producer = socket().start();
    producer.ok("pool p shared");
    producer.ok("alloc p 100 -> b");
    producer.ok("alloc p 100 -> c");
    let (first, second) = (producer.handle("handle b"), producer.handle("handle c"));
    let inside = || machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID);
    let (Some(mut one), Some(mut other)) = (inside(), inside()) else { return };
    one.ok(&format!("open {first} -> m"));
    one.kill();
    for _ in 0..40 {
        other.ok(&format!("open {second} -> m"));
        other.ok("close m");
        other.ok("evict");
    }
    producer.ok("free p b");
    assert_eq!(producer.ok("drain 2000"), "0");
    other.finish();
    producer.finish();
}
