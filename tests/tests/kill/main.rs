//! The kill matrix: whoever is killed, and whenever, nothing leaks and nobody is told a lie.
//!
//! Producers and importers work as real processes. In each round one of them is ended with SIGKILL (or stopped first), at
//! a named step of umf or at a moment of chance; the others go on. What umf told them is judged by the board on which
//! producers write down what they do; afterwards each must have what it had before.
//!
//! `tests/run --kill [rounds] [seed]` runs it for long; with `UMF_KILL_PROVIDER=dma-buf` the regions are dma-bufs, of every source that
//! the machine has, and the kernel's list of buffers is looked at, too.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod by_step;
mod campaign;
mod crew;
mod domains;
mod first_opens;
mod links;
mod plan;
mod tally;

use by_step::ByStep;
use campaign::Campaign;
use umf_tests::machine;

/// The name of one.
type Failpoint = &'static str;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Both campaigns look for children that nobody else waits for.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn whoever_is_killed_and_whenever() {
    let _turn = turn();
    if !plan::has_kinds() {
        return machine::skip("whoever_is_killed_and_whenever", "this machine has no dma-bufs");
    }
    if plan::is_over_dma_bufs() && machine::dma_bufs_of(0).is_none() {
        machine::skip("buffers that are left of the dead", "no debugfs that this process may read");
    }
    let rounds = variable("UMF_KILL_ROUNDS").unwrap_or(if machine::is_long() { 10_000 } else { 240 });
    let seed = variable("UMF_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20 | rounds);
    let tally = Campaign::new(seed).run(rounds);
    println!("{tally}");
    assert!(tally.violations.is_empty(), "{} violations, seed {seed}", tally.violations.len());
    // Who has nothing open is not lied to.
    assert!(tally.opened >= rounds, "importers opened {} blocks in {rounds} rounds", tally.opened);
    // A failpoint that no process reaches is no test. Few rounds cannot get to all.
    let missing = tally.steps_without_kill();
    assert!(!plan::can_get_to_all(rounds) || missing.is_empty(), "no process was ended at {missing:?}");
}

/// Somebody is killed at each step of a part.
fn at_each_step(run: fn(u64, u64) -> ByStep) {
    let _turn = turn();
    let rounds = variable("UMF_KILL_ROUNDS").unwrap_or(if machine::is_long() { 10_000 } else { 240 });
    let seed = variable("UMF_KILL_SEED").unwrap_or(rounds);
    let tally = run(seed, (rounds / 1000).max(1));
    println!("{tally}, seed {seed}");
    let missing = tally.steps_without_kill();
    assert!(missing.is_empty(), "nobody was ended at {missing:?}");
}

#[test]
fn whoever_of_a_domain_is_killed_and_whenever() {
    at_each_step(domains::run);
}

#[test]
fn whoever_of_a_link_is_killed_and_whenever() {
    at_each_step(links::run);
}
