//! The screen of `umf top`: draws a view, and reads keys from the terminal.
//!
//! Reads the terminal itself. crossterm's reader retries a read that reports the end of the
//! terminal, without end, and blocks in the middle of an escape sequence.

use std::fs::File;
use std::io::{IsTerminal, stdin, stdout};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::{cursor, execute};
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::output::Failure;
use crate::signals::{self, EndSignals};

/// The longest delay between a change of the terminal's size and a new drawing.
const TICK: Duration = Duration::from_millis(100);
/// The longest time between two bytes of an escape sequence.
const SEQUENCE_TIME: Duration = Duration::from_millis(50);

/// A key with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Down,
    Up,
    Quit,
}

/// Contents of the screen.
pub(super) trait Content {
    /// Reads the contents again.
    ///
    /// # Errors
    /// Their source cannot be read.
    fn refresh(&mut self) -> Result<(), Failure>;
    /// Draws the contents.
    fn draw(&self, frame: &mut Frame<'_>);
    /// Moves the selection by `step` rows.
    fn move_selection(&mut self, step: isize);
}

/// Guard that restores the terminal on every exit path. On a panic, the hook of
/// [`ratatui::try_init`] does.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // An error means that the terminal is gone.
        let _ = execute!(stdout(), cursor::Show);
        let _ = ratatui::try_restore();
    }
}

/// Refreshes and draws the contents until a key or a signal ends it.
///
/// # Errors
/// The contents cannot be read, or the terminal was closed or cannot be used.
pub(super) fn show(content: &mut impl Content, interval: Duration) -> Result<(), Failure> {
    let ended = EndSignals::catch()?;
    let input = input()?;
    // Created before the terminal is changed, so that it also restores after a partial change.
    let _guard = TerminalGuard;
    // Not dropped: the drop of a terminal that is gone writes to standard error, and panics if
    // that is gone too. The guard restores all that it would.
    let mut terminal = ManuallyDrop::new(ratatui::try_init()?);
    let mut keys = Keys::default();
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| content.draw(frame)).map_err(closed_terminal)?;
        let left = next.saturating_duration_since(Instant::now());
        let time = left.min(if keys.is_incomplete() { SEQUENCE_TIME } else { TICK });
        let output = stdout();
        let events = signals::wait(
            [
                (input.as_fd(), PollFlags::IN),
                (output.as_fd(), PollFlags::empty()),
                (ended.as_fd(), PollFlags::IN),
            ],
            time,
        )?;
        let is_closed = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if events[..2].iter().any(|events| events.intersects(is_closed)) {
            return Err(closed_terminal(Errno::IO));
        }
        if !events[2].is_empty() {
            return Ok(());
        }
        let pressed = if events[0].contains(PollFlags::IN) {
            let mut bytes = [0; 256];
            match rustix::io::read(&input, &mut bytes) {
                Ok(0) => return Err(closed_terminal(Errno::IO)),
                Ok(count) => keys.add(&bytes[..count]),
                Err(Errno::AGAIN | Errno::INTR) => Vec::new(),
                Err(error) => return Err(closed_terminal(error)),
            }
        } else {
            keys.end_sequence()
        };
        for key in pressed {
            match key {
                Key::Down => content.move_selection(1),
                Key::Up => content.move_selection(-1),
                Key::Quit => return Ok(()),
            }
        }
        if Instant::now() >= next {
            content.refresh()?;
            next = Instant::now() + interval;
        }
    }
}

fn closed_terminal(error: impl Into<std::io::Error>) -> Failure {
    let error = error.into();
    Failure::Message(format!("cannot go on: the terminal was closed ({error}); use umf ps --watch for logs"))
}

/// Returns the terminal that keys come from, as crossterm selects it for its raw mode.
fn input() -> Result<OwnedFd, Failure> {
    if stdin().is_terminal() {
        return Ok(stdin().as_fd().try_clone_to_owned()?);
    }
    let opened = File::open("/dev/tty").map_err(|error| {
        Failure::Message(format!("cannot read keys: /dev/tty: {error}; run in a terminal, or pass --once"))
    })?;
    Ok(opened.into())
}

/// Recognises keys in the bytes of a terminal.
#[derive(Default)]
struct Keys {
    /// The beginning of an escape sequence.
    pending: Vec<u8>,
}

impl Keys {
    fn is_incomplete(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the keys that are complete with these bytes.
    fn add(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for &byte in bytes {
            match self.pending.len() {
                // Two escapes: the first one is a key.
                1 if byte == 0x1b => keys.push(Key::Quit),
                1 if matches!(byte, b'[' | b'O') => self.pending.push(byte),
                // Alt and a key.
                1 => self.pending.clear(),
                // Parameters are below the bytes that end a sequence.
                2 if matches!(byte, 0x40..=0x7e) => {
                    self.pending.clear();
                    keys.extend(match byte {
                        b'A' => Some(Key::Up),
                        b'B' => Some(Key::Down),
                        _ => None,
                    });
                }
                2 => {}
                _ => match byte {
                    0x1b => self.pending.push(byte),
                    b'q' | 0x03 => keys.push(Key::Quit),
                    b'j' => keys.push(Key::Down),
                    b'k' => keys.push(Key::Up),
                    _ => {}
                },
            }
        }
        keys
    }

    /// Returns the escape key if no byte followed it. Forgets an incomplete sequence.
    fn end_sequence(&mut self) -> Vec<Key> {
        let pending = std::mem::take(&mut self.pending);
        if pending.len() == 1 { vec![Key::Quit] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_quit_keys_quit() {
        let mut keys = Keys::default();
        assert_eq!(keys.add(b"q\x03xc"), [Key::Quit, Key::Quit]);
        assert_eq!(keys.add(b"jk"), [Key::Down, Key::Up]);
        assert_eq!(keys.end_sequence(), []);
    }

    #[test]
    fn escape_sequence_may_come_in_parts() {
        let mut keys = Keys::default();
        for byte in b"\x1b[1;5" {
            assert_eq!(keys.add(&[*byte]), []);
            assert!(keys.is_incomplete());
        }
        assert_eq!(keys.add(b"B\x1bOA"), [Key::Down, Key::Up]);
        assert!(!keys.is_incomplete());
        assert_eq!(keys.add(b"\x1b["), []);
        assert_eq!(keys.end_sequence(), []);
        assert_eq!(keys.add(b"\x1b"), []);
        assert_eq!(keys.end_sequence(), [Key::Quit]);
        assert_eq!(keys.add(b"\x1bq\x1b\x1b"), [Key::Quit]);
    }
}
