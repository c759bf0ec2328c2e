//! `umf pool-map`: draws what a pool's regions looked like.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::output::{self, Failure};
/// The largest map that is read.
const MOST: u64 = 1 << 30;

/// Draws what a pool's regions looked like, as SVG.
///
/// The map is what an application wrote with `umf::map::to_json(&pool.map()?)`.
#[derive(Args)]
pub(crate) struct PoolMapCommand {
    /// The map, or - for standard input
    map: PathBuf,

    /// Write the picture there, and say on standard output what the map adds up to
    #[arg(short, long)]
    output: Option<PathBuf>,
}

impl PoolMapCommand {
    /// Reads the map and prints or writes the picture.
    ///
    /// # Errors
    /// The map cannot be read or is none; the picture cannot be written.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let about = |path: &Path, error: &dyn std::fmt::Display| {
            Failure::Told(format!("{}: {error}", path.display()))
        };
        let text = read(&self.map).map_err(|error| about(&self.map, &error))?;
        let map = umf::map::from_json(&text).map_err(|error| about(&self.map, &error))?;
        let picture = umf::map::to_svg(&map);
        let Some(path) = &self.output else { return Ok(output::print(&picture)?) };
        std::fs::write(path, picture).map_err(|error| about(path, &error))?;
        let totals = map.totals();
        let mut said = format!(
            "reserved    {} (peak {})\nlive        {} (asked for {}, internal fragmentation {:.3})\nheld        {}\n\
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
            said += &format!(
                "blocks of {}: {} live, {} held, {} quarantined, {} cached; {} slabs, {} bytes of them wasted\n",
                size.block_size, size.live, size.held, size.quarantined, size.cached, size.slabs, size.waste
            );
        }
        Ok(output::print(&said)?)
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path)?)
    };
    input.take(MOST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(std::io::Error::other(format!("longer than {MOST} bytes")));
    }
    Ok(text)
}
