//! The kill matrix: a process killed at any instruction leaks nothing, and umf reports no wrong
//! state to the other processes.
//!
//! Producers and importers are real processes. In each round one of them is killed with SIGKILL (or
//! is stopped first), at a failpoint of umf or at a random time, and the others continue. What umf
//! reports to them is checked against the [`BlockTable`](umf_tests::block_table::BlockTable), in
//! which producers record what they do. After the round each process must hold what it held when
//! idle.
//!
//! One more test is in this program because it needs a failpoint: concurrent first opens.
//!
//! `tests/run --kill [rounds] [seed]` runs the matrix for long. With `UMF_KILL_PROVIDER=dma-buf`
//! the regions are dma-bufs, of every source of the machine, and the kernel's list of buffers is
//! checked, too.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod campaign;
mod collect;
mod domains;
mod links;
mod plan;
mod tally;
mod tickets;
mod workers;

use std::time::Duration;

use campaign::Campaign;
use tally::FailpointTally;
use umf_sync::failpoint::{Action, arm, reached};
use umf_tests::{ProcessSnapshot, machine, spawn};

/// Name of a failpoint.
type Failpoint = &'static str;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Serializes the tests of this program: a campaign reaps all children of the program that it does
/// not know.
fn serialize() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn kill_at_any_failpoint_leaks_nothing() {
    let _serial = serialize();
    if !plan::has_pool_kinds() {
        return machine::skip("kill_at_any_failpoint_leaks_nothing", "this machine has no dma-bufs");
    }
    if plan::uses_dma_bufs() && machine::dma_bufs_of(0).is_none() {
        machine::skip("dma-bufs of killed processes", "no debugfs that this process may read");
    }
    let rounds = variable("UMF_KILL_ROUNDS").unwrap_or(if machine::is_long() { 10_000 } else { 280 });
    let seed = variable("UMF_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20 | rounds);
    let tally = Campaign::new(seed).run(rounds);
    println!("{tally}");
    assert!(tally.violations.is_empty(), "{} violations, seed {seed}", tally.violations.len());
    // Importers that open nothing check nothing.
    assert!(tally.opened >= rounds, "importers opened {} blocks in {rounds} rounds", tally.opened);
    // Each failpoint must be tested, unless the rounds are too few.
    let missing = tally.failpoints_without_kill();
    assert!(!plan::can_reach_all(rounds) || missing.is_empty(), "no process was killed at {missing:?}");
}

/// Kills a process at each failpoint of one crate.
fn kill_at_each_failpoint(run: fn(u64, u64) -> FailpointTally) {
    let _serial = serialize();
    let rounds = variable("UMF_KILL_ROUNDS").unwrap_or(if machine::is_long() { 10_000 } else { 280 });
    let seed = variable("UMF_KILL_SEED").unwrap_or(rounds);
    let tally = run(seed, (rounds / 1000).max(1));
    println!("{tally}, seed {seed}");
    let missing = tally.failpoints_without_kill();
    assert!(missing.is_empty(), "no process was killed at {missing:?}");
}

#[test]
fn kill_at_each_domain_failpoint_leaves_domain_consistent() {
    kill_at_each_failpoint(domains::run);
}

#[test]
fn kill_at_each_link_failpoint_reports_error_to_peer() {
    kill_at_each_failpoint(links::run);
}

#[test]
fn kill_at_each_failpoint_of_domain_in_directory_leaves_domain_consistent() {
    kill_at_each_failpoint(domains::run_in_directory);
}

#[test]
fn kill_at_each_failpoint_of_link_in_directory_reports_error_to_peer() {
    kill_at_each_failpoint(links::run_in_directory);
}

#[test]
fn kill_at_each_collection_failpoint_keeps_what_is_open() {
    kill_at_each_failpoint(collect::run);
}

#[test]
fn kill_at_each_ticket_failpoint_loses_or_delivers_the_message() {
    kill_at_each_failpoint(tickets::run);
}

/// Returns the numbers of fds and mappings of lease tables in this process.
fn lease_tables() -> [usize; 2] {
    let snapshot = ProcessSnapshot::of_pid(std::process::id());
    [snapshot.fds, snapshot.mappings].map(|of| of.get("/memfd:umf-leases (deleted)").copied().unwrap_or(0))
}

/// Thread A finds no lease table of the producer, and thread B opens the table before A does. Both
/// must then use one table, and none may stay when both have closed their mappings.
#[test]
fn racing_first_opens_share_one_lease_table() {
    let _serial = serialize();
    let mut producer = spawn!().start();
    producer.ok("pool p isolated");
    for number in 1..=50 {
        let block = format!("p.b{number}");
        producer.ok(&format!("alloc p 10000 -> {block}"));
        let handle = producer.handle(&format!("handle {block}"));
        let before = lease_tables();
        let [missing, made] = ["lease.table_missing", "lease.table_checked"].map(reached);
        assert!(arm("lease.table_missing", 1, Action::Sleep(100)));
        let have_met = std::thread::scope(|scope| {
            let slow = scope.spawn(|| umf::open(&handle).unwrap());
            while reached("lease.table_missing") == missing {
                std::thread::sleep(Duration::from_millis(1));
            }
            let quick = umf::open(&handle).unwrap();
            let was_first = reached("lease.table_checked") == made + 1;
            let slow = slow.join().unwrap();
            assert!(slow.is_current() && quick.is_current());
            was_first && reached("lease.table_checked") == made + 2
        });
        umf::importer().unwrap().evict_idle();
        assert_eq!(lease_tables(), before, "fds and mappings of lease tables remain though nothing is open");
        producer.ok(&format!("free p {block}"));
        assert_eq!(producer.ok("drain 5000"), "0", "bytes are held though nothing is open");
        if have_met {
            return producer.finish();
        }
    }
    panic!("thread B never opened the table before the sleeping thread A");
}
