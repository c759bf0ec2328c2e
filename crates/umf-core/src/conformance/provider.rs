//! What every provider must do: see [`crate::provider_conformance!`].
