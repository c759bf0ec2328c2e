//! Links and communicators in one process. What limits the process runs alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

#[path = "../../../../tests/src/alone.rs"]
mod alone;
mod fds;
mod messages;
mod threads;
