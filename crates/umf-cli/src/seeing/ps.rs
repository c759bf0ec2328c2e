//! `umf ps`: the processes that use umf.

use std::fmt::Write;

use clap::Args;
use clap::builder::styling::Style;
use serde_json::{Value, json};
use umf::ipc::inspect::{self, Search};

use super::processes::{self, Process};
use crate::output::{self, Failure};

/// Shows the processes that use umf: what they export and have open, their pools and caches.
///
/// Read from the ledgers that they publish: no process is stopped or asked. A process appears with
/// its first export or its first open. Counters are as the process published them last, at its last
/// export, miss, refusal or free; AGE says how long ago that was. A killed process appears as long
/// as another has its ledger open.
#[derive(Args)]
pub(crate) struct PsCommand {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl PsCommand {
    /// Looks, and prints.
    ///
    /// # Errors
    /// `/proc` cannot be read; standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let search = processes::find()?;
        let processes = processes::of(&search);
        let printed = if self.json {
            let mut text =
                serde_json::to_string_pretty(&document(&search, &processes)).map_err(std::io::Error::from)?;
            text.push('\n');
            text
        } else {
            table(&processes, inspect::now(), output::colour()) + &processes::left_out(&search)
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
            output::human(it.importer.bytes),
            it.pools_in_all.to_string(),
            output::human(it.live_bytes()),
            output::human(it.reserved_bytes()),
            output::human(it.held_bytes),
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

/// How old what a process published is.
pub(super) fn age(process: &Process, now: u64) -> String {
    if process.time == 0 { "-".to_owned() } else { processes::span(now.saturating_sub(process.time)) }
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
