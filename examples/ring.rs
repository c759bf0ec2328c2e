//! Four worker processes pass typed records of mixed sizes round a ring. One worker is killed in
//! the middle. Its neighbours notice and close the ring without it.
//!
//! A record is a block of the worker that passes it on. Its successor reads it in place, passes on
//! a block of its own, and returns the record when that block was returned. So a worker that dies
//! returns nothing, and its predecessor still has the record.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use umf::link::{Endpoint, Error, Link, LinkAddress};

const WORKERS: usize = 4;
const RECORDS: u64 = 60;
/// The worker that is killed, and the record after which.
const KILLED: (usize, u64) = (2, 30);
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const RECORD: u64 = 1;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The beginning of a record, before its samples. After the last record comes one without samples.
#[repr(C)]
#[derive(Clone, Copy, umf::Plain)]
struct Header {
    number: u64,
    hops: u32,
    samples: u32,
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        None => launch(),
        Some(number) => Worker::join(&umf::Pool::shared()?, number.parse()?)?.run(),
    }
}

/// The workers. Ends those that still run when it is dropped.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

/// Starts the workers, kills one, and waits for the others.
fn launch() -> Result<()> {
    let mut workers = Workers(Vec::new());
    for number in 0..WORKERS {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(number.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        workers.0.push(command.spawn()?);
    }
    // Each worker prints its address, and reads the addresses of all.
    let output = |worker: &mut Child| worker.stdout.take().map(|output| BufReader::new(output).lines());
    let mut outputs: Vec<Lines<BufReader<ChildStdout>>> = workers.0.iter_mut().filter_map(output).collect();
    let mut addresses = String::new();
    for output in &mut outputs {
        addresses += &(output.next().ok_or("a worker ended before it printed its address")?? + "\n");
    }
    for worker in &mut workers.0 {
        worker.stdin.take().ok_or("no pipe to a worker")?.write_all(addresses.as_bytes())?;
    }
    for line in outputs.remove(0) {
        let line = line?;
        println!("{line}");
        if line == format!("record {} is back", KILLED.1) {
            workers.0[KILLED.0].kill()?;
        }
    }
    for (number, worker) in workers.0.iter_mut().enumerate() {
        let status = worker.wait()?;
        if !status.success() && number != KILLED.0 {
            return Err(format!("worker {number} failed: {status}").into());
        }
    }
    for line in outputs.into_iter().flatten() {
        println!("{}", line?);
    }
    Ok(())
}

struct Worker<'p> {
    number: usize,
    pool: &'p umf::Pool,
    endpoint: Endpoint,
    addresses: Vec<LinkAddress>,
    /// The number of the successor, and the link with it.
    successor: (usize, Link),
    predecessor: Link,
}

impl<'p> Worker<'p> {
    fn join(pool: &'p umf::Pool, number: usize) -> Result<Self> {
        let endpoint = umf::link::bind()?;
        println!("{}", endpoint.address());
        std::io::stdout().flush()?;
        let lines = std::io::stdin().lines().take(WORKERS);
        let addresses = lines.map(|line| Ok(line?.parse()?)).collect::<Result<Vec<LinkAddress>>>()?;
        let next = (number + 1) % WORKERS;
        // Connecting waits until the successor accepts, so worker 0 begins.
        let connect = || umf::link::connect(&addresses[next], TIMEOUT);
        let (successor, predecessor) = if number == 0 {
            let successor = connect()?;
            (successor, endpoint.accept(TIMEOUT)?)
        } else {
            let predecessor = endpoint.accept(TIMEOUT)?;
            (connect()?, predecessor)
        };
        let mut worker =
            Self { number, pool, endpoint, addresses, successor: (next, successor), predecessor };
        worker.successor.1.set_timeout(TIMEOUT);
        worker.predecessor.set_timeout(TIMEOUT);
        Ok(worker)
    }

    fn run(mut self) -> Result<()> {
        if self.number != 0 {
            while self.receive(true)?.samples != 0 {}
            return Ok(());
        }
        for number in 1..=RECORDS + 1 {
            // 1 to 250,000 samples of 4 bytes.
            let samples = if number > RECORDS { 0 } else { 1 + (number * number * 977) as u32 % 250_000 };
            let samples: Vec<u32> = (0..samples).map(|sample| sample ^ number as u32).collect();
            self.pass_on(Header { number, hops: 1, samples: samples.len() as u32 }, &samples, true)?;
            if number <= RECORDS {
                println!("record {number} is back");
            }
        }
        println!("{RECORDS} records went round");
        Ok(())
    }

    /// Receives a record. Passes it on if `passes_on`, and then returns it to the predecessor.
    fn receive(&mut self, passes_on: bool) -> Result<Header> {
        let view = loop {
            match self.predecessor.recv_view(RECORD) {
                Ok(view) => break view,
                Err(Error::PeerGone { .. }) => {
                    println!("worker {}: the predecessor is gone; waits for another", self.number);
                    self.predecessor = self.endpoint.accept(TIMEOUT)?;
                    self.predecessor.set_timeout(TIMEOUT);
                }
                Err(error) => return Err(error.into()),
            }
        };
        let bytes = view.slice()?;
        let header = bytes.cast::<Header>()?.get(0).ok_or("a record without a header")?;
        let samples = bytes.range(size_of::<Header>()..).ok_or("a short record")?.cast::<u32>()?;
        let samples: Vec<u32> = samples.iter().take(header.samples as usize).collect();
        if samples.iter().zip(0..).any(|(sample, at)| *sample != at ^ header.number as u32) {
            return Err(format!("record {} has wrong samples", header.number).into());
        }
        if passes_on {
            self.pass_on(Header { hops: header.hops + 1, ..header }, &samples, false)?;
        }
        Ok(header)
    }

    /// Passes a record on, and waits until the successor has returned it. If the successor is gone,
    /// continues with the worker after it. With `round`, also receives the record at its end.
    fn pass_on(&mut self, header: Header, samples: &[u32], round: bool) -> Result<()> {
        let block = self.pool.allocate(size_of::<Header>() + size_of_val(samples))?;
        block.view::<Header>()?.set(0, header)?;
        let bytes = block.view::<u8>()?;
        bytes.range(size_of::<Header>()..).ok_or("a short block")?.cast::<u32>()?.copy_from(samples);
        let memory = block.link_memory()?;
        loop {
            let loan = self.successor.1.hand_over(RECORD, &memory);
            // A record that a survivor passed on twice arrives twice; the first time counts.
            if round && loan.is_ok() {
                while self.receive(false)?.number < header.number {}
            }
            match loan.and_then(|loan| loan.wait(TIMEOUT)) {
                Ok(()) => return Ok(()),
                Err(Error::PeerGone { pid, .. }) => {
                    let next = (self.successor.0 + 1) % WORKERS;
                    println!("worker {}: process {pid} is gone; continues with worker {next}", self.number);
                    self.successor = (next, umf::link::connect(&self.addresses[next], TIMEOUT)?);
                    self.successor.1.set_timeout(TIMEOUT);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
