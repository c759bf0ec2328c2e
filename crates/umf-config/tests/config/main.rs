//! Tests over a small schema; those over the schema of umf are in the crate `umf`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod files;
mod hostile;
mod sandbox;
mod schema;
mod sources;
mod texts;
