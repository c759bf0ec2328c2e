//! What a subcommand prints, and how the program ends when it cannot be printed.

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// Writes `text` to standard output.
///
/// # Errors
/// Whatever the write reports: a closed pipe, a full disk.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Whether standard output is a terminal that wants colour (<https://no-color.org>).
pub(crate) fn colour() -> bool {
    let asked_not_to = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let cannot = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !asked_not_to && !cannot
}

/// Turns the outcome of a subcommand into the exit code. A reader that went away (`umf info | head`) is no failure.
pub(crate) fn exit_code(outcome: std::io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do if standard error is gone as well.
            let _ = writeln!(std::io::stderr(), "umf: {error}");
            ExitCode::FAILURE
        }
    }
}
