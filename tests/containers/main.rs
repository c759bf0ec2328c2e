//! The container matrix: a handle travels between containers of bubblewrap and crun, and each open
//! must work by the expected exchange mode or be refused for the expected cause.
//! `tests/containers/run` runs it, and `docs/testing.md` describes it.
//!
//! | module | content |
//! |---|---|
//! | [`cell`] | the cells of the matrix, and what an open must answer in each |
//! | [`checks`] | what is tried in a cell, and what the answers must be |
//! | [`ranks`] | four processes in four containers |
//! | [`container`] | starts containers, with their files, users and namespaces |
//! | [`keeper`] | the main process of a container |
//! | [`seccomp`] | Docker's default seccomp profile |

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod cell;
mod checks;
mod container;
mod keeper;
mod ranks;
mod seccomp;

use std::collections::BTreeMap;
use std::process::ExitCode;

use cell::{Cell, Machine, TITLES};
use checks::Found;
use container::Workshop;

const USAGE: &str = "umf-containers [--long] [--verbose] [--only TEXT]";

/// What the runner does.
#[derive(Default)]
struct Options {
    is_long: bool,
    is_verbose: bool,
    /// An error that names another cause is a failure.
    only: Option<String>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "keep" => {
                keeper::run(&std::env::current_exe().unwrap().with_file_name("umf-actor"));
                return ExitCode::SUCCESS;
            }
            "--long" => options.is_long = true,
            "--verbose" => options.is_verbose = true,
            "--only" => options.only = arguments.next(),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    run(&options)
}

/// Runs the matrix, prints a row for each cell, and a result line as a test program does.
fn run(options: &Options) -> ExitCode {
    let workshop = Workshop::new().expect("the programs can be copied");
    let machine = Machine::here();
    let mut cells = if options.is_long { Cell::all() } else { Cell::chosen() };
    cells.retain(|cell| options.only.as_ref().is_none_or(|text| cell.to_string().contains(text)));
    println!("{TITLES}   expected");
    let (mut passed, mut failed) = (0, 0);
    let mut skipped: BTreeMap<String, u32> = BTreeMap::new();
    for cell in cells {
        let expected = cell.expected(machine);
        match checks::run(&workshop, machine, &cell) {
            Found::AsExpected(text) => {
                passed += 1;
                println!("{cell}  {expected}");
                if options.is_verbose {
                    println!("       found: {text}");
                }
            }
            Found::Other(text, log) => {
                failed += 1;
                println!("{cell}  {expected}\nFAILED found: {text}");
                if options.is_verbose {
                    println!("{log}");
                }
            }
            Found::Impossible(why) => *skipped.entry(why).or_default() += 1,
        }
    }
    for (name, found) in ranks::run(&workshop) {
        match found {
            Found::AsExpected(text) => {
                passed += 1;
                println!("{name}: {text}");
            }
            Found::Other(text, log) => {
                failed += 1;
                println!("{name}\nFAILED found: {text}");
                if options.is_verbose {
                    println!("{log}");
                }
            }
            Found::Impossible(why) => *skipped.entry(why).or_default() += 1,
        }
    }
    let count: u32 = skipped.values().sum();
    for (why, count) in skipped {
        println!("umf-skip: {count} of the container matrix: {why}");
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; {count} ignored");
    ExitCode::from(u8::from(failed > 0))
}

impl Machine {
    /// Returns the machine that this process runs on.
    fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            // The inode of the machine's first pid namespace is a constant of the kernel.
            is_nested: namespace.as_os_str() != "pid:[4026531836]",
            yama: read("/proc/sys/kernel/yama/ptrace_scope")
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
        }
    }
}
