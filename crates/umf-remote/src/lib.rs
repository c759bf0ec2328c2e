//! Memory of other machines: a [`RemoteHandle`] names a block for every process that can reach its
//! producer over a network.
//!
//! umf writes no network. It uses libfabric (<https://ofiwg.github.io/libfabric/>), which it opens
//! at run time, with whatever provider the machine has: tcp, efa, verbs. What it adds is the
//! promise of local handles: **a read is never stale**.
//!
//! | part | what it does |
//! |---|---|
//! | [`Server`] | makes a process's exported memory readable; owns a thread |
//! | [`RemoteHandle`] | a handle, and the way to its producer: plain bytes, or text |
//! | [`RemoteImporter`] | opens remote handles; has one connection for each producer |
//! | [`Remote`] | an open block: read, several reads at once, reads that are polled |
//! | [`Grant`] | a permission to write, for a time |
//!
//! # How a read is validated
//!
//! A read of up to 16,256 bytes is a message. The producer's thread opens the handle, as any
//! process of its machine would, copies the bytes while it has a lease, and checks afterwards that
//! the block is current.
//!
//! A longer read is one-sided (`fi_read(3)`). All its data has arrived before the generation and
//! the nonce of the block's slot in the ledger are read, by one operation. They are those of the
//! handle only if the block was live all the time: generations only grow, before memory is used
//! again, and a nonce is of one process. (Operations of most networks are not ordered, so that the
//! second read must not begin earlier.)
//!
//! # Security
//!
//! The fabric's own is all there is: a process that reaches the address of a server can read the
//! blocks whose handles it knows. A key gives access to one block, and after the free of the block
//! to the memory that it had, until the registration is closed.

mod client;
mod error;
mod fabric;
mod listed;
mod protocol;
mod remote;
mod route;
mod server;
mod settings;

pub use client::RemoteImporter;
pub use error::{Error, Result};
pub use listed::{ListedGrant, grants_of};
pub use remote::{Data, Grant, PendingRead, Remote};
pub use route::{RemoteHandle, RouteError};
pub use server::{Server, ServerStatistics};
pub use settings::RemoteSettings;

/// Returns the providers of libfabric that offer what this crate needs, the best first, and the
/// library's version.
///
/// # Errors
/// [`Error::NoLibrary`].
pub fn providers(settings: &RemoteSettings) -> Result<(String, Vec<String>)> {
    let library = fabric::library(&settings.library)?;
    let version = library.version();
    Ok((format!("{}.{}", version >> 16, version & 0xffff), fabric::offered(library)))
}

/// Entry points of fuzz targets.
#[cfg(fuzzing)]
pub mod fuzz {
    pub use crate::protocol::fuzz::decode as messages;

    /// Decodes bytes as a remote handle.
    pub fn route(bytes: &[u8]) {
        if let Ok(handle) = crate::RemoteHandle::from_bytes(bytes) {
            assert_eq!(handle.to_bytes(), bytes);
        }
    }
}

/// The example in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
