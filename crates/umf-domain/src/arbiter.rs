//! The arbiter: the lock under which a domain's table is changed.
//!
//! The lock is an abstract socket name; the process that has bound it holds the lock. The kernel
//! gives a name to one socket, and frees it when the process dies, at any instruction. A lock word
//! in shared memory would stay locked.

use std::os::fd::AsFd;
use std::time::Duration;

use umf_ipc::fd_socket::Deadline;
use umf_os::socket::peer;
use umf_sync::failpoint;

use crate::socket::{DomainName, Probe, bind, foreign_owner, probe};
use crate::sys::CloseOnFork;
use crate::{Error, Result};

/// A guard that holds a domain's arbiter from [`lock`] until it is dropped.
#[derive(Debug)]
pub(crate) struct ArbiterGuard {
    socket: Option<CloseOnFork>,
}

impl Drop for ArbiterGuard {
    fn drop(&mut self) {
        drop(self.socket.take());
        failpoint!("domain.turn_given_back");
    }
}

const MIN_BACKOFF: Duration = Duration::from_micros(20);
const MAX_BACKOFF: Duration = Duration::from_millis(1);
/// Failed attempts between two checks of the holder. A participant holds the arbiter for
/// microseconds, and each check leaves a connection in the holder's backlog.
const ATTEMPTS_PER_CHECK: u32 = 16;

/// Locks the arbiter, or fails at `deadline`. `timeout` is the whole time of the call, for errors.
pub(crate) fn lock(name: &DomainName, deadline: Deadline, timeout: Duration) -> Result<ArbiterGuard> {
    let address = name.arbiter_socket();
    let mut backoff = MIN_BACKOFF;
    let mut holder = 0;
    for attempt in 1_u32.. {
        let bound = bind(&address).map_err(Error::system("bind of the arbiter's name"))?;
        if let Some(socket) = bound {
            return Ok(ArbiterGuard { socket: Some(socket) });
        }
        if attempt.is_multiple_of(ATTEMPTS_PER_CHECK) {
            holder = check_holder(name, &address)?.unwrap_or(holder);
        }
        if deadline.left().is_err() {
            holder = check_holder(name, &address)?.unwrap_or(holder);
            break;
        }
        std::thread::sleep(backoff);
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
    Err(Error::ArbiterHeld {
        domain: name.as_str().to_owned(),
        socket: String::from_utf8_lossy(&address).into_owned(),
        pid: holder,
        milliseconds: milliseconds(timeout),
    })
}

/// Returns the pid of the holder, if it is known. Fails if the holder belongs to another user.
fn check_holder(name: &DomainName, address: &[u8]) -> Result<Option<i32>> {
    let other = match probe(address).map_err(Error::system("connect to the arbiter's name"))? {
        Probe::OtherUser { uid, pid } => Some((uid, pid)),
        Probe::Connected(connection) => return Ok(peer(connection.as_fd()).ok().map(|(_, pid)| pid)),
        // The name can be bound by a socket that does not listen.
        Probe::Free => foreign_owner(address).map(|uid| (uid, 0)),
        Probe::Busy => None,
    };
    let Some((uid, pid)) = other else { return Ok(None) };
    Err(Error::OtherUser {
        domain: name.as_str().to_owned(),
        socket: String::from_utf8_lossy(address).into_owned(),
        uid,
        pid,
        own_uid: crate::sys::effective_uid(),
    })
}

pub(crate) fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}
