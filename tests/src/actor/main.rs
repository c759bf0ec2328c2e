//! `umf-actor`: a process that reads one umf command per line, executes it, and answers with the
//! line `ok ...` or `err <variant> <message>` ([`Failure`]).
//!
//! | module | commands |
//! |---|---|
//! | [`memory`] | pools, blocks, regions, handles, mappings and their content |
//! | [`domain`] | domains and their objects |
//! | [`link`] | links, communicators and one-sided transfers |
//! | [`lease`] | many leases, leases of other threads and children, corrupted lease tables |
//! | [`process`] | fork, exec, limits, credentials, fds, sockets of this process |
//! | [`stress`] | many threads and many cycles in one command |
//! | [`load`] | work of the kill matrix |
//! | [`cases`] | operations of a single test |
//! | [`file_driver`] | (no commands: a provider for [`cases`]) |
//! | [`mpi`] | (no commands: a rank of an MPI job) |

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod cases;
mod domain;
mod file_driver;
mod lease;
mod link;
mod load;
mod memory;
mod mpi;
mod process;
mod stress;

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;

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

/// An error answer: the name of the error's innermost variant, and its text as a user reads it.
#[derive(Debug)]
pub(crate) struct Failure {
    variant: String,
    message: String,
}

impl Failure {
    pub(crate) fn new(variant: &str, message: impl fmt::Display) -> Self {
        Self { variant: variant.to_owned(), message: message.to_string() }
    }

    pub(crate) fn unknown(line: &str) -> Self {
        Self::new("Unknown", format!("no such command, block or mapping: {line}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.variant, self.message)
    }
}

/// Returns the name of an error's variant: the first word of its `Debug` text.
fn variant(error: &impl fmt::Debug) -> String {
    let text = format!("{error:?}");
    text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or("").to_owned()
}

impl From<umf::ipc::Error> for Failure {
    fn from(error: umf::ipc::Error) -> Self {
        let variant = match &error {
            umf::ipc::Error::Decode(inner) => variant(inner),
            umf::ipc::Error::Memory(inner) => variant(inner),
            other => variant(other),
        };
        Self { variant, message: error.to_string() }
    }
}

impl From<umf::Error> for Failure {
    fn from(error: umf::Error) -> Self {
        let variant = match &error {
            umf::Error::Ipc(inner) => return inner.clone().into(),
            umf::Error::Memory(inner) => variant(inner),
            umf::Error::Domain(inner) => variant(inner),
            umf::Error::Link(inner) => variant(inner),
            umf::Error::Settings(inner) => variant(inner),
            other => variant(other),
        };
        Self { variant, message: error.to_string() }
    }
}

impl From<umf::domain::Error> for Failure {
    fn from(error: umf::domain::Error) -> Self {
        Self { variant: variant(&error), message: error.to_string() }
    }
}

impl From<umf::link::Error> for Failure {
    fn from(error: umf::link::Error) -> Self {
        Self { variant: variant(&error), message: error.to_string() }
    }
}

impl From<umf_core::Error> for Failure {
    fn from(error: umf_core::Error) -> Self {
        umf::Error::from(error).into()
    }
}

impl From<umf::ipc::DecodeError> for Failure {
    fn from(error: umf::ipc::DecodeError) -> Self {
        umf::Error::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new("Io", error)
    }
}

impl From<std::num::TryFromIntError> for Failure {
    fn from(error: std::num::TryFromIntError) -> Self {
        Self::new("Number", error)
    }
}

impl From<std::num::ParseIntError> for Failure {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::new("Number", error)
    }
}
