//! The true test of what two processes of one job may do to each other: children of this command try it.
//!
//! The holder keeps a secret word in its memory and in a memfd; its siblings, the reachers, try the ways of getting at
//! it, one each. Trying on oneself or on one's own child would pass where yama refuses siblings.

use std::time::Instant;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::bounded_child::{BoundedChild, Silence};
use super::{Role, TIME};
use crate::info::errno;

/// How a reacher goes about it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// `pidfd_open` and `pidfd_getfd`.
    Pidfd,
    /// Opening `/proc/PID/fd/N`.
    Procfs,
    /// `SCM_RIGHTS` over an abstract socket.
    Socket,
    /// `process_vm_readv`.
    Memory,
}

/// Where the secret is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(super) pid: i32,
    pub(super) held: Held,
}

/// What the holder says of itself, its secret apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) fd: i32,
    pub(super) address: u64,
    /// The name of its abstract socket, if it has one.
    pub(super) socket: Result<String, Refusal>,
}

/// What the holder prints.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Announcement {
    pub(super) secret: u64,
    pub(super) held: Held,
}

/// What a reacher prints: the word that it read, or where it was stopped.
pub(super) type Word = Result<u64, Refusal>;

/// A step that failed, and its error number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    step: String,
    errno: i32,
}

impl Refusal {
    pub(super) fn at(step: &str) -> impl Fn(Errno) -> Refusal {
        move |number| Refusal { step: step.to_owned(), errno: number.raw_os_error() }
    }

    pub(super) fn of_io(step: &str) -> impl Fn(std::io::Error) -> Refusal {
        move |error| Refusal { step: step.to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    /// The error number.
    pub(crate) fn number(&self) -> Errno {
        Errno::from_raw_os_error(self.errno)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {}", self.step, errno::name(self.number()))
    }
}

/// What a sibling may do.
pub(crate) struct Reached {
    /// By [`Way::Pidfd`].
    pub(crate) pidfd: Result<(), Refusal>,
    /// By [`Way::Procfs`].
    pub(crate) procfs: Result<(), Refusal>,
    /// By [`Way::Socket`].
    pub(crate) socket: Result<(), Refusal>,
    /// By [`Way::Memory`].
    pub(crate) memory: Result<(), Refusal>,
}

/// Runs the trial. Whatever happens, all children are gone when it returns.
///
/// # Errors
/// Why it could not be held, in a few words.
pub(crate) fn try_siblings() -> Result<Reached, String> {
    let deadline = Instant::now() + TIME;
    let mut holder = BoundedChild::start(&Role::Hold, deadline)?;
    let Announcement { secret, held } = holder.answer()?;
    let target = Target { pid: holder.pid()?, held };
    let reach = |way| -> Result<Result<(), Refusal>, String> {
        let mut reacher = BoundedChild::start(&Role::Reach(way, target.clone()), deadline)?;
        match reacher.answer::<Word>() {
            Ok(Ok(word)) if word == secret => Ok(Ok(())),
            Ok(Ok(_)) => Ok(Err(Refusal::at("found another file")(Errno::BADF))),
            Ok(Err(refusal)) => Ok(Err(refusal)),
            Err(Silence::BadCall) => Ok(Err(Refusal::at("killed by a seccomp filter")(Errno::PERM))),
            Err(Silence::Other(reason)) => Err(reason),
        }
    };
    Ok(Reached {
        pidfd: reach(Way::Pidfd)?,
        procfs: reach(Way::Procfs)?,
        socket: reach(Way::Socket)?,
        memory: reach(Way::Memory)?,
    })
}
