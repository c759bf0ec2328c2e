//! Errors of domains. Each text says what failed, why, and what to do.

use std::path::PathBuf;

use rustix::io::Errno;
use umf_ipc::Allow;
use umf_ipc::rendezvous::DirectoryError;

use crate::ObjectId;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The reason why a call on a domain or an object failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be the name of a domain.
    #[error(
        "cannot use the name {name:?} for a domain: {why}; use 1 to 64 letters and digits of ASCII and . _ : / + = @ -"
    )]
    BadName {
        /// The name, cut to 64 characters.
        name: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The object id belongs to another domain.
    #[error(
        "cannot find object {id} in domain {domain:?}: the id is of another domain; use the domain in which it was created"
    )]
    WrongDomain {
        /// The id.
        id: ObjectId,
        /// The domain of the call.
        domain: String,
    },
    /// The domain has no object with this id.
    #[error(
        "domain {domain:?} has no object {id}: its last registered process unregistered or died, or it never existed; get a \
         new id from the process that creates objects"
    )]
    NoSuchObject {
        /// The id.
        id: ObjectId,
        /// The domain.
        domain: String,
    },
    /// The object is of another kind.
    #[error(
        "cannot register for object {id}: it is of kind {kind}, not of kind {wanted}; pass the kind with which it was created"
    )]
    WrongKind {
        /// The id.
        id: ObjectId,
        /// Its kind.
        kind: u32,
        /// The kind that the caller named.
        wanted: u32,
    },
    /// The object exists, but this process is not registered for it.
    #[error("cannot unregister from object {id}: this process is not registered for it; register first")]
    NotRegistered {
        /// The id.
        id: ObjectId,
    },
    /// A region cannot have this size.
    #[error("cannot create a region of {size} bytes: a region has 1 to {largest} bytes; pass another size")]
    BadSize {
        /// The size.
        size: usize,
        /// The largest size that this process can create (`RLIMIT_FSIZE` counts).
        largest: u64,
    },
    /// The domain is at its limit of objects or participants.
    #[error("domain {domain:?} has {limit} {what}, which is its limit; {remedy}")]
    Full {
        /// The domain.
        domain: String,
        /// "objects" or "participants".
        what: &'static str,
        /// The limit.
        limit: u32,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// A process of another user has bound a socket name that the domain needs.
    #[error(
        "process {pid} of user {uid} has bound {socket:?}, which domain {domain:?} of user {own_uid} needs; end that process, \
         or use another name for the domain"
    )]
    OtherUser {
        /// The domain.
        domain: String,
        /// The abstract socket, or the file in the directory.
        socket: String,
        /// The user of that process.
        uid: u32,
        /// Its process id; 0 if this pid namespace does not see it, or it accepts no connection.
        pid: i32,
        /// The user of this process.
        own_uid: u32,
    },
    /// Participants exist, but none answered in time.
    #[error(
        "no participant of domain {domain:?} answered within {milliseconds} ms: processes {pids:?} are stopped or \
         overloaded; let them continue, or end them"
    )]
    TimedOut {
        /// The domain.
        domain: String,
        /// Participants that got the request and did not answer; 0 for one outside this pid
        /// namespace.
        pids: Vec<i32>,
        /// [`crate::DomainSettings::timeout`].
        milliseconds: u64,
    },
    /// A process held the domain's arbiter for longer than the timeout.
    #[error(
        "process {pid} has held {socket:?} of domain {domain:?} for more than {milliseconds} ms: it is stopped or \
         overloaded; let it continue, or end it"
    )]
    ArbiterHeld {
        /// The domain.
        domain: String,
        /// The abstract socket, or the file in the directory.
        socket: String,
        /// Its process id; 0 if that is unknown, as in a directory.
        pid: i32,
        /// [`crate::DomainSettings::timeout`].
        milliseconds: u64,
    },
    /// This process is a forked child, and its parent joined the domain.
    #[error(
        "cannot use the domain: the parent of this process joined it and is the registrant of its objects; join the domain \
         in this process"
    )]
    Forked,
    /// Another process took this process's participant id.
    #[error(
        "cannot use domain {domain:?}: the socket of this process was closed, so that another process took its participant \
         id; close only your own fds, and join again (mapped objects stay mapped)"
    )]
    Expelled {
        /// The domain.
        domain: String,
    },
    /// Another participant broke the protocol.
    #[error(
        "a participant of domain {domain:?} broke the protocol: {what}; find out which process it is, and end it"
    )]
    Misbehaved {
        /// The domain.
        domain: String,
        /// What it did.
        what: &'static str,
    },
    /// A participant does not permit this process, or this process does not permit a participant.
    #[error(
        "cannot join domain {domain:?}: the rule ipc.allow = \"{rule}\" refuses this process or a participant, in the \
         directory {path}; set the same rule in all processes, and {remedy}",
        path = path.display(),
        remedy = remedy(*rule)
    )]
    NotPermitted {
        /// The domain.
        domain: String,
        /// The rule.
        rule: Allow,
        /// [`crate::DomainSettings::directory`].
        path: PathBuf,
    },
    /// The directory of the domain cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// An error of `umf-core`.
    #[error(transparent)]
    Memory(#[from] umf_core::Error),
    /// An error of the socket over which this process serves fds.
    #[error(transparent)]
    Ipc(#[from] umf_ipc::Error),
    /// A system call failed.
    #[error("{call} failed: {errno} ({}){hint}", errno.raw_os_error())]
    System {
        /// The call and its object.
        call: &'static str,
        /// Its error.
        errno: Errno,
        /// What to do, beginning with "; ", or nothing.
        hint: &'static str,
    },
}

const fn remedy(rule: Allow) -> &'static str {
    match rule {
        Allow::SameUser => "run all processes as one user, or set UMF_IPC_ALLOW=group or handle",
        Allow::Group => "run all processes with one effective group, or set UMF_IPC_ALLOW=handle",
        Allow::Handle => "pass the same name",
    }
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| {
            let hint = match errno {
                Errno::MFILE => {
                    "; this process has no fds left: raise RLIMIT_NOFILE (ulimit -n) or unregister some"
                }
                Errno::NFILE => "; the system has no fds left: raise fs.file-max",
                Errno::NOMEM => "; no memory is left, or vm.max_map_count mappings exist",
                Errno::NOSPC => "; no shared memory is left",
                Errno::FBIG => "; raise RLIMIT_FSIZE (ulimit -f)",
                _ => "",
            };
            Self::System { call, errno, hint }
        }
    }
}
