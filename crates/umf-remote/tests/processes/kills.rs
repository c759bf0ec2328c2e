//! Producers and importers that are killed, frozen or started again.

use std::time::Instant;

use crate::child::{Child, Held, note_time, wait_until};
use crate::{machine, reads_are_one_sided};

/// The size of blocks that are read one-sided, and of those that are read by messages.
const LARGE: usize = 4 << 20;
const SMALL: usize = 4096;

/// Starts a producer and an importer. The importer has opened a block, as its number 0.
pub(crate) fn pair(test: &str, producer: &str, importer: &str, size: usize) -> Option<(Child, Child)> {
    let mut producer = Child::start(test, "producer", producer)?;
    let mut importer = Child::start(test, "importer", importer)?;
    let block = producer.ask(&format!("allocate {size}"));
    importer.does(&format!("open {block}"), "0");
    Some((producer, importer))
}

/// Lets an importer read until it is stopped or a read fails. The first read may be late on a busy
/// machine.
fn begins_to_read(importer: &mut Child, command: &str) {
    importer.ask_until(command, |reply| reply == "reading");
}

/// Waits until a producer has this many importers, and no grant.
fn has_importers(producer: &mut Child, count: usize) {
    let wanted = format!("importers={count} ");
    producer.ask_until("statistics", |now| now.starts_with(&wanted) && now.contains("grants=0"));
}

#[test]
fn reads_of_all_sizes_from_another_process() {
    let test = "reads_of_all_sizes_from_another_process";
    let Some((mut producer, mut importer)) = pair(test, "", "", LARGE) else { return };
    for length in
        [0, 1, 7, 8, 100, 4096, 16_255, 16_256, 16_257, 65_536, (1 << 20) - 1, (1 << 20) + 1, LARGE - 3]
    {
        for offset in [0, 1, 3] {
            importer.does(&format!("read 0 {offset} {length}"), "good");
        }
    }
    importer.does("grant 0 9000", "granted");
    importer.does("write 999", "written");
    producer.does("contents 0 999", "None");
    importer.does(&format!("read 0 0 {LARGE}"), "good");
    importer.does("ungrant", "ended");
    producer.does("free 0", "freed");
    for length in [0, 100, LARGE] {
        let reply = importer.ask(&format!("read 0 0 {length}"));
        assert!(reply.starts_with("error Stale"), "{reply}");
    }
    // The registration ends with the block, the session with the importer.
    producer.ask_until("statistics", |now| now.contains("registered=0"));
    importer.does("close", "closed");
    has_importers(&mut producer, 0);
}

/// Reads until the producer is killed. The importer has nothing of it afterwards.
fn killed_producer(test: &str, size: usize) {
    let Some((mut producer, mut importer)) = pair(test, "", "timeout_ms=3000", size) else { return };
    // What libfabric keeps for ever is there after the first session.
    importer.ask_until(&format!("read 0 0 {size}"), |reply| reply == "good");
    importer.does("close", "closed");
    let before = importer.holds();
    let block = producer.ask(&format!("allocate {size}"));
    importer.does(&format!("open {block}"), "0");
    begins_to_read(&mut importer, &format!("loop 0 0 {size}"));
    let killed = Instant::now();
    producer.kill();
    let reply = importer.reply();
    note_time(&format!("{test}: {reply}"), killed);
    let expected = ["ended error ProducerLost", "ended error TimedOut"];
    assert!(expected.iter().any(|expected| reply.starts_with(expected)), "{reply}");
    let again = importer.ask("read 0 0 8");
    note_time(&format!("{test}: {again}"), killed);
    assert!(["error ProducerLost", "error TimedOut"].iter().any(|kind| again.starts_with(kind)), "{again}");
    importer.does("close", "closed");
    importer.has_again(&before);
}

#[test]
fn killed_producer_ends_large_reads() {
    killed_producer("killed_producer_ends_large_reads", LARGE);
}

#[test]
fn killed_producer_ends_small_reads() {
    killed_producer("killed_producer_ends_small_reads", SMALL);
}

#[test]
fn frozen_producer_is_a_time_out_and_then_reads_go_on() {
    let test = "frozen_producer_is_a_time_out_and_then_reads_go_on";
    for size in [SMALL, LARGE] {
        let Some((producer, mut importer)) = pair(test, "", "timeout_ms=3000", size) else { return };
        begins_to_read(&mut importer, &format!("loop 0 0 {size}"));
        producer.freeze();
        if size == LARGE && reads_are_one_sided() {
            importer.tell("stop");
            let reply = importer.reply();
            assert!(reply.starts_with("ended stopped"), "{reply}");
            importer.does(&format!("read 0 0 {size}"), "good");
            producer.thaw();
            continue;
        }
        let frozen = Instant::now();
        let reply = importer.reply();
        note_time(&format!("{test}: {reply}"), frozen);
        assert!(reply.starts_with("ended error TimedOut"), "{reply}");
        // A new session is not made either.
        let reply = importer.ask(&format!("read 0 0 {size}"));
        assert!(
            ["error TimedOut", "error ProducerLost"].iter().any(|kind| reply.starts_with(kind)),
            "{reply}"
        );
        producer.thaw();
        importer.ask_until(&format!("read 0 0 {size}"), |reply| reply == "good");
    }
}

#[test]
fn killed_importer_leaves_nothing_in_the_producer() {
    let test = "killed_importer_leaves_nothing_in_the_producer";
    let Some(lost) = lose_importer(test, Child::kill) else { return };
    lost.producer.has_again(&lost.before);
}

#[test]
fn frozen_importer_loses_its_grant_and_its_session() {
    let test = "frozen_importer_loses_its_grant_and_its_session";
    let Some(lost) = lose_importer(test, |importer| importer.freeze()) else { return };
    let Lost { mut producer, mut importer, before, .. } = lost;
    let block = producer.ask(&format!("allocate {LARGE}"));
    importer.thaw();
    // The reads that were frozen may fail. The next one makes a session.
    importer.tell("stop");
    let mut replies = [importer.reply(), importer.reply()];
    replies.sort();
    assert!(replies.iter().all(|reply| reply.starts_with("ended ")), "{replies:?}");
    importer.does(&format!("open {block}"), "2");
    importer.does("read 2 0 100", "good");
    let reply = importer.ask("write 5");
    assert!(reply.starts_with("error NotGranted"), "{reply}");
    // libfabric keeps the socket of an importer that does not answer as long as the importer exists.
    importer.kill();
    producer.does("free 5", "freed");
    producer.has_again(&before);
}

/// What is there after an importer was lost.
struct Lost {
    producer: Child,
    importer: Child,
    /// Another importer.
    _other: Child,
    /// What the producer had before.
    before: Held,
}

/// Starts an importer that has a grant for a block and reads another one.
fn reading_with_a_grant(test: &str, settings: &str, producer: &mut Child) -> Option<Child> {
    let mut importer = Child::start(test, "importer", settings)?;
    for number in 0..2 {
        let block = producer.ask(&format!("allocate {LARGE}"));
        importer.does(&format!("open {block}"), &number.to_string());
    }
    importer.does("grant 0 4000", "granted");
    importer.does("write 77", "written");
    for length in [LARGE, 5000] {
        importer.tell(&format!("loop 1 0 {length}"));
        assert_eq!(importer.reply(), "reading");
    }
    Some(importer)
}

/// An importer with a grant, and with reads in flight, is lost. Another one reads on meanwhile.
fn lose_importer(test: &str, lose: impl FnOnce(&mut Child)) -> Option<Lost> {
    let settings = "idle_ms=4000 timeout_ms=5000";
    let (mut producer, mut other) = pair(test, settings, "", LARGE)?;
    begins_to_read(&mut other, &format!("loop 0 0 {LARGE}"));
    // What stays for ever is there after the first round, in which the importer ends in order.
    let mut first = reading_with_a_grant(test, settings, &mut producer)?;
    first.tell("close");
    while first.reply() != "closed" {}
    for number in [1, 2] {
        producer.does(&format!("free {number}"), "freed");
    }
    producer.ask_until("statistics", |now| now.ends_with("registered=1 grants=0 deferred=0"));
    let before = producer.holds();
    let mut lost = reading_with_a_grant(test, settings, &mut producer)?;
    // The grant defers the free.
    producer.does("free 3", "freed");
    let now = producer.ask("statistics");
    assert!(now.starts_with("importers=2 ") && now.ends_with("grants=1 deferred=1"), "{now}");
    lose(&mut lost);
    let begun = Instant::now();
    producer.ask_until("statistics", |now| now.ends_with("grants=0 deferred=0"));
    note_time(&format!("{test}: the grant has ended"), begun);
    has_importers(&mut producer, 1);
    note_time(&format!("{test}: the session has ended"), begun);
    // Only the other importer's block is left.
    producer.does("free 4", "freed");
    producer.ask_until("statistics", |now| now.contains("registered=1 "));
    other.tell("stop");
    let reply = other.reply();
    assert!(reply.starts_with("ended stopped"), "{reply}");
    Some(Lost { producer, importer: lost, _other: other, before })
}

#[test]
fn producer_that_is_started_again_is_another_one() {
    let test = "producer_that_is_started_again_is_another_one";
    let provider = std::env::var("UMF_REMOTE_PROVIDER").unwrap_or_default();
    if !provider.is_empty() && !provider.contains("tcp") {
        return machine::skip(test, "only the provider tcp serves at a chosen port");
    }
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let start = || {
        Child::start_with(test, "producer", "", |command| {
            command.env("FI_TCP_PORT_LOW_RANGE", &port).env("FI_TCP_PORT_HIGH_RANGE", &port);
        })
    };
    let Some(mut producer) = start() else { return };
    assert!(producer.ready.contains(&format!(":{port}")), "{}", producer.ready);
    let Some(mut importer) = Child::start(test, "importer", "") else { return };
    for number in 0..2 {
        let block = producer.ask(&format!("allocate {LARGE}"));
        importer.does(&format!("open {block}"), &number.to_string());
    }
    importer.does(&format!("read 0 0 {LARGE}"), "good");
    let ready = producer.ready.clone();
    producer.kill();
    let mut again = None;
    wait_until("the port is free", || {
        let producer = start().unwrap();
        let is_there = producer.ready == ready;
        again = Some(producer);
        is_there
    });
    // The same block as before, with other contents.
    let mut producer = again.unwrap();
    producer.ask(&format!("allocate {LARGE}"));
    for (number, length) in [(0, LARGE), (0, 100), (1, LARGE), (1, 100)] {
        let reply = importer.ask(&format!("read {number} 0 {length}"));
        println!("{test}: {reply}");
        assert!(
            reply.starts_with("error ProducerReplaced") || reply.starts_with("error ProducerLost"),
            "{reply}"
        );
    }
    let reply = importer.ask("read 0 0 100");
    assert!(reply.starts_with("error ProducerReplaced"), "{reply}");
}
