//! `umf-actor`: a process that executes one umf command a line. It answers each line with one:
//! `ok ...` or `err <variant> <message>`.
//!
//! | module | commands |
//! |---|---|
//! | [`memory`] | pools, blocks, regions, handles, mappings and their content |
//! | [`device`] | the commands of [`memory`] for memory that the CPU cannot access |
//! | [`domain`] | domains and their objects |
//! | [`link`] | links, communicators and one-sided transfers |
//! | [`lease`] | many leases, leases of other threads and children, corrupted lease tables |
//! | [`process`] | fork, exec, limits, credentials, fds, sockets of this process |
//! | [`stress`] | many threads and many cycles in one command |
//! | [`load`] | work of the kill matrix |
//! | [`cases`] | operations of a single test |
//! | [`file_driver`] | (no commands: a provider for [`cases`]) |
//! | [`mpi`] | (no commands: a rank of an MPI job) |

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod cases;
mod device;
mod domain;
mod failure;
mod file_driver;
mod lease;
mod link;
mod load;
mod memory;
mod mpi;
mod process;
mod stress;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;

use failure::Failure;

/// Answer to a command.
type Answer = Result<String, Failure>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, shim, provider] = &arguments[..]
        && mode == "mpi"
    {
        return mpi::rank(shim, provider);
    }
    if std::env::var_os("UMF_TEST_MAIN_THREAD").is_some_and(|what| what == "exits") {
        std::thread::spawn(serve_stdin);
        process::leave_thread();
    }
    serve_stdin()
}

fn serve_stdin() -> ! {
    process::shift_mappings();
    let mut actor = memory::ActorState::default();
    serve(&mut actor, std::io::stdin(), std::io::stdout());
    process::end(actor)
}

/// Executes commands until `exit`, or until the other side closes a pipe.
fn serve(actor: &mut memory::ActorState, input: impl Read, mut output: impl Write) {
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
        let answer = match execute(actor, line) {
            Ok(text) => format!("ok {text}"),
            Err(failure) => format!("err {failure}"),
        };
        if writeln!(output, "{}", answer.replace('\n', " | ")).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

fn execute(actor: &mut memory::ActorState, line: &str) -> Answer {
    if let Some(command) = line.strip_prefix("child ") {
        return process::forward_to_child(actor, command);
    }
    let words: Vec<&str> = line.split(' ').collect();
    let Some((command, rest)) = words.split_first() else { return Ok(String::new()) };
    memory::execute(actor, command, rest)
        .or_else(|| process::execute(actor, command, rest))
        .or_else(|| stress::execute(actor, command, rest))
        .or_else(|| lease::execute(actor, command, rest))
        .or_else(|| cases::execute(actor, command, rest))
        .or_else(|| domain::execute(&mut actor.domains, command, rest))
        .or_else(|| link::execute(&mut actor.links, command, rest))
        .or_else(|| link::execute_with_blocks(actor, command, rest))
        .or_else(|| load::execute(actor, command, rest))
        .unwrap_or_else(|| Err(Failure::unknown(line)))
}
