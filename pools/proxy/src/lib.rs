//! The proxy pool of umf: passes each request to the provider.
//!
//! A block is a region. So it costs what a region of the provider costs, and its size is a multiple
//! of the provider's page size. The pool adds what every pool has: tracking, checked frees, the
//! export flag, statistics and limits.
//!
//! [`ProxyPool`] is the pool, [`ProxySettings`] are its settings.

mod pool;

pub use pool::{ProxyPool, ProxySettings};

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
