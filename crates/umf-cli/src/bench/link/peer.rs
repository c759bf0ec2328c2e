//! The other process: does its part of a row, as it is told over the link itself.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umf::link::{Destination, Engine, Link, LinkAddress, LinkSettings, Memory, Source, TagMatch};
use umf::{Block, Handle, Pool};

use super::super::measure::told;
use super::{allreduce, raw, strided};
use crate::failure::Failure;
use crate::sys::processors;
use crate::worker::Launcher;

/// How long either side waits for the other one.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What the other process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Connect, and use this engine.
    Connect { address: LinkAddress, engine: Option<String> },
    /// Send back what comes, so many times; `fresh`: after writing it anew.
    Echo { size: usize, warm: u64, count: u64, pool: bool, fresh: bool },
    /// Receive so many messages.
    Sink { size: usize, count: u64, pool: bool },
    /// Receive and send at the same time.
    Exchange { size: usize, count: u64, pool: bool },
    /// Look at what is handed over, and hand over the own.
    Views { size: usize, count: u64 },
    /// Copy what is there out of a mapping each time that it was written.
    CopyOut { handle: Box<Handle>, size: usize, count: u64 },
    /// Read it by the kernel.
    Read { pid: u32, address: u64, size: usize, count: u64 },
    /// Have memory of the pool that the other process fetches.
    Expose { size: usize },
    /// Sum with the other process, so many times.
    AllReduce { job: String, size: usize, count: u64, pool: bool },
    /// Throw a line back.
    Line { handle: Box<Handle>, count: u64 },
}

/// What came of it: nanoseconds that were spent on what is not to count, or on what is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done { nanoseconds: f64 },
    Failed(String),
}

/// Settings with this engine.
pub(super) fn settings(engine: Option<&str>) -> Result<LinkSettings, Failure> {
    let mut settings = umf::link::link_settings().map_err(told)?;
    let engine = engine.map(str::parse::<Engine>).transpose();
    settings.engine = engine.map_err(|()| Failure::Told("no such engine".to_owned()))?;
    settings.timeout = Some(PATIENCE);
    Ok(settings)
}

/// Memory of a row: a pool's, or the process's own.
pub(super) enum Buffer<'b> {
    Pool(&'b Memory<'b>),
    Plain(Vec<u8>),
}

impl Buffer<'_> {
    pub(super) fn source(&self) -> Source<'_> {
        match self {
            Self::Pool(memory) => (*memory).into(),
            Self::Plain(bytes) => bytes.into(),
        }
    }

    pub(super) fn destination(&mut self) -> Destination<'_> {
        match self {
            Self::Pool(memory) => (*memory).into(),
            Self::Plain(bytes) => bytes.into(),
        }
    }

    /// Writes all of it; returns the nanoseconds.
    pub(super) fn write(&mut self, value: u8) -> f64 {
        let start = Instant::now();
        match self {
            Self::Pool(memory) => raw::fill(&memory.slice(), value),
            Self::Plain(bytes) => bytes.fill(value),
        }
        start.elapsed().as_nanos() as f64
    }
}

/// Two of a kind: one to send from, one to receive into.
pub(super) fn with_buffers<T>(
    pool: &Pool,
    is_pool: bool,
    size: usize,
    run: impl FnOnce([Buffer<'_>; 2]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if !is_pool {
        return run([Buffer::Plain(vec![1; size]), Buffer::Plain(vec![2; size])]);
    }
    let allocate = || pool.allocate(size).map_err(told);
    let blocks: [Block<'_>; 2] = [allocate()?, allocate()?];
    for block in &blocks {
        raw::fill(&block.memory().map_err(told)?, 1);
    }
    let [one, other] = [blocks[0].linked().map_err(told)?, blocks[1].linked().map_err(told)?];
    run([Buffer::Pool(&one), Buffer::Pool(&other)])
}

/// Plays the other process until the launcher has no more orders.
pub(in super::super) fn serve(launcher: u32) -> Result<(), Failure> {
    let Some(mut launcher) = Launcher::listen(launcher)? else { return Ok(()) };
    let _ = processors::stay_on(1);
    let pool = Pool::shared().map_err(told)?;
    let mut link = None;
    while let Some(order) = launcher.order::<Order>()? {
        let done = obey(&pool, &mut link, order);
        let answer = match done {
            Ok(nanoseconds) => Answer::Done { nanoseconds },
            Err(failure) => Answer::Failed(failure.to_string()),
        };
        launcher.answer(&answer)?;
    }
    Ok(())
}

fn obey(pool: &Pool, link: &mut Option<Link>, order: Order) -> Result<f64, Failure> {
    if let Order::Connect { address, engine } = &order {
        let builder = umf::link::builder().map_err(told)?.settings(settings(engine.as_deref())?);
        *link = Some(builder.connect(address, Some(PATIENCE)).map_err(told)?);
        return Ok(0.0);
    }
    let link = link.as_mut().ok_or_else(|| told("there is no link yet"))?;
    match order {
        Order::Connect { .. } => Ok(0.0),
        Order::Echo { size, warm, count, pool: is_pool, fresh } => {
            with_buffers(pool, is_pool, size, |[mut one, mut other]| {
                let mut writing = 0.0;
                for number in 0..warm + count {
                    link.recv(TagMatch::ANY, other.destination()).map_err(told)?;
                    if fresh {
                        let time = one.write(number as u8);
                        writing += if number < warm { 0.0 } else { time };
                    }
                    link.send(0, one.source()).map_err(told)?;
                }
                Ok(writing)
            })
        }
        Order::Sink { size, count, pool: is_pool } => with_buffers(pool, is_pool, size, |[_, mut into]| {
            for _ in 0..count {
                link.recv(TagMatch::ANY, into.destination()).map_err(told)?;
            }
            Ok(0.0)
        }),
        Order::Exchange { size, count, pool: is_pool } => {
            with_buffers(pool, is_pool, size, |[from, mut into]| {
                for _ in 0..count {
                    link.exchange(0, from.source(), TagMatch::ANY, into.destination()).map_err(told)?;
                }
                Ok(0.0)
            })
        }
        Order::Views { size, count } => with_buffers(pool, true, size, |[one, _]| {
            let mut last = None;
            for _ in 0..count {
                drop(link.recv_view(TagMatch::ANY).map_err(told)?);
                last = Some(link.hand_over(0, one.source()).map_err(told)?);
            }
            // What is freed before the peer has opened it, the peer does not get.
            last.map_or(Ok(()), |lent| lent.wait(None)).map_err(told)?;
            Ok(0.0)
        }),
        Order::CopyOut { handle, size, count } => {
            let mapping = umf::open(&handle).map_err(told)?;
            let from = mapping.memory().map_err(told)?;
            let from = from.subslice(0, size).map_err(told)?;
            with_buffers(pool, true, size, |[_, mut into]| {
                timed(link, &mut into, count, |into| raw::copy(&from, into))
            })
        }
        Order::Read { pid, address, size, count } => with_buffers(pool, false, size, |[_, mut into]| {
            timed(link, &mut into, count, |into| raw::read(pid, address, into))
        }),
        Order::Expose { size } => strided::expose(pool, link, size),
        Order::AllReduce { job, size, count, pool: is_pool } => {
            allreduce::reduce(pool, &job, 1, (size, count, is_pool))
        }
        Order::Line { handle, count } => {
            let mapping = umf::open(&handle).map_err(told)?;
            raw::throw_back(&mapping.memory().map_err(told)?, count)?;
            Ok(0.0)
        }
    }
}

/// Copies each time that a message says that there is something new; returns the nanoseconds of the copies alone, each.
fn timed(
    link: &mut Link,
    into: &mut Buffer<'_>,
    count: u64,
    mut copy: impl FnMut(&mut Buffer<'_>) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let mut all = 0.0;
    for number in 0..count + 1 {
        link.recv(TagMatch::ANY, &mut [0; 8]).map_err(told)?;
        let start = Instant::now();
        copy(into)?;
        // The first one has its pages brought.
        all += if number == 0 { 0.0 } else { start.elapsed().as_nanos() as f64 };
        link.send(0, &[0; 8]).map_err(told)?;
    }
    Ok(all / count as f64)
}
