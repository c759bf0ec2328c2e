//! Settings, as programs load them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod documented;
mod hostile;
mod legacy;
mod refusals;
mod sandbox;
mod sources;
