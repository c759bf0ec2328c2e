//! Exporters and importers in one process. Tests that limit or count resources of the process run
//! alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

#[path = "../../../../tests/src/alone.rs"]
mod alone;
mod descriptors;
mod dropped;
mod lease_holders;
mod memory_limits;
mod retire;
