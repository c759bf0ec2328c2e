//! What can go wrong in a domain, each with what to do about it.

use rustix::io::Errno;

use crate::Number;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why something in a domain failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of a domain that cannot be one.
    #[error("{name:?} cannot name a domain: {why}")]
    BadName {
        /// The name, cut to 64 characters.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The number belongs to another domain.
    #[error("object {number} does not belong to domain {domain:?}: use the domain in which it was created")]
    WrongDomain {
        /// The number.
        number: Number,
        /// The domain that was asked.
        domain: String,
    },
    /// No object has this number, or none has it any more.
    #[error(
        "domain {domain:?} has no object {number}: its last registered process unregistered or died, or it never was; \
         get a new number from whoever creates objects"
    )]
    NoSuchNumber {
        /// The number.
        number: Number,
        /// The domain.
        domain: String,
    },
    /// The object is of another kind.
    #[error(
        "object {number} is of kind {kind}, not of kind {wanted}: register it with the kind it was created with"
    )]
    WrongKind {
        /// The number.
        number: Number,
        /// Its kind.
        kind: u32,
        /// The kind asked for.
        wanted: u32,
    },
    /// The object exists, but this process is not registered for it.
    #[error("this process is not registered for object {number}: register first")]
    NotRegistered {
        /// The number.
        number: Number,
    },
    /// A size that no region can have.
    #[error("a region cannot have {size} bytes: 1 to {largest}")]
    BadSize {
        /// The size.
        size: usize,
        /// The largest that would do here (`RLIMIT_FSIZE` counts).
        largest: u64,
    },
    /// The domain has all that it can have.
    #[error("domain {domain:?} has {limit} {what}, which is its limit; {remedy}")]
    Full {
        /// The domain.
        domain: String,
        /// Objects or participants.
        what: &'static str,
        /// The limit.
        limit: u32,
        /// What would help.
        remedy: &'static str,
    },
    /// A process of another user sits on a name that the domain needs.
    #[error(
        "process {pid} of user {uid} has bound {socket:?}, which domain {domain:?} of user {mine} needs: end it, or use \
         another name for the domain"
    )]
    OtherUser {
        /// The domain.
        domain: String,
        /// The abstract socket.
        socket: String,
        /// The user of that process.
        uid: u32,
        /// Its process id; 0 where this pid namespace does not see it, or the process accepts no connection.
        pid: i32,
        /// The user of this process.
        mine: u32,
    },
    /// The participants are there, but none answered in time.
    #[error(
        "nobody in domain {domain:?} answered within {milliseconds} ms: processes {pids:?} are stopped or overloaded; let \
         them continue, or end them"
    )]
    TimedOut {
        /// The domain.
        domain: String,
        /// Those that took the question and did not answer; 0 where this pid namespace does not see one.
        pids: Vec<i32>,
        /// [`crate::DomainSettings::timeout`].
        milliseconds: u64,
    },
    /// A process holds the domain's arbiter, which is held for microseconds, for longer than the timeout.
    #[error(
        "process {pid} has held {socket:?} of domain {domain:?} for more than {milliseconds} ms: it is stopped or \
         overloaded; let it continue, or end it"
    )]
    Held {
        /// The domain.
        domain: String,
        /// The abstract socket.
        socket: String,
        /// Its process id; 0 where that cannot be found out.
        pid: i32,
        /// [`crate::DomainSettings::timeout`].
        milliseconds: u64,
    },
    /// This process is a forked child: the domain is its parent's.
    #[error(
        "the domain was joined by this process's parent, and its objects are registered by it: join it here"
    )]
    Forked,
    /// The process's place in the domain went to somebody else.
    #[error(
        "this process lost its place in domain {domain:?}: its socket was closed by somebody else in this process, so that \
         it looked dead; its memory stays mapped. Join again"
    )]
    Expelled {
        /// The domain.
        domain: String,
    },
    /// Another participant does not keep to the rules.
    #[error("a participant of domain {domain:?} is not to be trusted: {what}")]
    Misbehaved {
        /// The domain.
        domain: String,
        /// What it did.
        what: &'static str,
    },
    /// Part of umf below this crate said no.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// The socket over which this process would serve.
    #[error(transparent)]
    Ipc(#[from] umf_ipc::Error),
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
                    "; this process has no fds left: raise RLIMIT_NOFILE (ulimit -n) or unregister some"
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
}
