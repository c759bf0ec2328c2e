//! What a subcommand prints.

use std::io::{IsTerminal, Write};

use clap::builder::styling::Style;
use umf::core::environment::variable;

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
