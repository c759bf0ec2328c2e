//! `umf top`: the processes that use umf, again and again.

mod screen;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use umf::ipc::inspect;

use super::processes;
use crate::failure::Failure;
use crate::output;
use view::View;

/// Shows the processes that use umf, their pools and what happened last, and keeps it up to date.
///
/// Arrow keys choose a process, q ends. Read from the ledgers that the processes publish, as by umf ps.
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
            output::print(&screen::as_text(&view))?;
            return Ok(());
        }
        screen::show(&mut view, Duration::from_secs_f64(self.interval), look)
    }
}

fn look(view: &mut View) -> Result<(), Failure> {
    let search = processes::find()?;
    view.update(processes::of(&search), processes::left_out(&search), inspect::now());
    Ok(())
}
