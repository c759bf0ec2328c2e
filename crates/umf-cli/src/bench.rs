//! `umf bench remote`: the speed of reads of memory of another machine.
//!
//! Without a handle the command serves a block, and prints the command for the other machine, which
//! reads the block there.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::builder::styling::Style;
use clap::{Args, Subcommand};
use rustix::event::PollFlags;
use serde::Serialize;
use umf::remote::{self, PendingRead, Remote, RemoteHandle};
use umf::settings::{ByteSize, Loader, Settings};

use crate::demo::{median, pattern, time};
use crate::info::finding::{WIDTH, wrap};
use crate::output::{self, Failure, Progress, styled};
use crate::signals::{self, EndSignals};

/// Sizes of reads, besides the whole block.
const SIZES: [usize; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];
/// The most reads at once, and the most bytes of them.
const MOST: usize = 16;
const MOST_BYTES: usize = 32 << 20;
/// The most times of which the median is taken.
const MOST_TIMES: usize = 1 << 20;
/// The seed of the contents of every block that is served.
const SEED: u64 = 0;

/// Measure how fast memory of another machine is read
#[derive(Debug, Args)]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    Remote(RemoteCommand),
}

/// Serve a block of memory, or read one that another machine serves
///
/// Without a handle, serves a block until it is ended by Ctrl-C, and prints the command that reads
/// the block on another machine.
#[derive(Debug, Args)]
struct RemoteCommand {
    /// The handle of the block that is served
    handle: Option<RemoteHandle>,

    /// Bytes of the block to serve [default: 64 MiB]
    #[arg(long, value_name = "BYTES", conflicts_with = "handle")]
    size: Option<ByteSize>,

    /// Seconds for each size, once for reads one after another and once for reads at once
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, requires = "handle")]
    seconds: Duration,

    /// Print one JSON document; times in nanoseconds
    #[arg(long)]
    json: bool,
}

impl BenchCommand {
    /// Serves, or measures and prints the results.
    ///
    /// # Errors
    /// libfabric or the other machine cannot be used, or a read has wrong contents.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let Subject::Remote(command) = &self.subject;
        let settings = Settings::load(Loader::new())?;
        for warning in settings.loaded().warnings() {
            output::print_diagnostic(&format!("warning: {warning}"));
        }
        match &command.handle {
            None => serve(command.size.unwrap_or(ByteSize::new(64 << 20)), command.json),
            Some(handle) => measure(handle, command.seconds, command.json),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "valid is a number from 0.001 to 3600".to_owned())
}

fn failed(error: &impl std::fmt::Display) -> Failure {
    Failure::Message(error.to_string())
}

fn serve(size: ByteSize, json: bool) -> Result<(), Failure> {
    let size = usize::try_from(size.get()).unwrap_or(usize::MAX);
    if size == 0 {
        return Err(failed(&"cannot serve --size 0: a block has at least 1 byte; pass a larger --size"));
    }
    // The block, and the contents before they are written to it.
    umf_os::AvailableMemory::find().check(size.saturating_mul(2), "").map_err(|error| {
        failed(&format!("cannot serve a block of {size} bytes: {error}; pass a smaller --size"))
    })?;
    let signals = EndSignals::catch()?;
    let error = |error: umf::Error| failed(&error);
    let serving = remote::serve().map_err(error)?;
    let pool = umf::Pool::shared().map_err(error)?;
    let block = pool.allocate(size).map_err(error)?;
    block.write(0, &pattern(SEED, size)).map_err(error)?;
    let (handle, address) = (block.remote_handle().map_err(error)?, serving.address());
    output::print(&if json {
        let document = serde_json::json!({ "format": 1, "size": size, "address": address, "handle": handle.to_string() });
        format!("{document}\n")
    } else {
        let text = format!(
            "serving {} at {address}, until Ctrl-C; on the other machine:",
            output::format_bytes(size as u64)
        );
        format!("{}\n\numf bench remote {handle}\n", wrap(&text, WIDTH).join("\n"))
    })?;
    while signals::wait([(signals.as_fd(), PollFlags::IN)], Duration::from_secs(3600))?[0].is_empty() {}
    Ok(())
}

/// The results of one size.
#[derive(Debug, Serialize)]
struct Row {
    bytes: usize,
    /// The median time of a read while there is no other.
    read_ns: f64,
    /// Reads at once, and the bytes per second that they have together.
    at_once: usize,
    bytes_per_second: f64,
}

fn measure(handle: &RemoteHandle, seconds: Duration, json: bool) -> Result<(), Failure> {
    let importer = remote::importer().map_err(|error| failed(&error))?;
    let remote = importer.open(handle).map_err(|error| failed(&error))?;
    let (size, is_mapped) = (remote.len(), remote.mapping().is_some());
    umf_os::AvailableMemory::find().check(size.saturating_mul(2).saturating_add(MOST_BYTES), "").map_err(
        |error| {
            failed(&format!("cannot read a block of {size} bytes: {error}; serve one with a smaller --size"))
        },
    )?;
    let expected = pattern(SEED, size);
    let begun = Instant::now();
    check(&remote.read(0, 1).map_err(|error| failed(&error))?, &expected)?;
    let first_ns = begun.elapsed().as_nanos() as f64;
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| *bytes < size).chain([size]) {
        progress.step(format!("reads of {}", output::format_bytes(bytes as u64)));
        let row = measure_size(&remote, bytes, seconds, &expected, &mut progress);
        rows.push(row?);
    }
    drop(progress);
    output::print(&if json {
        let document = serde_json::json!({
            "format": 1, "size": size, "mapped": is_mapped, "first_read_ns": first_ns, "reads": rows,
        });
        format!("{document:#}\n")
    } else {
        table(&rows, size, is_mapped, first_ns)
    })?;
    Ok(())
}

fn measure_size(
    remote: &Remote,
    bytes: usize,
    seconds: Duration,
    expected: &[u8],
    progress: &mut Progress,
) -> Result<Row, Failure> {
    let error = |error: remote::Error| failed(&error);
    let mut times = Vec::new();
    let end = Instant::now() + seconds;
    while times.len() < 3 || Instant::now() < end {
        let start = Instant::now();
        let data = remote.read(0, bytes).map_err(error)?;
        if times.len() < MOST_TIMES {
            times.push(start.elapsed().as_nanos() as f64);
        }
        // Not for each short one, of which it would be most of the time.
        if times.len() == 1 {
            check(&data, expected)?;
        }
        progress.tick();
    }
    let at_once = (MOST_BYTES / bytes).clamp(1, MOST);
    let mut pending: VecDeque<PendingRead<'_>> = VecDeque::new();
    let (start, mut count) = (Instant::now(), 0_usize);
    let end = start + seconds;
    loop {
        if pending.len() < at_once && (count < 3 || Instant::now() < end) {
            pending.push_back(remote.start_read(0, bytes).map_err(error)?);
            continue;
        }
        let Some(next) = pending.pop_front() else { break };
        let data = next.wait().map_err(error)?;
        if count == 0 {
            check(&data, expected)?;
        }
        count += 1;
        progress.tick();
    }
    let bytes_per_second = (count * bytes) as f64 / start.elapsed().as_secs_f64();
    Ok(Row { bytes, read_ns: median(times).unwrap_or_default(), at_once, bytes_per_second })
}

fn check(data: &[u8], expected: &[u8]) -> Result<(), Failure> {
    match expected.get(..data.len()) == Some(data) {
        true => Ok(()),
        false => Err(failed(&format!(
            "a read of {} bytes has not what `umf bench remote` serves: pass the handle that it printed; if it is that one, \
             the network damages data",
            data.len()
        ))),
    }
}

fn table(rows: &[Row], size: usize, is_mapped: bool, first_ns: f64) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = write_table(&mut out, rows, size, is_mapped, first_ns);
    out
}

fn write_table(
    out: &mut String,
    rows: &[Row],
    size: usize,
    is_mapped: bool,
    first_ns: f64,
) -> std::fmt::Result {
    writeln!(out, "a block of {}", output::format_bytes(size as u64))?;
    if is_mapped {
        let note = "of this machine, so that it is mapped and not read over a network; \
            UMF_REMOTE_LOCAL=false for both commands reads it over libfabric";
        writeln!(out, "{}", wrap(note, WIDTH).join("\n"))?;
    }
    let heading =
        styled("read          time  at once       MB/s", Style::new().bold(), output::wants_colour());
    writeln!(out, "\n{heading}")?;
    for Row { bytes, read_ns, at_once, bytes_per_second } in rows {
        let (bytes, time) = (output::format_bytes(*bytes as u64), time(Some(*read_ns)));
        writeln!(out, "{bytes:<8}  {time:>8}  {at_once:>7}  {:>9.1}", bytes_per_second / 1e6)?;
    }
    writeln!(out, "\nfirst read: {}, with its connection", time(Some(first_ns)))
}
