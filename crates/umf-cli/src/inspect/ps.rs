//! `umf ps`: lists the processes that use umf. Also the columns that it shares with `umf top`.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use clap::builder::styling::{AnsiColor, Style};
use rustix::event::PollFlags;
use serde_json::{Value, json};
use umf::ipc::inspect::{self, OwnerStatus, Search};

use super::processes::{self, Process, grants_note};
use super::table::ColumnKind;
use super::top;
use crate::output::{self, Failure};
use crate::signals::{self, EndSignals};

/// Lists the processes that use umf: what they export and have open, their pools and caches.
///
/// Reads the ledgers that they publish: no process is stopped or contacted. A process appears with
/// its first export or its first open. Counters are as of the process's last export, miss, error or
/// free; AGE is the time since then. A killed process is listed as long as another process has its
/// ledger open. MAPPED VA is virtual address space, not memory. Below the table, lines name the
/// importers on other machines that may write a block for a time (umf::remote).
#[derive(Args)]
pub(crate) struct PsCommand {
    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Print a time stamp and the table again every SECONDS (0.1 to 3600), without escape
    /// sequences, until a signal or until the output is closed [default: 2]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        conflicts_with = "json",
        value_parser = top::seconds,
    )]
    watch: Option<f64>,
}

impl PsCommand {
    /// Scans the ledgers, and prints the list.
    ///
    /// # Errors
    /// `/proc` cannot be read, or standard output cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(seconds) = self.watch {
            return watch(Duration::from_secs_f64(seconds));
        }
        let search = processes::find()?;
        let processes = processes::from_ledgers(&search);
        let printed = if self.json {
            let mut text =
                serde_json::to_string_pretty(&document(&search, &processes)).map_err(std::io::Error::from)?;
            text.push('\n');
            text
        } else {
            let table = table(&processes, inspect::now(), output::wants_colour());
            table + &grants_note(&processes::remote_grants(&processes)) + &processes::denied_note(&search)
        };
        output::print(&printed)?;
        Ok(())
    }
}

/// Prints the table every `interval`, until a signal arrives or standard output is closed.
fn watch(interval: Duration) -> Result<(), Failure> {
    let ended = EndSignals::catch()?;
    loop {
        let next = Instant::now() + interval;
        let search = processes::find()?;
        let processes = processes::from_ledgers(&search);
        let table = table(&processes, inspect::now(), false);
        let table = table + &grants_note(&processes::remote_grants(&processes));
        let text = format!("{}\n{table}{}\n", utc(SystemTime::now()), processes::denied_note(&search));
        if !print_unless_ended(&text, &ended)? {
            return Ok(());
        }
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let output = std::io::stdout();
            let fds = [(ended.as_fd(), PollFlags::IN), (output.as_fd(), PollFlags::empty())];
            let [signal, output] = signals::wait(fds, left)?;
            // A pipe without a reader has an error, as has a terminal that was closed.
            if !signal.is_empty() || !output.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Prints a text. Returns `false` if a signal comes while the reader of standard output does not
/// read.
fn print_unless_ended(text: &str, ended: &EndSignals) -> Result<bool, Failure> {
    /// `PIPE_BUF`: a pipe that is writable has room for as many bytes.
    const PART: usize = 4096;
    for part in text.as_bytes().chunks(PART) {
        loop {
            let output = std::io::stdout();
            let fds = [(ended.as_fd(), PollFlags::IN), (output.as_fd(), PollFlags::OUT)];
            let [signal, output] = signals::wait(fds, Duration::from_secs(3600))?;
            if !signal.is_empty() {
                return Ok(false);
            }
            // An error, too: the write reports it.
            if !output.is_empty() {
                break;
            }
        }
        output::print_bytes(part)?;
    }
    Ok(true)
}

/// Formats a time as `2026-11-26T10:16:07Z`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
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
    /// Handles in transit.
    Sent,
    Fds,
    /// Opens and exports per second.
    Rate,
    Stale,
    Evicted,
    Age,
}

impl Column {
    /// The meaning of [`Column::Mapped`].
    pub(super) const MAPPED_LEGEND: &str = "virtual address space of open mappings, not memory";

    /// Returns the alignment of the column.
    pub(super) const fn kind(self) -> ColumnKind {
        match self {
            Self::Name => ColumnKind::Name,
            Self::State => ColumnKind::Text,
            _ => ColumnKind::Number,
        }
    }

    /// Returns the heading of the column.
    pub(super) const fn heading(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::State => "STATE",
            Self::Name => "NAME",
            Self::Exports => "EXPORTS",
            Self::Opened => "OPENED",
            Self::InUse => "IN USE",
            Self::Mapped => "MAPPED VA",
            Self::Pools => "POOLS",
            Self::Live => "LIVE",
            Self::Reserved => "RESERVED",
            Self::Held => "HELD",
            Self::Sent => "SENT",
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
            Self::Sent => process.in_transit.to_string(),
            Self::Fds => process.fds().to_string(),
            Self::Rate => rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
            Self::Stale => importer.stale.to_string(),
            Self::Evicted => importer.evictions.saturating_add(exporter.evictions).to_string(),
            Self::Age if process.time == 0 => "-".to_owned(),
            Self::Age => processes::format_duration(now.saturating_sub(process.time)),
        }
    }
}

const COLUMNS: [Column; 14] = [
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
    Column::Sent,
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
    let line = |row: &[String], state: Style| {
        let cells = row.iter().zip(widths).zip(COLUMNS).map(|((cell, width), column)| match column.kind() {
            ColumnKind::Number => format!("{cell:>width$}"),
            _ if column == Column::State => output::styled(&format!("{cell:<width$}"), state, colour),
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let heading = line(&COLUMNS.map(|column| column.heading().to_owned()), Style::new());
    let mut out = output::styled(&heading, Style::new().bold(), colour) + "\n";
    for (row, process) in rows.iter().zip(processes) {
        let state = match process.owner {
            OwnerStatus::Alive { .. } | OwnerStatus::Elsewhere { .. } => AnsiColor::Green.on_default(),
            OwnerStatus::Ended => AnsiColor::Red.on_default(),
            _ => AnsiColor::Yellow.on_default(),
        };
        // Writing to a String does not fail.
        let _ = writeln!(out, "{}", line(row, state));
    }
    out
}

fn document(search: &Search, processes: &[Process]) -> Value {
    let now = inspect::now();
    let grants = processes::remote_grants(processes).into_iter().map(|(pid, grant)| {
        let left = grant.time_left().as_nanos() as u64;
        json!({ "pid": pid, "slot": grant.slot, "importer": grant.importer, "left_ns": left })
    });
    let grants: Vec<Value> = grants.collect();
    json!({
        "format": 1,
        "now_ns": now,
        "processes": processes,
        "remote_grants": grants,
        "denied": search.denied,
        "unreadable": search.unreadable,
        "silent": search.silent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stamps_are_utc() {
        let texts = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in texts {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
