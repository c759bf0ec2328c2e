//! Conformance suites: one set of tests per trait, instantiated for every implementation.
//!
//! A crate that implements a provider or a pool has this crate as a dev-dependency, and writes one
//! line: [`crate::provider_conformance!`] or [`crate::pool_conformance!`]. New behaviour of a trait
//! is a new case here, so every implementation is tested for it.

mod helpers;
pub mod pool;
pub mod provider;

pub use helpers::{LeaseHolder, SetOnDrop, race};
// The macros name them.
pub use umf_core::{Pool, Provider, ProviderRef};
