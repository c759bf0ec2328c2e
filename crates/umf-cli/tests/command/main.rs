//! The `umf` command, run as users run it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

#[path = "../../../../tests/src/alone.rs"]
mod alone;
mod bench_remote;
mod config;
mod cuda;
mod demo;
mod failpoints;
mod info;
mod info_devices;
mod info_fabrics;
mod info_mpi;
mod level_zero;
mod remote_grants;
mod topology;
