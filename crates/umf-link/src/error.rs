//! [`Error`]: what can fail on a link, and what to do about it.

use rustix::io::Errno;

use crate::{AddressError, Element, Engine, KeyError, Operation};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why an operation on a link or a communicator failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes that are not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An address of another machine, or of an earlier boot.
    #[error(
        "cannot connect: the address is of another machine or an earlier boot; a link joins two processes of one machine, \
         between machines use a network (MPI, libfabric, UCX)"
    )]
    OtherMachine,
    /// No process listens at the address.
    #[error(
        "no process listens at {name:?}: process {pid} has ended, dropped its endpoint or is in another network namespace; \
         get its new address"
    )]
    NotListening {
        /// The abstract socket.
        name: String,
        /// The process that made the address, 0 for a name.
        pid: u32,
    },
    /// A name that an endpoint or a job cannot have.
    #[error("{name:?} cannot name an endpoint or a job: {why}")]
    BadName {
        /// The name, cut to 64 characters.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A name that another process has.
    #[error("cannot bind {name:?}: a process listens there already; use another name, or end that process")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A process of another user.
    #[error(
        "cannot link with process {pid}: it belongs to user {uid}, this one to user {mine}; run both as the same user"
    )]
    OtherUser {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
        /// Its user.
        uid: u32,
        /// The user of this process.
        mine: u32,
    },
    /// The time of a call was over.
    #[error("{what} did not end within {milliseconds} ms; try again, or set a longer timeout")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        milliseconds: u64,
    },
    /// The peer has ended or called `exec`.
    #[error(
        "peer {pid} is gone: it ended, was killed or called exec; make a link with the process that replaces it"
    )]
    PeerGone {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// The peer has closed the link, and all that it sent before was received.
    #[error("peer {pid} has closed the link; make a new one")]
    Closed {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// A link of the parent in a forked child.
    #[error("the link belongs to the parent of this process; make one here")]
    Forked,
    /// A request of another link, or of a rank that was forgotten.
    #[error(
        "the request was begun on another link or with a forgotten rank; give it to the link that made it"
    )]
    WrongLink,
    /// The peer breaks the protocol.
    #[error("peer {pid} breaks the protocol: {what}; drop the link")]
    Misbehaved {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
        /// How.
        what: &'static str,
    },
    /// A message that is longer than the memory for it. It stays.
    #[error(
        "cannot receive a message of {length} bytes into {capacity}; receive it into more memory (probe returns the length)"
    )]
    Truncated {
        /// Of the message.
        length: usize,
        /// Of the memory.
        capacity: usize,
    },
    /// A message that cannot be received as a view. It stays.
    #[error("message {tag:#x} was {is}, and is not {wanted}; receive it with recv (probe returns its form)")]
    WrongForm {
        /// Its tag.
        tag: u64,
        /// How it came.
        is: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// The engine of the settings cannot carry a message.
    #[error(
        "engine {engine} cannot carry this: {why}; set another one, or \"auto\" (link.engine, UMF_LINK_ENGINE)"
    )]
    EngineImpossible {
        /// Which.
        engine: Engine,
        /// Why.
        why: String,
    },
    /// A number that no other rank of the job has.
    #[error("a job of {size} has no other rank {rank}; ranks count from 0, and jobs have 1 to 1024")]
    BadRank {
        /// Which.
        rank: usize,
        /// Ranks of the job.
        size: usize,
    },
    /// A rank that has not joined.
    #[error(
        "rank {rank} of job {job:?} did not join within {milliseconds} ms; nothing was lost: start it, or set a longer timeout"
    )]
    RankAbsent {
        /// The job's name.
        job: String,
        /// Which.
        rank: usize,
        /// How long it was waited for.
        milliseconds: u64,
    },
    /// A rank that another process is already.
    #[error(
        "cannot join job {job:?} as rank {rank}: process {pid} is that rank; give each its own number, or each job its own name"
    )]
    RankTaken {
        /// The job's name.
        job: String,
        /// Which.
        rank: usize,
        /// The process that is the rank.
        pid: i32,
    },
    /// A rank that joined with another size of the job.
    #[error("another rank joined a job of {theirs} ranks, this one a job of {mine}; give all the same size")]
    SizeMismatch {
        /// Its size for the other rank.
        theirs: usize,
        /// Its size for this rank.
        mine: usize,
    },
    /// An error of the domain in which the ranks of a job find each other.
    #[cfg(feature = "comm")]
    #[error("cannot find the ranks of job {job:?}: {error}")]
    Membership {
        /// The job's name.
        job: String,
        /// Why, and what to do.
        error: umf_domain::Error,
    },
    /// Ranks that call different collectives.
    #[error(
        "rank {rank} calls something else: {what}; let all ranks call the same with memory of the same length"
    )]
    Mismatch {
        /// Which.
        rank: usize,
        /// How it differs.
        what: &'static str,
    },
    /// A rank whose collectives failed.
    #[error(
        "collectives have ended: one failed on rank {rank}, which has the reason; messages between ranks go on"
    )]
    CollectivesEnded {
        /// Which.
        rank: usize,
    },
    /// A reduction that does not exist.
    #[error("{operation:?} of {element:?} is not defined; use bit operations for integers only")]
    NoReduction {
        /// The operation.
        operation: Operation,
        /// The kind of numbers.
        element: Element,
    },
    /// Bytes that are not whole numbers. A message stays.
    #[error("{length} bytes are not numbers of {size} bytes each; send and receive whole numbers")]
    PartialElement {
        /// How many bytes.
        length: usize,
        /// Of a number.
        size: usize,
    },
    /// Memory of which each rank gets a block, and which has no whole number of bytes for each.
    #[error("{length} bytes cannot be divided among {ranks} ranks; give a multiple of their number")]
    NotDivisible {
        /// How many bytes.
        length: usize,
        /// How many ranks.
        ranks: usize,
    },
    /// A one-sided transfer into memory that combines.
    #[error(
        "put and get replace bytes and do not combine; get into other memory and combine that, or send a message"
    )]
    NotCombined,
    /// A message that was lost while it was combined.
    #[error(
        "the message was lost while it was combined ({why}): some numbers are combined and others not; begin again from a copy"
    )]
    PartlyCombined {
        /// How.
        why: &'static str,
    },
    /// A range outside of memory.
    #[error(
        "{length} bytes at offset {offset} reach past the end of memory of {size} bytes; use a smaller range"
    )]
    OutOfBounds {
        /// Its start.
        offset: usize,
        /// Its length.
        length: usize,
        /// The size of the memory.
        size: usize,
    },
    /// Bytes that are not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A key of another process.
    #[error("the peer of this link has not made the key; use it on a link with the process that made it")]
    ForeignKey,
    /// A key whose range is not registered any more.
    #[error(
        "the range of the key (slot {slot}, generation {generation}) is not registered any more; ask its owner for a new key"
    )]
    Expired {
        /// Its slot.
        slot: usize,
        /// Its generation.
        generation: u64,
    },
    /// A transfer that the key does not allow.
    #[error(
        "the key does not allow to {what}: its owner registered the range for {allowed:?}; ask it for another key"
    )]
    NotAllowed {
        /// `get` or `put`.
        what: &'static str,
        /// What is allowed.
        allowed: crate::RemoteAccess,
    },
    /// A transfer between memory of different lengths.
    #[error("memory of {remote} and of {local} bytes was given; give both the same length")]
    LengthMismatch {
        /// Of the peer, or of what is received.
        remote: usize,
        /// Of this process.
        local: usize,
    },
    /// A list where one piece is needed.
    #[error(
        "memory of {pieces} pieces cannot be registered or used in a collective; use each piece by itself"
    )]
    NotOnePiece {
        /// How many.
        pieces: usize,
    },
    /// A peer that could not copy its part.
    #[error("peer {pid} could not access the memory of the range: its driver refuses; see its log")]
    RemoteFailed {
        /// Its pid; 0 where this pid namespace does not show it.
        pid: i32,
    },
    /// Too many registered ranges.
    #[error(
        "cannot register a range: {most} are registered, which is the most; end some, or register larger ones"
    )]
    TooManyRanges {
        /// The most.
        most: usize,
    },
    /// Memory of a peer that could not be opened here.
    #[error("cannot open memory of peer {pid}: {error}")]
    Open {
        /// The pid of the peer.
        pid: i32,
        /// Why.
        error: umf_ipc::Error,
    },
    /// An error of a provider or a pool.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// A system call failed.
    #[error("{call} failed: {errno} ({}){hint}", errno.raw_os_error())]
    System {
        /// Which.
        call: &'static str,
        /// Its error.
        errno: Errno,
        /// What to do, beginning with "; ", or nothing.
        hint: &'static str,
    },
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

    /// Returns whether the link can never be used again.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::PeerGone { .. } | Self::Closed { .. } | Self::Forked | Self::Misbehaved { .. })
    }
}
