//! The `umf` command. Each subcommand is a module: an argument type with a `run` method, and a
//! variant of [`Command`].

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Config(config::ConfigCommand),
    Demo(demo::DemoCommand),
    Gc(inspect::gc::GcCommand),
    Info(info::InfoCommand),
    PoolMap(pool_map::PoolMapCommand),
    Ps(inspect::ps::PsCommand),
    Top(inspect::top::TopCommand),
    Why(inspect::why::WhyCommand),
}

fn main() -> ExitCode {
    let outcome = match Umf::parse().command {
        Command::Config(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Gc(command) => command.run(),
        Command::Info(command) => command.run(),
        Command::PoolMap(command) => command.run(),
        Command::Ps(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Why(command) => command.run(),
    };
    output::exit_code(outcome)
}
