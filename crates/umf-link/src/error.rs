//! What can go wrong on a link, each with what to do about it.

use rustix::io::Errno;

use crate::{AddressError, Element, Engine, KeyError, Operation};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why something on a link failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address was made on another machine, or before this one was booted.
    #[error(
        "the address comes from another machine or another boot: a link joins two processes of one machine; between machines \
         use the network stack that is there (MPI, libfabric, UCX)"
    )]
    OtherMachine,
    /// Nobody listens there.
    #[error(
        "nobody listens at {name:?}: the process (it was {pid}) has ended or dropped its endpoint, or is in another network \
         namespace"
    )]
    NobodyThere {
        /// The abstract socket.
        name: String,
        /// The process that the address is from, 0 for a name.
        pid: u32,
    },
    /// A name that an endpoint cannot have.
    #[error("{name:?} cannot name an endpoint: {why}")]
    BadName {
        /// The name, cut to 64 characters.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The name is taken.
    #[error("somebody listens at {name:?} already: use another name, or end that process")]
    NameTaken {
        /// The abstract socket.
        name: String,
    },
    /// The process at the other end is not of this user.
    #[error(
        "process {pid} at the other end belongs to user {uid}, this one to user {mine}: both have to be the same user's"
    )]
    OtherUser {
        /// Its process id; 0 where this pid namespace does not see it.
        pid: i32,
        /// Its user.
        uid: u32,
        /// The user of this process.
        mine: u32,
    },
    /// It did not come in time.
    #[error("{what} did not happen within {milliseconds} ms; nothing was lost: try again, or wait longer")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        milliseconds: u64,
    },
    /// The peer has ended, or replaced itself by `exec`.
    #[error(
        "peer {pid} is gone: it ended, was killed or called exec; make a new link to whoever takes its place"
    )]
    PeerGone {
        /// Its process id; 0 where this pid namespace does not see it.
        pid: i32,
    },
    /// The peer has closed the link, and all that it sent before was received.
    #[error("peer {pid} has closed the link")]
    Closed {
        /// Its process id; 0 where this pid namespace does not see it.
        pid: i32,
    },
    /// This process is a forked child: the link is its parent's.
    #[error("the link is that of this process's parent: make one here")]
    Forked,
    /// A request was given to another link than it was begun on.
    #[error("the request was begun on another link: give it to the one that made it")]
    OtherLink,
    /// The other side does not keep to the protocol.
    #[error("peer {pid} is not to be trusted: {what}; drop the link")]
    Misbehaved {
        /// Its process id; 0 where this pid namespace does not see it.
        pid: i32,
        /// What it did.
        what: &'static str,
    },
    /// The message is longer than the memory for it. It stays where it is.
    #[error(
        "the message has {length} bytes, the memory for it {capacity}: receive it again into as much (probe tells the length)"
    )]
    Truncated {
        /// Of the message.
        length: usize,
        /// Of the memory.
        capacity: usize,
    },
    /// A message that is to be received as a view came as a copy, or the other way round. It stays where it is.
    #[error("message {tag:#x} was {is}, and not {wanted}: receive it as what it is (probe tells)")]
    OtherForm {
        /// Its tag.
        tag: u64,
        /// What it is.
        is: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// So many messages came that nobody receives that no more are taken in to look for this one.
    #[error(
        "{held} bytes came that were not asked for, and the limit is {limit}: receive those first, or raise \
         link.max_unexpected (UMF_LINK_MAX_UNEXPECTED)"
    )]
    UnexpectedLimit {
        /// Bytes kept.
        held: u64,
        /// The limit.
        limit: u64,
    },
    /// The engine that the settings name cannot do it.
    #[error(
        "engine {engine} cannot carry this: {why}; choose another one, or \"auto\" (link.engine, UMF_LINK_ENGINE)"
    )]
    EngineImpossible {
        /// Which.
        engine: Engine,
        /// Why.
        why: String,
    },
    /// A rank that there is not in the job, or that is this one.
    #[error("there is no other rank {rank} in a job of {size}: ranks go from 0, and jobs have up to 4096")]
    BadRank {
        /// Which.
        rank: usize,
        /// Of how many.
        size: usize,
    },
    /// A rank did not come, and nobody knows whether it will.
    #[error(
        "rank {rank} of job {job:?} did not come within {milliseconds} ms; nothing was lost: start it, or try again, or wait longer"
    )]
    RankAbsent {
        /// The job's name.
        job: String,
        /// Which.
        rank: usize,
        /// How long it was waited for.
        milliseconds: u64,
    },
    /// Somebody is this rank already.
    #[error(
        "process {pid} is rank {rank} of job {job:?} already: give each its own number, or each job its own name"
    )]
    RankTaken {
        /// The job's name.
        job: String,
        /// Which.
        rank: usize,
        /// Who has it.
        pid: i32,
    },
    /// A rank thinks that the job has another size.
    #[error("another rank joined a job of {theirs}, this one a job of {mine}: let all say the same")]
    OtherSize {
        /// Ranks as the other one has it.
        theirs: usize,
        /// Ranks as this one has it.
        mine: usize,
    },
    /// Ranks do not call the same collective.
    #[error(
        "rank {rank} does not take part as this one does: {what}; let all ranks call the same with memory of the same length"
    )]
    Mismatch {
        /// Which.
        rank: usize,
        /// How it differs.
        what: &'static str,
    },
    /// A rank has given the collectives of a fabric up.
    #[error("rank {rank} gave this job's collectives up, and has the reason; messages between ranks go on")]
    GivenUp {
        /// Which.
        rank: usize,
    },
    /// A reduction that there is not.
    #[error("{operation:?} of {element:?} is not defined: bit operations are for integers")]
    NoReduction {
        /// What was to be done.
        operation: Operation,
        /// With what.
        element: Element,
    },
    /// Bytes that are to be numbers, and are not. A message stays where it is.
    #[error("{length} bytes are not numbers of {size} bytes each: send and receive whole numbers")]
    NotWhole {
        /// How many bytes.
        length: usize,
        /// Of a number.
        size: usize,
    },
    /// One-sided transfers replace what is there.
    #[error(
        "put and get replace bytes, and combine none: get into memory of its own and combine that, or send a message"
    )]
    NotCombined,
    /// What a message was being combined with is spoilt.
    #[error(
        "the message went away while it was combined with what was there ({why}): some of the numbers are combined and others \
         not; begin again from a copy"
    )]
    Spoilt {
        /// How it went.
        why: &'static str,
    },
    /// An offset outside of memory.
    #[error("{length} bytes at offset {offset} reach past the end of memory of {size} bytes")]
    OutOfBounds {
        /// Where they begin.
        offset: usize,
        /// How many.
        length: usize,
        /// What there is.
        size: usize,
    },
    /// The bytes are no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key is one of another link, or one of this process's own.
    #[error(
        "the key is not one that the peer of this link has made on it: a key is good on one link, in one direction"
    )]
    OtherKey,
    /// The range of a key is not registered any more.
    #[error(
        "the range of the key (slot {slot}, generation {generation}) is not registered any more: ask its owner for a new key"
    )]
    Expired {
        /// Its slot.
        slot: usize,
        /// Its generation.
        generation: u64,
    },
    /// The key does not allow this.
    #[error("the key does not allow to {what}: its owner registered the range for {allowed:?}")]
    NotAllowed {
        /// What was asked for: `get` or `put`.
        what: &'static str,
        /// What is allowed.
        allowed: crate::RemoteAccess,
    },
    /// Both sides of a one-sided transfer have to be of the same length.
    #[error(
        "the pieces of the registered range have {remote} bytes together, those here {local}: both have to be equal"
    )]
    Lengths {
        /// Of the pieces of the range.
        remote: usize,
        /// Of the memory of this process.
        local: usize,
    },
    /// A range that is registered lies in one piece, and so does the memory of a collective.
    #[error(
        "memory that is registered or in a collective has to be one piece, and not {pieces}: take each by itself"
    )]
    NotOnePiece {
        /// How many it has.
        pieces: usize,
    },
    /// The peer could not do its part.
    #[error("peer {pid} could not touch the memory of the range: its driver refuses")]
    RemoteFailed {
        /// Its process id; 0 where this pid namespace does not see it.
        pid: i32,
    },
    /// All slots for ranges are taken.
    #[error(
        "{most} ranges are registered on this link, and no more can be: end some, or register larger ones"
    )]
    TooManyRanges {
        /// How many can be.
        most: usize,
    },
    /// Memory of a pool that could not be opened here.
    #[error("memory of peer {pid} cannot be opened: {error}")]
    Open {
        /// The peer's process id.
        pid: i32,
        /// Why.
        error: umf_ipc::Error,
    },
    /// Part of umf below this crate said no.
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
                    "; this process has no fds left: raise RLIMIT_NOFILE (ulimit -n) or drop some links"
                }
                Errno::NFILE => "; the system has no fds left: raise fs.file-max",
                Errno::NOMEM => "; no memory, or vm.max_map_count mappings reached",
                Errno::NOSPC => "; no shared memory left",
                Errno::FBIG => "; raise RLIMIT_FSIZE (ulimit -f)",
                _ => "",
            };
            Self::System { call, errno, hint }
        }
    }

    /// Whether the link can never be used again.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::PeerGone { .. } | Self::Closed { .. } | Self::Forked | Self::Misbehaved { .. })
    }
}
