//! `umf top`: refreshes the list of processes that use umf. [`View`] is rendered to a terminal or
//! to text.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Frame, Terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use umf::ipc::inspect::{self, Slot};

use super::processes::{self, Process, format_age, last_change};
use super::ps::Column;
use crate::output::{self, Failure};

/// Shows the processes that use umf, their pools and their latest events, and refreshes the view.
///
/// Arrow keys select a process, q quits. Reads the ledgers that the processes publish, as umf ps
/// does.
#[derive(Args)]
pub(crate) struct TopCommand {
    /// Print one view as text and exit; the default where standard output is not a terminal
    #[arg(long)]
    once: bool,

    /// Seconds between two refreshes, 0.1 to 3600
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
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
        refresh(&mut view)?;
        if self.once || !std::io::stdout().is_terminal() {
            output::print(&as_text(&view))?;
            return Ok(());
        }
        show(&mut view, Duration::from_secs_f64(self.interval), refresh)
    }
}

fn refresh(view: &mut View) -> Result<(), Failure> {
    let search = processes::find()?;
    view.update(processes::from_ledgers(&search), processes::denied_note(&search), inspect::now());
    Ok(())
}

/// The most pools that are listed for the selected process.
const MAX_POOLS: usize = 8;

/// The columns of the table of processes, and their widths.
const COLUMNS: [(Column, u16); 15] = [
    (Column::Pid, 8),
    (Column::State, 6),
    (Column::Name, 16),
    (Column::Exports, 8),
    (Column::Opened, 7),
    (Column::InUse, 7),
    (Column::Mapped, 10),
    (Column::Live, 10),
    (Column::Reserved, 10),
    (Column::Held, 9),
    (Column::Fds, 5),
    (Column::Rate, 8),
    (Column::Stale, 7),
    (Column::Evicted, 8),
    (Column::Age, 8),
];

/// The contents of the screen.
#[derive(Default)]
pub(super) struct View {
    processes: Vec<Process>,
    denied_note: String,
    now: u64,
    /// The id of the process that is shown in detail.
    selected: Option<u32>,
    /// Opens and exports per second by process id, between its last two publications.
    rates: HashMap<u32, f64>,
}

impl View {
    /// Replaces the processes with those of a new scan.
    pub(super) fn update(&mut self, processes: Vec<Process>, denied_note: String, now: u64) {
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

    /// Moves the selection by `step` rows.
    pub(super) fn move_selection(&mut self, step: isize) {
        let index = self.processes.iter().position(|process| Some(process.pid) == self.selected).unwrap_or(0);
        let last = self.processes.len().saturating_sub(1);
        let index = index.saturating_add_signed(step).min(last);
        self.selected = self.processes.get(index).map(|process| process.pid);
    }

    /// Returns the number of lines of the full view.
    pub(super) fn height(&self) -> u16 {
        let lines = 4 + self.processes.len() + self.detail_height() + self.denied_note.lines().count();
        u16::try_from(lines).unwrap_or(u16::MAX).min(2000)
    }

    fn selected(&self) -> Option<&Process> {
        self.processes.iter().find(|process| Some(process.pid) == self.selected)
    }

    /// Returns the number of lines of the selected process's details.
    fn detail_height(&self) -> usize {
        self.selected()
            .map_or(0, |process| process.pools.len().min(MAX_POOLS) + process.slots.get().len() + 5)
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let lines = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
        let [head, processes, detail, notes] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(2),
            Constraint::Length(lines(self.detail_height())),
            Constraint::Length(lines(self.denied_note.lines().count())),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_processes(frame, processes);
        if let Some(process) = self.selected() {
            let pools = process.pools.len().min(MAX_POOLS);
            let [pools_area, events_area] =
                Layout::vertical([Constraint::Length(lines(pools + 3)), Constraint::Min(0)]).areas(detail);
            draw_pools(frame, pools_area, process);
            self.draw_events(frame, events_area, process);
        }
        frame.render_widget(Paragraph::new(self.denied_note.as_str()), notes);
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let total = |of: fn(&Process) -> u64| self.processes.iter().map(of).fold(0, u64::saturating_add);
        let text = format!(
            "umf top: {} processes, {} exports, {} open, {} live of {} reserved, {} held, {} fds    q: quit",
            self.processes.len(),
            total(|process| process.exports),
            total(|process| process.importer.entries),
            output::format_bytes(total(Process::live_bytes)),
            output::format_bytes(total(Process::reserved_bytes)),
            output::format_bytes(total(|process| process.held_bytes)),
            total(Process::fds),
        );
        frame.render_widget(Paragraph::new(text), area);
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect) {
        // Scrolls such that the selected row is visible.
        let visible_rows = usize::from(area.height.saturating_sub(1)).max(1);
        let index = self.processes.iter().position(|process| Some(process.pid) == self.selected).unwrap_or(0);
        let first = (index + 1).saturating_sub(visible_rows);
        let rows = self.processes.iter().skip(first).map(|process| {
            let rate = self.rates.get(&process.pid).copied();
            let row = Row::new(COLUMNS.map(|(column, _)| column.cell(process, self.now, rate)));
            if Some(process.pid) == self.selected {
                row.style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                row
            }
        });
        let heading = COLUMNS.map(|(column, _)| column.heading());
        let widths = COLUMNS.map(|(_, width)| Constraint::Length(width));
        frame.render_widget(Table::new(rows, widths).header(Row::new(heading).style(bold())), area);
    }

    fn draw_events(&self, frame: &mut Frame<'_>, area: Rect, process: &Process) {
        let mut lines = vec![Line::styled("LAST EVENTS", bold())];
        lines.extend(process.slots.get().iter().map(|slot| Line::raw(describe_event(slot, self.now))));
        frame.render_widget(Paragraph::new(lines), area);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn draw_pools(frame: &mut Frame<'_>, area: Rect, process: &Process) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let more = process.pools_in_all.saturating_sub(process.pools.len().min(MAX_POOLS) as u64);
    let more = if more == 0 { String::new() } else { format!(", {more} more") };
    let text = format!("{} ({}): {} pools{more}", process.name, process.pid, process.pools_in_all);
    frame.render_widget(Paragraph::new(text), title);
    let heading = ["POOL", "PROVIDER", "BLOCKS", "LIVE", "FREE", "RESERVED", "HELD", "REGIONS"];
    let widths = [32, 16, 10, 10, 10, 10, 10, 8].map(Constraint::Length);
    let rows = process.pools.iter().take(MAX_POOLS).map(|pool| {
        Row::new([
            pool.name.clone(),
            pool.provider.clone(),
            pool.live_blocks.to_string(),
            output::format_bytes(pool.live_bytes),
            output::format_bytes(pool.cached_bytes),
            output::format_bytes(pool.reserved_bytes),
            output::format_bytes(pool.held_bytes),
            pool.regions.to_string(),
        ])
    });
    frame.render_widget(Table::new(rows, widths).header(Row::new(heading).style(bold())), table);
}

/// Describes the last event of a slot.
fn describe_event(slot: &Slot, now: u64) -> String {
    let when = format_age(now, last_change(slot));
    let number = slot.number;
    let what = match (slot.content, slot.ended) {
        (Some(content), _) => {
            format!(
                "export   slot {number}, generation {}, {}",
                slot.generation,
                output::format_bytes(content.length)
            )
        }
        (None, Some(end)) => {
            format!("retire   slot {number}, generation {} ({:?})", end.generation, end.reason)
        }
        (None, None) => format!("?        slot {number}"),
    };
    format!("  {when:>16}  {what}")
}

/// The longest delay between a signal and its effect.
const TICK: Duration = Duration::from_millis(100);
/// The width of a view that is printed as text, in characters.
const TEXT_WIDTH: u16 = 140;

/// Renders a whole view as text.
pub(super) fn as_text(view: &View) -> String {
    let mut terminal = match Terminal::new(TestBackend::new(TEXT_WIDTH, view.height())) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    let drawn = terminal.draw(|frame| view.draw(frame)).map(|_| ());
    if let Err(never) = drawn {
        match never {}
    }
    let buffer = terminal.backend().buffer();
    let mut out = String::new();
    for row in buffer.content().chunks(usize::from(TEXT_WIDTH)) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let end = out.trim_end().len();
    out.truncate(end);
    out.push('\n');
    out
}

/// Guard that restores the terminal on every exit path. On a panic, the hook of
/// [`ratatui::try_init`] does.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // An error means that the terminal is gone.
        let _ = ratatui::try_restore();
    }
}

/// Refreshes and draws the view until a key or a signal ends it.
pub(super) fn show(
    view: &mut View,
    interval: Duration,
    refresh: impl Fn(&mut View) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    // Created before the terminal is changed, so that it also restores after a partial change.
    let _guard = TerminalGuard;
    let mut terminal = ratatui::try_init()?;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left.min(TICK))? && !handle_event(view, &event::read()?) {
            return Ok(());
        }
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        if Instant::now() >= next {
            refresh(view)?;
            next = Instant::now() + interval;
        }
    }
}

/// Applies a key event. Returns `false` if it quits.
fn handle_event(view: &mut View, event: &event::Event) -> bool {
    let event::Event::Key(key) = event else { return true };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Down | KeyCode::Char('j') => view.move_selection(1),
        KeyCode::Up | KeyCode::Char('k') => view.move_selection(-1),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn only_quit_keys_quit() {
        let mut view = View::default();
        let mut press =
            |code, modifiers| handle_event(&mut view, &event::Event::Key(KeyEvent::new(code, modifiers)));
        assert!(!press(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(press(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(press(KeyCode::Down, KeyModifiers::NONE));
        assert!(handle_event(&mut view, &event::Event::Resize(10, 10)));
    }

    #[test]
    fn empty_view_renders_as_text() {
        let text = as_text(&View::default());
        assert!(text.contains("0 processes") && text.ends_with('\n'), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
