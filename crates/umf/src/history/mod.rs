//! What happened in a pool lately, if it is set to remember it (`history` in the settings): as
//! text, and, with the feature `json`, as JSON.
//!
//! ```
//! # fn main() -> umf::Result<()> {
//! let pool = umf::Pool::builder().history(1000).build()?;
//! drop(pool.allocate(100)?);
//! print!("{}", pool.history()?);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "json")]
mod json;

#[cfg(feature = "json")]
pub use json::to_json;
#[doc(inline)]
pub use umf_core::history::{Event, EventKind, PoolHistory};
