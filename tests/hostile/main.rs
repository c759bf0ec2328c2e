//! The hostile campaign: processes share memory, disturb, stop and kill each other, and check the
//! guarantees of the library. `tests/run --hostile [SECONDS] [SEED]` runs it; `docs/testing.md`
//! describes it.
//!
//! | module | content |
//! |---|---|
//! | [`campaign`] | starts, stops and kills workers, watches their progress, prints the result |
//! | [`worker`] | a process with its exporters, importers and threads |
//! | [`producer`], [`importer`], [`child`] | the threads of a worker, and its forked children |
//! | [`domains`], [`links`], [`second_copy`] | workers that use other parts of the library |
//! | [`pools`], [`content`] | pools of every kind, and the content of blocks |
//! | [`checker`] | the guarantees, and reports of violations |
//! | [`diagnosis`] | reports of hangs and crashes |
//! | [`shared`] | memory that all processes share without umf |
//! | [`settings`] | settings of a run, from the environment |
//!
//! The program starts itself, with other arguments, as worker and as peer.

#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod campaign;
mod checker;
mod child;
mod content;
mod diagnosis;
mod domains;
mod importer;
mod links;
mod pools;
mod producer;
mod second_copy;
mod settings;
mod shared;
mod worker;

use campaign::Campaign;
use settings::{Kind, Settings};
use umf_tests::machine;
use worker::Assignment;

/// The name of the test, for filters and summaries.
const NAME: &str = "hostile_campaign_finds_no_violation";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("hostile: {error}");
            std::process::exit(2);
        }
    };
    let code = match arguments.split_first() {
        Some((mode, rest)) if mode == "worker" => run_worker(rest, &settings),
        Some((mode, rest)) if mode == "in-namespace" => campaign::in_namespace(rest),
        Some((mode, rest)) if mode == "domain-peer" => domains::run_peer(rest),
        Some((mode, rest)) if mode == "link-peer" => links::run_peer(rest),
        Some((mode, _)) if mode == "idle" => {
            std::thread::sleep(std::time::Duration::from_millis(50));
            0
        }
        _ => run_test(&arguments, &settings),
    };
    std::process::exit(code);
}

fn run_worker(arguments: &[String], settings: &Settings) -> i32 {
    match Assignment::from_arguments(arguments) {
        Some(assignment) => worker::run(&assignment, settings),
        None => {
            eprintln!("hostile: a worker was started with {arguments:?}");
            2
        }
    }
}

/// Behaves as a test program for cargo and `tests/run`: lists the test, applies filters, and prints
/// a result line.
fn run_test(arguments: &[String], settings: &Settings) -> i32 {
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return 0;
    }
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|filter| NAME.contains(filter.as_str())) {
        println!("\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out");
        return 0;
    }
    let Settings { seconds, seed, workers, .. } = settings;
    println!("\nrunning 1 test\nhostile: {seconds} seconds, seed {seed}, {workers} workers");
    if settings.kind == Some(Kind::DmaBuf) && machine::dma_buf_sources(NAME).is_empty() {
        machine::skip(NAME, "this machine has no dma-bufs");
        println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        return 0;
    }
    if settings.roles {
        second_copy::print_skip();
    }
    let is_passed = Campaign::new(settings).run();
    let (word, passed) = if is_passed { ("ok", 1) } else { ("FAILED", 0) };
    println!("test {NAME} ... {word}");
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out",
        1 - passed
    );
    i32::from(!is_passed)
}
