//! `umf bench`: what umf costs, beside what others cost, measured in the same run.

mod access;
mod c_umf;
mod capi;
mod cuda;
mod ipc;
mod leases;
mod link;
mod marker;
mod measure;
mod pool;
mod producer;
mod row;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use c_umf::{CUmf, Memory, Settings};
use row::Rows;

/// Measures umf and its peers in one run, and shows NAME, OURS, PEER and RATIO (ours to the peer's).
///
/// Values are medians of many short batches, per operation and thread. The rows `marker.*` say how fast this machine is
/// just now: compare runs only if they agree.
#[derive(Args)]
pub(crate) struct BenchCommand {
    /// What to measure
    #[arg(required_unless_present_any = ["producer", "link_peer"])]
    area: Option<Area>,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    /// The C library to measure beside: its libumf.so.1
    #[arg(long, value_name = "PATH")]
    peer_umf: Option<PathBuf>,

    /// This project's libumf.so.1 (capi); by default the one beside this program, or in ../lib
    #[arg(long, value_name = "PATH")]
    ours: Option<PathBuf>,

    /// Measure for a short time only: for trying out, not for comparing
    #[arg(long)]
    quick: bool,

    /// Show only rows with one of these texts in their names, such as small.random or .xfree.
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    rows: Vec<String>,

    /// Draw half round trips by size and engine there, as SVG (link)
    #[arg(long, value_name = "OUT.svg")]
    plot: Option<PathBuf>,

    /// Serve as the other process; the value is who started it.
    #[arg(long, hide = true)]
    producer: Option<u32>,

    /// Serve as the other process of links.
    #[arg(long, hide = true)]
    link_peer: Option<u32>,

    /// Measure one thing that wants a process of its own, and print its value.
    #[arg(long, hide = true, num_args = 2, value_names = ["ROW", "ALLOCATOR"])]
    alone: Option<Vec<String>>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Area {
    /// Handles: getting, opening, closing
    Ipc,
    /// Allocation
    Pool,
    /// Messages between two processes
    Link,
    /// Memory of an NVIDIA device: allocation, handles, copies
    Cuda,
    /// The C interface: this project's libumf.so.1 and the original's
    Capi,
}

/// What every measurement needs.
struct Bench {
    /// How long each row is measured.
    time: Duration,
    quick: bool,
    rows: Rows,
    peer: Option<CUmf>,
    peer_path: Option<PathBuf>,
    /// This project's C library, where it is named.
    ours_path: Option<PathBuf>,
    /// Where to draw.
    plot: Option<PathBuf>,
}

impl Bench {
    /// How long one of several is measured that have turns.
    fn turn(&self) -> Duration {
        self.time / turns::ROUNDS as u32
    }
}

impl BenchCommand {
    /// Measures and prints.
    ///
    /// # Errors
    /// What kept something from being measured.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(launcher) = self.producer {
            return producer::serve(launcher);
        }
        if let Some(launcher) = self.link_peer {
            return link::serve(launcher);
        }
        let Some(area) = self.area else { return Ok(()) };
        let pool_over = match area {
            Area::Ipc | Area::Link | Area::Cuda => Some(Memory::Shared),
            Area::Pool => Some(Memory::Private),
            // Makes pools of its own.
            Area::Capi => None,
        };
        let peer = match (&self.peer_umf, pool_over) {
            (Some(path), Some(memory)) => Some(CUmf::open("--peer-umf", path, Settings::pooling(memory))?),
            _ => None,
        };
        let time = Duration::from_millis(if self.quick { 5 } else { 300 });
        let rows = Rows::new(self.json, self.rows.clone());
        let (peer_path, ours_path, plot) = (self.peer_umf.clone(), self.ours.clone(), self.plot.clone());
        let mut bench = Bench { time, quick: self.quick, rows, peer, peer_path, ours_path, plot };
        if let (Area::Pool, Some([row, allocator])) = (area, self.alone.as_deref()) {
            return pool::alone(&bench, row, allocator);
        }
        marker::measure(&mut bench)?;
        match area {
            Area::Ipc => ipc::measure(&mut bench)?,
            Area::Pool => pool::measure(&mut bench)?,
            Area::Link => link::measure(&mut bench)?,
            Area::Cuda => cuda::measure(&mut bench)?,
            Area::Capi => capi::measure(&mut bench)?,
        }
        bench.rows.finish()
    }
}
