//! Exporters and importers in one process. What counts or limits what the process has runs alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod address_space;
#[path = "../../../../tests/src/alone.rs"]
mod alone;
mod closed_descriptors;
mod dropped;
mod dropped_exporter;
mod export_memory;
mod idle_windows;
mod lease_holders;
mod locked_memory;
mod retire;
mod slow_close;
mod windows;
