//! Where the picture of `umf top` goes: a terminal, or text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::view::View;
use crate::failure::Failure;

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

/// The terminal as it was, whatever happens (a panic too: the hook of [`ratatui::try_init`] sees to that).
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
fn obey(view: &mut View, event: &Event) -> bool {
    let Event::Key(key) = event else { return true };
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
        let mut press = |code, modifiers| obey(&mut view, &Event::Key(KeyEvent::new(code, modifiers)));
        assert!(!press(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(press(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(press(KeyCode::Down, KeyModifiers::NONE));
        assert!(obey(&mut view, &Event::Resize(10, 10)));
    }

    #[test]
    fn text_of_nothing() {
        let text = as_text(&View::default());
        assert!(text.contains("0 processes") && text.ends_with('\n'), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
