//! The proxy pool of umf: each request goes to the provider.
//!
//! A block is a region, so it costs what the provider costs, and needs a multiple of the provider's page
//! size. What the pool adds is what every pool gives: tracking, checked frees, the export flag,
//! statistics, a limit.
//!
//! [`ProxyPool`] is the pool, [`ProxySettings`] are its knobs.

mod block;
mod pool;
mod settings;

pub use pool::ProxyPool;
pub use settings::ProxySettings;

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
