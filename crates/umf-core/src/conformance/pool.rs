//! What every pool must do: see [`crate::pool_conformance!`].

mod providers;

pub use providers::{Numbers, Pages};
