//! Benches of umf and its peers, measured in the same run.
//!
//! Each bench is a program: `cargo bench -p umf-benches --bench pool -- --help`. The page
//! `docs/bench.md` lists the rows. The programs `ipc.rs`, `link.rs`, `cuda.rs`, `capi.rs` and
//! `pool.rs` hold the measurements; this library holds what several of them use:
//!
//! - [`mod@bench`]: the command line, the rows and the table
//! - [`measure`]: batches, threads, turns, and the marker of the machine's speed
//! - [`process`]: the second process of a bench, and the producer of handles
//! - [`workload`]: the allocations and frees that every allocator is asked for
//! - [`allocators`]: the allocators that are compared
//! - [`libumf`]: `libumf.so.1`, this project's or the original

pub mod allocators;
pub mod bench;
pub mod libumf;
pub mod measure;
mod plot;
pub mod process;
pub mod workload;

/// Reason why a bench cannot continue.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;
