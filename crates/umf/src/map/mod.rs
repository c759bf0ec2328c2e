//! A snapshot of a pool's regions: as SVG and, with the feature `json`, as JSON.
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
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "json")]
mod json;
mod svg;

#[cfg(feature = "json")]
pub use json::{MapError, from_json, to_json};
pub use svg::to_svg;
#[doc(inline)]
pub use umf_core::map::{ClassMap, MapTotals, Piece, PieceState, PoolMap, RegionMap, SizeTotals};
