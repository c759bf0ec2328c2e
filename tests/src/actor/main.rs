//! `umf-actor`: a process that does what it is told, a line at a time, with umf. Each line is answered by one:
//! `ok ...` or `err <variant> <message>`.
//!
//! | module | commands |
//! |---|---|
//! | [`device`] | what the commands of [`memory`] do with memory that the CPU must not touch |
//! | [`domain`] | domains and their objects |
//! | [`memory`] | pools, blocks, regions, handles, mappings, what they hold |
//! | [`load`] | work that goes on while processes are killed |
//! | [`process`] | what a process can do to itself: fork, exec, limits, credentials, fds |
//! | [`storm`] | many threads and many cycles in one command |
//! | [`lease`] | leases: many, in other threads and in children, and lease tables that are scribbled over |
//! | [`link`] | links, and what goes over them |
//! | [`mpi`] | (no commands: what a rank of an MPI job does) |
//! | [`cases`] | what single public cases need |

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod cases;
mod device;
mod domain;
mod driver;
mod failure;
mod lease;
mod link;
mod load;
mod memory;
mod mpi;
mod process;
mod storm;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;

use failure::Failure;

/// What a command answers.
type Answer = Result<String, Failure>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, shim, provider] = &arguments[..]
        && mode == "mpi"
    {
        return mpi::rank(shim, provider);
    }
    if std::env::var_os("UMF_TEST_MAIN_THREAD").is_some_and(|what| what == "exits") {
        std::thread::spawn(obey_input);
        process::leave_thread();
    }
    obey_input()
}

fn obey_input() -> ! {
    process::stand_apart();
    let mut actor = memory::Actor::default();
    serve(&mut actor, std::io::stdin(), std::io::stdout());
    process::end(actor)
}

/// Obeys until told to `exit`, or nobody is there to tell.
fn serve(actor: &mut memory::Actor, input: impl Read, mut output: impl Write) {
    let mut input = BufReader::new(input);
    let mut line = String::new();
    loop {
        line.clear();
        if !matches!(input.read_line(&mut line), Ok(count) if count > 0) {
            return;
        }
        let line = line.trim_end_matches('\n');
        if line == "exit" {
            return;
        }
        let answer = match obey(actor, line) {
            Ok(text) => format!("ok {text}"),
            Err(failure) => format!("err {failure}"),
        };
        // Nobody who reads is the end, too.
        if writeln!(output, "{}", answer.replace('\n', " | ")).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

fn obey(actor: &mut memory::Actor, line: &str) -> Answer {
    if let Some(command) = line.strip_prefix("child ") {
        return process::tell_child(actor, command);
    }
    let words: Vec<&str> = line.split(' ').collect();
    let Some((command, rest)) = words.split_first() else { return Ok(String::new()) };
    memory::obey(actor, command, rest)
        .or_else(|| process::obey(actor, command, rest))
        .or_else(|| storm::obey(actor, command, rest))
        .or_else(|| lease::obey(actor, command, rest))
        .or_else(|| cases::obey(actor, command, rest))
        .or_else(|| domain::obey(&mut actor.domains, command, rest))
        .or_else(|| link::obey(&mut actor.links, command, rest))
        .or_else(|| link::obey_with_blocks(actor, command, rest))
        .or_else(|| load::obey(actor, command, rest))
        .unwrap_or_else(|| Err(Failure::unknown(line)))
}
