//! The client of the producer's socket: sends requests and receives descriptors, with a deadline.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use umf_os::ReceivedFd;
use umf_sync::{failpoint, fork};

use super::{REPLY_SIZE, REQUEST_SIZE, Reply, Request};
use crate::identity::Nonce;
use crate::transfer::RemoteFd;
use umf_os::socket::PeerTrust;

/// The answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// The descriptor that was requested.
    Fd {
        /// The descriptor.
        fd: ReceivedFd,
        /// Whether it was opened for this process, so that no other process has its open file
        /// description.
        is_exclusive: bool,
    },
    /// The export is not current. The slot has this generation.
    Stale(u64),
    /// The producer does not serve this user.
    NotPermitted,
    /// The socket belongs to another user.
    OtherUser,
    /// The socket's user has no number in this user namespace, so that this process cannot check
    /// it.
    UnmappedUser,
    /// The producer broke the protocol in this way.
    Misbehaved(&'static str),
}

/// A connection to one producer, made by the first request and reused by later ones.
#[derive(Debug)]
pub(crate) struct Client {
    nonce: Nonce,
    pid: u32,
    connection: Option<OwnedFd>,
    /// [`fork::generation`] of the process that connected. A forked child must not use its parent's
    /// connection: either process could receive an answer.
    generation: u32,
}

impl Client {
    pub(crate) const fn new(nonce: Nonce, pid: u32) -> Self {
        Self { nonce, pid, connection: None, generation: 0 }
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Returns whether the producer is known to have closed its end.
    pub(crate) fn has_hung_up(&self) -> bool {
        let Some(connection) = &self.connection else { return false };
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&no_wait)).is_ok_and(|count| count > 0)
    }

    /// Requests a descriptor. Connects if there is no connection, and once more if the producer
    /// closed it. Takes `timeout` at most, even if signals interrupt it.
    pub(crate) fn ask(&mut self, wanted: RemoteFd, timeout: Duration) -> Result<Answer, Errno> {
        if self.generation != fork::generation() {
            self.connection = None;
            self.generation = fork::generation();
        }
        let deadline = Deadline::after(timeout);
        match self.request_once(wanted, deadline) {
            // The producer closes the oldest connections when it has too many: retry once with a
            // new connection. If the producer is ending, the new connection is refused.
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => self.request_once(wanted, deadline),
            other => other,
        }
    }

    fn request_once(&mut self, wanted: RemoteFd, deadline: Deadline) -> Result<Answer, Errno> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = connect(self.nonce, deadline)?;
                match umf_os::socket::peer_trust(connection.as_fd())? {
                    PeerTrust::Trusted => connection,
                    PeerTrust::Other => return Ok(Answer::OtherUser),
                    PeerTrust::Unmapped => return Ok(Answer::UnmappedUser),
                }
            }
        };
        let request = match wanted {
            RemoteFd::Ledger(_) => Request::Ledger,
            RemoteFd::Data { slot, generation, .. } => Request::Data { slot, generation },
            RemoteFd::LeaseTable(_) => Request::LeaseTable,
        };
        let request = request.encode(self.nonce);
        failpoint!("socket.connected");
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match deadline
            .wait_for(&connection, PollFlags::OUT, || rustix::net::send(&connection, &request, flags))
        {
            Ok(sent) => debug_assert_eq!(sent, REQUEST_SIZE, "packets are sent whole"),
            // If this process is not permitted, the producer answers and closes the connection
            // before it reads a request.
            Err(Errno::PIPE) => {}
            Err(errno) => return Err(errno),
        }
        failpoint!("socket.asked");
        let answer = receive(&connection, deadline)?;
        // The producer closes the connection after any other answer.
        if matches!(answer, Answer::Fd { .. } | Answer::Stale(_)) {
            self.connection = Some(connection);
        }
        tracing::trace!(pid = self.pid, ?answer, "socket answered");
        Ok(answer)
    }
}

/// The time by which an answer must have arrived.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline after `timeout`; no deadline if it exceeds the range of [`Instant`].
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// Returns the time left; `None` without a deadline.
    ///
    /// # Errors
    /// [`Errno::TIMEDOUT`] after the deadline.
    pub fn left(self) -> Result<Option<Duration>, Errno> {
        let Some(end) = self.0 else { return Ok(None) };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Errno::TIMEDOUT) } else { Ok(Some(left)) }
    }

    /// Repeats a non-blocking operation until it returns anything but `EAGAIN` or `EINTR`. Polls in
    /// between.
    fn wait_for<T>(
        self,
        connection: &OwnedFd,
        ready: PollFlags,
        mut operation: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            match operation() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = self.left()?.and_then(|left| Timespec::try_from(left).ok());
                    match poll(&mut [PollFd::new(connection, ready)], left.as_ref()) {
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                other => return other,
            }
        }
    }
}

/// Connects to the producer's socket.
fn connect(nonce: Nonce, deadline: Deadline) -> Result<OwnedFd, Errno> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new_abstract_name(&super::name(nonce))?;
    loop {
        // If the backlog is full, only a blocking connect waits for a place: poll does not report
        // one. A signal interrupts the wait.
        set_socket_timeout(&socket, Timeout::Send, deadline.left()?)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {
                failpoint!("socket.connecting");
                return Ok(socket);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits for the answer to a [`Request`].
///
/// # Errors
/// [`Errno::TIMEDOUT`]; [`Errno::CONNRESET`] if the producer closed the connection; the errors of
/// `recvmsg(2)`.
pub fn receive(connection: &OwnedFd, deadline: Deadline) -> Result<Answer, Errno> {
    let mut bytes = [0; REPLY_SIZE + 1];
    // SCM_MAX_FD descriptors, the most that a message can have. The kernel would close others in
    // this thread, which can take long.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = deadline.wait_for(connection, PollFlags::IN, || {
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    })?;
    // Owns all received descriptors, so that surplus ones are closed.
    let mut fds: Vec<ReceivedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received.map(ReceivedFd::from));
        }
    }
    failpoint!("socket.answered");
    if received.bytes == 0 && fds.is_empty() {
        return Err(Errno::CONNRESET);
    }
    match (Reply::decode(&bytes[..received.bytes]), fds.len()) {
        (Some(Reply::Ok { is_exclusive }), 1) => {
            Ok(fds.pop().map_or(Answer::Misbehaved("it sent no fd"), |fd| Answer::Fd { fd, is_exclusive }))
        }
        // The kernel drops descriptors for which this process has no free number.
        (Some(Reply::Ok { .. }), 0) if received.flags.contains(ReturnFlags::CTRUNC) => Err(Errno::MFILE),
        (Some(Reply::Ok { .. }), _) => Ok(Answer::Misbehaved("it did not send exactly one fd")),
        (Some(Reply::Stale(now)), 0) => Ok(Answer::Stale(now)),
        (Some(Reply::NotPermitted), 0) => Ok(Answer::NotPermitted),
        (Some(Reply::BadRequest), 0) => Ok(Answer::Misbehaved("it did not understand a request")),
        _ => Ok(Answer::Misbehaved("it sent an invalid answer")),
    }
}
