//! `umf ps`: lists the processes that use umf.

use std::fmt::Write;

use clap::Args;
use clap::builder::styling::Style;
use serde_json::{Value, json};
use umf::ipc::inspect::{self, Search};

use super::processes::{self, Process};
use crate::output::{self, Failure};

/// Lists the processes that use umf: what they export and have open, their pools and caches.
///
/// Reads the ledgers that they publish: no process is stopped or contacted. A process appears with
/// its first export or its first open. Counters are as of the process's last export, miss, error or
/// free; AGE tells how long ago that was. A killed process is listed as long as another process has
/// its ledger open.
#[derive(Args)]
pub(crate) struct PsCommand {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl PsCommand {
    /// Scans the ledgers, and prints the list.
    ///
    /// # Errors
    /// `/proc` cannot be read, or standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let search = processes::find()?;
        let processes = processes::from_ledgers(&search);
        let printed = if self.json {
            let mut text =
                serde_json::to_string_pretty(&document(&search, &processes)).map_err(std::io::Error::from)?;
            text.push('\n');
            text
        } else {
            table(&processes, inspect::now(), output::wants_colour()) + &processes::denied_note(&search)
        };
        output::print(&printed)?;
        Ok(())
    }
}

const HEADING: [&str; 13] = [
    "PID", "STATE", "NAME", "EXPORTS", "OPENED", "IN USE", "MAPPED", "POOLS", "LIVE", "RESERVED", "HELD",
    "FDS", "AGE",
];

fn table(processes: &[Process], now: u64, colour: bool) -> String {
    if processes.is_empty() {
        return "no process uses umf (they appear with their first export or open)\n".to_owned();
    }
    let row = |it: &Process| {
        [
            it.pid.to_string(),
            it.state().to_owned(),
            it.name.clone(),
            it.exports.to_string(),
            it.importer.entries.to_string(),
            it.importer.in_use.to_string(),
            output::format_bytes(it.importer.bytes),
            it.pools_in_all.to_string(),
            output::format_bytes(it.live_bytes()),
            output::format_bytes(it.reserved_bytes()),
            output::format_bytes(it.held_bytes),
            it.fds().to_string(),
            age(it, now),
        ]
    };
    let rows: Vec<_> = processes.iter().map(row).collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0).max(HEADING[column].len())
    };
    let widths: [usize; HEADING.len()] = std::array::from_fn(width);
    let line = |row: &[String]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            1 | 2 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heading = line(&HEADING.map(str::to_owned));
    let bold = Style::new().bold();
    let mut out = if colour { format!("{bold}{heading}{bold:#}\n") } else { heading + "\n" };
    for row in &rows {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{}", line(row));
    }
    out
}

/// Formats the age of the counters that a process published.
pub(super) fn age(process: &Process, now: u64) -> String {
    if process.time == 0 {
        "-".to_owned()
    } else {
        processes::format_duration(now.saturating_sub(process.time))
    }
}

fn document(search: &Search, processes: &[Process]) -> Value {
    let now = inspect::now();
    json!({
        "format": 1,
        "now_ns": now,
        "processes": processes,
        "denied": search.denied,
        "unreadable": search.unreadable,
    })
}
