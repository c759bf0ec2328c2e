//! `umf pool-map`: renders a pool's region map as SVG.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::output::{self, Failure};

/// The largest map that is read, in bytes.
const MAX_MAP: u64 = 1 << 30;

/// Renders the regions of a pool as SVG.
///
/// The input is what an application wrote with `umf::map::to_json(&pool.map()?)`.
#[derive(Args)]
pub(crate) struct PoolMapCommand {
    /// The map, or - for standard input
    map: PathBuf,

    /// Write the picture to this file, and print the map's totals on standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
}

impl PoolMapCommand {
    /// Reads the map, and prints or writes the picture.
    ///
    /// # Errors
    /// The input cannot be read or is not a map, or the picture cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let cannot = |action: &str, path: &Path, error: &dyn std::fmt::Display| {
            Failure::Message(format!("cannot {action} {}: {error}", path.display()))
        };
        let text = read(&self.map).map_err(|error| cannot("read", &self.map, &error))?;
        let map = umf::map::from_json(&text).map_err(|error| cannot("use the map", &self.map, &error))?;
        let picture = umf::map::to_svg(&map);
        let Some(path) = &self.output else { return Ok(output::print(&picture)?) };
        std::fs::write(path, picture).map_err(|error| cannot("write", path, &error))?;
        let totals = map.totals();
        let mut text = format!(
            "reserved    {} (peak {})\nlive        {} (requested {}, internal fragmentation {:.3})\nheld        {}\n\
             quarantined {}\ncached      {}\nfree        {} (largest {}, external fragmentation {:.3})\nunusable    {}\n",
            totals.reserved,
            map.peak_reserved,
            totals.live,
            totals.requested,
            totals.internal_fragmentation(),
            totals.held,
            totals.quarantined,
            totals.cached,
            totals.free,
            totals.largest_free,
            totals.external_fragmentation(),
            totals.unusable,
        );
        for size in &totals.sizes {
            text += &format!(
                "blocks of {}: {} live, {} held, {} quarantined, {} cached; {} slabs, which waste {} bytes\n",
                size.block_size, size.live, size.held, size.quarantined, size.cached, size.slabs, size.waste
            );
        }
        Ok(output::print(&text)?)
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path)?)
    };
    input.take(MAX_MAP + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_MAP {
        return Err(std::io::Error::other(format!(
            "it is longer than {MAX_MAP} bytes; pass the map of one pool"
        )));
    }
    Ok(text)
}
