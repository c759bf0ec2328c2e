//! A pool's regions at one moment, as JSON and as a picture.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = umf::Pool::private()?;
//! let _block = pool.allocate(100_000)?;
//! let map = pool.map()?;
//! println!("fragmentation: {:.2}", map.totals().external_fragmentation());
//! let picture = std::env::temp_dir().join(format!("pool-{}.svg", std::process::id()));
//! std::fs::write(&picture, umf::map::to_svg(&map))?;
//! # std::fs::remove_file(&picture)?;
//! // For later: `umf pool-map pool.json` draws it too.
//! let text = umf::map::to_json(&map);
//! assert_eq!(umf::map::from_json(&text)?, map);
//! # Ok(())
//! # }
//! ```

mod json;
mod svg;

pub use json::{MapError, from_json, to_json};
pub use svg::to_svg;
#[doc(inline)]
pub use umf_core::map::{ClassMap, MapTotals, Piece, PieceState, PoolMap, RegionMap, SizeTotals};
