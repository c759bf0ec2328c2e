//! [`Bench`]: the command line of a bench, its rows, and the table that it prints.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::measure::{self, Measured};
use crate::plot::Plot;
use crate::{Error, Result};

/// Measures umf and its peers in one run, and prints NAME, OURS, PEER and RATIO (ours to the
/// peer's).
///
/// Values are medians of many short batches. The rows `marker.*` give the speed of the machine
/// during this run: compare runs only if they agree.
#[derive(Parser)]
#[command(name = "cargo bench -p umf-benches --bench NAME --")]
struct Options {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    /// Draw the rows that have peers as SVG, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// The original C library: its libumf.so.1 (ipc, pool, capi)
    #[arg(long, value_name = "PATH")]
    peer_umf: Option<PathBuf>,

    /// This project's libumf.so.1 (capi) [default: built first]
    #[arg(long, value_name = "PATH")]
    ours: Option<PathBuf>,

    /// Measure for a short time only: for trying out, not for comparing
    #[arg(long)]
    quick: bool,

    /// Measure only rows with one of these texts in their names, such as small.random or .xfree
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    rows: Vec<String>,

    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,

    /// Serve as the second process.
    #[arg(long, hide = true)]
    serve: bool,
}

/// One line of the output.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    value: f64,
    unit: &'static str,
    /// The best batch.
    min: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_value: Option<f64>,
    /// Ours to the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

/// The values of one row: ours, and those of peers by name.
pub struct Figures {
    /// Our value.
    pub ours: Measured,
    /// The values of peers.
    pub peers: Vec<(&'static str, Measured)>,
}

impl From<Measured> for Figures {
    fn from(ours: Measured) -> Self {
        Self { ours, peers: Vec::new() }
    }
}

impl Figures {
    /// Adds a peer.
    #[must_use]
    pub fn beside(mut self, peer: &'static str, measured: Measured) -> Self {
        self.peers.push((peer, measured));
        self
    }

    /// Converts all values to another unit.
    #[must_use]
    pub fn map(self, convert: impl Fn(f64) -> f64) -> Self {
        let peers = self.peers.into_iter().map(|(name, measured)| (name, measured.map(&convert)));
        Self { ours: self.ours.map(&convert), peers: peers.collect() }
    }
}

/// A run of a bench.
pub struct Bench {
    /// Measuring time of each value of a row.
    pub time: Duration,
    /// Whether the run is quick, for trying out.
    pub quick: bool,
    /// The original `libumf.so.1`.
    pub peer_umf: Option<PathBuf>,
    /// This project's `libumf.so.1`.
    pub ours: Option<PathBuf>,
    json: bool,
    wanted: Vec<String>,
    printed: usize,
    plot: Plot,
}

impl Bench {
    /// Returns the measuring time of one turn of a subject.
    #[must_use]
    pub fn turn(&self) -> Duration {
        self.time / measure::ROUNDS as u32
    }

    /// Returns whether a row is to be measured.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|text| name.contains(text.as_str()))
    }

    /// Measures a row in nanoseconds if it is wanted, and prints it.
    ///
    /// # Errors
    /// The error of `measure`.
    pub fn row<F: Into<Figures>>(
        &mut self,
        name: &str,
        measure: impl FnOnce(&Bench) -> Result<F>,
    ) -> Result<()> {
        self.row_in("ns", name, measure)
    }

    /// Measures a row in another unit if it is wanted, and prints it.
    ///
    /// # Errors
    /// The error of `measure`.
    pub fn row_in<F: Into<Figures>>(
        &mut self,
        unit: &'static str,
        name: &str,
        measure: impl FnOnce(&Bench) -> Result<F>,
    ) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let figures: Figures = measure(self).map_err(|error| format!("{name}: {error}"))?.into();
        self.printed += 1;
        let peers: Vec<_> = figures.peers.iter().map(|(peer, measured)| (*peer, measured.median)).collect();
        self.plot.add(name, unit, figures.ours.median, &peers);
        self.print(name, unit, &figures)
    }

    fn print(&self, name: &str, unit: &'static str, figures: &Figures) -> Result<()> {
        let (value, min) = (figures.ours.median, figures.ours.min);
        let mut row = Row {
            name,
            value: rounded(value),
            unit,
            min: rounded(min),
            peer: None,
            peer_value: None,
            ratio: None,
        };
        if figures.peers.is_empty() {
            return self.line(&row);
        }
        for (peer, measured) in &figures.peers {
            row.peer = Some(peer);
            row.peer_value = Some(rounded(measured.median));
            row.ratio = Some(rounded(value / measured.median)).filter(|ratio| ratio.is_finite());
            self.line(&row)?;
        }
        Ok(())
    }

    fn line(&self, row: &Row<'_>) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(row)?);
            return Ok(());
        }
        let amount = |value: f64| match value {
            value if value < 100.0 => format!("{value:.1} {}", row.unit),
            value => format!("{value:.0} {}", row.unit),
        };
        let ratio = row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let peer = row.peer_value.map_or_else(|| "-".to_owned(), amount);
        let name = row.peer.unwrap_or_default();
        let line = format!("{:<36}  {:>12}  {peer:>12}  {ratio:>6}  {name}", row.name, amount(row.value));
        println!("{}", line.trim_end());
        Ok(())
    }

    /// Measures the speed of the machine, then everything else.
    fn run(&mut self, measure: fn(&mut Bench) -> Result<()>) -> Result<()> {
        if !self.json {
            println!("{:<36}  {:>12}  {:>12}  {:>6}", "name", "ours", "peer", "ratio");
        }
        let line = measure::cache_line(self.time);
        self.print("marker.cache_line", "ns", &line.into())?;
        self.print("marker.memcpy", "GB/s", &measure::memcpy(self.time)?.into())?;
        measure(self)?;
        if self.printed == 0 {
            return Err(format!("--rows {}: no row has that in its name", self.wanted.join(",")).into());
        }
        Ok(())
    }

    /// Writes the picture of the rows, if one is wanted.
    fn draw(&self, file: Option<&Path>) -> Result<()> {
        let Some(file) = file else { return Ok(()) };
        let program = std::env::args().next().unwrap_or_default();
        let program = Path::new(&program).file_stem().map(|name| name.to_string_lossy().into_owned());
        let features = if cfg!(feature = "peers") { " --features peers" } else { "" };
        // Cargo appends a hash to the name.
        let name = program.as_deref().and_then(|name| name.split('-').next()).unwrap_or("NAME");
        let rows =
            if self.wanted.is_empty() { String::new() } else { format!(" --rows {}", self.wanted.join(",")) };
        let command = format!("cargo bench -p umf-benches{features} --bench {name} --{rows} --svg FILE");
        std::fs::write(file, self.plot.to_svg(&command))
            .map_err(|error| format!("cannot write {}: {error}", file.display()).into())
    }
}

/// Runs a bench program: `measure` prints the rows, `serve` is the part of its second process.
#[must_use]
pub fn main(measure: fn(&mut Bench) -> Result<()>, serve: fn() -> Result<()>) -> ExitCode {
    if is_test() {
        return test();
    }
    let Options { json, svg, peer_umf, ours, quick, rows: wanted, serve: is_second, .. } = Options::parse();
    let time = Duration::from_millis(if quick { 5 } else { 300 });
    let mut bench = Bench { time, quick, peer_umf, ours, json, wanted, printed: 0, plot: Plot::default() };
    match if is_second { serve() } else { bench.run(measure).and_then(|()| bench.draw(svg.as_deref())) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints the error and ends the process, from any thread: no other thread waits for a failed one.
pub fn fail(error: &Error) -> ! {
    eprintln!("{error}");
    std::process::exit(1)
}

/// Returns whether `cargo test` runs this program, and not `cargo bench` or a bench its second
/// process.
#[must_use]
pub fn is_test() -> bool {
    !std::env::args().any(|argument| argument == "--bench" || argument == "--serve")
}

/// Behaves as a test program with one test: a quick run in a process of its own.
fn test() -> ExitCode {
    const NAME: &str = "quick_run_measures_its_rows";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|filter| NAME.contains(filter.as_str())) {
        return ExitCode::SUCCESS;
    }
    let status = Command::new("/proc/self/exe").args(["--bench", "--quick"]).status();
    let passed = status.is_ok_and(|status| status.success());
    println!("test {NAME} ... {}", if passed { "ok" } else { "FAILED" });
    println!(
        "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out",
        if passed { "ok" } else { "FAILED" },
        u8::from(passed),
        u8::from(!passed)
    );
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Three decimals are more than the clock's precision.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
