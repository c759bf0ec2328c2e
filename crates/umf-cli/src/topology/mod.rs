//! `umf info --topology`: NUMA nodes and memory spaces, as text, JSON or a picture.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use umf::topology::{Initiator, Quality, Recording, Source, SpaceName, Topology};

use crate::failure::Failure;
use crate::output;

mod json;
mod svg;
mod text;

/// The largest recording that is read.
const MOST: u64 = 64 << 20;

/// What is wanted of a topology.
#[derive(Args)]
pub(crate) struct TopologyOptions {
    /// Show the NUMA nodes instead: memory, distances, speed, memory spaces
    #[arg(long)]
    topology: bool,

    /// Draw the NUMA nodes into an SVG file
    #[arg(long, value_name = "FILE", requires = "topology")]
    svg: Option<PathBuf>,

    /// Write what the topology was read from into a text file, for --from
    #[arg(long, value_name = "FILE", requires = "topology")]
    record: Option<PathBuf>,

    /// Read a recording, or a folder with sys and proc in it, instead of this machine
    #[arg(long, value_name = "PATH", requires = "topology")]
    from: Option<PathBuf>,
}

impl TopologyOptions {
    /// Whether the topology was asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        self.topology
    }

    /// Prints the topology, and writes the files that are wanted.
    ///
    /// # Errors
    /// It cannot be read, or a file cannot be written.
    pub(crate) fn show(&self, as_json: bool) -> Result<(), Failure> {
        let told = |error: umf::topology::Error| Failure::Told(error.to_string());
        let source = self.source()?;
        let topology = Topology::read(&source).map_err(told)?;
        if let Some(path) = &self.record {
            write(path, &Recording::of(&source).map_err(told)?.to_string())?;
        }
        if let Some(path) = &self.svg {
            write(path, &svg::draw(&topology))?;
        }
        let printed = if as_json { json::render(&topology) } else { text::render(&topology) };
        Ok(output::print(&printed)?)
    }

    fn source(&self) -> Result<Source, Failure> {
        match &self.from {
            None => Ok(Source::system()),
            Some(path) if path.is_dir() => Ok(Source::folder(path)),
            Some(path) => match read(path) {
                Ok(text) => Ok(Source::recording(Recording::new(&text))),
                Err(error) => Err(Failure::Told(format!("{}: {error}", path.display()))),
            },
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(std::io::Error::other(format!("longer than {MOST} bytes")));
    }
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::Told(format!("{}: {error}", path.display())))
}

/// The spaces that have names, as this process sees them.
fn spaces() -> [SpaceName; 4] {
    let best = |quality| SpaceName::best(quality, Initiator::Process);
    [SpaceName::ALL, best(Quality::Capacity), best(Quality::Bandwidth), best(Quality::Latency)]
}
