//! Requests: gets an fd (the table, or the memory of an object) from the first participant that
//! answers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use umf_ipc::Nonce;
use umf_ipc::fd_socket::{Answer, Deadline, Request, receive};
use umf_os::ReceivedFd;
use umf_os::socket::peer;
use umf_sync::failpoint;

use crate::socket::{DomainName, Probe, probe_with};
use crate::{Error, Result};

/// The nonce of requests to participants, in place of a producer's nonce.
pub(crate) const PROTOCOL: Nonce = Nonce::from_bytes(*b"umf-domain-00001");

/// The time after which the next participant gets the request too.
const HEDGE_DELAY: Duration = Duration::from_millis(20);

/// The time between two connection attempts to a participant with a full backlog.
const BUSY_RETRY: Duration = Duration::from_millis(1);

/// The result of [`request_fd`].
#[derive(Debug)]
pub(crate) enum Response<T> {
    /// The accepted fd, and the connection to its sender.
    Found(T, OwnedFd),
    /// No living participant has the fd. `dead` are the ids without a process.
    NotFound { dead: Vec<u16> },
    /// Some participants are alive and did not answer.
    NoAnswer { pids: Vec<i32> },
    /// No participant sent the fd, and one broke the protocol.
    Misbehaved(&'static str),
}

/// Sends a request to the participants `ids`, until one answers with an fd that `check` accepts.
///
/// A participant that does not answer within 20 ms does not delay the next one. The call ends at
/// `deadline`, also if processes are stopped. If the first `max_dead` ids are all without a
/// process, it returns [`Response::NotFound`].
pub(crate) fn request_fd<T>(
    name: &DomainName,
    ids: impl IntoIterator<Item = u16>,
    max_dead: usize,
    request: Request,
    deadline: Deadline,
    mut check: impl FnMut(ReceivedFd) -> Result<Option<T>>,
) -> Result<Response<T>> {
    let request = request.encode(PROTOCOL);
    let mut queue: VecDeque<u16> = ids.into_iter().collect();
    let mut busy = VecDeque::new();
    let mut pending: Vec<OwnedFd> = Vec::new();
    let mut dead = Vec::new();
    let mut misbehaved = None;
    let mut spare = None;
    loop {
        while let Some(id) = queue.pop_front() {
            let probed = probe_with(&mut spare, &name.participant_socket(id));
            match probed.map_err(Error::system("connect to a participant"))? {
                Probe::Free => {
                    dead.push(id);
                    if dead.len() >= max_dead && pending.is_empty() && busy.is_empty() && misbehaved.is_none()
                    {
                        return Ok(Response::NotFound { dead });
                    }
                }
                Probe::OtherUser { .. } => {}
                Probe::Busy => busy.push_back(id),
                Probe::Connected(connection) => {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    // If the send fails, the participant has ended since.
                    if rustix::io::retry_on_intr(|| rustix::net::send(&connection, &request, flags)).is_ok() {
                        failpoint!("domain.asked");
                        pending.push(connection);
                        break;
                    }
                }
            }
        }
        if pending.is_empty() && busy.is_empty() {
            return Ok(misbehaved.map_or(Response::NotFound { dead }, Response::Misbehaved));
        }
        let Ok(remaining) = deadline.left() else {
            let pid = |connection: &OwnedFd| peer(connection.as_fd()).map_or(0, |(_, pid)| pid);
            return Ok(Response::NoAnswer { pids: pending.iter().map(pid).collect() });
        };
        let delay = if !queue.is_empty() {
            Some(HEDGE_DELAY)
        } else if !busy.is_empty() {
            Some(BUSY_RETRY)
        } else {
            None
        };
        let readable = poll_readable(&pending, delay.into_iter().chain(remaining).min())?;
        for index in readable.into_iter().rev() {
            let connection = pending.swap_remove(index);
            match receive(&connection, Deadline::after(Duration::ZERO)) {
                Ok(Answer::Fd { fd, .. }) => match check(fd)? {
                    Some(found) => return Ok(Response::Found(found, connection)),
                    None => misbehaved = Some("it sent another file than the requested one"),
                },
                Ok(Answer::Stale(_)) => {}
                Ok(Answer::Misbehaved(what)) => misbehaved = Some(what),
                Ok(_) => misbehaved = Some("it refused its own user"),
                Err(Errno::TIMEDOUT) => pending.push(connection),
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                    return Err(Error::system("receiving an fd")(errno));
                }
                // The participant ended, or closed this connection to serve others.
                Err(_) => {}
            }
        }
        if queue.is_empty() {
            queue.append(&mut busy);
        }
    }
}

/// Returns the indices of the connections that are readable or closed; none after `timeout`.
fn poll_readable(connections: &[OwnedFd], timeout: Option<Duration>) -> Result<Vec<usize>> {
    let mut fds: Vec<_> =
        connections.iter().map(|connection| PollFd::new(connection, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Error::system("poll")(errno)),
    }
    Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
}
