//! Limits of importers, registrations and fds; users; forks.

use std::time::Duration;

use crate::child::Child;
use crate::kills::pair;
use crate::machine;

const LARGE: usize = 1 << 20;

#[test]
fn importers_beyond_the_limit_are_refused_until_one_ends() {
    let test = "importers_beyond_the_limit_are_refused_until_one_ends";
    let settings = "max_importers=2 idle_ms=5000";
    let Some((mut producer, mut first)) = pair(test, settings, "", LARGE) else { return };
    let block = producer.ask(&format!("allocate {LARGE}"));
    let mut others: Vec<Child> = Vec::new();
    for _ in 0..2 {
        let Some(mut importer) = Child::start(test, "importer", "") else { return };
        importer.does(&format!("open {block}"), "0");
        others.push(importer);
    }
    first.does("read 0 0 100", "good");
    others[0].does(&format!("read 0 0 {LARGE}"), "good");
    let reply = others[1].ask("read 0 0 100");
    assert!(reply.starts_with("error Refused") && reply.contains("max_importers"), "{reply}");
    // One ends in order, and another one is killed.
    first.does("close", "closed");
    others[1].ask_until("read 0 0 100", |reply| reply == "good");
    others[0].kill();
    let Some(mut fourth) = Child::start(test, "importer", "") else { return };
    fourth.does(&format!("open {block}"), "0");
    fourth.ask_until("read 0 0 100", |reply| {
        // Keeps the session.
        others[1].does("read 0 0 8", "good");
        reply == "good"
    });
}

#[test]
fn importers_are_served_while_one_is_frozen() {
    let test = "importers_are_served_while_one_is_frozen";
    let Some((mut producer, mut first)) = pair(test, "", "", 8 << 20) else { return };
    first.tell(&format!("loop 0 0 {}", 8 << 20));
    assert_eq!(first.reply(), "reading");
    first.freeze();
    for _ in 0..3 {
        let block = producer.ask(&format!("allocate {LARGE}"));
        let Some(mut importer) = Child::start(test, "importer", "") else { return };
        importer.does(&format!("open {block}"), "0");
        importer.does(&format!("bulk 0 {LARGE} 100"), "good");
        importer.does("bulk 0 64 100", "good");
    }
    first.thaw();
    first.tell("stop");
    let reply = first.reply();
    assert!(reply.starts_with("ended"), "{reply}");
}

#[test]
fn reads_are_right_with_few_registrations() {
    let test = "reads_are_right_with_few_registrations";
    for (producer, importer) in [
        ("max_registered=2 idle_ms=2000", ""),
        ("max_registered=2 idle_ms=2000", "max_registered=2"),
        ("idle_ms=2000", "max_registered=1"),
    ] {
        let Some((mut producer, mut importer)) = pair(test, producer, importer, LARGE) else { return };
        for number in 1..8 {
            let block = producer.ask(&format!("allocate {LARGE}"));
            importer.does(&format!("open {block}"), &number.to_string());
        }
        for round in 0..6 {
            for number in 0..8 {
                let number = if round % 2 == 0 { number } else { 7 - number };
                importer.does(&format!("read {number} {round} {}", LARGE - 10), "good");
            }
        }
        // All at once, by as many threads.
        for number in 0..8 {
            importer.tell(&format!("loop {number} 0 {LARGE}"));
        }
        for _ in 0..8 {
            assert_eq!(importer.reply(), "reading");
        }
        importer.tell("stop");
        for _ in 0..8 {
            let reply = importer.reply();
            assert!(reply.starts_with("ended stopped"), "{reply}");
        }
        importer.does("close", "closed");
        for number in 0..8 {
            producer.does(&format!("free {number}"), "freed");
        }
        producer.ask_until("statistics", |now| now.starts_with("importers=0 registered=0 "));
    }
}

#[test]
fn importer_without_fds_fails_and_recovers() {
    let test = "importer_without_fds_fails_and_recovers";
    let Some((mut producer, mut importer)) = pair(test, "", "timeout_ms=3000", LARGE) else { return };
    // What libfabric keeps for ever is there after the first session.
    importer.does(&format!("read 0 0 {LARGE}"), "good");
    importer.does("close", "closed");
    let before = importer.holds();
    let block = producer.ask(&format!("allocate {LARGE}"));
    importer.does(&format!("open {block}"), "0");
    for more in 0..24 {
        importer.does(&format!("fds {more}"), "limited");
        let reply = importer.ask("read 0 0 100");
        println!("{test}: {more} more fds: {reply}");
        if reply == "good" {
            importer.does(&format!("read 0 0 {LARGE}"), "good");
            break;
        }
        assert!(reply.starts_with("error"), "{reply}");
    }
    importer.does("unlimit", "unlimited");
    importer.does(&format!("read 0 0 {LARGE}"), "good");
    importer.does("close", "closed");
    importer.has_again(&before);
}

#[test]
fn server_without_fds_is_an_error() {
    let test = "server_without_fds_is_an_error";
    let mut has_failed = false;
    for more in [0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 64] {
        let change = |command: &mut std::process::Command| {
            command.env("TESTS_REMOTE_FDS", more.to_string());
        };
        let Some(producer) = Child::start_with(test, "producer", "", change) else { return };
        println!("{test}: {more} more fds: {}", producer.ready);
        if !producer.ready.starts_with("error") {
            assert!(has_failed);
            return;
        }
        has_failed = true;
    }
    panic!("the server does not start");
}

#[test]
fn server_without_fds_for_more_importers_serves_those_that_it_has() {
    let test = "server_without_fds_for_more_importers_serves_those_that_it_has";
    let Some((mut producer, mut first)) = pair(test, "", "", LARGE) else { return };
    first.does(&format!("read 0 0 {LARGE}"), "good");
    let block = producer.ask(&format!("allocate {LARGE}"));
    producer.does("fds 0", "limited");
    let Some(mut second) = Child::start(test, "importer", "timeout_ms=3000") else { return };
    second.does(&format!("open {block}"), "0");
    let reply = second.ask("read 0 0 100");
    println!("{test}: {reply}");
    assert!(reply == "good" || reply.starts_with("error"), "{reply}");
    first.does(&format!("bulk 0 {LARGE} 20"), "good");
    first.does("bulk 0 64 20", "good");
    producer.does("unlimit", "unlimited");
    second.ask_until("read 0 0 100", |reply| reply == "good");
    first.does("read 0 0 100", "good");
}

#[test]
fn importer_of_another_user_reads_over_the_network_only() {
    let test = "importer_of_another_user_reads_over_the_network_only";
    if !machine::is_root() {
        return machine::skip(test, "other users need root");
    }
    let Some(mut producer) = Child::start(test, "producer", "") else { return };
    let block = producer.ask(&format!("allocate {LARGE}"));
    let change = |command: &mut std::process::Command| {
        command.env(crate::child::USER, "65534");
    };
    let Some(mut importer) = Child::start_with(test, "importer", "", change) else { return };
    importer.does(&format!("open {block}"), "0");
    let replies = ["read 0 0 100".to_owned(), format!("read 0 0 {LARGE}")].map(|read| importer.ask(&read));
    println!("{test}: {replies:?}");
    // A provider of one machine may refuse it.
    let is_network = producer.ready.contains("tcp");
    assert!(
        replies.iter().all(|reply| reply == "good" || !is_network && reply.starts_with("error")),
        "{replies:?}"
    );
}

#[test]
fn forked_importer_opens_again_and_its_parent_reads_on() {
    let test = "forked_importer_opens_again_and_its_parent_reads_on";
    let Some((_producer, mut importer)) = pair(test, "", "", LARGE) else { return };
    importer.does(&format!("read 0 0 {LARGE}"), "good");
    for _ in 0..3 {
        importer.does("fork 0", "forked 7");
        importer.does(&format!("read 0 0 {LARGE}"), "good");
        importer.does("read 0 0 100", "good");
    }
}

#[test]
fn forked_producer_does_not_serve_and_its_parent_goes_on() {
    let test = "forked_producer_does_not_serve_and_its_parent_goes_on";
    let Some((mut producer, mut importer)) = pair(test, "", "", LARGE) else { return };
    for _ in 0..3 {
        importer.does(&format!("read 0 0 {LARGE}"), "good");
        producer.does("fork", "forked 3");
        importer.does(&format!("read 0 0 {LARGE}"), "good");
        importer.does("read 0 0 100", "good");
    }
    importer.does("close", "closed");
    producer.ask_until("statistics", |now| now.starts_with("importers=0 "));
    producer.does("end", "ended");
}

#[test]
fn grant_outlives_the_idle_time_of_its_session() {
    let test = "grant_outlives_the_idle_time_of_its_session";
    let settings = "idle_ms=500 max_grant_ms=60000";
    let Some((mut producer, mut importer)) = pair(test, settings, "", LARGE) else { return };
    importer.does("grant 0 60000", "granted");
    // Longer than the idle time.
    std::thread::sleep(Duration::from_millis(700));
    importer.does("read 0 0 100", "good");
    importer.does("write 8", "written");
    producer.does("contents 0 8", "None");
    importer.does("ungrant", "ended");
}
