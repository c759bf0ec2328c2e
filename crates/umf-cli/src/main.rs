//! The `umf` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(umf_cli::run(&umf_cli::Program::default(), std::env::args_os().skip(1)))
}
