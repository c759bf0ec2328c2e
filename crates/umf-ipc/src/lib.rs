//! By-value memory handles between processes of one machine.
//!
//! A [`Handle`] is 256 plain bytes. The way of one is a walk through this crate:
//!
//! ```text
//! Exporter::get(address) -> Handle        Importer::open(bytes) -> Mapping
//!   exporter: region -> native export       handle:    decode, check
//!   ledger:   slot, generation              importer:  memo, cache of mappings
//!   handle:   encode                        transfer:  the producer's fd comes here
//!                                           ledger:    is it current, before and after
//! ```
//!
//! - [`exporter`]: makes blocks and regions visible, and retires them before their memory goes
//! - [`importer`]: opens handles, keeps mappings in a bounded cache
//! - [`transfer`]: how an fd travels: `pidfd`, `procfs`, `socket`
//! - [`inspect`]: looks at the ledgers of running processes, and of killed ones
//! - `ledger`: the shared pages that say which exports are current
//! - `lease`: the shared pages that say which exports are open
//! - `cache`: what both sides' caches are made of
//! - [`fd_socket`], [`system`]: what crates on top of this one build on
//! - `protocol`: the lock-free parts of both, as loom models them
//!
//! This crate does not depend on providers. The user of an importer registers the kinds of memory
//! that it can open ([`ImporterBuilder::import`]).

mod cache;
mod error;
pub mod exporter;
mod handle;
mod identity;
pub mod importer;
pub mod inspect;
mod lease;
mod ledger;
mod protocol;
pub mod transfer;

/// The sockets over which descriptors travel between processes of one user: the exporter's, and
/// those of crates that serve descriptors in the same way.
///
/// A server's socket is abstract and named by a [`Nonce`]. A client sends one
/// [`Request`](fd_socket::Request) and gets one [`Answer`](fd_socket::Answer), with a descriptor or
/// without. Both sides check the user of the other process.
pub mod fd_socket {
    pub use crate::transfer::socket::Request;
    pub use crate::transfer::socket::client::{Answer, Deadline, receive};
    pub use crate::transfer::socket::server::{FdSource, OutgoingFd, Server, SharedFd};
}

/// What fuzz targets drive: the decoders of what comes over the sockets of producers.
#[cfg(fuzzing)]
pub mod fuzz {
    pub use crate::transfer::socket::fuzz as packets;
}

/// What crates that share memory in other ways need as well: identities of processes and of the
/// boot.
pub mod system {
    pub use crate::identity::{boot_id_bytes, start_time};
}

pub use cache::{CacheStatistics, LimitPolicy};
pub use error::{Error, FailedAttempt, Result};
pub use exporter::{Export, Exporter, ExporterSettings, Ptracer};
pub use handle::{DecodeError, Handle, SIZE as HANDLE_SIZE};
pub use identity::{BootId, Nonce};
pub use importer::{Access, Importer, ImporterBuilder, ImporterSettings, Mapping};
pub use transfer::{Exchange, Mode};
