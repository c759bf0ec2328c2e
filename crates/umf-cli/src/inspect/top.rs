//! `umf top`: refreshes the list of processes that use umf. [`View`] is rendered to a terminal or
//! to text.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{Frame, Terminal};
use umf::ipc::inspect::{self, OwnerStatus, Slot};

use super::processes::{self, Process, format_age, last_change};
use super::ps::Column;
use super::screen::{self, Content};
use super::table::{self, ColumnKind, Heading, TableRow};
use crate::info::finding::wrap;
use crate::output::{self, Failure};

/// Shows the processes that use umf, their pools and their latest events, and refreshes the view.
///
/// Arrow keys select a process, q quits. Reads the ledgers that the processes publish, as umf ps
/// does. A narrow terminal leaves out whole columns. Ends with exit code 1 if its terminal is
/// closed, and with 0 on SIGTERM, SIGINT and SIGHUP.
#[derive(Args)]
pub(crate) struct TopCommand {
    /// Print one view as text and exit; the default where standard output is not a terminal
    #[arg(long)]
    once: bool,

    /// Seconds between two refreshes, 0.1 to 3600
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
}

/// Parses an interval between two refreshes.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("must be 0.1 to 3600".to_owned()) }
}

impl TopCommand {
    /// Refreshes the view until a key or a signal ends it.
    ///
    /// # Errors
    /// `/proc` cannot be read, or the terminal cannot be used.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut view = View::default();
        view.refresh()?;
        if self.once || !std::io::stdout().is_terminal() {
            output::print(&as_text(&view, TEXT_WIDTH))?;
            return Ok(());
        }
        view.has_colour = output::wants_colour();
        screen::show(&mut view, Duration::from_secs_f64(self.interval))
    }
}

/// The most pools that are listed for the selected process.
const MAX_POOLS: usize = 8;

/// The columns of the table of processes, and the rank by which a narrow terminal leaves them out.
const COLUMNS: [(Column, u8); 15] = [
    (Column::Pid, 0),
    (Column::State, 2),
    (Column::Name, 0),
    (Column::Exports, 3),
    (Column::Opened, 4),
    (Column::InUse, 10),
    (Column::Mapped, 5),
    (Column::Live, 1),
    (Column::Reserved, 6),
    (Column::Held, 8),
    (Column::Fds, 7),
    (Column::Rate, 9),
    (Column::Stale, 12),
    (Column::Evicted, 13),
    (Column::Age, 11),
];

/// Returns the headings of the table of processes.
fn headings() -> [Heading; COLUMNS.len()] {
    COLUMNS.map(|(column, rank)| Heading { text: column.heading(), kind: column.kind(), rank })
}

/// The columns of the table of pools.
const POOL_COLUMNS: [Heading; 8] = {
    const fn number(text: &'static str, rank: u8) -> Heading {
        Heading { text, kind: ColumnKind::Number, rank }
    }
    [
        Heading { text: "POOL", kind: ColumnKind::Name, rank: 0 },
        Heading { text: "PROVIDER", kind: ColumnKind::Text, rank: 5 },
        number("BLOCKS", 1),
        number("LIVE", 0),
        number("FREE", 4),
        number("RESERVED", 2),
        number("HELD", 3),
        number("REGIONS", 6),
    ]
};

/// The contents of the screen.
#[derive(Default)]
struct View {
    processes: Vec<Process>,
    denied_note: String,
    now: u64,
    /// The id of the process that is shown in detail.
    selected: Option<u32>,
    /// Opens and exports per second by process id, between its last two publications.
    rates: HashMap<u32, f64>,
    has_colour: bool,
}

impl View {
    /// Replaces the processes with those of a new scan.
    fn update(&mut self, processes: Vec<Process>, denied_note: String, now: u64) {
        self.rates =
            processes.iter().filter_map(|process| Some((process.pid, self.rate(process)?))).collect();
        if !processes.iter().any(|process| Some(process.pid) == self.selected) {
            self.selected = processes.first().map(|process| process.pid);
        }
        (self.processes, self.denied_note, self.now) = (processes, denied_note, now);
    }

    /// Returns the opens and exports per second between the process's last two publications.
    fn rate(&self, latest: &Process) -> Option<f64> {
        let previous = self.processes.iter().find(|process| process.pid == latest.pid)?;
        let time = latest.time.checked_sub(previous.time)?;
        if time == 0 {
            // No publication since. Keeps the rate for two seconds.
            return self
                .rates
                .get(&latest.pid)
                .copied()
                .filter(|_| self.now.saturating_sub(latest.time) < 2_000_000_000);
        }
        let count = |process: &Process| {
            [process.importer, process.exporter].iter().fold(0_u64, |sum, cache| {
                sum.saturating_add(cache.hits).saturating_add(cache.table_hits).saturating_add(cache.misses)
            })
        };
        Some(count(latest).saturating_sub(count(previous)) as f64 * 1e9 / time as f64)
    }

    /// Returns the number of lines of the full view.
    fn height(&self, width: u16) -> u16 {
        let lines = self.head(width).len() + 1 + self.processes.len() + 1;
        let lines = lines + self.detail_height() + self.notes(width).len();
        u16::try_from(lines).unwrap_or(u16::MAX).min(2000)
    }

    fn selected(&self) -> Option<&Process> {
        self.processes.iter().find(|process| Some(process.pid) == self.selected)
    }

    fn selected_index(&self) -> usize {
        self.processes.iter().position(|process| Some(process.pid) == self.selected).unwrap_or(0)
    }

    /// Returns the number of lines of the selected process's details: an empty one, the pools, an
    /// empty one, and the events.
    fn detail_height(&self) -> usize {
        self.selected()
            .map_or(0, |process| process.pools.len().min(MAX_POOLS) + process.slots.get().len() + 5)
    }

    /// Returns the lines with the totals. No number is broken at the end of a line.
    fn head(&self, width: u16) -> Vec<String> {
        let total = |of: fn(&Process) -> u64| self.processes.iter().map(of).fold(0, u64::saturating_add);
        let text = format!(
            "umf top: {} processes, {} exports, {} open, {} live of {} reserved, {} held, {} fds; q: quit",
            self.processes.len(),
            total(|process| process.exports),
            total(|process| process.importer.entries),
            output::format_bytes(total(Process::live_bytes)),
            output::format_bytes(total(Process::reserved_bytes)),
            output::format_bytes(total(|process| process.held_bytes)),
            total(Process::fds),
        );
        // Breaks lines between the totals only.
        let parts: Vec<String> = text.split(", ").map(|part| part.replace(' ', "\u{a0}")).collect();
        let lines = wrap(&parts.join(", "), width.into());
        lines.into_iter().map(|line| line.replace('\u{a0}', " ")).collect()
    }

    /// Returns the lines below the view: the legend if its column is shown, and the processes that
    /// cannot be inspected.
    fn notes(&self, width: u16) -> Vec<String> {
        let column = Column::Mapped.heading();
        let legend = table::is_shown(&headings(), &self.rows(), width, column)
            .then(|| format!("{column}: {}", Column::MAPPED_LEGEND));
        let notes = legend.as_deref().into_iter().chain(self.denied_note.lines());
        notes.flat_map(|note| wrap(note, width.into())).collect()
    }

    /// Returns the rows of the table of processes.
    fn rows(&self) -> Vec<TableRow> {
        self.processes.iter().map(|process| self.row(process)).collect()
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect) {
        let lines = usize::from(area.height).saturating_sub(1);
        let count = self.processes.len();
        // The last line has the number of processes without a row.
        let fit = if count > lines { lines.saturating_sub(1).max(1) } else { lines };
        // Scrolls such that the selected row is visible.
        let first = (self.selected_index() + 1).saturating_sub(fit);
        let [rows_area, more] =
            Layout::vertical([Constraint::Length(1 + fit.min(count) as u16), Constraint::Min(0)]).areas(area);
        table::draw(frame, rows_area, &headings(), &self.rows(), first);
        if count > fit {
            let hidden = count - fit;
            let text = format!("{hidden} more process{}", if hidden == 1 { "" } else { "es" });
            frame.render_widget(Paragraph::new(text), more);
        }
    }

    fn row(&self, process: &Process) -> TableRow {
        let rate = self.rates.get(&process.pid).copied();
        let is_selected = Some(process.pid) == self.selected;
        let style =
            Style::new().add_modifier(if is_selected { Modifier::REVERSED } else { Modifier::empty() });
        let state = COLUMNS.iter().position(|(column, _)| *column == Column::State).unwrap_or(0);
        let colour = match process.owner {
            OwnerStatus::Alive { .. } | OwnerStatus::Elsewhere { .. } => Color::Green,
            OwnerStatus::Ended => Color::Red,
            _ => Color::Yellow,
        };
        let cell_styles = if self.has_colour { vec![(state, Style::new().fg(colour))] } else { Vec::new() };
        let cells = COLUMNS.map(|(column, _)| column.cell(process, self.now, rate)).to_vec();
        TableRow { cells, style, cell_styles }
    }

    fn draw_events(&self, frame: &mut Frame<'_>, area: Rect, process: &Process) {
        let mut lines = vec![Line::styled("LAST EVENTS", Style::new().add_modifier(Modifier::BOLD))];
        let events = process.slots.get().iter().map(|slot| describe_event(slot, self.now));
        lines.extend(events.map(|event| Line::raw(table::shortened(&event, area.width.into()))));
        frame.render_widget(Paragraph::new(lines), area);
    }
}

impl Content for View {
    fn refresh(&mut self) -> Result<(), Failure> {
        let search = processes::find()?;
        self.update(processes::from_ledgers(&search), processes::denied_note(&search), inspect::now());
        Ok(())
    }

    fn move_selection(&mut self, step: isize) {
        let last = self.processes.len().saturating_sub(1);
        let index = self.selected_index().saturating_add_signed(step).min(last);
        self.selected = self.processes.get(index).map(|process| process.pid);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let (head, notes) = (self.head(area.width), self.notes(area.width));
        let left = usize::from(area.height).saturating_sub(head.len() + 1 + notes.len());
        // If not everything fits, the processes get at least half of the lines.
        let processes = left.saturating_sub(self.detail_height()).max(left / 2).min(self.processes.len() + 1);
        let [head_area, processes_area, detail, notes_area] = Layout::vertical([
            Constraint::Length(head.len() as u16 + 1),
            Constraint::Length(processes as u16),
            Constraint::Min(0),
            Constraint::Length(notes.len() as u16),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(head.join("\n")), head_area);
        self.draw_processes(frame, processes_area);
        if let Some(process) = self.selected() {
            let pools = process.pools.len().min(MAX_POOLS) as u16 + 3;
            let [pools_area, _, events_area] =
                Layout::vertical([Constraint::Length(pools), Constraint::Length(1), Constraint::Min(0)])
                    .areas(detail);
            draw_pools(frame, pools_area, process);
            self.draw_events(frame, events_area, process);
        }
        frame.render_widget(Paragraph::new(notes.join("\n")), notes_area);
    }
}

/// Draws an empty line, a title with the number of pools, and the table of pools.
fn draw_pools(frame: &mut Frame<'_>, area: Rect, process: &Process) {
    let [_, title, table_area] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let fit = usize::from(table_area.height).saturating_sub(1);
    let shown = process.pools.len().min(MAX_POOLS).min(fit);
    let more = process.pools_in_all.saturating_sub(shown as u64);
    let more = if more == 0 { String::new() } else { format!(", {more} more") };
    let plural = if process.pools_in_all == 1 { "" } else { "s" };
    let text = format!("{} ({}): {} pool{plural}{more}", process.name, process.pid, process.pools_in_all);
    frame.render_widget(Paragraph::new(text), title);
    let rows = process.pools.iter().take(shown).map(|pool| {
        let cells = vec![
            pool.name.clone(),
            pool.provider.clone(),
            pool.live_blocks.to_string(),
            output::format_bytes(pool.live_bytes),
            output::format_bytes(pool.cached_bytes),
            output::format_bytes(pool.reserved_bytes),
            output::format_bytes(pool.held_bytes),
            pool.regions.to_string(),
        ];
        TableRow { cells, style: Style::new(), cell_styles: Vec::new() }
    });
    let rows: Vec<TableRow> = rows.collect();
    table::draw(frame, table_area, &POOL_COLUMNS, &rows, 0);
}

/// Describes the last event of a slot.
fn describe_event(slot: &Slot, now: u64) -> String {
    let when = format_age(now, last_change(slot));
    let number = slot.number;
    let what = match (slot.content, slot.ended) {
        (Some(content), _) => {
            format!(
                "export  {}, slot {number}, generation {}",
                output::format_bytes(content.length),
                slot.generation,
            )
        }
        (None, Some(end)) => {
            format!("retire  slot {number}, generation {} ({:?})", end.generation, end.reason)
        }
        (None, None) => format!("?       slot {number}"),
    };
    format!("  {when:>12}  {what}")
}

/// The width of a view that is printed as text, in characters.
const TEXT_WIDTH: u16 = 140;

/// Renders a whole view as text.
fn as_text(view: &View, width: u16) -> String {
    rendered(view, width, view.height(width))
}

/// Renders a view on a screen of this size.
fn rendered(view: &View, width: u16, height: u16) -> String {
    let mut terminal = match Terminal::new(TestBackend::new(width, height)) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    let drawn = terminal.draw(|frame| view.draw(frame)).map(|_| ());
    if let Err(never) = drawn {
        match never {}
    }
    let buffer = terminal.backend().buffer();
    let mut out = String::new();
    for row in buffer.content().chunks(usize::from(width)) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let end = out.trim_end().len();
    out.truncate(end);
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use umf::ipc::CacheStatistics;
    use umf::ipc::inspect::PoolFigures;

    use super::*;

    /// Returns a view of `count` processes whose numbers have as many digits as they come to have.
    fn view(count: u32) -> View {
        let mut pool = PoolFigures::default();
        pool.name = "a pool with a rather long name".to_owned();
        pool.provider = "level-zero".to_owned();
        pool.live_blocks = 1_234_567;
        pool.live_bytes = 987 << 20;
        pool.cached_bytes = 986 << 20;
        pool.reserved_bytes = 985 << 20;
        pool.held_bytes = 984 << 20;
        pool.regions = 4321;
        let mut cache = CacheStatistics::default();
        cache.entries = 2_345_678;
        cache.in_use = 3_456_789;
        cache.bytes = 983 << 30;
        cache.fds = 65_536;
        cache.stale = 4_567_890;
        cache.evictions = 5_678_901;
        let process = |number| Process {
            name: "a_program_with_a_long_name".to_owned(),
            exports: 1_048_576,
            importer: cache,
            held_bytes: 984 << 20,
            pools: vec![pool.clone()],
            pools_in_all: 1,
            time: 1,
            ..Process::empty(4_194_000 + number, OwnerStatus::Ended)
        };
        let mut view = View::default();
        view.update((0..count).map(process).collect(), String::new(), 7_000_000_000);
        view
    }

    /// The cells of the table that can be left out, and cannot be cut.
    const FIGURES: [(&str, &str); 9] = [
        ("EXPORTS", "1048576"),
        ("OPENED", "2345678"),
        ("IN USE", "3456789"),
        ("MAPPED VA", "983 GiB"),
        ("LIVE", "987 MiB"),
        ("RESERVED", "985 MiB"),
        ("FDS", "65536"),
        ("STALE", "4567890"),
        ("AGE", "7.0 s"),
    ];

    #[test]
    fn columns_are_whole_at_every_width() {
        for width in [40, 60, 80, 100, 120, 160, 200] {
            let text = as_text(&view(2), width);
            let lines: Vec<&str> = text.lines().collect();
            let heading = lines.iter().position(|line| line.contains("PID")).unwrap();
            for (column, figure) in FIGURES {
                // Right-aligned: heading and figure end in the same place.
                let end = lines[heading].find(column).map(|at| at + column.len());
                for row in &lines[heading + 1..heading + 3] {
                    let row: String = row.replace('…', ".");
                    let Some(end) = end else {
                        assert!(!row.contains(figure), "{column} has no heading at {width}:\n{text}");
                        continue;
                    };
                    assert!(
                        row.get(..end).is_some_and(|row| row.ends_with(figure)),
                        "{column} at {width}:\n{text}"
                    );
                }
            }
            assert!(lines[heading + 1].contains("4194000") && text.contains("987 MiB"), "{text}");
            assert!(width < 100 || text.contains("a_program_with_a_long_name"), "{text}");
            assert!(width < 60 || text.contains("1234567"), "{text}");
            assert!(width < 100 || lines[heading].contains("RESERVED"), "{text}");
            assert!(lines.iter().all(|line| !line.ends_with("1.9")), "a number without its unit: {text}");
        }
    }

    #[test]
    fn hidden_processes_are_counted() {
        let mut view = view(30);
        let text = rendered(&view, 80, 24);
        let rows = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("4194")).count();
        let shown = rows(&text);
        assert!(shown >= 8, "{text}");
        assert!(text.contains(&format!("{} more processes", 30 - shown)), "{text}");
        // The selected process is visible.
        view.move_selection(29);
        let text = rendered(&view, 80, 24);
        assert!(text.contains("4194029") && rows(&text) == shown, "{text}");
        assert!(!as_text(&view, 80).contains("more process"));
    }

    #[test]
    fn mapped_column_is_explained_as_address_space() {
        let text = as_text(&view(1), 120);
        assert!(text.contains("MAPPED VA: ") && text.contains("address space"), "{text}");
    }

    #[test]
    fn legend_is_shown_with_its_column_only() {
        for width in 1..=200 {
            let text = as_text(&view(1), width);
            let heading = text.lines().any(|line| line.contains("PID") && line.contains("MAPPED VA"));
            // A narrow screen breaks the legend in lines, but not its first word.
            let legend = text.lines().any(|line| line.starts_with("MAPPED"));
            assert_eq!(heading, legend, "{width}:\n{text}");
        }
    }

    #[test]
    fn empty_view_renders_as_text() {
        let text = as_text(&View::default(), TEXT_WIDTH);
        assert!(text.contains("0 processes") && text.ends_with('\n'), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn tiny_screen_is_drawn() {
        for (width, height) in [(1, 1), (10, 3), (200, 2)] {
            rendered(&view(3), width, height);
        }
    }
}
