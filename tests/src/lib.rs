//! What the multi-process and fault tests of umf are written with. The tests are in `tests/`, one file for each
//! theme; what users of other systems report as broken is named in the test that covers it.
//!
//! - [`Actor`]: a process of its own (`umf-actor`) that obeys one line at a time
//! - [`Census`]: what a process has open, counted from outside
//! - [`command`]: the `umf` command
//! - [`cuda`]: the CUDA driver in software, where the linker finds it
//! - [`domain`]: what there is of a domain, seen from outside
//! - [`board`]: what processes under load tell each other, past umf
//! - [`forge`]: handles that no producer made
//! - [`machine`]: what this machine lets a test do
//! - [`mpi`]: programs of MPI, where there is one
//! - [`Name`]: a name that a test gives to shared memory
//! - [`Recording`]: an import that keeps count
//! - [`walk`]: what tests of every kind of memory do with it

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod actor_client;
pub mod board;
mod census;
pub mod command;
pub mod cuda;
pub mod domain;
pub mod forge;
pub mod machine;
pub mod mpi;
mod name;
mod recording;
mod sequence;
mod spawn;
pub mod walk;

pub use actor_client::{Actor, Failure, Outcome};
pub use census::Census;
pub use name::Name;
pub use recording::Recording;
pub use sequence::Sequence;
pub use spawn::Spawn;

/// Starts a [`Spawn`] of the `umf-actor` that was built for the test.
#[macro_export]
macro_rules! spawn {
    () => {
        $crate::Spawn::new(env!("CARGO_BIN_EXE_umf-actor"))
    };
}

/// Starts an actor with everything at its default.
#[macro_export]
macro_rules! actor {
    () => {
        $crate::spawn!().start()
    };
}
