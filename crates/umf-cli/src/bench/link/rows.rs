//! The rows.

use std::time::{Duration, Instant};

use umf::Pool;
use umf::link::{Link, TagMatch};

use super::super::Bench;
use super::super::measure::{Measured, told};
use super::peer::{Answer, Buffer, Order, PATIENCE, settings, with_buffers};
use super::{allreduce, plot, raw, strided};
use crate::failure::Failure;
use crate::sys::processors;
use crate::worker::{self, Worker};

pub(super) const SIZES: [(&str, usize); 3] = [("64k", 64 << 10), ("1m", 1 << 20), ("16m", 16 << 20)];

/// An engine, and whether it takes memory of pools.
const ENGINES: [(&str, bool); 4] = [("both", true), ("mapped", true), ("cma", false), ("bounce", false)];

/// Both processes, and the link of the engine that is measured.
pub(super) struct Pair {
    pub worker: Worker,
    pub pool: Pool,
    pub link: Link,
    quick: bool,
    time: Duration,
}

/// Adds the rows `link.*`.
pub(in super::super) fn measure(bench: &mut Bench) -> Result<(), Failure> {
    let launcher = std::process::id().to_string();
    let mut worker = Worker::start(&["bench", "--link-peer", &launcher], &[]).map_err(Failure::Told)?;
    let _ = processors::stay_on(0);
    let pool = Pool::shared().map_err(told)?;
    let link = connect(&mut worker, None)?;
    crate::output::tell(&format!("the link of this run:\n{}", link.engines()));
    let mut pair = Pair { worker, pool, link, quick: bench.quick, time: bench.time };
    line(bench, &mut pair)?;
    small(bench, &mut pair)?;
    for (name, size) in [SIZES[1], SIZES[2]] {
        let row = format!("link.handover.{name}");
        let value = rounds(bench, &mut pair, &row, |pair, count| pair.handovers(size, count))?;
        push(bench, &row, value)?;
    }
    raw_limits(bench, &mut pair)?;
    let mut curves = Vec::new();
    for (engine, is_pool) in ENGINES {
        pair.link = connect(&mut pair.worker, Some(engine))?;
        if engine == "cma"
            && let Err(why) = pair.link.engines().cma()
        {
            crate::output::tell(&format!("no rows of cma: {why}"));
            continue;
        }
        let mut curve = Vec::new();
        for (name, size) in SIZES {
            let row = format!("link.halfrtt.{name}.{engine}");
            let value =
                rounds(bench, &mut pair, &row, |pair, count| pair.echoes(size, count, is_pool, true))?;
            curve.extend(value.map(|value| (size, value.median)));
            push(bench, &row, value)?;
            let row = format!("link.bandwidth.{name}.{engine}");
            let value = rounds(bench, &mut pair, &row, |pair, count| pair.stream(size, count, is_pool))?;
            push_rate(bench, &row, value, size)?;
        }
        if bench.plot.is_some() {
            for size in [8 << 10, 16 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 4 << 20] {
                let value = rounds(bench, &mut pair, "the plot", |pair, count| {
                    pair.echoes(size, count, is_pool, true)
                })?;
                curve.extend(value.map(|value| (size, value.median)));
            }
        }
        curve.sort_by_key(|point| point.0);
        curves.push((engine, curve));
    }
    strided::measure(bench, &mut pair)?;
    allreduce::measure(bench, &mut pair)?;
    if let Some(path) = &bench.plot {
        let write = std::fs::write(path, plot::to_svg(&curves));
        write.map_err(|error| Failure::Told(format!("--plot {}: {error}", path.display())))?;
    }
    drop(pair.link);
    pair.worker.finish().map_err(|silence| told(format!("the other process {silence}")))
}

pub(super) fn connect(worker: &mut Worker, engine: Option<&str>) -> Result<Link, Failure> {
    let builder = umf::link::builder().map_err(told)?.settings(settings(engine)?);
    let endpoint = builder.bind().map_err(told)?;
    let order = Order::Connect { address: endpoint.address(), engine: engine.map(str::to_owned) };
    say(worker, &order)?;
    let link = endpoint.accept(Some(PATIENCE)).map_err(told)?;
    answer(worker)?;
    Ok(link)
}

pub(super) fn say(worker: &mut Worker, order: &Order) -> Result<(), Failure> {
    let line = serde_json::to_string(order).map_err(told)?;
    worker.say(&line);
    worker.send_now().map_err(|silence| told(format!("the other process {silence}")))
}

/// What the other process says of its part.
pub(super) fn answer(worker: &mut Worker) -> Result<f64, Failure> {
    let failed = |silence| told(format!("the other process {silence}"));
    worker::converse(&mut [&mut *worker], PATIENCE, || {}).map_err(|(_, silence)| failed(silence))?;
    match worker.answer().map_err(failed)? {
        Answer::Done { nanoseconds } => Ok(nanoseconds),
        Answer::Failed(why) => Err(told(format!("the other process failed: {why}"))),
    }
}

/// Repeats a row, which yields nanoseconds of each of `count`, for the time that rows are measured. `None` if nobody wants it.
pub(super) fn rounds(
    bench: &mut Bench,
    pair: &mut Pair,
    name: &str,
    mut run: impl FnMut(&mut Pair, u64) -> Result<f64, Failure>,
) -> Result<Option<Measured>, Failure> {
    let is_row = name.starts_with("link.");
    if is_row && !bench.rows.are_wanted(name) {
        return Ok(None);
    }
    bench.rows.begin(name);
    let warm = run(pair, if pair.quick { 2 } else { 8 })?;
    // Short batches, so that most of them are over before a scheduler lets somebody else run.
    let count = ((2e5 / warm.max(1.0)) as u64).clamp(4, 2000);
    let count = if pair.quick { count.min(8) } else { count };
    let end = Instant::now() + pair.time;
    let mut values = Vec::new();
    while values.len() < 3 || Instant::now() < end {
        values.push(run(pair, count)?);
    }
    Measured::of(values).map(Some)
}

pub(super) fn push(bench: &mut Bench, name: &str, value: Option<Measured>) -> Result<(), Failure> {
    match value {
        Some(value) => bench.rows.push(name, "us", value.map(|nanoseconds| nanoseconds / 1e3), None),
        None => Ok(()),
    }
}

pub(super) fn push_rate(
    bench: &mut Bench,
    name: &str,
    value: Option<Measured>,
    size: usize,
) -> Result<(), Failure> {
    match value {
        Some(value) => {
            bench.rows.push(name, "GB/s", value.map(|nanoseconds| size as f64 / nanoseconds), None)
        }
        None => Ok(()),
    }
}

fn line(bench: &mut Bench, pair: &mut Pair) -> Result<(), Failure> {
    let value = rounds(bench, pair, "link.line", |pair, count| {
        let block = pair.pool.allocate(4096).map_err(told)?;
        let memory = block.memory().map_err(told)?;
        raw::fill(&memory, 0);
        let handle = Box::new(block.handle().map_err(told)?);
        let (warm, count) = (100, count.max(100));
        say(&mut pair.worker, &Order::Line { handle, count: warm + count })?;
        raw::throw(&memory, 0, warm)?;
        let start = Instant::now();
        raw::throw(&memory, warm, count)?;
        let time = start.elapsed().as_nanos() as f64;
        answer(&mut pair.worker)?;
        Ok(time / (2 * count) as f64)
    })?;
    push(bench, "link.line", value)
}

fn small(bench: &mut Bench, pair: &mut Pair) -> Result<(), Failure> {
    for (name, size) in [("8b", 8), ("1k", 1024), ("4k", 4096)] {
        let row = format!("link.latency.{name}");
        let value = rounds(bench, pair, &row, |pair, count| pair.echoes(size, count, false, false))?;
        push(bench, &row, value)?;
    }
    let value = rounds(bench, pair, "link.rate.8b", |pair, count| pair.stream(8, count.max(1000), false))?;
    if let Some(value) = value {
        bench.rows.push("link.rate.8b", "M/s", value.map(|nanoseconds| 1e3 / nanoseconds), None)?;
    }
    for (name, size) in SIZES {
        let row = format!("link.exchange.{name}");
        let value = rounds(bench, pair, &row, |pair, count| pair.exchanges(size, count))?;
        push_rate(bench, &row, value, 2 * size)?;
    }
    Ok(())
}

/// Copies of what the other process has just written: out of a mapping, and by the kernel.
fn raw_limits(bench: &mut Bench, pair: &mut Pair) -> Result<(), Failure> {
    for (name, size) in SIZES {
        let row = format!("link.raw.{name}.copy_out");
        let value = rounds(bench, pair, &row, |pair, count| pair.copies(size, count, false))?;
        push_rate(bench, &row, value, size)?;
        if pair.link.engines().cma().is_ok() {
            let row = format!("link.raw.{name}.readv");
            let value = rounds(bench, pair, &row, |pair, count| pair.copies(size, count, true))?;
            push_rate(bench, &row, value, size)?;
        }
    }
    Ok(())
}

impl Pair {
    /// Half a round trip of data that was just written, without the writing.
    fn echoes(&mut self, size: usize, count: u64, is_pool: bool, fresh: bool) -> Result<f64, Failure> {
        let Self { worker, pool, link, .. } = self;
        let warm = 2;
        say(worker, &Order::Echo { size, warm, count, pool: is_pool, fresh })?;
        with_buffers(pool, is_pool, size, |[mut one, mut other]| {
            let mut echo = |link: &mut Link, count: u64| -> Result<f64, Failure> {
                let mut all = 0.0;
                for number in 0..count {
                    if fresh {
                        one.write(number as u8);
                    }
                    let start = fresh.then(Instant::now);
                    link.send(0, one.source()).map_err(told)?;
                    link.recv(TagMatch::ANY, other.destination()).map_err(told)?;
                    all += start.map_or(0.0, |start| start.elapsed().as_nanos() as f64);
                }
                Ok(all)
            };
            // In the same memory: what is mapped for the first time has its pages brought one by one.
            echo(link, warm)?;
            let start = Instant::now();
            let timed = echo(link, count)?;
            let all = if fresh { timed } else { start.elapsed().as_nanos() as f64 };
            let writing = answer(worker)?;
            Ok((all - writing) / (2 * count) as f64)
        })
    }

    /// One message after the other, of data that was just written: without the writing.
    fn stream(&mut self, size: usize, count: u64, is_pool: bool) -> Result<f64, Failure> {
        let Self { worker, pool, link, .. } = self;
        say(worker, &Order::Sink { size, count: count + 1, pool: is_pool })?;
        with_buffers(pool, is_pool, size, |[mut one, _]| {
            link.send(0, one.source()).map_err(told)?;
            let is_fresh = size > 4096;
            let (mut all, start) = (0.0, Instant::now());
            for number in 0..count {
                if is_fresh {
                    one.write(number as u8);
                }
                let start = is_fresh.then(Instant::now);
                link.send(0, one.source()).map_err(told)?;
                all += start.map_or(0.0, |start| start.elapsed().as_nanos() as f64);
            }
            if !is_fresh {
                all = start.elapsed().as_nanos() as f64;
            }
            answer(worker)?;
            Ok(all / count as f64)
        })
    }

    fn exchanges(&mut self, size: usize, count: u64) -> Result<f64, Failure> {
        let Self { worker, pool, link, .. } = self;
        say(worker, &Order::Exchange { size, count: count + 1, pool: true })?;
        with_buffers(pool, true, size, |[from, mut into]| {
            link.exchange(0, from.source(), TagMatch::ANY, into.destination()).map_err(told)?;
            let start = Instant::now();
            for _ in 0..count {
                link.exchange(0, from.source(), TagMatch::ANY, into.destination()).map_err(told)?;
            }
            let all = start.elapsed().as_nanos() as f64;
            answer(worker)?;
            Ok(all / count as f64)
        })
    }

    fn handovers(&mut self, size: usize, count: u64) -> Result<f64, Failure> {
        let Self { worker, pool, link, .. } = self;
        let warm = 70;
        say(worker, &Order::Views { size, count: warm + count })?;
        with_buffers(pool, true, size, |[one, _]| {
            let round = |link: &mut Link| -> Result<(), Failure> {
                link.hand_over(0, one.source()).map_err(told)?;
                drop(link.recv_view(TagMatch::ANY).map_err(told)?);
                Ok(())
            };
            (0..warm).try_for_each(|_| round(link))?;
            let start = Instant::now();
            (0..count).try_for_each(|_| round(link))?;
            let all = start.elapsed().as_nanos() as f64;
            answer(worker)?;
            Ok(all / (2 * count) as f64)
        })
    }

    /// As the rows of an engine have it: from memory of the same kind, written in the same way.
    fn copies(&mut self, size: usize, count: u64, by_kernel: bool) -> Result<f64, Failure> {
        let Self { worker, pool, link, .. } = self;
        with_buffers(pool, !by_kernel, size, |[mut from, _]| {
            let order = match &from {
                Buffer::Pool(memory) => {
                    let handle = Box::new(*memory.handle());
                    Order::CopyOut { handle, size, count }
                }
                Buffer::Plain(bytes) => {
                    let address = bytes.as_ptr().expose_provenance() as u64;
                    Order::Read { pid: std::process::id(), address, size, count }
                }
            };
            say(worker, &order)?;
            for number in 0..count + 1 {
                from.write(number as u8);
                link.send(0, &[0; 8]).map_err(told)?;
                link.recv(TagMatch::ANY, &mut [0; 8]).map_err(told)?;
            }
            answer(worker)
        })
    }
}
