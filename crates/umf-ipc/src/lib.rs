//! By-value memory handles between processes of one machine.
//!
//! A [`Handle`] is 256 plain bytes. Its path through this crate:
//!
//! ```text
//! Exporter::get(address) -> Handle        Importer::open(bytes) -> Mapping
//!   exporter: region -> native export       handle:    decode, check
//!   ledger:   slot, generation              importer:  memo, cache of mappings
//!   handle:   encode                        transfer:  fetch the producer's fd
//!                                           ledger:    compare the generation, before and after
//! ```
//!
//! - [`exporter`]: exports blocks and regions, and retires them before their memory is freed
//! - [`importer`]: opens handles, keeps mappings in a bounded cache
//! - [`transfer`]: how a descriptor is fetched: `pidfd`, `procfs`, `socket`,
//!   `directory`
//! - [`rendezvous`]: sockets with names in a directory
//! - [`transit`]: the bound of handles in transit
//! - [`preloaded`]: the heap of a preloaded `libumf_proxy.so`
//! - [`inspect`]: reads the ledgers of running and of killed processes
//! - `ledger`: the shared file that shows which exports are current
//! - `lease`: the shared file that shows which exports are open
//! - `cache`: the caches of exporters and importers
//! - [`fd_socket`], [`system`]: parts that crates on top of this one use
//! - `protocol`: the lock-free protocols, which loom models
//!
//! This crate does not depend on providers. The program registers the kinds of memory that an
//! importer can open ([`ImporterBuilder::import`]).

mod cache;
mod error;
pub mod exporter;
mod handle;
mod identity;
pub mod importer;
pub mod inspect;
mod lease;
mod ledger;
pub mod preloaded;
mod protocol;
pub mod rendezvous;
pub mod transfer;
pub mod transit;

/// Sockets that serve descriptors to processes of the same user: the exporter's, and those of other
/// crates that serve descriptors in the same way.
///
/// A server's sockets are abstract, or in a directory ([`rendezvous`]), and named by a
/// [`Nonce`]. A client sends one [`Request`](fd_socket::Request) and gets one
/// [`Answer`](fd_socket::Answer), with or without a descriptor. Each process checks the user of the
/// other, or that it has the same [`Key`](fd_socket::Key).
pub mod fd_socket {
    pub use crate::transfer::socket::client::{
        Answer, Deadline, authenticate, connect_in, finish_authentication, receive,
    };
    pub use crate::transfer::socket::proof::{ClientProof, Key, ProofStep, ServerProof};
    pub use crate::transfer::socket::server::{
        FdSource, Listeners, OutgoingFd, Server, ServerRule, SharedFd,
    };
    pub use crate::transfer::socket::{Request, directory_prefix};
}

/// Entry point of fuzz targets: the decoders of requests and replies.
#[cfg(fuzzing)]
pub mod fuzz {
    pub use crate::transfer::socket::fuzz as packets;
    pub use crate::transfer::socket::proof::fuzz as proofs;
}

/// Identities of processes and of the boot, for crates that share memory in other ways.
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
pub use umf_os::socket::Allow;

/// Called at the end of each `umf_runtime::deferred::poll`.
fn after_poll() {
    lease::drop_reclaimed();
    importer::poll_passed_on();
    importer::sweep_all();
}
