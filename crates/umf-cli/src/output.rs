//! Output of the subcommands: printing, progress, formatted sizes, and the exit code of a failure.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::builder::styling::Style;
use umf_os::environment::variable;

/// Writes `text` to standard output.
///
/// # Errors
/// The error of the write, such as a closed pipe or a full disk.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes a part of a text to standard output.
///
/// # Errors
/// As [`print()`].
pub(crate) fn print_bytes(bytes: &[u8]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Writes a line to standard error. Ignores a closed standard error: no other channel is left.
pub(crate) fn print_diagnostic(line: &str) {
    let _ = writeln!(std::io::stderr(), "umf: {line}");
}

/// Returns whether standard output is a terminal that shows colour (<https://no-color.org>).
pub(crate) fn wants_colour() -> bool {
    let is_disabled = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = variable("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_disabled && !is_dumb
}

/// Formats `text` in a style if `colour` is set.
pub(crate) fn styled(text: &str, style: Style, colour: bool) -> String {
    if colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// The reason why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Standard output could not be written.
    #[error("cannot print: {0}")]
    Output(#[from] std::io::Error),
    /// `umf.toml` or an environment variable is invalid. Exit code 2, as for invalid arguments.
    #[error(transparent)]
    Settings(#[from] umf::settings::Error),
    /// Any other failure, as text.
    #[error("{0}")]
    Message(String),
}

/// Prints a failure and returns its exit code. A closed pipe (`umf info | head`) is a success.
pub(crate) fn exit_code(outcome: Result<(), Failure>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            print_diagnostic(&failure.to_string());
            if matches!(failure, Failure::Settings(_)) { 2 } else { 1 }
        }
    }
}

/// The time before the first progress line and between two of them, if standard error is not a
/// terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Progress on standard error. On a terminal: one line, rewritten at each step. Elsewhere: a line
/// per second.
pub(crate) struct Progress {
    last_shown: Instant,
    is_terminal: bool,
    was_shown: bool,
    step: String,
}

impl Progress {
    /// Starts the clock of a run.
    pub(crate) fn new() -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { last_shown: Instant::now(), is_terminal, was_shown: false, step: String::new() }
    }

    /// Announces the next step.
    pub(crate) fn step(&mut self, step: impl Into<String>) {
        self.step = step.into();
        if self.is_terminal {
            self.show();
        } else {
            self.tick();
        }
    }

    /// Repeats the current step if the last line is old enough.
    pub(crate) fn tick(&mut self) {
        if self.last_shown.elapsed() >= PROGRESS_INTERVAL {
            self.show();
        }
    }

    fn show(&mut self) {
        self.last_shown = Instant::now();
        self.was_shown = true;
        // A closed standard error must not fail the run.
        let mut stderr = std::io::stderr().lock();
        let _ = if self.is_terminal {
            write!(stderr, "\r\x1b[Kumf: {}", self.step)
        } else {
            writeln!(stderr, "umf: {}", self.step)
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.was_shown && self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Formats a number of bytes in the largest binary unit that is not above it. Prints one decimal,
/// unless the decimal is zero or the number has three digits.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
    let scale = 1_u64 << (10 * unit);
    let (whole, rest) = (bytes / scale, bytes % scale);
    let tenths = (u128::from(rest) * 10 / u128::from(scale)) as u64;
    let name = UNITS[unit - 1];
    if tenths == 0 || whole >= 100 { format!("{whole} {name}") } else { format!("{whole}.{tenths} {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_fitting_unit() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(2 << 20), "2 MiB");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(u64::MAX), "15.9 EiB");
    }
}
