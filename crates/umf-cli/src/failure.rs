//! [`Failure`]: why a subcommand ends without success, and the exit code that says so.

use std::io::ErrorKind;
use std::process::ExitCode;

use crate::output;

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What was found out could not be printed.
    #[error("cannot print: {0}")]
    Output(#[from] std::io::Error),
    /// `umf.toml` or a variable is wrong. Exit code 2, as for wrong arguments.
    #[error(transparent)]
    Settings(#[from] umf::config::Error),
    /// Anything else, in words.
    #[error("{0}")]
    Told(String),
}

/// Turns the outcome of a subcommand into the exit code. A reader that went away (`umf info | head`) is no failure.
pub(crate) fn exit_code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            output::tell(&failure.to_string());
            if matches!(failure, Failure::Settings(_)) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
