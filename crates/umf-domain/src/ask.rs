//! [`ask`]: getting an fd from whichever participant answers first.

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

use crate::knock::{Knock, knock_with};
use crate::name::Name;
use crate::{Error, Result};

/// What requests to a participant carry in place of a producer's nonce.
pub(crate) const PROTOCOL: Nonce = Nonce::from_bytes(*b"umf-domain-00001");

/// How long one is waited for alone before the next one is asked, too.
const PATIENCE: Duration = Duration::from_millis(20);

/// When one is asked again whose queue is full.
const PAUSE: Duration = Duration::from_millis(1);

/// What came of asking.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    /// What was asked for, and the connection to whom it came from.
    Found(T, OwnedFd),
    /// All that are alive say that they do not have it; these places have nobody in them.
    Nowhere { dead: Vec<u16> },
    /// Some are alive and do not answer.
    Silent { pids: Vec<i32> },
    /// Nobody has it, and somebody answered with what is no answer.
    Misbehaved(&'static str),
}

/// Asks those in `places`, one after the other without waiting long for any, until one gives an fd that `check` takes.
/// All of it takes no longer than `deadline`, also if processes are stopped. After `most_free` places without a participant, if no
/// place before has one, it returns [`Asked::Nowhere`].
pub(crate) fn ask<T>(
    name: &Name,
    places: impl IntoIterator<Item = u16>,
    most_free: usize,
    request: Request,
    deadline: Deadline,
    mut check: impl FnMut(ReceivedFd) -> Result<Option<T>>,
) -> Result<Asked<T>> {
    let request = request.encode(PROTOCOL);
    let mut queue: VecDeque<u16> = places.into_iter().collect();
    let mut busy = VecDeque::new();
    let mut waiting: Vec<OwnedFd> = Vec::new();
    let mut dead = Vec::new();
    let mut misbehaved = None;
    let mut spare = None;
    loop {
        while let Some(place) = queue.pop_front() {
            let knock = knock_with(&mut spare, &name.place(place));
            match knock.map_err(Error::system("connect to a participant"))? {
                Knock::Nobody => {
                    dead.push(place);
                    if dead.len() >= most_free
                        && waiting.is_empty()
                        && busy.is_empty()
                        && misbehaved.is_none()
                    {
                        return Ok(Asked::Nowhere { dead });
                    }
                }
                Knock::Stranger { .. } => {}
                Knock::Busy => busy.push_back(place),
                Knock::Open(connection) => {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    // Who ends meanwhile has nothing to give.
                    if rustix::io::retry_on_intr(|| rustix::net::send(&connection, &request, flags)).is_ok() {
                        failpoint!("domain.asked");
                        waiting.push(connection);
                        break;
                    }
                }
            }
        }
        if waiting.is_empty() && busy.is_empty() {
            return Ok(misbehaved.map_or(Asked::Nowhere { dead }, Asked::Misbehaved));
        }
        let Ok(left) = deadline.left() else {
            let pid = |connection: &OwnedFd| peer(connection.as_fd()).map_or(0, |(_, pid)| pid);
            return Ok(Asked::Silent { pids: waiting.iter().map(pid).collect() });
        };
        let patience = if !queue.is_empty() {
            Some(PATIENCE)
        } else if !busy.is_empty() {
            Some(PAUSE)
        } else {
            None
        };
        let ready = wait(&waiting, patience.into_iter().chain(left).min())?;
        for index in ready.into_iter().rev() {
            let connection = waiting.swap_remove(index);
            match receive(&connection, Deadline::after(Duration::ZERO)) {
                Ok(Answer::Fd { fd, .. }) => match check(fd)? {
                    Some(found) => return Ok(Asked::Found(found, connection)),
                    None => misbehaved = Some("it sent another file than it was asked for"),
                },
                Ok(Answer::Stale(_)) => {}
                Ok(Answer::NotPermitted | Answer::OtherUser | Answer::Nameless) => {
                    misbehaved = Some("it refuses its own user")
                }
                Ok(Answer::Misbehaved(what)) => misbehaved = Some(what),
                Err(Errno::TIMEDOUT) => waiting.push(connection),
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                    return Err(Error::system("receiving an fd")(errno));
                }
                // It ended, or makes room for others.
                Err(_) => {}
            }
        }
        if queue.is_empty() {
            queue.append(&mut busy);
        }
    }
}

/// Which of the connections have something to say; none after `patience`.
fn wait(connections: &[OwnedFd], patience: Option<Duration>) -> Result<Vec<usize>> {
    let mut fds: Vec<_> =
        connections.iter().map(|connection| PollFd::new(connection, PollFlags::IN)).collect();
    let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
    match poll(&mut fds, patience.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(Error::system("poll")(errno)),
    }
    Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
}
