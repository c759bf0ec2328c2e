//! What every pool must do: see [`crate::pool_conformance!`].
