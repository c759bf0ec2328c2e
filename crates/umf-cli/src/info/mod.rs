//! `umf info`: tests the features of this machine that umf uses, and prints remedies for missing
//! ones.

use clap::Args;

use crate::output::{self, Failure};
use crate::topology::TopologyOptions;

mod devices;
mod fabrics;
pub(crate) mod finding;
mod kernel;
mod limits;
mod mpi;
mod numa;
pub(crate) mod procfs;
mod transfer;

use finding::Report;

/// Shows the features of this machine that umf uses, and the remedy for each that is missing.
///
/// Features are tested with the caller's rights: short-lived children try to open each other's
/// memory, as two processes of a job would. Nothing is changed or left behind.
#[derive(Args)]
pub(crate) struct InfoCommand {
    /// Print one JSON document: GROUP.FINDING has state, text, value, why and remedy
    #[arg(long)]
    json: bool,

    /// Print why a finding matters for all of them, not only for missing features
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    topology: TopologyOptions,

    /// Run as a child of this command.
    #[arg(long, hide = true)]
    child: bool,
}

impl InfoCommand {
    /// Probes the machine and prints what was found.
    ///
    /// # Errors
    /// Standard output cannot be written, or the requested topology cannot be read. Failed probes
    /// are findings, not errors.
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
            finding::render(&report, output::wants_colour(), self.verbose)
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
            mpi::probe(),
            fabrics::probe(),
            limits::probe_processors(),
        ],
    }
}
