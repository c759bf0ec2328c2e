//! The `umf` command. Each subcommand is a module with an argument type that has `run`, and a
//! variant of [`Command`].

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod child;
mod config;
mod demo;
mod info;
mod output;
mod pool_map;
mod seeing;
mod sys;
mod topology;

/// Memory shared between processes and devices.
#[derive(Parser)]
#[command(name = "umf", version, arg_required_else_help = true)]
struct Umf {
    #[command(subcommand)]
    command: Command,
}

/// What the user asks for.
#[derive(Subcommand)]
enum Command {
    Config(config::ConfigCommand),
    Demo(demo::DemoCommand),
    Gc(seeing::gc::GcCommand),
    Info(info::InfoCommand),
    PoolMap(pool_map::PoolMapCommand),
    Ps(seeing::ps::PsCommand),
    Top(seeing::top::TopCommand),
    Why(seeing::why::WhyCommand),
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
