//! `umf demo`: unrelated processes export blocks of a pool, open each other's, and measure it.
//!
//! The launcher starts the ranks and sends them requests. [`rank`] serves them in each process.
//! [`report`] prints the results, and counts resources that were left behind. [`remote`] is the
//! demo of memory of other machines.

mod network;
mod rank;
mod remote;
mod report;

use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use umf::Handle;
use umf::settings::{ByteSize, Loader, Settings};

use crate::child::Child;
use crate::info::procfs;
use crate::output::{self, Failure, Progress};
pub(crate) use rank::median;
use rank::{RankReport, Request};
pub(crate) use remote::pattern;
pub(crate) use report::time;
use report::{DemoOutcome, OpenResources};

/// Starts unrelated processes that share blocks of memory by handles, and shows times, caches and
/// leaked resources.
///
/// Each process exports its blocks and opens those of all other processes. Handles are sent as
/// text. Readers check the contents and write a reply into the block; the owner checks the replies.
/// In the end all blocks are freed, and their handles must fail as stale. No file descriptor,
/// mapping, name, socket or process may be left behind.
///
/// With --remote one process reads and writes a block of another over libfabric, as if it ran on
/// another machine: it is in a network namespace of its own, joined by a veth pair, and maps no
/// memory of this machine (remote.local = false). Where the kernel refuses namespaces, or there is
/// no ip(8), or UMF_REMOTE_INTERFACE or a provider without IP is set, both stay in this network.
#[derive(Args)]
pub(crate) struct DemoCommand {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,

    /// Blocks that each process exports
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    blocks: u32,

    /// Size of a block: bytes, or with a unit as in 64KiB [default: 64KiB; with --remote 16MiB]
    #[arg(long, value_name = "BYTES")]
    size: Option<ByteSize>,

    /// How file descriptors are sent [default: the setting ipc.exchange]
    #[arg(long)]
    exchange: Option<Exchange>,

    /// The provider of the memory: a provider set of the settings, or level-zero, cuda or dma-buf
    /// [default: shared memory of the host]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,

    /// The longest that one step may take, in seconds [default: by the amount of work]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,

    /// Read and write a block over libfabric, as from another machine
    #[arg(long, conflicts_with_all = ["ranks", "blocks", "exchange", "provider"])]
    remote: bool,

    /// Print one JSON document; times in nanoseconds
    #[arg(long)]
    json: bool,

    /// Serve as a rank.
    #[arg(long, hide = true)]
    rank: bool,
}

/// The values of `--exchange`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Exchange {
    Pidfd,
    Procfs,
    Socket,
    Auto,
}

/// The parameters of a demo, known to every process in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    /// Provider set of the memory; `None` is shared memory of the host.
    provider: Option<String>,
    ranks: u32,
    /// Blocks per rank.
    blocks: u32,
    /// Bytes per block, at least 1.
    size: usize,
    /// Random seed of the contents of this run.
    run: u64,
}

impl DemoCommand {
    /// Runs the demo and prints its results.
    ///
    /// # Errors
    /// A step failed, or a resource was left behind.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.rank {
            return Ok(if self.remote { remote::serve() } else { rank::serve() }?);
        }
        let settings = Settings::load(Loader::new())?;
        for warning in settings.loaded().warnings() {
            output::print_diagnostic(&format!("warning: {warning}"));
        }
        let timeout = self.timeout.map(Duration::from_secs);
        if self.remote {
            let size = self.size.map_or(Ok(16 << 20), |size| usize::try_from(size.get()));
            return remote::run(&settings.remote, size.unwrap_or(usize::MAX), seed(), timeout, self.json);
        }
        let plan = self.plan()?;
        let exchange = match self.exchange.and_then(|exchange| exchange.to_possible_value()) {
            Some(exchange) => exchange.get_name().to_owned(),
            None => settings.ipc.exchange.to_string(),
        };
        if plan.provider.is_some() {
            // Reports an unusable provider once, instead of once per rank.
            drop(plan.pool().map_err(|error| Failure::Message(error.to_string()))?);
        }
        umf::level_zero::release_unused();
        let outcome = launch(plan, exchange, timeout)?;
        let printed = if self.json { outcome.json()? } else { outcome.table(output::wants_colour()) };
        output::print(&printed)?;
        if outcome.leaked.is_empty() {
            return Ok(());
        }
        Err(Failure::Message(format!("left behind: {}", outcome.leaked.join(", "))))
    }

    fn plan(&self) -> Result<Plan, Failure> {
        const RANK_BYTES: u64 = 8 << 20;
        /// Bytes of a block beyond its contents.
        const BLOCK_BYTES: u64 = 2 << 10;
        const OPEN_BYTES: u64 = 1 << 10;
        let asked = self.size.unwrap_or(ByteSize::new(64 << 10));
        let size = usize::try_from(asked.get()).unwrap_or(usize::MAX);
        if size == 0 {
            return Err(Failure::Message(
                "cannot run with --size 0: a block has at least 1 byte; pass a larger --size".to_owned(),
            ));
        }
        let (provider, run) = (self.provider.clone(), seed());
        let plan = Plan { provider, ranks: self.ranks, blocks: self.blocks, size, run };
        let ranks = u64::from(self.ranks);
        // Slabs and large blocks are rounded up by at most an eighth.
        let block = (size as u64).saturating_add(size as u64 / 8).saturating_add(BLOCK_BYTES);
        let needs = (ranks * u64::from(self.blocks)).saturating_mul(block);
        let needs =
            needs.saturating_add(ranks * RANK_BYTES).saturating_add(plan.opens().saturating_mul(OPEN_BYTES));
        let is_available = usize::try_from(needs)
            .is_ok_and(|bytes| umf_os::AvailableMemory::find().check(bytes, "").is_ok());
        if is_available {
            return Ok(plan);
        }
        Err(Failure::Message(format!(
            "cannot run {} ranks with {} blocks of {}: they need about {} of memory, which is more than is available; \
             pass smaller --ranks, --blocks or --size",
            self.ranks,
            self.blocks,
            asked,
            output::format_bytes(needs),
        )))
    }
}

impl Plan {
    /// Builds a pool over the plan's provider.
    fn pool(&self) -> umf::Result<umf::Pool> {
        match &self.provider {
            Some(provider) => umf::Pool::over(provider),
            None => umf::Pool::shared(),
        }
    }

    /// Returns the bytes of one rank's blocks.
    fn rank_bytes(&self) -> u64 {
        u64::from(self.blocks).saturating_mul(self.size as u64)
    }

    /// Returns the number of opens of all ranks together.
    fn opens(&self) -> u64 {
        let ranks = u64::from(self.ranks);
        (ranks * (ranks - 1)).saturating_mul(self.blocks.into())
    }
}

/// Returns a seed for the contents of a run.
fn seed() -> u64 {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    clock.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40)
}

/// Runs the demo. All ranks have exited when it returns.
///
/// # Errors
/// The rank that failed, the step, and the reason.
fn launch(plan: Plan, exchange: String, timeout: Option<Duration>) -> Result<DemoOutcome, Failure> {
    let before = OpenResources::now();
    let mut ranks = Ranks::start(&plan, &exchange, timeout)?;
    let carried = ranks.run_steps(&plan)?;
    let reports = ranks.finish()?;
    let mut leaked = OpenResources::now().leaked_since(&before);
    // Abstract sockets are named after the nonce of their rank.
    let sockets = procfs::text("/proc/net/unix").unwrap_or_default();
    let nonces: Vec<&str> = reports.iter().filter_map(|report| report.nonce.as_deref()).collect();
    let sockets = sockets.lines().filter_map(|line| line.split('@').nth(1));
    let sockets = sockets.filter(|name| nonces.iter().any(|nonce| name.contains(nonce)));
    leaked.extend(sockets.map(|name| format!("socket @{name}")));
    for (number, report) in reports.iter().enumerate() {
        let names = report.before.shared_memory_names().filter(|name| std::path::Path::new(name).exists());
        leaked.extend(names.map(|name| format!("name {name}")));
        let more = report.after.leaked_since(&report.before);
        leaked.extend(more.into_iter().map(|what| format!("rank {number}: {what}")));
    }
    Ok(DemoOutcome { plan, exchange, carried, ranks: reports, leaked })
}

/// Describes the descriptor and the driver's bytes of a handle.
fn carried(handle: &Handle) -> String {
    match (handle.data_fd().is_some(), handle.native().len()) {
        (true, 0) => "a descriptor".to_owned(),
        (true, native) => format!("a descriptor and {native} bytes of the driver's"),
        (false, native) => format!("{native} bytes of the driver's"),
    }
}

struct Ranks {
    children: Vec<Child>,
    timeout: Duration,
    progress: Progress,
}

impl Ranks {
    fn start(plan: &Plan, exchange: &str, timeout: Option<Duration>) -> Result<Ranks, Failure> {
        // A rank on a busy machine writes at least 20 MB and opens at least 5,000 handles per
        // second.
        let work = u64::from(plan.ranks) * plan.rank_bytes() / (20 << 20) + plan.opens() / 5_000;
        let timeout = timeout.unwrap_or(Duration::from_secs(30 + work));
        let mut ranks = Ranks { children: Vec::new(), timeout, progress: Progress::new() };
        let output =
            || std::io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
        for number in 0..plan.ranks {
            ranks.progress.step(format!("starting process {} of {}", number + 1, plan.ranks));
            // This process has shown the warnings.
            let variables = [("UMF_IPC_EXCHANGE", exchange), ("UMF_LOG_WARNINGS", "false")];
            let child = Child::start(&["demo", "--rank"], &variables, output);
            ranks.children.push(child.map_err(|error| Failure::Message(format!("rank {number}: {error}")))?);
        }
        for number in 0..plan.ranks {
            ranks.request::<()>("starting", &[number as usize], &(plan, number))?;
        }
        Ok(ranks)
    }

    /// Runs all steps. Returns what a handle carries.
    fn run_steps(&mut self, plan: &Plan) -> Result<String, Failure> {
        let exported: Vec<Vec<Handle>> =
            self.request_all("filling and exporting blocks", &Request::Export)?;
        let carried = exported.iter().flatten().next().map_or_else(String::new, carried);
        for (owner, handles) in (0..).zip(exported) {
            let others: Vec<usize> = (0..self.children.len()).filter(|number| *number != owner).collect();
            let step = format!("opening the blocks of rank {owner} ({} of {})", owner + 1, plan.ranks);
            self.request::<()>(&step, &others, &Request::Open { owner: owner as u32, handles })?;
        }
        for distance in 1..plan.ranks {
            self.request_all::<()>("answering", &Request::Answer { distance })?;
            self.request_all::<()>("checking answers", &Request::Verify { distance })?;
        }
        for number in 0..self.children.len() {
            self.request::<()>(&format!("rank {number}: measuring"), &[number], &Request::Measure)?;
        }
        self.request_all::<()>("freeing blocks", &Request::Free)?;
        self.request_all::<()>("trying handles of freed blocks", &Request::OpenStale)?;
        self.request_all::<()>("emptying the caches", &Request::EmptyCaches)?;
        Ok(carried)
    }

    fn finish(mut self) -> Result<Vec<RankReport>, Failure> {
        let reports = self.request_all("leaving", &Request::Leave)?;
        for (number, child) in self.children.into_iter().enumerate() {
            let pid = child.pid();
            let fail = |error| Failure::Message(format!("rank {number} (process {pid}) {error}"));
            child.finish().map_err(fail)?;
        }
        Ok(reports)
    }

    fn request_all<T: DeserializeOwned>(&mut self, step: &str, request: &Request) -> Result<Vec<T>, Failure> {
        let all: Vec<usize> = (0..self.children.len()).collect();
        self.request(step, &all, request)
    }

    /// Sends a request to some ranks and waits for their replies.
    fn request<T: DeserializeOwned>(
        &mut self,
        step: &str,
        numbers: &[usize],
        request: &impl Serialize,
    ) -> Result<Vec<T>, Failure> {
        let Self { children, timeout, progress } = self;
        progress.step(step);
        let line = serde_json::to_string(request).map_err(std::io::Error::from)?;
        let fail = |number: usize, pid: u32, why: &dyn std::fmt::Display| {
            Failure::Message(format!("rank {number} (process {pid}) {why}, while {step}"))
        };
        for &number in numbers {
            let child = &mut children[number];
            child.send(&line, *timeout).map_err(|error| fail(number, child.pid(), &error))?;
        }
        let mut replies = Vec::new();
        for &number in numbers {
            let child = &mut children[number];
            let reply = child.receive::<Result<T, String>>(*timeout, || progress.tick());
            let reply = reply.map_err(|error| fail(number, child.pid(), &error))?;
            replies.push(reply.map_err(|why| fail(number, child.pid(), &format!("failed: {why}")))?);
        }
        Ok(replies)
    }
}
