//! The `umf` command as a library, for programs that offer it under their own name: the Python
//! package does. Each subcommand is a module: an argument type with a `run` method, and a variant of
//! `Command`.
//!
//! | what | where |
//! |---|---|
//! | the whole command | [`run`] |
//! | what `umf why` finds out | [`why`] |

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod bench;
mod child;
mod config;
mod demo;
mod info;
mod inspect;
mod output;
mod pool_map;
mod signals;
mod sys;
mod topology;

pub use inspect::why::{Explanation, State, why};

/// Memory shared between processes and devices.
#[derive(Parser)]
#[command(name = "umf", version, arg_required_else_help = true)]
struct Umf {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
enum Command {
    Bench(Box<bench::BenchCommand>),
    Config(config::ConfigCommand),
    Demo(demo::DemoCommand),
    Gc(inspect::gc::GcCommand),
    Info(info::InfoCommand),
    PoolMap(pool_map::PoolMapCommand),
    Ps(inspect::ps::PsCommand),
    Top(inspect::top::TopCommand),
    Why(inspect::why::WhyCommand),
}

/// The program that offers the command.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file and first arguments that start it again. Subcommands that need processes of their
    /// own append arguments of the command.
    pub start: Vec<OsString>,
    /// Names and descriptions of subcommands that the program handles itself before it calls
    /// [`run`]. The help lists them.
    pub own: &'static [(&'static str, &'static str)],
}

impl Default for Program {
    /// Returns the program whose main function calls [`run`] and does no more.
    fn default() -> Self {
        // Starts the same file even if its name is gone.
        Self { start: vec!["/proc/self/exe".into()], own: &[] }
    }
}

/// What starts this program again, as given to the first [`run`].
static START: OnceLock<Vec<OsString>> = OnceLock::new();

/// Runs the command with `arguments`, without the program's name. Prints to standard output and
/// error. Returns the exit code.
///
/// A subcommand may install handlers of signals, which stay. The caller's process should end after
/// the call.
pub fn run(program: &Program, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    START.get_or_init(|| program.start.clone());
    let command = program.own.iter().fold(Umf::command(), |command, (name, about)| {
        command.subcommand(clap::Command::new(*name).about(*about))
    });
    let arguments = std::iter::once("umf".into()).chain(arguments);
    let parsed = command.try_get_matches_from(arguments).and_then(|found| Umf::from_arg_matches(&found));
    let outcome = match parsed {
        Ok(umf) => umf.command.run(),
        Err(error) => {
            // A closed output is no error: nothing is left to print to.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    output::exit_code(outcome)
}

impl Command {
    fn run(self) -> Result<(), output::Failure> {
        match self {
            Command::Bench(command) => command.run(),
            Command::Config(command) => command.run(),
            Command::Demo(command) => command.run(),
            Command::Gc(command) => command.run(),
            Command::Info(command) => command.run(),
            Command::PoolMap(command) => command.run(),
            Command::Ps(command) => command.run(),
            Command::Top(command) => command.run(),
            Command::Why(command) => command.run(),
        }
    }
}
