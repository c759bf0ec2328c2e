//! The campaign for the memory of dead producers: importers that collect it are killed at each
//! failpoint.
//!
//! Three importers have a block open each, of a producer that is killed. One of them is killed
//! while it collects, another collects at the same time. The blocks that the survivors have open
//! must keep their contents, no open may succeed, and the rest of the memory must be released.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use umf_tests::{Actor, Outcome, Patience, Rng, spawn};

use super::Failpoint;
use super::plan;
use super::tally::FailpointTally;
use super::workers::{bound, is_kill_status};

const MIB: u64 = 1 << 20;
/// What may stay of the memory: the pages of two small blocks, and of what shares pages with them.
const KEPT: u64 = MIB / 4;

/// Kills an importer at each failpoint, `times` times.
pub(crate) fn run(seed: u64, times: u64) -> FailpointTally {
    let mut tally = FailpointTally::new("memory of dead producers", plan::is_of_collection);
    let mut rng = Rng::new(seed);
    for _ in 0..times {
        for failpoint in tally.failpoints() {
            for nth in [1, 2] {
                tally.rounds += 1;
                if round(failpoint, nth, &mut rng) {
                    tally.count(failpoint);
                }
            }
        }
    }
    tally
}

/// Runs a round. Returns whether the victim was killed at the failpoint.
fn round(failpoint: Failpoint, nth: u32, rng: &mut Rng) -> bool {
    let start = || spawn!().env("UMF_IPC_OPEN_TIMEOUT_MS", "400").start();
    let mut producer = start();
    producer.ok("pool p shared");
    let mut handles = Vec::new();
    for seed in 0..4 {
        producer.ok(&format!("alloc p {MIB} -> p.large{seed}"));
        producer.ok(&format!("fill p.large{seed} 50"));
        producer.ok(&format!("alloc p 4096 -> p.b{seed}"));
        producer.ok(&format!("fill p.b{seed} {seed}"));
        handles.push(producer.handle(&format!("handle p.b{seed}")));
    }
    let file = File::open(format!("/proc/{}/fd/{}", producer.pid(), handles[0].data_fd().unwrap())).unwrap();
    let mut importers = [start(), start(), start()];
    for (at, importer) in importers.iter_mut().enumerate() {
        // A thread remembers all of them.
        for handle in &handles {
            importer.ok(&format!("open {handle} -> closed"));
            importer.ok("close closed");
        }
        importer.ok(&format!("open {} -> m", handles[at]));
    }
    // The row of an importer that has ended, and a message of one.
    let mut ended = start();
    ended.ok(&format!("open {} -> m", handles[3]));
    ended.ok(&format!("pass-on m {} 1", handles[3]));
    ended.kill();
    producer.kill();

    let [victim, others @ ..] = &mut importers;
    victim.ok(&format!("arm {failpoint} {nth} kill"));
    let commands =
        ["drain 0".to_owned(), format!("open {} -> n", handles[1]), "close m".to_owned(), "evict".to_owned()];
    let mut killed = false;
    for command in &commands {
        // Another collector may clear the rows first, and the victim then passes fewer failpoints.
        let races = nth > 1 && rng.one_in(2);
        if races {
            others[0].send("drain 0");
        }
        victim.send(command);
        match victim.outcome(bound()) {
            Outcome::Ended => killed = true,
            Outcome::Answer(Err(failure)) => {
                assert_eq!(failure.variant, "ProducerGone", "{command}: {failure}")
            }
            // The producer's end is not noticed yet.
            Outcome::Answer(Ok(_)) => {}
            Outcome::TimedOut => panic!("{failpoint}: {command} hangs"),
        }
        if races {
            others[0].answer(bound()).unwrap();
        }
        if killed {
            let status = victim.reap();
            assert!(is_kill_status(&status), "{failpoint}: {status}");
            break;
        }
    }
    check_rest(failpoint, others, &handles, &file);
    killed
}

/// Checks what the survivors have, and that the rest of the memory is released.
fn check_rest(failpoint: Failpoint, others: &mut [Actor; 2], handles: &[umf::Handle], file: &File) {
    let bytes = || file.metadata().unwrap().blocks() * 512;
    let mut patience = Patience::new(Duration::from_secs(20));
    loop {
        for (at, other) in others.iter_mut().enumerate() {
            other.ok("drain 0");
            other.check("m", at as u64 + 1);
        }
        if bytes() <= KEPT {
            break;
        }
        assert!(patience.sleep(), "{failpoint}: {} bytes of a dead producer stay", bytes());
    }
    for other in others.iter_mut() {
        for handle in handles {
            other.fails(&format!("open {handle} -> n"), "ProducerGone");
        }
    }
    for (at, other) in others.iter_mut().enumerate() {
        other.check("m", at as u64 + 1);
        other.ok("close m");
        other.ok("evict");
        assert_eq!(other.number("importer", "fds"), 0, "{failpoint}: something of the producer stays");
    }
    // This test's own descriptor keeps the file, but not its pages, which the last close released.
    assert!(bytes() <= KEPT, "{failpoint}");
}
