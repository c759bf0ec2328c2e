//! Messages between two processes, by size and engine; the limits of the machine.
//!
//! The first process sends an [`Order`] for each round, which both execute.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umf::link::{
    Destination, Engine, KEY_SIZE, Link, LinkAddress, LinkSettings, Memory, Operation, Reduction,
    RemoteAccess, RemoteKey, Source, Span, TagMatch,
};
use umf::{Block, Handle, Pool, View};
use umf_benches::Result;
use umf_benches::bench::{self, Bench};
use umf_benches::measure::{Measured, nanoseconds, pin_to};
use umf_benches::process::{self, Second};

/// The time that each process waits for the other one.
const TIMEOUT: Duration = Duration::from_secs(60);

const SIZES: [(&str, usize); 3] = [("64k", 64 << 10), ("1m", 1 << 20), ("16m", 16 << 20)];

/// The engines, and whether their rows use memory of a pool.
const ENGINES: [(&str, bool); 4] = [("both", true), ("mapped", true), ("cma", false), ("bounce", false)];

/// Bytes of an entry of strided memory.
const ENTRY: usize = 2048;
/// Bytes from the start of an entry to the start of the next one.
const STRIDE: usize = 3072;

fn main() -> ExitCode {
    bench::main(measure, serve)
}

fn measure(bench: &mut Bench) -> Result<()> {
    let mut second = Second::start()?;
    pin_to(0);
    let link = connect(&mut second, None)?;
    eprintln!("the link of this run:\n{}", link.engines());
    let mut pair = Pair { second, pool: Pool::shared()?, link };
    messages(bench, &mut pair)?;
    raw_copies(bench, &mut pair)?;
    engines(bench, &mut pair)?;
    strided_gets(bench, &mut pair)?;
    all_reduces(bench, &mut pair)
}

/// Converts nanoseconds to microseconds.
fn microseconds(time: f64) -> f64 {
    time / 1e3
}

/// Returns a function that converts the nanoseconds for `size` bytes to GB/s.
fn bandwidth(size: usize) -> impl Fn(f64) -> f64 {
    move |time| size as f64 / time
}

/// Measures the marker, and messages over a link that chooses its engines.
fn messages(bench: &mut Bench, pair: &mut Pair) -> Result<()> {
    pair.row(bench, "us", "link.line", microseconds, |pair, count| pair.line(count))?;
    for (name, size) in [("8b", 8), ("1k", 1024), ("4k", 4096)] {
        let row = format!("link.latency.{name}");
        pair.row(bench, "us", &row, microseconds, |pair, count| pair.echoes(size, count, false, false))?;
    }
    let rate = |time| 1e3 / time;
    pair.row(bench, "M/s", "link.rate.8b", rate, |pair, count| pair.stream(8, count.max(1000), false))?;
    for (name, size) in SIZES {
        let row = format!("link.exchange.{name}");
        pair.row(bench, "GB/s", &row, bandwidth(2 * size), |pair, count| pair.exchanges(size, count))?;
    }
    for (name, size) in &SIZES[1..] {
        let row = format!("link.handover.{name}");
        pair.row(bench, "us", &row, microseconds, |pair, count| pair.handovers(*size, count))?;
    }
    Ok(())
}

/// Measures the copies that the engines are made of, without a link.
fn raw_copies(bench: &mut Bench, pair: &mut Pair) -> Result<()> {
    for (name, size) in SIZES {
        let row = format!("link.raw.{name}.copy_out");
        pair.row(bench, "GB/s", &row, bandwidth(size), |pair, count| pair.copies(size, count, false))?;
        if pair.link.engines().cma().is_ok() {
            let row = format!("link.raw.{name}.readv");
            pair.row(bench, "GB/s", &row, bandwidth(size), |pair, count| pair.copies(size, count, true))?;
        }
    }
    Ok(())
}

/// Measures messages with each engine.
fn engines(bench: &mut Bench, pair: &mut Pair) -> Result<()> {
    for (engine, is_pool) in ENGINES {
        if !pair.connect_with(engine)? {
            continue;
        }
        for (name, size) in SIZES {
            let row = format!("link.halfrtt.{name}.{engine}");
            let echoes = |pair: &mut Pair, count| pair.echoes(size, count, is_pool, true);
            pair.row(bench, "us", &row, microseconds, echoes)?;
            let row = format!("link.bandwidth.{name}.{engine}");
            let stream = |pair: &mut Pair, count| pair.stream(size, count, is_pool);
            pair.row(bench, "GB/s", &row, bandwidth(size), stream)?;
        }
    }
    Ok(())
}

/// Measures fetches of strided memory, by two engines and without a link.
fn strided_gets(bench: &mut Bench, pair: &mut Pair) -> Result<()> {
    for engine in ["mapped", "cma", "raw"] {
        let is_raw = engine == "raw";
        if !pair.connect_with(if is_raw { "cma" } else { engine })? {
            continue;
        }
        for count in [16, 512] {
            let row = format!("link.strided.{count}.{engine}");
            let gets = |pair: &mut Pair, times| pair.gets(count, times, is_raw);
            pair.row(bench, "GB/s", &row, bandwidth(ENTRY * count), gets)?;
        }
    }
    Ok(())
}

/// Measures sums over two ranks, in memory of a pool and of the process.
fn all_reduces(bench: &mut Bench, pair: &mut Pair) -> Result<()> {
    let mut jobs = 0;
    for (name, size) in [("8b", 8), SIZES[1], SIZES[2]] {
        for (kind, is_pool) in [("2r", true), ("2r.private", false)] {
            let row = format!("link.allreduce.{name}.{kind}");
            pair.row(bench, "us", &row, microseconds, |pair, count| {
                jobs += 1;
                let job = format!("bench-{}-{jobs}", std::process::id());
                pair.second.order(&Order::AllReduce { job: job.clone(), size, count, is_pool })?;
                let time = all_reduce(&pair.pool, &job, 0, size, count, is_pool)?;
                pair.second.answer::<f64>()?;
                Ok(time)
            })?;
        }
    }
    Ok(())
}

/// An order to the second process. Its answer is a time in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    /// Connects, with an engine if given.
    Connect { address: LinkAddress, engine: Option<String> },
    /// Sends each message back. If `is_fresh`, writes the data before each send. Answers the time
    /// of writing.
    Echo { size: usize, warm: u64, count: u64, is_pool: bool, is_fresh: bool },
    /// Receives messages.
    Sink { size: usize, count: u64, is_pool: bool },
    /// Receives and sends at the same time.
    Exchange { size: usize, count: u64 },
    /// Opens memory that the first process hands over, and hands over memory of its own.
    Views { size: usize, count: u64 },
    /// Copies out of a mapping. Answers the time of a copy.
    CopyOut { handle: Box<Handle>, size: usize, count: u64 },
    /// Reads with `process_vm_readv`. Answers the time of a copy.
    Read { pid: u32, address: u64, size: usize, count: u64 },
    /// Registers memory, from which the first process fetches.
    Expose { size: usize },
    /// Sums with the first process.
    AllReduce { job: String, size: usize, count: u64, is_pool: bool },
    /// Sends a cache line back.
    Line { handle: Box<Handle>, count: u64 },
}

fn settings(engine: Option<&str>) -> Result<LinkSettings> {
    let mut settings = umf::link::link_settings()?;
    let engine = engine.map(str::parse::<Engine>).transpose();
    settings.engine = engine.map_err(|_| "no such engine")?;
    settings.timeout = Some(TIMEOUT);
    Ok(settings)
}

fn connect(second: &mut Second, engine: Option<&str>) -> Result<Link> {
    let endpoint = umf::link::builder()?.settings(settings(engine)?).bind()?;
    second.order(&Order::Connect { address: endpoint.address(), engine: engine.map(str::to_owned) })?;
    let link = endpoint.accept(Some(TIMEOUT))?;
    second.answer::<f64>()?;
    Ok(link)
}

/// A buffer of a row: a block of a pool, or memory of the heap.
enum Buffer<'b> {
    Pool(&'b Memory<'b>),
    Plain(Vec<u8>),
}

impl Buffer<'_> {
    fn source(&self) -> Source<'_> {
        match self {
            Self::Pool(memory) => (*memory).into(),
            Self::Plain(bytes) => bytes.into(),
        }
    }

    fn destination(&mut self) -> Destination<'_> {
        match self {
            Self::Pool(memory) => (*memory).into(),
            Self::Plain(bytes) => bytes.into(),
        }
    }

    /// Writes all bytes and returns the nanoseconds.
    fn write(&mut self, value: u8) -> f64 {
        let (time, ()) = nanoseconds(|| match self {
            Self::Pool(memory) => memory.slice().fill(value),
            Self::Plain(bytes) => bytes.fill(value),
        });
        time
    }
}

/// Creates two buffers of a kind: one to send from, one to receive into.
fn with_buffers<T>(
    pool: &Pool,
    is_pool: bool,
    size: usize,
    run: impl FnOnce([Buffer<'_>; 2]) -> Result<T>,
) -> Result<T> {
    if !is_pool {
        return run([Buffer::Plain(vec![1; size]), Buffer::Plain(vec![2; size])]);
    }
    let blocks: [Block<'_>; 2] = [pool.allocate(size)?, pool.allocate(size)?];
    for block in &blocks {
        block.view::<u8>()?.fill(1);
    }
    let [from, into] = [blocks[0].link_memory()?, blocks[1].link_memory()?];
    run([Buffer::Pool(&from), Buffer::Pool(&into)])
}

/// Runs the second process.
fn serve() -> Result<()> {
    pin_to(1);
    let pool = Pool::shared()?;
    let mut link = None;
    process::serve(|order| {
        if let Order::Connect { address, engine } = &order {
            let builder = umf::link::builder()?.settings(settings(engine.as_deref())?);
            link = Some(builder.connect(address, Some(TIMEOUT))?);
            return Ok(0.0);
        }
        execute(&pool, link.as_mut().ok_or("the link is not connected")?, order)
    })
}

fn execute(pool: &Pool, link: &mut Link, order: Order) -> Result<f64> {
    match order {
        Order::Connect { .. } => Ok(0.0),
        Order::Echo { size, warm, count, is_pool, is_fresh } => {
            with_buffers(pool, is_pool, size, |[mut from, mut into]| {
                let mut writing = 0.0;
                for number in 0..warm + count {
                    link.recv(TagMatch::ANY, into.destination())?;
                    if is_fresh {
                        let time = from.write(number as u8);
                        writing += if number < warm { 0.0 } else { time };
                    }
                    link.send(0, from.source())?;
                }
                Ok(writing)
            })
        }
        Order::Sink { size, count, is_pool } => with_buffers(pool, is_pool, size, |[_, mut into]| {
            for _ in 0..count {
                link.recv(TagMatch::ANY, into.destination())?;
            }
            Ok(0.0)
        }),
        Order::Exchange { size, count } => with_buffers(pool, true, size, |[from, mut into]| {
            for _ in 0..count {
                link.exchange(0, from.source(), TagMatch::ANY, into.destination())?;
            }
            Ok(0.0)
        }),
        Order::Views { size, count } => with_buffers(pool, true, size, |[from, _]| {
            let mut last = None;
            for _ in 0..count {
                drop(link.recv_view(TagMatch::ANY)?);
                last = Some(link.hand_over(0, from.source())?);
            }
            // Waits until the peer has opened the last one, before the buffer is freed.
            last.map_or(Ok(()), |handover| handover.wait(None))?;
            Ok(0.0)
        }),
        Order::CopyOut { handle, size, count } => {
            let mapping = umf::open(&handle)?;
            let from = mapping.view::<u8>()?.range(..size).ok_or("the mapping is too short")?;
            with_buffers(pool, true, size, |[_, into]| {
                let Buffer::Pool(into) = into else {
                    return Err("the buffer is not memory of a pool".into());
                };
                timed(link, count, || {
                    from.copy_to_view(into.slice());
                    Ok(())
                })
            })
        }
        Order::Read { pid, address, size, count } => {
            let mut into = vec![0; size];
            timed(link, count, || read(pid, &[(address, size)], &mut into))
        }
        Order::Expose { size } => {
            let block = pool.allocate(size)?;
            block.view::<u8>()?.fill(7);
            link.exposing(&block.link_memory()?, RemoteAccess::Get, |link, key| {
                link.send(0, &key.to_bytes())?;
                link.send(0, &block.address().value().to_le_bytes())?;
                link.recv(TagMatch::ANY, &mut [0; 8])
            })??;
            Ok(0.0)
        }
        Order::AllReduce { job, size, count, is_pool } => all_reduce(pool, &job, 1, size, count, is_pool),
        Order::Line { handle, count } => {
            let mapping = umf::open(&handle)?;
            let [request, reply] = words(mapping.view()?)?;
            for number in 1..=count {
                wait_for(request, number)?;
                reply.store(number, Ordering::Release);
            }
            Ok(0.0)
        }
    }
}

/// Copies once per message, and replies. Returns the nanoseconds of a copy. The first copy is not
/// counted, since it faults the pages in.
fn timed(link: &mut Link, count: u64, mut copy: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut all = 0.0;
    for number in 0..count + 1 {
        link.recv(TagMatch::ANY, &mut [0; 8])?;
        let (time, copied) = nanoseconds(&mut copy);
        copied?;
        all += if number == 0 { 0.0 } else { time };
        link.send(0, &[0; 8])?;
    }
    Ok(all / count as f64)
}

/// Reads ranges of another process in one call (`process_vm_readv(2)`). The list has their
/// addresses and lengths.
fn read(pid: u32, list: &[(u64, usize)], into: &mut [u8]) -> Result<()> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let entry = |&(address, iov_len): &(u64, usize)| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len,
    };
    let remote: Vec<libc::iovec> = list.iter().map(entry).collect();
    // SAFETY: `into` is writable; the kernel checks the addresses in the other process.
    let count = unsafe {
        let (pid, length) = (pid.cast_signed(), remote.len() as libc::c_ulong);
        libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), length, 0)
    };
    match usize::try_from(count) {
        Ok(count) if count == into.len() => Ok(()),
        Ok(count) => Err(format!("process_vm_readv read {count} bytes").into()),
        Err(_) => Err(std::io::Error::last_os_error().into()),
    }
}

/// Returns the two words of [`Order::Line`], which are on separate cache lines.
fn words(memory: View<'_, u64>) -> Result<[&AtomicU64; 2]> {
    let word = |index| memory.atomic(index).ok_or("the block has less than 136 bytes");
    Ok([word(0)?, word(16)?])
}

/// Spins until a word has a value.
fn wait_for(word: &AtomicU64, value: u64) -> Result<()> {
    for spins in 0..1 << 24 {
        if word.load(Ordering::Acquire) == value {
            return Ok(());
        }
        if spins > 1 << 14 {
            std::thread::yield_now();
        }
    }
    Err("the other process did not write the cache line".into())
}

/// Runs one rank of sums over data that both ranks have just written. Returns the nanoseconds of
/// one sum.
fn all_reduce(pool: &Pool, job: &str, rank: usize, size: usize, count: u64, is_pool: bool) -> Result<f64> {
    let mut ranks = umf::link::join(job, rank, 2)?;
    ranks.set_timeout(Some(TIMEOUT));
    let sum = Reduction::of::<f32>(Operation::Sum)?;
    with_buffers(pool, is_pool, size, |[mut data, _]| {
        let mut all = 0.0;
        for number in 0..count + 1 {
            // Bytes of 0x3c are small floats.
            data.write(0x3c);
            ranks.barrier()?;
            let (time, reduced) = nanoseconds(|| ranks.allreduce(data.destination(), sum));
            reduced?;
            // The first sum also connects the ranks.
            all += if number == 0 { 0.0 } else { time };
        }
        ranks.barrier()?;
        Ok(all / count as f64)
    })
}

/// The second process, and the link to it.
struct Pair {
    second: Second,
    pool: Pool,
    link: Link,
}

impl Pair {
    /// Measures a row. `run` returns the nanoseconds per operation of `count`; `convert` converts
    /// them to the unit.
    fn row(
        &mut self,
        bench: &mut Bench,
        unit: &'static str,
        name: &str,
        convert: impl Fn(f64) -> f64,
        mut run: impl FnMut(&mut Pair, u64) -> Result<f64>,
    ) -> Result<()> {
        bench.row_in(unit, name, |bench| {
            let warm = run(self, if bench.quick { 2 } else { 8 })?;
            // Short batches, so that most of them end before the scheduler runs another process.
            let count = ((2e5 / warm.max(1.0)) as u64).clamp(4, if bench.quick { 8 } else { 2000 });
            let end = Instant::now() + bench.time;
            let mut values = Vec::new();
            while values.len() < 3 || Instant::now() < end {
                values.push(run(self, count)?);
            }
            Ok(Measured::of(values)?.map(convert))
        })
    }

    /// Connects with an engine. Returns whether the engine works here.
    fn connect_with(&mut self, engine: &str) -> Result<bool> {
        self.link = connect(&mut self.second, Some(engine))?;
        match self.link.engines().cma() {
            Err(why) if engine == "cma" => {
                eprintln!("no rows of cma: {why}");
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// Measures the transfer of a cache line between the processes, one way.
    fn line(&mut self, count: u64) -> Result<f64> {
        const WARM: u64 = 100;
        let block = self.pool.allocate(4096)?;
        let memory = block.view()?;
        memory.fill(0);
        let count = count.max(100);
        self.second.order(&Order::Line { handle: Box::new(block.handle()?), count: WARM + count })?;
        let [request, reply] = words(memory)?;
        let mut start = Instant::now();
        for number in 1..=WARM + count {
            request.store(number, Ordering::Release);
            wait_for(reply, number)?;
            if number == WARM {
                start = Instant::now();
            }
        }
        let time = start.elapsed().as_nanos() as f64;
        self.second.answer::<f64>()?;
        Ok(time / (2 * count) as f64)
    }

    /// Measures half a round trip. If `is_fresh`, the data is written before each message, and the
    /// time of writing is subtracted.
    fn echoes(&mut self, size: usize, count: u64, is_pool: bool, is_fresh: bool) -> Result<f64> {
        let Self { second, pool, link } = self;
        let warm = 2;
        second.order(&Order::Echo { size, warm, count, is_pool, is_fresh })?;
        with_buffers(pool, is_pool, size, |[mut from, mut into]| {
            let mut echo = |count: u64| -> Result<f64> {
                let (start, mut writing) = (Instant::now(), 0.0);
                for number in 0..count {
                    if is_fresh {
                        writing += from.write(number as u8);
                    }
                    link.send(0, from.source())?;
                    link.recv(TagMatch::ANY, into.destination())?;
                }
                Ok(start.elapsed().as_nanos() as f64 - writing)
            };
            // Warms up with the same memory, since the first use of a mapping faults its pages in.
            echo(warm)?;
            let all = echo(count)?;
            let peer_writing: f64 = second.answer()?;
            Ok((all - peer_writing) / (2 * count) as f64)
        })
    }

    /// Measures messages one after the other. Above 4 KiB the data is written before each message,
    /// and the time of writing is subtracted.
    fn stream(&mut self, size: usize, count: u64, is_pool: bool) -> Result<f64> {
        let Self { second, pool, link } = self;
        second.order(&Order::Sink { size, count: count + 1, is_pool })?;
        with_buffers(pool, is_pool, size, |[mut from, _]| {
            link.send(0, from.source())?;
            let (start, mut writing) = (Instant::now(), 0.0);
            for number in 0..count {
                if size > 4096 {
                    writing += from.write(number as u8);
                }
                link.send(0, from.source())?;
            }
            let all = start.elapsed().as_nanos() as f64 - writing;
            second.answer::<f64>()?;
            Ok(all / count as f64)
        })
    }

    /// Measures simultaneous sends and receives of both processes.
    fn exchanges(&mut self, size: usize, count: u64) -> Result<f64> {
        let Self { second, pool, link } = self;
        second.order(&Order::Exchange { size, count: count + 1 })?;
        with_buffers(pool, true, size, |[from, mut into]| {
            let mut exchange =
                || link.exchange(0, from.source(), TagMatch::ANY, into.destination()).map(drop);
            exchange()?;
            let (all, done) = nanoseconds(|| (0..count).try_for_each(|_| exchange()));
            done?;
            second.answer::<f64>()?;
            Ok(all / count as f64)
        })
    }

    /// Measures half a round trip of memory that is handed over and opened.
    fn handovers(&mut self, size: usize, count: u64) -> Result<f64> {
        let Self { second, pool, link } = self;
        let warm = 70;
        second.order(&Order::Views { size, count: warm + count })?;
        with_buffers(pool, true, size, |[from, _]| {
            let mut round = |_| -> Result<()> {
                link.hand_over(0, from.source())?;
                drop(link.recv_view(TagMatch::ANY)?);
                Ok(())
            };
            (0..warm).try_for_each(&mut round)?;
            let (all, done) = nanoseconds(|| (0..count).try_for_each(&mut round));
            done?;
            second.answer::<f64>()?;
            Ok(all / (2 * count) as f64)
        })
    }

    /// Measures copies without a link, from the same kind of memory as in the rows of an engine.
    fn copies(&mut self, size: usize, count: u64, by_kernel: bool) -> Result<f64> {
        let Self { second, pool, link } = self;
        with_buffers(pool, !by_kernel, size, |[mut from, _]| {
            let order = match &from {
                Buffer::Pool(memory) => Order::CopyOut { handle: Box::new(*memory.handle()), size, count },
                Buffer::Plain(bytes) => {
                    let address = bytes.as_ptr().expose_provenance() as u64;
                    Order::Read { pid: std::process::id(), address, size, count }
                }
            };
            second.order(&order)?;
            for number in 0..count + 1 {
                from.write(number as u8);
                link.send(0, &[0; 8])?;
                link.recv(TagMatch::ANY, &mut [0; 8])?;
            }
            second.answer()
        })
    }

    /// Measures fetches of strided entries, over the link or with one `process_vm_readv`.
    fn gets(&mut self, count: usize, times: u64, is_raw: bool) -> Result<f64> {
        let Self { second, link, .. } = self;
        let pid = link.peer_pid();
        second.order(&Order::Expose { size: STRIDE * count })?;
        let (mut key, mut address) = ([0; KEY_SIZE], [0; 8]);
        link.recv(TagMatch::ANY, &mut key)?;
        link.recv(TagMatch::ANY, &mut address)?;
        let (key, address) = (RemoteKey::from_bytes(&key)?, u64::from_le_bytes(address));
        let spans: Vec<Span> =
            (0..count).map(|number| Span { offset: STRIDE * number, length: ENTRY }).collect();
        let list: Vec<_> = spans.iter().map(|span| (address + span.offset as u64, span.length)).collect();
        let mut into = vec![0; ENTRY * count];
        let mut fetch = || -> Result<()> {
            if is_raw {
                read(pid, &list, &mut into)?
            } else {
                link.get(&key, &spans, &mut into).map(drop)?
            }
            std::hint::black_box(&mut into);
            Ok(())
        };
        fetch()?;
        let (all, done) = nanoseconds(|| (0..times).try_for_each(|_| fetch()));
        done?;
        link.send(0, &[0; 8])?;
        second.answer::<f64>()?;
        Ok(all / times as f64)
    }
}
