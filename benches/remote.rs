//! Validated reads of another process's memory over libfabric. `benches/peers/run --remote` runs this
//! and the same reads without umf.
//!
//! `UMF_REMOTE_PROVIDER`, `UMF_REMOTE_INTERFACE` and `UMF_REMOTE_LIBRARY` choose the fabric; without
//! them it is tcp at 127.0.0.1.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umf_benches::Result;
use umf_benches::bench::{self, Bench};
use umf_benches::measure::{self, Measured};
use umf_benches::process::{self, Second};
use umf_remote::{Error, Remote, RemoteImporter, RemoteSettings, Server};

/// Reads in flight.
const WINDOW: usize = 16;
const SIZE: usize = 16 << 20;

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Order {
    /// Serves a block. The answer is its remote handle.
    Serve,
    /// Opens a block, and reads from it once.
    Open { handle: String },
    /// Reads 1 MiB at a time for some milliseconds. The answer is the number of bytes per second.
    Read { milliseconds: u64 },
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Answer {
    handle: String,
    rate: f64,
}

fn main() -> ExitCode {
    bench::main(measure, || {
        let mut state = None;
        process::serve(|order| second(order, &mut state))
    })
}

fn settings() -> RemoteSettings {
    let mut settings = RemoteSettings::new();
    settings.local = false;
    // Many readers connect at once.
    settings.timeout = Duration::from_secs(30);
    let variable = |name| umf_os::environment::variable(name).and_then(|value| value.into_string().ok());
    if let Some(library) = variable("UMF_REMOTE_LIBRARY") {
        settings.library = library.into();
    }
    settings.provider = variable("UMF_REMOTE_PROVIDER").unwrap_or_else(|| "tcp".to_owned());
    let is_tcp = settings.provider.starts_with("tcp");
    let loopback = if is_tcp { "127.0.0.1" } else { "" };
    settings.interface = variable("UMF_REMOTE_INTERFACE").unwrap_or_else(|| loopback.to_owned());
    settings
}

/// What a second process keeps.
enum State {
    Producer { _server: Server, _block: umf::OwnedBlock },
    Reader(Remote),
}

fn second(order: Order, state: &mut Option<State>) -> Result<Answer> {
    match order {
        Order::Serve => {
            let server = Server::start(umf::exporter()?, umf::importer()?, &settings())?;
            let block = umf::Pool::shared()?.allocate_owned(SIZE)?;
            block.write(0, &vec![1; SIZE])?;
            let handle = server.remote_handle(&block.handle()?)?.to_string();
            *state = Some(State::Producer { _server: server, _block: block });
            Ok(Answer { handle, rate: 0.0 })
        }
        Order::Open { handle } => {
            let remote = open(&handle)?;
            remote.read(0, 1 << 20)?;
            *state = Some(State::Reader(remote));
            Ok(Answer::default())
        }
        Order::Read { milliseconds } => {
            let Some(State::Reader(remote)) = state else { return Err("no block is open".into()) };
            let rate = stream(remote, 1 << 20, WINDOW, Duration::from_millis(milliseconds))?;
            Ok(Answer { handle: String::new(), rate })
        }
    }
}

fn open(handle: &str) -> Result<Remote> {
    // The importer lives as long as the process.
    let importer = Box::leak(Box::new(RemoteImporter::new(umf::importer()?, settings())));
    Ok(importer.open(&handle.parse()?)?)
}

/// Reads with some reads in flight, and returns the bytes per second.
fn stream(remote: &Remote, size: usize, window: usize, time: Duration) -> Result<f64> {
    let mut pending = VecDeque::new();
    let (mut begun, mut bytes) = (0_usize, 0_usize);
    let start = Instant::now();
    while start.elapsed() < time {
        while pending.len() < window {
            let offset = (begun % window) * (SIZE / window);
            let offset = if offset + size > SIZE { 0 } else { offset };
            pending.push_back(remote.start_read(offset, size)?);
            begun += 1;
        }
        if let Some(first) = pending.pop_front() {
            bytes += first.wait()?.len();
        }
    }
    for read in pending {
        bytes += read.wait()?.len();
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

fn measure(bench: &mut Bench) -> Result<()> {
    match umf_remote::providers(&settings()) {
        Err(Error::NoLibrary(why)) => {
            println!("umf-skip: {why}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
        Ok(_) => {}
    }
    let mut producer = Second::start()?;
    producer.order(&Order::Serve)?;
    let handle = producer.answer::<Answer>()?.handle;
    let remote = open(&handle)?;
    let turn = bench.turn();
    bench.row_in("us", "remote.read.64b", |_| {
        let values = measure::singly(turn, || {
            let (time, data) = measure::nanoseconds(|| remote.read(0, 64));
            data?;
            Ok(time)
        })?;
        Ok(Measured::of(values)?.map(|time| time / 1e3))
    })?;
    for (name, size, window) in [("64k", 64 << 10, WINDOW), ("1m", 1 << 20, WINDOW), ("16m", 16 << 20, 2)] {
        bench.row_in("GB/s", &format!("remote.read.{name}"), |_| {
            let mut values = Vec::new();
            for _ in 0..5 {
                values.push(stream(&remote, size, window, turn)?);
            }
            Ok(Measured::of(values)?.map(|rate| rate / 1e9))
        })?;
    }
    let counts: &[usize] = if bench.quick { &[2] } else { &[2, 64] };
    for &count in counts {
        let name = format!("remote.readers.{count}.1m");
        if !bench.wants(&name) {
            continue;
        }
        let mut readers = (0..count).map(|_| Second::start()).collect::<Result<Vec<_>>>()?;
        for reader in &mut readers {
            reader.order(&Order::Open { handle: handle.clone() })?;
            reader.answer::<Answer>()?;
        }
        let milliseconds = turn.as_millis() as u64 * 2;
        bench.row_in("GB/s", &name, |_| {
            readers.iter_mut().try_for_each(|reader| reader.order(&Order::Read { milliseconds }))?;
            let answers: Result<Vec<Answer>> = readers.iter_mut().map(Second::answer).collect();
            let rate: f64 = answers?.iter().map(|answer| answer.rate).sum::<f64>() / 1e9;
            Ok(Measured { median: rate, min: rate })
        })?;
    }
    Ok(())
}
