//! Requests: gets an fd (the table, or the memory of an object) from the first participant that
//! answers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use umf_ipc::Allow;
use umf_ipc::Nonce;
use umf_ipc::fd_socket::{Answer, ClientProof, Deadline, Request, finish_authentication, receive};
use umf_os::ReceivedFd;
use umf_os::socket::peer;
use umf_sync::failpoint;

use crate::name::{DomainName, Probe};
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
    /// The accepted fd, and its sender.
    Found(T, Sender),
    /// No living participant has the fd. `dead` are the ids without a process, `foreign` those of
    /// processes that did not prove the domain's key.
    NotFound { dead: Vec<u16>, foreign: Vec<u16> },
    /// No participant sent the fd, and one does not permit this process by this rule.
    NotPermitted(Allow),
    /// Some participants are alive and did not answer.
    NoAnswer { pids: Vec<i32> },
    /// No participant sent the fd, and one broke the protocol.
    Misbehaved(&'static str),
}

/// The participant that sent an fd.
#[derive(Debug)]
pub(crate) struct Sender {
    pub id: u16,
    pub connection: OwnedFd,
}

/// A participant that has still to answer.
struct Pending {
    sender: Sender,
    /// The proof of the domain's key that is in progress. The request is sent after it.
    proof: Option<ClientProof>,
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
    let send = |connection: &OwnedFd, packet: &[u8]| {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::io::retry_on_intr(|| rustix::net::send(connection, packet, flags)).is_ok()
    };
    let mut queue: VecDeque<u16> = ids.into_iter().collect();
    let mut busy = VecDeque::new();
    let mut pending: Vec<Pending> = Vec::new();
    let (mut dead, mut foreign) = (Vec::new(), Vec::new());
    let (mut misbehaved, mut refused) = (None, None);
    let mut spare = None;
    loop {
        while let Some(id) = queue.pop_front() {
            match name.probe(id, &mut spare)? {
                Probe::Free => {
                    dead.push(id);
                    let is_all = pending.is_empty() && busy.is_empty() && foreign.is_empty();
                    if dead.len() >= max_dead && is_all && misbehaved.is_none() && refused.is_none() {
                        return Ok(Response::NotFound { dead, foreign });
                    }
                }
                Probe::OtherUser { .. } => {}
                Probe::Busy => busy.push_back(id),
                Probe::Connected(connection) => {
                    let socket = name.place().map(|place| place.file(&id)).unwrap_or_default();
                    let proof = name.key().map(|key| ClientProof::new(key, PROTOCOL, &socket)).transpose();
                    let proof = proof.map_err(Error::system("getrandom"))?;
                    // If the send fails, the participant has ended since.
                    let is_sent = match &proof {
                        Some(proof) => send(&connection, &proof.hello()),
                        None => send(&connection, &request),
                    };
                    if is_sent {
                        failpoint!("domain.asked");
                        pending.push(Pending { sender: Sender { id, connection }, proof });
                        break;
                    }
                }
            }
        }
        if pending.is_empty() && busy.is_empty() {
            return Ok(match (misbehaved, refused) {
                (Some(what), _) => Response::Misbehaved(what),
                (None, Some(rule)) => Response::NotPermitted(rule),
                (None, None) => Response::NotFound { dead, foreign },
            });
        }
        let Ok(remaining) = deadline.left() else {
            let pid = |one: &Pending| peer(one.sender.connection.as_fd()).map_or(0, |(_, pid)| pid);
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
            let Pending { sender, proof } = pending.swap_remove(index);
            let Sender { id, connection } = &sender;
            let is_proven = proof.is_none();
            let no_wait = Deadline::after(Duration::ZERO);
            let answer = match proof {
                Some(proof) => match finish_authentication(connection, proof, no_wait) {
                    Ok(Ok(())) => {
                        if send(connection, &request) {
                            pending.push(Pending { sender, proof: None });
                        }
                        continue;
                    }
                    Ok(Err(answer)) => Ok(answer),
                    Err(errno) => Err(errno),
                },
                None => receive(connection, no_wait),
            };
            match answer {
                Ok(Answer::Fd { fd, .. }) => match check(fd)? {
                    Some(found) => return Ok(Response::Found(found, sender)),
                    None => misbehaved = Some("it sent another file than the requested one"),
                },
                Ok(Answer::Stale(_)) => {}
                Ok(Answer::NotProven) => foreign.push(*id),
                Ok(Answer::NotPermitted(rule)) if name.place().is_some() => refused = Some(rule),
                Ok(Answer::Misbehaved(what)) => misbehaved = Some(what),
                Ok(_) => misbehaved = Some("it refused its own user"),
                Err(Errno::TIMEDOUT) if is_proven => pending.push(Pending { sender, proof: None }),
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
fn poll_readable(pending: &[Pending], timeout: Option<Duration>) -> Result<Vec<usize>> {
    let mut fds: Vec<_> =
        pending.iter().map(|one| PollFd::new(&one.sender.connection, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Error::system("poll")(errno)),
    }
    Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
}
