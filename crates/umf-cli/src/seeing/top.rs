//! `umf top`: the processes that use umf, again and again. [`View`] is the picture, which goes to a
//! terminal or becomes text.

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

use super::processes::{self, Process, ago, last_change};
use super::ps;
use crate::output::{self, Failure};

/// Shows the processes that use umf, their pools and what happened last, and keeps it up to date.
///
/// Arrow keys choose a process, q ends. Read from the ledgers that the processes publish, as by umf
/// ps.
#[derive(Args)]
pub(crate) struct TopCommand {
    /// Print one picture as text, and end; so it does where standard output is no terminal
    #[arg(long)]
    once: bool,

    /// Seconds from one look to the next, 0.1 to 3600
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("must be 0.1 to 3600".to_owned()) }
}

impl TopCommand {
    /// Looks and shows until told to end.
    ///
    /// # Errors
    /// `/proc` cannot be read; the terminal cannot be used.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let mut view = View::default();
        look(&mut view)?;
        if self.once || !std::io::stdout().is_terminal() {
            output::print(&as_text(&view))?;
            return Ok(());
        }
        show(&mut view, Duration::from_secs_f64(self.interval), look)
    }
}

fn look(view: &mut View) -> Result<(), Failure> {
    let search = processes::find()?;
    view.update(processes::of(&search), processes::left_out(&search), inspect::now());
    Ok(())
}

/// Pools that are listed of the chosen process.
const POOLS: usize = 8;

/// What is shown.
#[derive(Default)]
pub(super) struct View {
    processes: Vec<Process>,
    left_out: String,
    now: u64,
    /// The process that is shown in full, by its id.
    chosen: Option<u32>,
    /// Misses per second, by process id: of what was published since the look before.
    rates: HashMap<u32, f64>,
}

impl View {
    /// Takes over what was just seen.
    pub(super) fn update(&mut self, processes: Vec<Process>, left_out: String, now: u64) {
        self.rates =
            processes.iter().filter_map(|process| Some((process.pid, self.rate(process)?))).collect();
        if !processes.iter().any(|process| Some(process.pid) == self.chosen) {
            self.chosen = processes.first().map(|process| process.pid);
        }
        (self.processes, self.left_out, self.now) = (processes, left_out, now);
    }

    /// How many opens and exports the process had a second, so far as it published them.
    fn rate(&self, now: &Process) -> Option<f64> {
        let before = self.processes.iter().find(|process| process.pid == now.pid)?;
        let time = now.time.checked_sub(before.time)?;
        if time == 0 {
            // Nothing new: what it was, while it is fresh.
            return self
                .rates
                .get(&now.pid)
                .copied()
                .filter(|_| self.now.saturating_sub(now.time) < 2_000_000_000);
        }
        let count = |process: &Process| {
            [process.importer, process.exporter].iter().fold(0_u64, |sum, cache| {
                sum.saturating_add(cache.hits).saturating_add(cache.table_hits).saturating_add(cache.misses)
            })
        };
        Some(count(now).saturating_sub(count(before)) as f64 * 1e9 / time as f64)
    }

    /// Chooses the process so many further down.
    pub(super) fn choose(&mut self, step: isize) {
        let place = self.processes.iter().position(|process| Some(process.pid) == self.chosen).unwrap_or(0);
        let last = self.processes.len().saturating_sub(1);
        let place = place.saturating_add_signed(step).min(last);
        self.chosen = self.processes.get(place).map(|process| process.pid);
    }

    /// Lines that all of it takes.
    pub(super) fn height(&self) -> u16 {
        let lines = 4 + self.processes.len() + self.below() + self.left_out.lines().count();
        u16::try_from(lines).unwrap_or(u16::MAX).min(2000)
    }

    fn chosen(&self) -> Option<&Process> {
        self.processes.iter().find(|process| Some(process.pid) == self.chosen)
    }

    /// Lines that the chosen process takes below the table.
    fn below(&self) -> usize {
        self.chosen().map_or(0, |it| it.pools.len().min(POOLS) + it.slots.get().len() + 5)
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let lines = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
        let [head, processes, below, notes] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(2),
            Constraint::Length(lines(self.below())),
            Constraint::Length(lines(self.left_out.lines().count())),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_processes(frame, processes);
        if let Some(process) = self.chosen() {
            let pools = process.pools.len().min(POOLS);
            let [pools_area, events_area] =
                Layout::vertical([Constraint::Length(lines(pools + 3)), Constraint::Min(0)]).areas(below);
            draw_pools(frame, pools_area, process);
            self.draw_events(frame, events_area, process);
        }
        frame.render_widget(Paragraph::new(self.left_out.as_str()), notes);
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let total = |of: fn(&Process) -> u64| self.processes.iter().map(of).fold(0, u64::saturating_add);
        let text = format!(
            "umf top: {} processes, {} exports, {} open, {} live of {} reserved, {} held, {} fds    q: end",
            self.processes.len(),
            total(|process| process.exports),
            total(|process| process.importer.entries),
            output::human(total(Process::live_bytes)),
            output::human(total(Process::reserved_bytes)),
            output::human(total(|process| process.held_bytes)),
            total(Process::fds),
        );
        frame.render_widget(Paragraph::new(text), area);
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect) {
        let heading = [
            "PID", "STATE", "NAME", "EXPORTS", "OPENED", "IN USE", "MAPPED", "LIVE", "RESERVED", "HELD",
            "FDS", "/S", "STALE", "EVICTED", "AGE",
        ];
        let widths = [8, 6, 16, 8, 7, 7, 10, 10, 10, 9, 5, 8, 7, 8, 8].map(Constraint::Length);
        // The chosen one is always among those that there is room for.
        let room = usize::from(area.height.saturating_sub(1)).max(1);
        let place = self.processes.iter().position(|process| Some(process.pid) == self.chosen).unwrap_or(0);
        let first = (place + 1).saturating_sub(room);
        let rows = self.processes.iter().skip(first).map(|it| {
            let rate = self.rates.get(&it.pid).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
            let row = Row::new([
                it.pid.to_string(),
                it.state().to_owned(),
                it.name.clone(),
                it.exports.to_string(),
                it.importer.entries.to_string(),
                it.importer.in_use.to_string(),
                output::human(it.importer.bytes),
                output::human(it.live_bytes()),
                output::human(it.reserved_bytes()),
                output::human(it.held_bytes),
                it.fds().to_string(),
                rate,
                it.importer.stale.to_string(),
                it.importer.evictions.saturating_add(it.exporter.evictions).to_string(),
                ps::age(it, self.now),
            ]);
            if Some(it.pid) == self.chosen {
                row.style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                row
            }
        });
        frame.render_widget(Table::new(rows, widths).header(Row::new(heading).style(bold())), area);
    }

    fn draw_events(&self, frame: &mut Frame<'_>, area: Rect, process: &Process) {
        let mut lines = vec![Line::styled("LAST EVENTS", bold())];
        lines.extend(process.slots.get().iter().map(|slot| Line::raw(told(slot, self.now))));
        frame.render_widget(Paragraph::new(lines), area);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn draw_pools(frame: &mut Frame<'_>, area: Rect, process: &Process) {
    let [title, table] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let more = process.pools_in_all.saturating_sub(process.pools.len().min(POOLS) as u64);
    let more = if more == 0 { String::new() } else { format!(", {more} more") };
    let text = format!("{} ({}): {} pools{more}", process.name, process.pid, process.pools_in_all);
    frame.render_widget(Paragraph::new(text), title);
    let heading = ["POOL", "PROVIDER", "BLOCKS", "LIVE", "FREE", "RESERVED", "HELD", "REGIONS"];
    let widths = [32, 16, 10, 10, 10, 10, 10, 8].map(Constraint::Length);
    let rows = process.pools.iter().take(POOLS).map(|pool| {
        Row::new([
            pool.name.clone(),
            pool.provider.clone(),
            pool.live_blocks.to_string(),
            output::human(pool.live_bytes),
            output::human(pool.cached_bytes),
            output::human(pool.reserved_bytes),
            output::human(pool.held_bytes),
            pool.regions.to_string(),
        ])
    });
    frame.render_widget(Table::new(rows, widths).header(Row::new(heading).style(bold())), table);
}

/// What happened to a slot last.
fn told(slot: &Slot, now: u64) -> String {
    let when = ago(now, last_change(slot));
    let number = slot.number;
    let what = match (slot.content, slot.ended) {
        (Some(content), _) => {
            format!(
                "export   slot {number}, generation {}, {}",
                slot.generation,
                output::human(content.length)
            )
        }
        (None, Some(end)) => {
            format!("retire   slot {number}, generation {} ({:?})", end.generation, end.reason)
        }
        (None, None) => format!("?        slot {number}"),
    };
    format!("  {when:>16}  {what}")
}

/// How long a signal may go unnoticed.
const TICK: Duration = Duration::from_millis(100);
/// Columns of a picture that is text.
const COLUMNS: u16 = 140;

/// One picture as text, as long as it needs to be.
pub(super) fn as_text(view: &View) -> String {
    let mut terminal = match Terminal::new(TestBackend::new(COLUMNS, view.height())) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    let drawn = terminal.draw(|frame| view.draw(frame)).map(|_| ());
    if let Err(never) = drawn {
        match never {}
    }
    let buffer = terminal.backend().buffer();
    let mut out = String::new();
    for row in buffer.content().chunks(usize::from(COLUMNS)) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let end = out.trim_end().len();
    out.truncate(end);
    out.push('\n');
    out
}

/// The terminal as it was, whatever happens (a panic too: the hook of [`ratatui::try_init`] sees to
/// that).
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // Nobody is left to tell if the terminal is gone.
        let _ = ratatui::try_restore();
    }
}

/// Shows pictures until a key or a signal says to end.
pub(super) fn show(
    view: &mut View,
    interval: Duration,
    look: impl Fn(&mut View) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    // Before it is taken over: an error in the middle of that leaves nothing behind either.
    let _restored = Restored;
    let mut terminal = ratatui::try_init()?;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left.min(TICK))? && !obey(view, &event::read()?) {
            return Ok(());
        }
        if ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        if Instant::now() >= next {
            look(view)?;
            next = Instant::now() + interval;
        }
    }
}

/// Does what a key says; `false` if that is to end.
fn obey(view: &mut View, event: &event::Event) -> bool {
    let event::Event::Key(key) = event else { return true };
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Down | KeyCode::Char('j') => view.choose(1),
        KeyCode::Up | KeyCode::Char('k') => view.choose(-1),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;

    #[test]
    fn keys_end_it_and_others_do_not() {
        let mut view = View::default();
        let mut press = |code, modifiers| obey(&mut view, &event::Event::Key(KeyEvent::new(code, modifiers)));
        assert!(!press(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(press(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(press(KeyCode::Down, KeyModifiers::NONE));
        assert!(obey(&mut view, &event::Event::Resize(10, 10)));
    }

    #[test]
    fn text_of_nothing() {
        let text = as_text(&View::default());
        assert!(text.contains("0 processes") && text.ends_with('\n'), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
