//! Tools of the multi-process and fault tests of umf. The tests are in `tests/`, one file for each
//! theme. A test that covers a report about another system is named after the report.
//!
//! - [`Spawn`], [`Actor`]: a process (`umf-actor`) that executes one command a line
//! - [`ShmName`]: a name for an actor's shared memory
//! - [`ProcessSnapshot`]: the fds, mappings, threads, children and names that a process holds
//! - [`domain`]: the fds, mappings and sockets of a domain, in all processes
//! - [`block_table`]: ground truth about exported blocks, for tests that kill processes
//! - [`CountingImport`]: an importer of memory that counts its calls
//! - [`forge`]: handles with changed fields
//! - [`scenarios`]: sequences of commands that each kind of memory must pass
//! - [`machine`]: what this machine permits a test to do; its CUDA driver and MPI
//! - [`command`]: the `umf` command
//! - [`Patience`]: a limit for a wait, which counts less on a busy machine
//! - [`Rng`]: reproducible pseudo-random numbers

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod actor_client;
pub mod block_table;
pub mod command;
mod counting_import;
pub mod forge;
pub mod machine;
mod patience;
mod process_snapshot;
mod rng;
pub mod scenarios;

pub use actor_client::{Actor, Failure, Outcome, ShmName, Spawn};
pub use counting_import::CountingImport;
pub use patience::Patience;
pub use process_snapshot::{ProcessSnapshot, domain};
pub use rng::Rng;

/// Creates a [`Spawn`] of the `umf-actor` that cargo built for the test.
#[macro_export]
macro_rules! spawn {
    () => {
        $crate::Spawn::new(env!("CARGO_BIN_EXE_umf-actor"))
    };
}

/// Starts an actor with default settings.
#[macro_export]
macro_rules! actor {
    () => {
        $crate::spawn!().start()
    };
}
