//! `umf demo`: unrelated processes export blocks of a pool, open each other's, and show what it took.

mod census;
mod content;
mod outcome;
mod plan;
mod rank;
mod ranks;
mod table;
mod words;

use std::time::Duration;

use clap::{Args, ValueEnum};
use umf::config::{ByteSize, Loader};

use crate::failure::Failure;
use crate::output;
use outcome::Outcome;
use plan::Plan;

/// Starts unrelated processes that share blocks of memory by handles, and shows times, caches and what is left behind.
///
/// Every process exports its blocks and opens everybody else's by handles that travel as text; readers check what the
/// owner wrote and answer in the block, and the owner checks the answers. In the end all blocks are freed, their
/// handles have to fail as stale, and nothing may be left: no file descriptor, mapping, name, socket or process.
#[derive(Args)]
pub(crate) struct DemoCommand {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,

    /// Blocks that each process exports
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    blocks: u32,

    /// Size of a block: bytes, or with a unit as in 64KiB
    #[arg(long, value_name = "BYTES", default_value = "64KiB")]
    size: ByteSize,

    /// How file descriptors travel [default: what the settings say]
    #[arg(long)]
    exchange: Option<Exchange>,

    /// Where the memory comes from: a provider set of the settings, or level-zero, cuda or dma-buf [default: shared memory of the
    /// host]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,

    /// The longest that one step may take, in seconds [default: by the amount of work]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,

    /// Print one JSON document; times in nanoseconds
    #[arg(long)]
    json: bool,

    /// The rank that this process plays, and the plan.
    #[arg(long, hide = true, num_args = 2)]
    rank: Option<Vec<String>>,
}

/// The values of `--exchange`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Exchange {
    Pidfd,
    Procfs,
    Socket,
    Auto,
}

impl Exchange {
    const fn name(self) -> &'static str {
        match self {
            Exchange::Pidfd => "pidfd",
            Exchange::Procfs => "procfs",
            Exchange::Socket => "socket",
            Exchange::Auto => "auto",
        }
    }
}

impl DemoCommand {
    /// Runs the demo and prints what came of it.
    ///
    /// # Errors
    /// Anything that did not go as it should.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some([number, plan]) = self.rank.as_deref() {
            let wrong = |error: &dyn std::fmt::Display| Failure::Told(format!("--rank: {error}"));
            let number = number.parse().map_err(|error: std::num::ParseIntError| wrong(&error))?;
            let plan: Plan = serde_json::from_str(plan).map_err(|error| wrong(&error))?;
            return rank::play(&plan, number);
        }
        let loaded = Loader::new().load()?;
        for warning in &loaded.warnings {
            output::tell(&format!("warning: {warning}"));
        }
        let plan = self.plan()?;
        let exchange = match self.exchange {
            Some(exchange) => exchange.name().to_owned(),
            None => outcome::setting(&loaded.settings, "ipc.exchange"),
        };
        if plan.provider.is_some() {
            // What is lacking is said once, and not by a rank.
            drop(plan.pool().map_err(|error| Failure::Told(error.to_string()))?);
        }
        let reports = ranks::run(&plan, &exchange, self.timeout.map(Duration::from_secs))?;
        let outcome = Outcome::new(&plan, exchange, reports);
        let printed = if self.json { outcome.json()? } else { table::render(&outcome, output::colour()) };
        output::print(&printed)?;
        outcome.verdict().map_err(Failure::Told)
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let size = usize::try_from(self.size.get()).unwrap_or(usize::MAX);
        if size == 0 {
            return Err(Failure::Told("--size 0: a block has at least 1 byte".to_owned()));
        }
        let launcher = std::process::id();
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let plan = Plan {
            provider: self.provider.clone(),
            ranks: self.ranks,
            blocks: self.blocks,
            size,
            run: clock.as_nanos() as u64 ^ u64::from(launcher).rotate_left(40),
            measure_ms: (2000 / u64::from(self.ranks)).clamp(15, 150),
            launcher,
        };
        plan.fits().map_err(Failure::Told)?;
        Ok(plan)
    }
}
