//! The cost of a job by its number of ranks, with one process per rank.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umf::link::{Communicator, Element, Operation, Reduction};
use umf_benches::Result;
use umf_benches::bench::{self, Bench};
use umf_benches::measure::{Measured, pin_to};
use umf_benches::process::{self, Second};

/// How long a rank waits for the others.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Ranks with which each rank of the sparse job exchanges messages.
const NEIGHBOURS: usize = 16;
/// Ranks of the sparse job.
const SPARSE_RANKS: usize = 256;
/// Messages per batch.
const BATCH: u64 = 2000;

/// An order to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    /// Joins; then a barrier and a message to each other rank, or messages to `NEIGHBOURS` ranks
    /// only.
    Join { job: String, rank: usize, size: usize, is_sparse: bool },
    /// Measures barriers and sums.
    Collectives { times: usize },
    /// Ranks 0 and 1: messages back and forth. `is_any`: rank 0 receives from any rank.
    Echo { is_any: bool, batches: usize },
}

/// Times of a rank in nanoseconds, and its resources afterwards.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Report {
    first_barrier: f64,
    all_pairs: f64,
    barrier: f64,
    allreduce: f64,
    fds: usize,
    mappings: usize,
    half_round_trip: f64,
}

fn main() -> ExitCode {
    bench::main(measure, || {
        let mut comm = None;
        process::serve(|order| rank(order, &mut comm))
    })
}

fn measure(bench: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if bench.quick { &[4] } else { &[2, 8, 16, 64] };
    let times = if bench.quick { 10 } else { 100 };
    for &size in sizes {
        let prefix = format!("ranks.{size}.");
        if !bench.wants(&prefix) {
            continue;
        }
        let before = shared_memory()?;
        let (mut job, start) = Job::start(size, false)?;
        let report = job.all(&Order::Collectives { times })?;
        let most = |of: fn(&Report) -> f64| report.iter().map(of).fold(0.0, f64::max);
        row(bench, "ms", &format!("{prefix}start_to_all_pairs"), start / 1e6)?;
        row(bench, "ms", &format!("{prefix}first_barrier"), most(|report| report.first_barrier) / 1e6)?;
        row(bench, "ms", &format!("{prefix}all_pairs"), most(|report| report.all_pairs) / 1e6)?;
        row(bench, "us", &format!("{prefix}barrier"), most(|report| report.barrier) / 1e3)?;
        row(bench, "us", &format!("{prefix}allreduce.8b"), most(|report| report.allreduce) / 1e3)?;
        let memory = (shared_memory()? - before) / f64::from(1 << 20);
        row(bench, "MiB", &format!("{prefix}shared_memory"), memory)?;
        row(bench, "", &format!("{prefix}fds"), most(|report| report.fds as f64))?;
        row(bench, "", &format!("{prefix}mappings"), most(|report| report.mappings as f64))?;
        // The other ranks are linked and asleep.
        let batches = if bench.quick { 3 } else { 60 };
        for (name, is_any) in [("latency.8b", false), ("any.8b", true)] {
            let report = job.first(2, &Order::Echo { is_any, batches })?;
            row(bench, "us", &format!("{prefix}{name}"), report[0].half_round_trip / 1e3)?;
        }
    }
    let prefix = format!("ranks.{SPARSE_RANKS}.sparse.");
    if !bench.quick && bench.wants(&prefix) {
        let before = shared_memory()?;
        let (mut job, start) = Job::start(SPARSE_RANKS, true)?;
        let memory = (shared_memory()? - before) / f64::from(1 << 20);
        let report = job.all(&Order::Collectives { times: 0 })?;
        let most = |of: fn(&Report) -> usize| report.iter().map(of).max().unwrap_or(0) as f64;
        row(bench, "ms", &format!("{prefix}start_to_end"), start / 1e6)?;
        row(bench, "MiB", &format!("{prefix}shared_memory"), memory)?;
        row(bench, "", &format!("{prefix}fds"), most(|report| report.fds))?;
        row(bench, "", &format!("{prefix}mappings"), most(|report| report.mappings))?;
    }
    Ok(())
}

fn row(bench: &mut Bench, unit: &'static str, name: &str, value: f64) -> Result<()> {
    bench.row_in(unit, name, |_| Ok(Measured { median: value, min: value }))
}

/// Returns the bytes of shared memory in use on this machine.
fn shared_memory() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no Shmem in /proc/meminfo")?;
    Ok(kib.trim().parse::<f64>()? * 1024.0)
}

/// The processes of a job, killed on drop.
struct Job {
    ranks: Vec<Second>,
}

impl Job {
    /// Starts a job. Also returns the nanoseconds until all messages were exchanged.
    fn start(size: usize, is_sparse: bool) -> Result<(Self, f64)> {
        let start = Instant::now();
        let name = format!("bench-{}-{size}", std::process::id());
        let mut ranks = (0..size).map(|_| Second::start()).collect::<Result<Vec<_>>>()?;
        for (rank, second) in ranks.iter_mut().enumerate() {
            second.order(&Order::Join { job: name.clone(), rank, size, is_sparse })?;
        }
        for second in &mut ranks {
            second.answer::<Report>()?;
        }
        Ok((Self { ranks }, nanoseconds(start)))
    }

    fn all(&mut self, order: &Order) -> Result<Vec<Report>> {
        self.first(self.ranks.len(), order)
    }

    /// Sends an order to the first `count` ranks, and waits for their answers.
    fn first(&mut self, count: usize, order: &Order) -> Result<Vec<Report>> {
        let ranks = &mut self.ranks[..count];
        ranks.iter_mut().try_for_each(|rank| rank.order(order))?;
        ranks.iter_mut().map(Second::answer).collect()
    }
}

fn nanoseconds(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64
}

fn median(times: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut all = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        all.push(nanoseconds(start));
    }
    all.sort_by(f64::total_cmp);
    Ok(all.get(times / 2).copied().unwrap_or(0.0))
}

/// Executes an order. `joined` keeps the communicator for the next one.
fn rank(order: Order, joined: &mut Option<(Communicator, Report)>) -> Result<Report> {
    if let Order::Join { job, rank, size, is_sparse } = order {
        let mut comm = Communicator::join(&job, rank, size)?;
        comm.set_timeout(Some(TIMEOUT));
        let mut report = Report::default();
        if !is_sparse {
            let start = Instant::now();
            comm.barrier()?;
            report.first_barrier = nanoseconds(start);
        }
        let start = Instant::now();
        let all = 1..size;
        let near = (1..=NEIGHBOURS / 2).chain(size.saturating_sub(NEIGHBOURS / 2)..size);
        let distances: Vec<usize> = if is_sparse { near.collect() } else { all.collect() };
        for distance in distances {
            exchange(&mut comm, (rank + distance) % size, (rank + size - distance) % size)?;
        }
        report.all_pairs = nanoseconds(start);
        *joined = Some((comm, report));
        return Ok(report);
    }
    let (comm, report) = joined.as_mut().ok_or("the rank has not joined")?;
    match order {
        Order::Join { .. } => {}
        Order::Collectives { times } => {
            report.barrier = median(times, || Ok(comm.barrier()?))?;
            let sum = Reduction::new(Operation::Sum, Element::F64)?;
            let mut value = [1.0_f64];
            report.allreduce = median(times, || Ok(comm.allreduce(&mut value[..], sum)?))?;
            report.fds = std::fs::read_dir("/proc/self/fd")?.count();
            report.mappings = std::fs::read_to_string("/proc/self/maps")?.lines().count();
        }
        Order::Echo { is_any, batches } => {
            pin_to(comm.rank());
            report.half_round_trip = median(batches, || echo(comm, is_any))? / (2 * BATCH) as f64;
        }
    }
    Ok(*report)
}

fn exchange(comm: &mut Communicator, to: usize, from: usize) -> Result<()> {
    let mut bytes = [0; 8];
    comm.send(to, 1, &comm.rank().to_le_bytes())?;
    comm.recv(from, 1, &mut bytes)?;
    if usize::from_le_bytes(bytes) == from {
        Ok(())
    } else {
        Err(format!("the message of rank {from} has {bytes:?}").into())
    }
}

fn echo(comm: &mut Communicator, is_any: bool) -> Result<()> {
    let (mut bytes, is_first) = ([0; 8], comm.rank() == 0);
    for _ in 0..BATCH {
        if is_first {
            comm.send(1, 2, &bytes)?;
        }
        if is_first && is_any {
            comm.recv_any(2, &mut bytes)?;
        } else {
            comm.recv(1 - comm.rank(), 2, &mut bytes)?;
        }
        if !is_first {
            comm.send(0, 2, &bytes)?;
        }
    }
    Ok(())
}
