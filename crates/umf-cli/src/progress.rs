//! Progress of long runs, on standard error.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How long a run may be silent where standard error is not a terminal, and between its lines.
const PATIENCE: Duration = Duration::from_secs(1);

/// Says what is being done: at once on a terminal, in one line that changes; elsewhere once a second, from the second
/// second on.
pub(crate) struct Progress {
    said: Instant,
    terminal: bool,
    shown: bool,
    step: String,
}

impl Progress {
    /// Begins a run.
    pub(crate) fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { said: Instant::now(), terminal, shown: false, step: String::new() }
    }

    /// The run comes to a new step.
    pub(crate) fn step(&mut self, step: impl Into<String>) {
        self.step = step.into();
        if self.terminal {
            self.show();
        } else {
            self.tick();
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self) {
        if self.said.elapsed() >= PATIENCE {
            self.show();
        }
    }

    fn show(&mut self) {
        self.said = Instant::now();
        self.shown = true;
        // Progress that nobody can see is no failure.
        let mut stderr = std::io::stderr().lock();
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[Kumf: {}", self.step)
        } else {
            writeln!(stderr, "umf: {}", self.step)
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
