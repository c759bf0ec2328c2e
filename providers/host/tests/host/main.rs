//! The host provider: the conformance suite, and the behaviour that is specific to this provider.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod conformance;
mod faulty_providers;
mod files;
mod machine;
mod nodes;
mod pages;
