//! `umf demo --remote`: a consumer reads and writes a block of a producer over libfabric.
//!
//! ```text
//! launcher -- producer -- consumer       processes, each the child of the one before
//!             umf0 ======= umf1          their network namespaces, if the kernel permits them
//! ```
//!
//! Both set `remote.local = false`, the switch of tests: without it the consumer would map the
//! block, since both are of one machine.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::builder::styling::{AnsiColor, Style};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use umf::remote::{self, Remote, RemoteHandle, RemoteSettings};
use umf::settings::Loader;

use super::network;
use super::rank::{MEASURE_TIME, median, mix, wait_until_released};
use super::report::{OpenResources, time};
use crate::child::{Child, Parent};
use crate::info::finding::{WIDTH, wrap};
use crate::output::{self, Failure, Progress, styled};

/// The most bytes that the consumer writes.
const MAX_WRITTEN: usize = 64 << 10;
/// Sizes of reads, besides the whole block.
const READS: [usize; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// The time of the grant.
const GRANT: Duration = Duration::from_secs(5);

/// What lies between producer and consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Network {
    /// Two network namespaces, joined by a veth pair.
    Namespaces,
    /// The loopback interface.
    Loopback,
    /// What the settings `remote.provider` and `remote.interface` choose.
    Settings,
}

/// The first request to a child: what it plays.
#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Producer(Plan),
    Consumer(Plan),
}

/// The parameters, known to both.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Plan {
    network: Network,
    /// Bytes of the block.
    size: usize,
    /// Random seed of the contents of this run.
    run: u64,
    timeout: Duration,
}

impl Plan {
    /// Returns the bytes that the consumer writes.
    fn written(&self) -> usize {
        self.size.min(MAX_WRITTEN)
    }
}

/// A request of the producer to the consumer. Each has one reply.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Moves into a network namespace.
    LeaveNetwork,
    /// Gives the interface in it its address.
    SetUpNetwork,
    /// Connects once, closes the connection, and counts what the process has open.
    WarmUp(String),
    /// Opens a handle, and checks and times reads.
    Read(String),
    /// Asks for a grant, and writes the first bytes.
    Write,
    /// Reads the block that was freed.
    ReadStale,
    /// Closes all. Replies with what is left.
    Leave,
}

/// Why the producer gives up.
#[derive(Debug, Serialize, Deserialize)]
enum Stop {
    /// There are no namespaces; the demo can go on without them.
    NoNamespaces(String),
    Failed(String),
}

impl From<umf::Error> for Stop {
    fn from(error: umf::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Median times of reads of one size.
#[derive(Debug, Serialize, Deserialize)]
struct ReadTime {
    bytes: usize,
    ns: f64,
}

/// The consumer's reply to [`Request::Read`].
#[derive(Debug, Serialize, Deserialize)]
struct ReadTimes {
    /// The first read, which connects.
    first_ns: f64,
    reads: Vec<ReadTime>,
}

/// The consumer's reply to [`Request::Write`].
#[derive(Debug, Serialize, Deserialize)]
struct WriteTimes {
    grant_ns: f64,
    write_ns: f64,
}

/// The results.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// The producer's address, with the provider.
    address: String,
    handle_bytes: usize,
    times: ReadTimes,
    written: WriteTimes,
    /// Resources that a process has left behind.
    leaked: Vec<String>,
}

/// Runs the demo, and prints its results.
///
/// # Errors
/// A step failed, or a resource was left behind.
pub(super) fn run(
    settings: &RemoteSettings,
    size: usize,
    seed: u64,
    timeout: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    if size == 0 {
        let why = "cannot run with --size 0: a block has at least 1 byte; pass a larger --size";
        return Err(Failure::Message(why.to_owned()));
    }
    // The pattern, the copy and the buffer that the fabric writes.
    if let Err(error) = umf_os::AvailableMemory::find().check(size.saturating_mul(6), "") {
        return Err(Failure::Message(format!(
            "cannot run with a block of {size} bytes: {error}; pass a smaller --size"
        )));
    }
    let timeout = timeout.unwrap_or(Duration::from_secs(30) + Duration::from_secs((size >> 24) as u64));
    let mut plan = Plan { network: network_of(settings), size, run: seed, timeout };
    let before = OpenResources::now();
    let mut why_not = None;
    let mut report = match launch(&plan)? {
        Err(Stop::NoNamespaces(why)) => {
            plan.network = Network::Loopback;
            why_not = Some(why);
            launch(&plan)?
        }
        report => report,
    }
    .map_err(|(Stop::NoNamespaces(why) | Stop::Failed(why))| Failure::Message(why))?;
    report.leaked.extend(OpenResources::now().leaked_since(&before));
    let printed = if json {
        let document = serde_json::json!({
            "format": 1,
            "network": plan.network,
            "no_namespaces": why_not,
            "size": plan.size,
            "address": report.address,
            "handle_bytes": report.handle_bytes,
            "first_read_ns": report.times.first_ns,
            "reads": report.times.reads,
            "grant_ns": report.written.grant_ns,
            "write_ns": report.written.write_ns,
            "written": plan.written(),
            "left_behind": report.leaked,
        });
        format!("{document:#}\n")
    } else {
        table(&plan, why_not.as_deref(), &report, output::wants_colour())
    };
    output::print(&printed)?;
    match report.leaked.is_empty() {
        true => Ok(()),
        false => Err(Failure::Message(format!("left behind: {}", report.leaked.join(", ")))),
    }
}

/// Returns the network that fits the settings: namespaces have one interface, for providers of IP.
fn network_of(settings: &RemoteSettings) -> Network {
    let has_ip = settings.provider.is_empty() || settings.provider.contains("tcp");
    if has_ip && settings.interface.is_empty() { Network::Namespaces } else { Network::Settings }
}

/// Starts the producer, and waits for its report.
fn launch(plan: &Plan) -> Result<Result<Report, Stop>, Failure> {
    let mut progress = Progress::new();
    progress.step("reading over libfabric");
    let fail = |why: &dyn std::fmt::Display| Failure::Message(format!("the producer {why}"));
    let mut child = start().map_err(|error| fail(&error))?;
    let line = serde_json::to_string(&Role::Producer(*plan)).map_err(std::io::Error::from)?;
    child.send(&line, plan.timeout).map_err(|error| fail(&error))?;
    // For all steps together; most take milliseconds.
    let report = child.receive(plan.timeout * 2, || progress.tick()).map_err(|error| fail(&error))?;
    child.finish().map_err(|error| fail(&error))?;
    Ok(report)
}

fn start() -> std::io::Result<Child> {
    let output =
        || std::io::stderr().as_fd().try_clone_to_owned().map_or_else(|_| Stdio::null(), Stdio::from);
    // The launcher has shown the warnings.
    Child::start(&["demo", "--remote", "--rank"], &[("UMF_LOG_WARNINGS", "false")], output)
}

/// Plays producer or consumer, as the parent says.
///
/// # Errors
/// The channel to the parent fails. Other errors are sent as replies.
pub(super) fn serve() -> std::io::Result<()> {
    let mut parent = Parent::listen()?;
    match parent.next_request()? {
        Some(Role::Producer(plan)) => parent.reply(&produce(&plan)),
        Some(Role::Consumer(plan)) => consume(&plan, &mut parent),
        None => Ok(()),
    }
}

/// Initialises umf for a process of the demo.
fn initialise(plan: &Plan) -> umf::Result<()> {
    let loader = Loader::new().set("remote.local", false);
    umf::init(match plan.network {
        Network::Namespaces => loader.set("remote.interface", network::PRODUCER),
        Network::Loopback => loader.set("remote.interface", "127.0.0.1"),
        Network::Settings => loader,
    })
}

/// The consumer, as seen from the producer.
struct Consumer {
    child: Child,
    timeout: Duration,
}

impl Consumer {
    fn start(plan: &Plan) -> Result<Self, String> {
        let child = start().map_err(|error| format!("the consumer {error}"))?;
        let mut consumer = Self { child, timeout: plan.timeout };
        consumer.send(&Role::Consumer(*plan))?;
        Ok(consumer)
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> String {
        format!("the consumer (process {}) {why}", self.child.pid())
    }

    fn send(&mut self, line: &impl Serialize) -> Result<(), String> {
        let line = serde_json::to_string(line).map_err(|error| self.failed(&error))?;
        self.child.send(&line, self.timeout).map_err(|error| self.failed(&error))
    }

    /// Returns the reply, which may be the reason of a failure.
    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<Result<T, String>, String> {
        self.send(request)?;
        self.child.receive(self.timeout, || {}).map_err(|error| self.failed(&error))
    }

    fn request<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, String> {
        self.ask(request)?.map_err(|why| self.failed(&format!("failed: {why}")))
    }
}

fn produce(plan: &Plan) -> Result<Report, Stop> {
    let ip = match plan.network {
        Network::Namespaces => Some(network::leave_network().map_err(Stop::NoNamespaces)?),
        _ => None,
    };
    let mut consumer = Consumer::start(plan)?;
    if let Some(ip) = ip {
        consumer.ask::<()>(&Request::LeaveNetwork)?.map_err(Stop::NoNamespaces)?;
        let joined = network::join(&ip, consumer.child.pid());
        // It answers in any case, unless it was killed.
        let set_up = consumer.ask::<()>(&Request::SetUpNetwork)?;
        joined.and(set_up).map_err(Stop::NoNamespaces)?;
    }
    initialise(plan)?;
    let pool = umf::Pool::shared()?;
    let block = pool.allocate(plan.size)?;
    block.write(0, &pattern(plan.run, plan.size))?;
    // libfabric keeps what it opens first.
    let serving = remote::serve()?;
    consumer.request::<()>(&Request::WarmUp(block.remote_handle()?.to_string()))?;
    drop(serving);
    let before = OpenResources::now();

    let serving = remote::serve()?;
    let (address, handle) = (serving.address(), block.remote_handle()?);
    let handle_bytes = handle.to_bytes().len();
    let times = consumer.request(&Request::Read(handle.to_string()))?;
    let written = consumer.request(&Request::Write)?;
    let mut found = vec![0; plan.written()];
    block.read(0, &mut found)?;
    if found != pattern(!plan.run, plan.written()) {
        return Err(Stop::Failed("the block has not what the consumer wrote".to_owned()));
    }
    drop(block);
    consumer.request::<()>(&Request::ReadStale)?;
    let left: Vec<String> = consumer.request(&Request::Leave)?;
    consumer.child.finish().map_err(|error| format!("the consumer {error}"))?;
    drop(serving);
    drop(pool);
    let mut leaked: Vec<String> = left.into_iter().map(|what| format!("consumer: {what}")).collect();
    let more = wait_until_released(&before).leaked_since(&before);
    leaked.extend(more.into_iter().map(|what| format!("producer: {what}")));
    Ok(Report { address, handle_bytes, times, written, leaked })
}

/// Serves the requests of the producer.
fn consume(plan: &Plan, producer: &mut Parent) -> std::io::Result<()> {
    let (mut opened, mut before) = (None, OpenResources::default());
    while let Some(request) = producer.next_request()? {
        let text = |error: umf::Error| error.to_string();
        match request {
            Request::LeaveNetwork => producer.reply(&network::leave_network_of_parent())?,
            Request::SetUpNetwork => producer.reply(&network::set_up_consumer())?,
            Request::WarmUp(handle) => {
                let connected = initialise(plan).map_err(text).and_then(|()| {
                    open(&handle)?.read(0, 1).map_err(|error| error.to_string())?;
                    remote::importer().map_err(text)?.evict_idle();
                    before = OpenResources::now();
                    Ok(())
                });
                producer.reply(&connected)?;
            }
            Request::Read(handle) => {
                let read = open(&handle).and_then(|remote| {
                    let times = read(plan, &remote)?;
                    opened = Some(remote);
                    Ok(times)
                });
                producer.reply(&read)?;
            }
            Request::Write => {
                let remote = opened.as_ref().ok_or_else(|| "the block is not open".to_owned());
                producer.reply(
                    &remote.and_then(|remote| write(plan, remote).map_err(|error| error.to_string())),
                )?;
            }
            Request::ReadStale => {
                let remote = opened.as_ref().ok_or_else(|| "the block is not open".to_owned());
                producer.reply(&remote.and_then(read_stale))?;
            }
            Request::Leave => {
                drop(opened.take());
                if let Ok(importer) = remote::importer() {
                    importer.evict_idle();
                }
                producer.reply(&Ok::<_, String>(wait_until_released(&before).leaked_since(&before)))?;
            }
        }
    }
    Ok(())
}

fn open(handle: &str) -> Result<Remote, String> {
    let handle: RemoteHandle = handle.parse().map_err(|error: remote::RouteError| error.to_string())?;
    let importer = remote::importer().map_err(|error| error.to_string())?;
    importer.open(&handle).map_err(|error| error.to_string())
}

/// Checks the contents by reads of all sizes, and times them.
fn read(plan: &Plan, remote: &Remote) -> Result<ReadTimes, String> {
    let expected = pattern(plan.run, plan.size);
    let mut sizes: Vec<usize> = READS.into_iter().filter(|&size| size < plan.size).collect();
    sizes.push(plan.size);
    let mut first_ns = None;
    let mut reads = Vec::new();
    for bytes in sizes {
        let mut times = Vec::new();
        let end = Instant::now() + MEASURE_TIME;
        while times.len() < 3 || Instant::now() < end {
            let start = Instant::now();
            let data = remote.read(0, bytes).map_err(|error| error.to_string())?;
            times.push(start.elapsed().as_nanos() as f64);
            if *data != expected[..bytes] {
                return Err(format!("a read of {bytes} bytes has not what the producer wrote"));
            }
        }
        if first_ns.is_none() {
            first_ns = Some(times.remove(0));
        }
        reads.push(ReadTime { bytes, ns: median(times).unwrap_or_default() });
    }
    Ok(ReadTimes { first_ns: first_ns.unwrap_or_default(), reads })
}

fn write(plan: &Plan, remote: &Remote) -> Result<WriteTimes, remote::Error> {
    let data = pattern(!plan.run, plan.written());
    let start = Instant::now();
    let grant = remote.grant(GRANT)?;
    let granted = Instant::now();
    grant.write(0, &data)?;
    let write_ns = granted.elapsed().as_nanos() as f64;
    grant.end()?;
    Ok(WriteTimes { grant_ns: granted.duration_since(start).as_nanos() as f64, write_ns })
}

/// Reads by a message and over the fabric, which must both fail.
fn read_stale(remote: &Remote) -> Result<(), String> {
    for bytes in [remote.len().min(64), remote.len()] {
        match remote.read(0, bytes) {
            Err(remote::Error::Stale { .. }) => {}
            Err(error) => {
                return Err(format!("a read of a freed block has another error than stale: {error}"));
            }
            Ok(_) => return Err("a freed block can still be read".to_owned()),
        }
    }
    Ok(())
}

/// Returns bytes that depend on the seed and the offset.
pub(crate) fn pattern(seed: u64, size: usize) -> Vec<u8> {
    let words = (0..size.div_ceil(8)).flat_map(|word| mix(seed ^ word as u64).to_le_bytes());
    words.take(size).collect()
}

fn table(plan: &Plan, why_not: Option<&str>, report: &Report, colour: bool) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = write_table(&mut out, plan, why_not, report, colour);
    out
}

fn write_table(
    out: &mut String,
    plan: &Plan,
    why_not: Option<&str>,
    report: &Report,
    colour: bool,
) -> std::fmt::Result {
    let Report { address, handle_bytes, times, written, leaked } = report;
    let place = match plan.network {
        Network::Namespaces => "from another network namespace",
        Network::Loopback => "over the loopback interface",
        Network::Settings => "where the settings [remote] direct it",
    };
    writeln!(out, "a block of {}, read {place}", output::format_bytes(plan.size as u64))?;
    if let Some(why) = why_not {
        let lines = wrap(&format!("no namespaces: {why}"), WIDTH);
        writeln!(out, "{}", lines.join("\n"))?;
    }
    writeln!(out, "{}", wrap(&format!("the producer serves at {address}"), WIDTH).join("\n"))?;
    writeln!(out, "a remote handle of {handle_bytes} bytes, sent as text\n")?;
    let bold = |heading: &str| styled(heading, Style::new().bold(), colour);
    writeln!(out, "{}", bold("read         time       MB/s"))?;
    for ReadTime { bytes, ns } in &times.reads {
        let speed = *bytes as f64 / ns * 1e3;
        writeln!(out, "{:<8}  {:>7}  {speed:>9.1}", output::format_bytes(*bytes as u64), time(Some(*ns)))?;
    }
    writeln!(out, "\nfirst read: {}, with its connection", time(Some(times.first_ns)))?;
    writeln!(out, "grant to write: {}", time(Some(written.grant_ns)))?;
    let bytes = output::format_bytes(plan.written() as u64);
    writeln!(out, "write of {bytes}: {}, right in the producer", time(Some(written.write_ns)))?;
    writeln!(out, "contents: every read right")?;
    writeln!(out, "freed: reads of the freed block refused as stale")?;
    if leaked.is_empty() {
        let clean = "left behind: nothing (descriptors, mappings, namespaces, processes)";
        return writeln!(out, "{}", styled(clean, AnsiColor::Green.on_default(), colour));
    }
    writeln!(out, "{}", styled("left behind:", AnsiColor::Red.on_default(), colour))?;
    leaked.iter().try_for_each(|what| writeln!(out, "  {what}"))
}
