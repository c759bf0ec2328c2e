//! `umf ps`: lists the processes that use umf. Also the columns that it shares with `umf top`.

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
/// free; AGE is the time since then. A killed process is listed as long as another process has its
/// ledger open.
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

/// A column of the tables of processes in `umf ps` and `umf top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Pid,
    State,
    Name,
    Exports,
    Opened,
    InUse,
    Mapped,
    Pools,
    Live,
    Reserved,
    Held,
    Fds,
    /// Opens and exports per second.
    Rate,
    Stale,
    Evicted,
    Age,
}

impl Column {
    /// Returns the heading of the column.
    pub(super) const fn heading(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::State => "STATE",
            Self::Name => "NAME",
            Self::Exports => "EXPORTS",
            Self::Opened => "OPENED",
            Self::InUse => "IN USE",
            Self::Mapped => "MAPPED",
            Self::Pools => "POOLS",
            Self::Live => "LIVE",
            Self::Reserved => "RESERVED",
            Self::Held => "HELD",
            Self::Fds => "FDS",
            Self::Rate => "/S",
            Self::Stale => "STALE",
            Self::Evicted => "EVICTED",
            Self::Age => "AGE",
        }
    }

    /// Returns the cell of a process. `rate` is the value of [`Column::Rate`], if it is known.
    pub(super) fn cell(self, process: &Process, now: u64, rate: Option<f64>) -> String {
        let Process { importer, exporter, .. } = process;
        match self {
            Self::Pid => process.pid.to_string(),
            Self::State => process.state().to_owned(),
            Self::Name => process.name.clone(),
            Self::Exports => process.exports.to_string(),
            Self::Opened => importer.entries.to_string(),
            Self::InUse => importer.in_use.to_string(),
            Self::Mapped => output::format_bytes(importer.bytes),
            Self::Pools => process.pools_in_all.to_string(),
            Self::Live => output::format_bytes(process.live_bytes()),
            Self::Reserved => output::format_bytes(process.reserved_bytes()),
            Self::Held => output::format_bytes(process.held_bytes),
            Self::Fds => process.fds().to_string(),
            Self::Rate => rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
            Self::Stale => importer.stale.to_string(),
            Self::Evicted => importer.evictions.saturating_add(exporter.evictions).to_string(),
            Self::Age if process.time == 0 => "-".to_owned(),
            Self::Age => processes::format_duration(now.saturating_sub(process.time)),
        }
    }
}

const COLUMNS: [Column; 13] = [
    Column::Pid,
    Column::State,
    Column::Name,
    Column::Exports,
    Column::Opened,
    Column::InUse,
    Column::Mapped,
    Column::Pools,
    Column::Live,
    Column::Reserved,
    Column::Held,
    Column::Fds,
    Column::Age,
];

fn table(processes: &[Process], now: u64, colour: bool) -> String {
    if processes.is_empty() {
        return "no process uses umf (they appear with their first export or open)\n".to_owned();
    }
    let cells = |process: &Process| COLUMNS.map(|column| column.cell(process, now, None));
    let rows: Vec<_> = processes.iter().map(cells).collect();
    let width = |number: usize| {
        let widths = rows.iter().map(|row| row[number].chars().count());
        widths.max().unwrap_or(0).max(COLUMNS[number].heading().len())
    };
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let line = |row: &[String]| {
        let cells = row.iter().zip(widths).zip(COLUMNS).map(|((cell, width), column)| match column {
            Column::State | Column::Name => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heading = line(&COLUMNS.map(|column| column.heading().to_owned()));
    let mut out = output::styled(&heading, Style::new().bold(), colour) + "\n";
    for row in &rows {
        // Writing to a String does not fail.
        let _ = writeln!(out, "{}", line(row));
    }
    out
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
