//! `umf info`: what this machine can do for umf, found by trying, with the remedy where something
//! is missing.

use clap::Args;

use crate::output::{self, Failure};
use crate::topology::TopologyOptions;

mod devices;
pub(crate) mod finding;
mod kernel;
pub(crate) mod kernel_files;
mod limits;
mod numa;
mod transfer;

use finding::Report;

/// Shows what this machine can do for umf, and what to do where something is missing.
///
/// Everything is tried out where it can be, as the user who asks: short-lived children try to reach
/// each other, as two processes of a job would. Nothing is changed or left behind.
#[derive(Args)]
pub(crate) struct InfoCommand {
    /// Print one JSON document: GROUP.FINDING has state, text, value, why and remedy
    #[arg(long)]
    json: bool,

    /// Say for every finding why it matters, not only where something is missing
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    topology: TopologyOptions,

    /// Serve as a child of this command.
    #[arg(long, hide = true)]
    child: bool,
}

impl InfoCommand {
    /// Probes the machine and prints what was found.
    ///
    /// # Errors
    /// Standard output cannot be written. What a probe meets is a finding, never an error; but a
    /// topology that was asked for and cannot be read is one.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.child {
            return Ok(transfer::serve()?);
        }
        if self.topology.is_wanted() {
            return self.topology.show(self.json);
        }
        let report = probe();
        let printed = if self.json {
            let mut document = serde_json::to_string_pretty(&report).map_err(std::io::Error::from)?;
            document.push('\n');
            document
        } else {
            finding::render(&report, output::colour(), self.verbose)
        };
        Ok(output::print(&printed)?)
    }
}

fn probe() -> Report {
    Report {
        groups: vec![
            kernel::probe(),
            kernel::probe_permissions(),
            transfer::probe(),
            limits::probe(),
            limits::probe_huge_pages(),
            numa::probe(),
            devices::probe(),
            limits::probe_processors(),
        ],
    }
}
