//! Networks that lose their link, or a part of their packets, or are slow. `tests/remote/run` runs
//! these tests, with commands in the environment that change the network, and `tests/vm/run` that
//! of a slow one.

use std::process::Command;
use std::time::Instant;

use crate::child::note_time;
use crate::kills::pair;

const LARGE: usize = 8 << 20;

/// Runs the command in a variable.
fn change(variable: &str) {
    let command = std::env::var(variable).unwrap();
    let status = Command::new("sh").args(["-c", &command]).status().unwrap();
    assert!(status.success(), "{command}: {status}");
}

#[test]
#[ignore = "tests/remote/run runs it"]
fn link_down_is_a_time_out_and_then_reads_go_on() {
    let test = "link_down_is_a_time_out_and_then_reads_go_on";
    for size in [LARGE, 4096] {
        let Some((_producer, mut importer)) = pair(test, "idle_ms=2000", "timeout_ms=1000", size) else {
            return;
        };
        importer.tell(&format!("loop 0 0 {size}"));
        assert_eq!(importer.reply(), "reading");
        change("TESTS_REMOTE_DOWN");
        let down = Instant::now();
        let reply = importer.reply();
        note_time(&format!("{test}: {reply}"), down);
        // Without a link the kernel knows at once that there is no route.
        let again = importer.ask(&format!("read 0 0 {size}"));
        change("TESTS_REMOTE_UP");
        println!("{test}: {again}");
        assert!(reply.starts_with("ended error TimedOut"), "{reply}");
        assert!(again.starts_with("error TimedOut") || again.starts_with("error ProducerLost"), "{again}");
        let up = Instant::now();
        let reply = importer.ask_until(&format!("read 0 0 {size}"), |reply| reply == "good");
        note_time(&format!("{test}: {reply}"), up);
    }
}

#[test]
#[ignore = "tests/remote/run runs it"]
fn reads_are_right_with_packets_lost() {
    let test = "reads_are_right_with_packets_lost";
    let Some((mut producer, mut importer)) = pair(test, "", "", LARGE) else { return };
    importer.does(&format!("read 0 0 {LARGE}"), "good");
    change("TESTS_REMOTE_LOSS");
    let begun = Instant::now();
    let replies = [
        importer.ask("bulk 0 1000 100"),
        importer.ask("bulk 0 65536 20"),
        importer.ask(&format!("bulk 0 {LARGE} 2")),
        importer.ask("grant 0 8000"),
        importer.ask("write 4711"),
        importer.ask("ungrant"),
    ];
    change("TESTS_REMOTE_NO_LOSS");
    note_time(test, begun);
    assert_eq!(replies, ["good", "good", "good", "granted", "written", "ended"]);
    producer.does("contents 0 4711", "None");
}

#[test]
#[ignore = "tests/vm/run runs it, in the boot delay"]
fn reads_are_right_with_a_delay() {
    let test = "reads_are_right_with_a_delay";
    let Some((mut producer, mut importer)) = pair(test, "", "", LARGE) else { return };
    for length in [8, 4096, 65536, LARGE] {
        let begun = Instant::now();
        importer.does(&format!("read 0 0 {length}"), "good");
        note_time(&format!("{test}: {length} bytes"), begun);
    }
    let begun = Instant::now();
    importer.does("grant 0 8000", "granted");
    importer.does("write 4711", "written");
    importer.does("ungrant", "ended");
    note_time(&format!("{test}: a grant and a write"), begun);
    producer.does("contents 0 4711", "None");
    drop((producer, importer));
    // Less time than an answer takes: the bound holds, and nothing stays open.
    let bounds = ("idle_ms=2000", "timeout_ms=40");
    let Some((mut producer, mut importer)) = pair(test, bounds.0, bounds.1, LARGE) else { return };
    for length in [8, LARGE] {
        let begun = Instant::now();
        let reply = importer.ask(&format!("read 0 0 {length}"));
        note_time(&format!("{test}: {length} bytes within 40 ms: {reply}"), begun);
        assert!(reply.starts_with("error TimedOut"), "{reply}");
    }
    importer.does("close", "closed");
    producer.ask_until("statistics", |now| now.starts_with("importers=0 "));
}
