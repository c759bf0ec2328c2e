//! What the ranks of a job cost together, by their number: one process each.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umf::link::{Element, Fabric, Operation, Reduction};
use umf_benches::Result;
use umf_benches::bench::{self, Bench};
use umf_benches::measure::Measured;
use umf_benches::process::{self, Second};

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);

/// What each rank is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    job: String,
    rank: usize,
    size: usize,
    times: usize,
}

/// What it took, in nanoseconds, and what a rank has afterwards.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Took {
    first_barrier: f64,
    all_pairs: f64,
    barrier: f64,
    allreduce: f64,
    fds: usize,
    mappings: usize,
}

fn main() -> ExitCode {
    bench::main(measure, || {
        let mut fabric = None;
        process::serve(|order| rank(&order, &mut fabric))
    })
}

fn measure(bench: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if bench.quick { &[4] } else { &[2, 8, 16, 64] };
    for &size in sizes {
        let prefix = format!("ranks.{size}.");
        if !bench.wants(&prefix) {
            continue;
        }
        let before = shared_memory()?;
        let (start, took, end) = run(size, if bench.quick { 10 } else { 100 })?;
        let most = |of: fn(&Took) -> f64| took.iter().map(of).fold(0.0, f64::max);
        let mut row = |unit, name: &str, value: f64| {
            bench.row_in(unit, &format!("{prefix}{name}"), |_| Ok(Measured { median: value, min: value }))
        };
        row("ms", "start_to_all_pairs", start / 1e6)?;
        row("ms", "first_barrier", most(|took| took.first_barrier) / 1e6)?;
        row("ms", "all_pairs", most(|took| took.all_pairs) / 1e6)?;
        row("us", "barrier", most(|took| took.barrier) / 1e3)?;
        row("us", "allreduce.8b", most(|took| took.allreduce) / 1e3)?;
        row("MiB", "shared_memory", (shared_memory()? - before) / f64::from(1 << 20))?;
        row("", "fds", most(|took| took.fds as f64))?;
        row("", "mappings", most(|took| took.mappings as f64))?;
        drop(end);
    }
    Ok(())
}

/// Bytes of shared memory that this machine uses.
fn shared_memory() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no Shmem in /proc/meminfo")?;
    Ok(kib.trim().parse::<f64>()? * 1024.0)
}

/// A job of so many ranks; what is alive of it afterwards, too.
fn run(size: usize, times: usize) -> Result<(f64, Vec<Took>, Vec<Second>)> {
    let start = Instant::now();
    let job = format!("bench-{}-{size}", std::process::id());
    let mut ranks = (0..size).map(|_| Second::start()).collect::<Result<Vec<_>>>()?;
    for (rank, second) in ranks.iter_mut().enumerate() {
        second.order(&Order { job: job.clone(), rank, size, times })?;
    }
    // The first answer comes after all pairs, the second one when everything is done.
    for second in &mut ranks {
        second.answer::<Took>()?;
    }
    let until_pairs = start.elapsed().as_nanos() as f64;
    for (rank, second) in ranks.iter_mut().enumerate() {
        second.order(&Order { job: String::new(), rank, size, times })?;
    }
    let took = ranks.iter_mut().map(Second::answer).collect::<Result<Vec<Took>>>()?;
    Ok((until_pairs, took, ranks))
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
    Ok(all[times / 2])
}

fn rank(order: &Order, kept: &mut Option<(Fabric, Took)>) -> Result<Took> {
    if let Some((fabric, took)) = kept {
        took.barrier = median(order.times, || Ok(fabric.barrier()?))?;
        let sum = Reduction::new(Operation::Sum, Element::F64)?;
        let mut value = [1.0_f64];
        took.allreduce = median(order.times, || Ok(fabric.allreduce(&mut value[..], sum)?))?;
        took.fds = std::fs::read_dir("/proc/self/fd")?.count();
        took.mappings = std::fs::read_to_string("/proc/self/maps")?.lines().count();
        return Ok(*took);
    }
    let mut fabric = Fabric::join(&order.job, order.rank, order.size)?;
    fabric.set_timeout(Some(PATIENCE));
    let mut took = Took::default();
    let start = Instant::now();
    fabric.barrier()?;
    took.first_barrier = nanoseconds(start);
    let start = Instant::now();
    for distance in 1..order.size {
        let (to, from) =
            ((order.rank + distance) % order.size, (order.rank + order.size - distance) % order.size);
        fabric.send(to, 1, &order.rank.to_le_bytes())?;
        let mut bytes = [0; 8];
        fabric.recv(from, 1, &mut bytes)?;
        if usize::from_le_bytes(bytes) != from {
            return Err(format!("rank {from} says to be {bytes:?}").into());
        }
    }
    took.all_pairs = nanoseconds(start);
    *kept = Some((fabric, took));
    Ok(took)
}
