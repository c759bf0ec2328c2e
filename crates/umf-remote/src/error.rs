//! [`Error`]: the errors of serving and of remote reads and writes.

use core::time::Duration;

use crate::RouteError;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why serving, opening, reading or writing failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes or the text are no remote handle.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Opening on this machine failed, or exporting.
    #[error(transparent)]
    Ipc(#[from] umf_ipc::Error),
    /// There is no libfabric.
    #[error("cannot reach other machines: {0}")]
    NoLibrary(String),
    /// libfabric has no provider that fits.
    #[error(
        "no provider of libfabric fits (wanted: {wanted}; reliable endpoints with messages and remote reads): it offers \
         {offered}; choose one with UMF_REMOTE_PROVIDER and UMF_REMOTE_INTERFACE, and see fi_info(1)"
    )]
    NoProvider {
        /// What was asked for.
        wanted: String,
        /// The names of the providers that libfabric offers.
        offered: String,
    },
    /// A call of libfabric failed.
    #[error("libfabric: {call} failed: {reason} ({provider}); see FI_LOG_LEVEL=warn")]
    Fabric {
        /// The function.
        call: &'static str,
        /// The text of its error.
        reason: String,
        /// The provider.
        provider: String,
    },
    /// A system call failed.
    #[error("remote memory: {call} failed: {errno}; free memory or descriptors, and try again")]
    System {
        /// The function.
        call: &'static str,
        /// Its error.
        errno: rustix::io::Errno,
    },
    /// This process does not serve.
    #[error(
        "cannot make a remote handle: this process does not serve; call serve() first, and keep what it returns"
    )]
    NotServing,
    /// The handle is not of this process.
    #[error(
        "cannot make a remote handle: the memory is of another process; let its producer make the handle"
    )]
    NotOwn,
    /// The producer ended, or cannot be reached.
    #[error("the producer at {address} is lost: {reason}; get a new handle, or try again if it may return")]
    ProducerLost {
        /// Its address.
        address: String,
        /// What libfabric says.
        reason: String,
    },
    /// Another process answers at the producer's address.
    #[error("the producer at {address} has been replaced by another process: get a new handle")]
    ProducerReplaced {
        /// The address.
        address: String,
    },
    /// The producer did not answer in time.
    #[error(
        "the producer at {address} did not answer within {} ms; try again, or raise UMF_REMOTE_TIMEOUT_MS \
         (remote.timeout_ms)",
        timeout.as_millis()
    )]
    TimedOut {
        /// Its address.
        address: String,
        /// The bound.
        timeout: Duration,
    },
    /// The memory was freed since the handle was made.
    #[error(
        "stale handle: slot {slot} of producer {pid} has generation {now}, the handle has {generation}: the memory was \
         freed since; get a new handle from the producer"
    )]
    Stale {
        /// The producer's process id on its machine.
        pid: u32,
        /// The ledger slot.
        slot: u32,
        /// The generation in the handle.
        generation: u64,
        /// The generation of the slot.
        now: u64,
    },
    /// The producer refuses.
    #[error("the producer at {address} refuses: {reason}; see its log, or ask its operator")]
    Refused {
        /// Its address.
        address: String,
        /// Its text.
        reason: String,
    },
    /// The key of the memory was refused although the producer gave it out.
    #[error(
        "the fabric refuses the key of the memory at {address}: {reason}; let the producer serve with another provider \
         (UMF_REMOTE_PROVIDER)"
    )]
    KeyRefused {
        /// The producer's address.
        address: String,
        /// What libfabric says.
        reason: String,
    },
    /// There is no grant, or it has ended.
    #[error(
        "cannot write at {address}: the grant has ended, by time or with its connection; ask for a new one, and for at \
         most {} ms (remote.max_grant_ms of the producer)", max.as_millis()
    )]
    NotGranted {
        /// The producer's address.
        address: String,
        /// The longest grant of the producer.
        max: Duration,
    },
    /// The range exceeds the block.
    #[error("{length} bytes at {offset} exceed the block of {size} bytes: pass a range within Remote::len")]
    OutOfBounds {
        /// The offset.
        offset: usize,
        /// The length.
        length: usize,
        /// The size of the block.
        size: usize,
    },
    /// The connection is of the parent process.
    #[error("the memory was opened before fork(2): open it again in the child process")]
    Forked,
    /// The peer sends what no umf sends.
    #[error("the peer at {address} misbehaves: {what}; let both processes use the same release of umf")]
    Misbehaved {
        /// Its address.
        address: String,
        /// What is wrong.
        what: &'static str,
    },
}
