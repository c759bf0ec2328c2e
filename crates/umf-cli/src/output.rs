//! What the command prints: results and progress, sizes and styles, and how a failure becomes an
//! exit code.

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::styling::Style;
use umf_os::environment::variable;

/// Writes `text` to standard output.
///
/// # Errors
/// Whatever the write reports: a closed pipe, a full disk.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a line to standard error. Nothing is left to do if that is gone as well.
pub(crate) fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "umf: {line}");
}

/// Whether standard output is a terminal that wants colour (<https://no-color.org>).
pub(crate) fn colour() -> bool {
    let asked_not_to = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    let cannot = variable("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !asked_not_to && !cannot
}

/// Returns `text` in a style if colour is wanted.
pub(crate) fn styled(text: &str, style: Style, colour: bool) -> String {
    if colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// What was found out could not be printed.
    #[error("cannot print: {0}")]
    Output(#[from] std::io::Error),
    /// `umf.toml` or a variable is wrong. Exit code 2, as for wrong arguments.
    #[error(transparent)]
    Settings(#[from] umf::settings::Error),
    /// Anything else, in words.
    #[error("{0}")]
    Told(String),
}

/// Turns the outcome of a subcommand into the exit code. A reader that went away (`umf info |
/// head`) is no failure.
pub(crate) fn exit_code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            tell(&failure.to_string());
            if matches!(failure, Failure::Settings(_)) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// How long a run may be silent where standard error is not a terminal, and between its lines.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says what is being done: at once on a terminal, in one line that changes; elsewhere once a
/// second, from the second second on.
pub(crate) struct Progress {
    said: Instant,
    terminal: bool,
    shown: bool,
    step: String,
}

impl Progress {
    /// Begins a run.
    pub(crate) fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { said: Instant::now(), terminal, shown: false, step: String::new() }
    }

    /// The run comes to a new step.
    pub(crate) fn step(&mut self, step: impl Into<String>) {
        self.step = step.into();
        if self.terminal {
            self.show();
        } else {
            self.tick();
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self) {
        if self.said.elapsed() >= PATIENCE {
            self.show();
        }
    }

    fn show(&mut self) {
        self.said = Instant::now();
        self.shown = true;
        // Progress that nobody can see is no failure.
        let mut stderr = std::io::stderr().lock();
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[Kumf: {}", self.step)
        } else {
            writeln!(stderr, "umf: {}", self.step)
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// A number of bytes in the largest binary unit that keeps it above one, with one decimal where it
/// matters.
pub(crate) fn human(bytes: u64) -> String {
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
    fn picks_the_unit() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(2 << 20), "2 MiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(u64::MAX), "15.9 EiB");
    }
}
