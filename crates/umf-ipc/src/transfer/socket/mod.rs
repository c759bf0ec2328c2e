//! The producer's socket: an abstract `SOCK_SEQPACKET` address named by its nonce (`unix(7)`), so that nothing
//! is left in any file system.
//!
//! A request asks for one fd and gets one answer. Both sides check the other's uid (`SO_PEERCRED`); neither
//! waits for the other without a bound.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod wire;

pub use wire::Request;
