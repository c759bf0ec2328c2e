//! What ends, and leaves nothing: exporters while the process forks, importers that come back again and again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::time::Duration;

use umf_tests::{Census, actor, machine, spawn};

/// The socket's thread has its fds until it has ended, and forks have to know them until then: a child that kept them would
/// keep the name of a socket that nobody answers on.
#[test]
fn a_child_forked_while_an_exporter_ends_has_none_of_its_sockets() {
    let mut actor = actor!();
    let command = "fork-while-exporters-end 1500";
    let answer = actor.ask_for(command, Duration::from_secs(60)).unwrap();
    assert_eq!(answer, "with_socket=0 children=1500");
    actor.finish();
}

/// A producer waits for the end of an importer that it cannot find by pid, by an fd. One that forgets the producer and comes
/// back announces itself anew.
#[test]
fn importers_that_announce_themselves_again_cost_no_more_fds() {
    const TEST: &str = "importers_that_announce_themselves_again";
    if !machine::is_root() {
        return machine::skip(TEST, "the socket needs to know users");
    }
    let socket = || spawn!().env("UMF_IPC_EXCHANGE", "socket");
    let mut producer = socket().start();
    let Some(mut importer) = machine::in_namespaces(TEST, socket(), libc::CLONE_NEWPID) else { return };
    producer.ok("pool p shared");
    producer.ok("alloc p 100 -> b");
    let handle = producer.handle("handle b");
    let pidfds = |actor: &umf_tests::Actor| Census::of(actor).fds.get("pidfd").copied().unwrap_or(0);
    for _ in 0..60 {
        importer.ok(&format!("open {handle} -> m"));
        importer.ok("close m");
        importer.ok("evict");
    }
    assert!(pidfds(&producer) <= 16, "{} for one importer", pidfds(&producer));
    // It is watched still.
    importer.ok(&format!("open {handle} -> m"));
    producer.ok("free p b");
    assert_ne!(producer.number("held", "bytes"), 0);
    importer.kill();
    assert_eq!(producer.ok("drain 5000"), "0");
    producer.finish();
}

/// What an importer had open when it died is let go, however many others came after it before that was looked at.
#[test]
fn an_importer_that_announced_itself_and_died_is_not_forgotten_with_its_leases() {
    const TEST: &str = "an_importer_that_announced_itself_and_died";
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
