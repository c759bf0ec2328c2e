//! Conformance suites: one set of tests per trait, instantiated for every implementation.
//!
//! A crate that brings a provider or a pool has this crate as a dev-dependency and writes one
//! line, [`crate::provider_conformance!`] or [`crate::pool_conformance!`]. New behaviour of a trait is a new
//! test here, so that every implementation gets it.

mod borrower;
mod ends;
pub mod pool;
pub mod provider;
mod race;

pub use borrower::Borrower;
pub use ends::Ends;
pub use race::race;
// The macros name them.
pub use umf_core::{Pool, Provider, ProviderRef};
