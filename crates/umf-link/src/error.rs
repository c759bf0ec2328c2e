//! [`Error`]: the errors of links and communicators. Each text says what failed, why, and what to do.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use umf_ipc::Allow;
use umf_ipc::rendezvous::DirectoryError;

use crate::{AddressError, Element, Engine, KeyError, Operation};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The reason why an operation on a link or a communicator failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes or the text are not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address belongs to another machine, or to an earlier boot.
    #[error(
        "cannot connect: the address is of another machine or an earlier boot; a link joins two processes of one machine, \
         between machines use a network (MPI, libfabric, UCX)"
    )]
    OtherMachine,
    /// No process listens at the address.
    #[error(
        "no process listens at {name:?} ({place}): process {pid} has ended, dropped its endpoint or finds others elsewhere; get \
         its new address, or set UMF_IPC_DIR in both processes to a directory that both have mounted",
        place = place(directory.as_deref())
    )]
    NotListening {
        /// The abstract socket, or the socket in the directory.
        name: String,
        /// The process that made the address, 0 for a name.
        pid: u32,
        /// [`crate::LinkSettings::directory`].
        directory: Option<PathBuf>,
    },
    /// One process has its sockets in a directory, and the other does not.
    #[error(
        "cannot connect: of the endpoint and this process, one is in a directory and the other is not (here: {place}); set \
         UMF_IPC_DIR in both to the directory that both have mounted, or in none",
        place = place(directory.as_deref())
    )]
    OtherPlace {
        /// [`crate::LinkSettings::directory`] of this process.
        directory: Option<PathBuf>,
    },
    /// The rule of one process does not permit the other.
    #[error(
        "cannot link with process {pid}: the rule ipc.allow = \"{rule}\" of one process refuses the other; run both as one \
         user (same-user) or with one group (group), or set UMF_IPC_ALLOW=handle for both"
    )]
    NotPermitted {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
        /// The rule.
        rule: Allow,
    },
    /// The process that listens does not have the key of the address.
    #[error(
        "cannot connect to {name:?}: the process that listens there did not prove the key of the address, so that it has \
         taken the name of another process; end it, and get a new address"
    )]
    NotProven {
        /// The socket in the directory.
        name: String,
    },
    /// The directory of the sockets cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The name cannot be the name of an endpoint or a job.
    #[error(
        "cannot use the name {name:?} for an endpoint or a job: {why}; use letters and digits of ASCII and . _ : / + = @ -"
    )]
    BadName {
        /// The name, cut to 64 characters.
        name: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// Another process has bound the name.
    #[error("cannot bind {name:?}: a process listens there already; use another name, or end that process")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The other process belongs to another user.
    #[error(
        "cannot link with process {pid}: it belongs to user {uid}, this process to user {own_uid}; run both as the same user"
    )]
    OtherUser {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
        /// Its user.
        uid: u32,
        /// The user of this process.
        own_uid: u32,
    },
    /// The call reached its timeout.
    #[error("{what} did not end within {milliseconds} ms; try again, or set a longer timeout")]
    TimedOut {
        /// The event for which the call waited.
        what: &'static str,
        /// The timeout.
        milliseconds: u64,
    },
    /// The other process of a [`crate::mesh::Mesh`] has not accepted the link yet.
    #[error(
        "process {pid} has not accepted the link yet: it is stopped or busy; make progress, and call again"
    )]
    NotAccepted {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// The program's function `interrupt` ended the call.
    #[error(
        "cannot finish the call: the program interrupted it (LinkSettings::interrupt); call it again, or join a new job \
         if it was a collective"
    )]
    Interrupted,
    /// The peer has ended or called `exec`.
    #[error(
        "peer {pid} is gone: it ended, was killed or called exec; make a link with the process that replaces it"
    )]
    PeerGone {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// The peer has closed the link, and all its messages were received.
    #[error("cannot use the link: peer {pid} has closed it; make a new link")]
    Closed {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// This process is a forked child, and the link belongs to its parent.
    #[error("cannot use the link: it belongs to the parent of this process; make a link in this process")]
    Forked,
    /// The request belongs to another link, or to a rank that was forgotten.
    #[error(
        "cannot use the request: it belongs to another link, or to a forgotten rank; pass it to the link that made it"
    )]
    WrongLink,
    /// The peer broke the protocol.
    #[error("peer {pid} broke the protocol: {what}; drop the link")]
    Misbehaved {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
        /// What it did.
        what: &'static str,
    },
    /// The message is longer than the memory for it. The message stays in the queue.
    #[error(
        "cannot receive a message of {length} bytes into {capacity}; receive it into more memory (probe returns the length)"
    )]
    Truncated {
        /// The length of the message.
        length: usize,
        /// The length of the memory.
        capacity: usize,
    },
    /// The message cannot be received as a view. It stays in the queue.
    #[error(
        "cannot receive message {tag:#x} as a view: it was {is}, and is not {wanted}; receive it with recv (probe returns its form)"
    )]
    WrongForm {
        /// Its tag.
        tag: u64,
        /// The form in which it was sent.
        is: &'static str,
        /// The form that the call receives.
        wanted: &'static str,
    },
    /// The engine that the settings name cannot carry the message.
    #[error(
        "engine {engine} cannot carry this message: {why}; set another engine, or \"auto\" (link.engine, UMF_LINK_ENGINE)"
    )]
    EngineImpossible {
        /// The engine.
        engine: Engine,
        /// The reason.
        why: String,
    },
    /// No other rank of the job has this number.
    #[error(
        "cannot use rank {rank} in a job of {size} ranks: ranks count from 0, a rank has no link with itself, and jobs have 1 to 1024 ranks; pass another rank or size"
    )]
    BadRank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
    },
    /// The rank did not join within the timeout.
    #[error(
        "rank {rank} of job {job:?} did not join within {milliseconds} ms; start it, or set a longer timeout (nothing was lost)"
    )]
    RankAbsent {
        /// The job's name.
        job: String,
        /// The rank.
        rank: usize,
        /// The timeout.
        milliseconds: u64,
    },
    /// A living process is this rank already.
    #[error(
        "cannot join job {job:?} as rank {rank}: process {pid} is that rank; give each process its own rank, or each job its own name"
    )]
    RankTaken {
        /// The job's name.
        job: String,
        /// The rank.
        rank: usize,
        /// The process that is the rank.
        pid: i32,
    },
    /// Another rank joined with another size of the job.
    #[error(
        "cannot join: another rank joined a job of {other} ranks, this rank a job of {own}; pass the same size on all ranks"
    )]
    SizeMismatch {
        /// The size that the other rank gave.
        other: usize,
        /// The size that this rank gave.
        own: usize,
    },
    /// The domain in which the ranks of a job find each other failed.
    #[cfg(feature = "comm")]
    #[error("cannot find the ranks of job {job:?}: {error}")]
    Membership {
        /// The job's name.
        job: String,
        /// The error of the domain, with a remedy.
        error: umf_domain::Error,
    },
    /// The ranks called different collectives.
    #[error(
        "cannot finish the collective with rank {rank}: {what}; call the same collective on all ranks, with memory of the same \
         length"
    )]
    Mismatch {
        /// The rank.
        rank: usize,
        /// The difference.
        what: &'static str,
    },
    /// A collective failed on another rank, which ended collectives.
    #[error(
        "collectives have ended: one failed on rank {rank}, whose error has the reason; join a new job (messages between \
         ranks go on)"
    )]
    CollectivesEnded {
        /// The rank.
        rank: usize,
    },
    /// The operation is not defined for the kind of numbers.
    #[error(
        "cannot combine {element:?} by {operation:?}: bit operations are for integers; use another operation or integers"
    )]
    NoReduction {
        /// The operation.
        operation: Operation,
        /// The kind of numbers.
        element: Element,
    },
    /// The bytes are not whole numbers. A message stays in the queue.
    #[error(
        "cannot combine {length} bytes: that is no multiple of the element size of {size} bytes; send and receive whole numbers"
    )]
    PartialElement {
        /// The number of bytes.
        length: usize,
        /// The size of a number.
        size: usize,
    },
    /// The memory cannot be divided into blocks of the same length for all ranks.
    #[error(
        "cannot divide {length} bytes among {ranks} ranks: the blocks would differ in length; pass a multiple of {ranks} bytes"
    )]
    NotDivisible {
        /// The number of bytes.
        length: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A one-sided transfer cannot combine numbers.
    #[error(
        "cannot combine in a one-sided transfer: put and get replace bytes; get into other memory and combine that, or send a message"
    )]
    NotCombined,
    /// The message was lost after a part of it was combined.
    #[error(
        "the message was lost while it was combined, because {why}: some numbers are combined and others are not; begin again from a copy"
    )]
    PartlyCombined {
        /// The reason.
        why: &'static str,
    },
    /// The range is outside of the memory.
    #[error(
        "cannot use {length} bytes at offset {offset}: they reach past the end of memory of {size} bytes; use a smaller range"
    )]
    OutOfBounds {
        /// Its start.
        offset: usize,
        /// Its length.
        length: usize,
        /// The size of the memory.
        size: usize,
    },
    /// The bytes are not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key was made by another process than the peer.
    #[error(
        "cannot use the key on this link: the peer did not make it; use a link with the process that made it"
    )]
    ForeignKey,
    /// The registration of the key has ended.
    #[error(
        "cannot use the key of slot {slot}, generation {generation}: the registration of its range has ended; ask the owner for a new key"
    )]
    Expired {
        /// Its slot.
        slot: usize,
        /// Its generation.
        generation: u64,
    },
    /// The key does not allow the transfer.
    #[error(
        "cannot {what}: the owner of the key registered the range for {allowed:?}; ask the owner for another key"
    )]
    NotAllowed {
        /// `get` or `put`.
        what: &'static str,
        /// The access that the owner allowed.
        allowed: crate::RemoteAccess,
    },
    /// The remote and the local memory have different lengths.
    #[error(
        "cannot transfer between {remote} bytes of remote and {local} bytes of local memory: the lengths differ; pass the same length"
    )]
    LengthMismatch {
        /// The length of the remote or the incoming memory.
        remote: usize,
        /// The length of the local memory.
        local: usize,
    },
    /// The call needs memory in one piece.
    #[error(
        "cannot register memory or use it in a collective: it has {pieces} pieces; pass each piece by itself"
    )]
    NotContiguous {
        /// The number of pieces.
        pieces: usize,
    },
    /// The peer could not access the registered memory.
    #[error(
        "peer {pid} could not access the memory of the range: its driver refused; see the log of the peer"
    )]
    RemoteFailed {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// All slots for registered ranges are used.
    #[error(
        "cannot register a range: {most} ranges are registered, which is the limit; end some registrations, or register larger ranges"
    )]
    TooManyRanges {
        /// The limit.
        most: usize,
    },
    /// This process could not open memory of the peer.
    #[error("cannot open memory of peer {pid}: {error}")]
    Open {
        /// The pid of the peer.
        pid: i32,
        /// The reason.
        error: umf_ipc::Error,
    },
    /// An error of a provider or a pool.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// A system call failed.
    #[error("{call} failed: {errno} ({}){hint}", errno.raw_os_error())]
    System {
        /// The system call and its object.
        call: &'static str,
        /// Its error.
        errno: Errno,
        /// What to do, beginning with "; ", or nothing.
        hint: &'static str,
    },
}

/// Returns where this process finds others.
fn place(directory: Option<&Path>) -> String {
    directory.map_or_else(
        || "abstract sockets of this network namespace, no directory is set".to_owned(),
        |path| format!("in the directory {}", path.display()),
    )
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| {
            let hint = match errno {
                Errno::MFILE => {
                    "; this process has no descriptors left: raise RLIMIT_NOFILE (ulimit -n) or drop some links"
                }
                Errno::NFILE => "; the system has no descriptors left: raise fs.file-max",
                Errno::NOMEM => "; no memory is left, or vm.max_map_count mappings exist",
                Errno::NOSPC => "; no shared memory is left",
                Errno::FBIG => "; raise RLIMIT_FSIZE (ulimit -f)",
                _ => "",
            };
            Self::System { call, errno, hint }
        }
    }

    /// Returns whether the link cannot be used any more.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::PeerGone { .. } | Self::Closed { .. } | Self::Forked | Self::Misbehaved { .. })
    }
}
