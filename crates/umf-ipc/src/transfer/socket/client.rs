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

use super::proof::{self, ClientProof, Key};
use super::{REPLY_SIZE, Reply, Request};
use crate::identity::Nonce;
use crate::rendezvous::{Directory, DirectoryError};
use crate::transfer::RemoteFd;
use umf_os::socket::{Allow, PeerTrust, peer_trust_by};

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
    /// The producer does not serve this process by this rule.
    NotPermitted(Allow),
    /// The producer cannot send now, because too many descriptors are in flight.
    Busy,
    /// The process at the socket did not prove the key, so that nothing was requested from it.
    NotProven,
    /// This process's kernel took the descriptor out of the message, and descriptor numbers are
    /// free.
    Withheld,
    /// The directory is unsuitable.
    Directory(DirectoryError),
    /// The socket belongs to another user.
    OtherUser,
    /// The socket's user has no number in this user namespace, so that this process cannot check
    /// it.
    UnmappedUser,
    /// The producer broke the protocol in this way.
    Misbehaved(&'static str),
}

/// How a client finds the producer's socket, and which process it expects there.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub nonce: Nonce,
    pub pid: u32,
    pub key: Key,
    pub allow: Allow,
    /// `None`: the abstract socket.
    pub directory: Option<Directory>,
}

/// Time between two requests to a producer that cannot send.
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// A connection to one producer, made by the first request and reused by later ones.
#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    connection: Option<OwnedFd>,
    /// [`fork::generation`] of the process that connected. A forked child must not use its parent's
    /// connection: either process could receive an answer.
    generation: u32,
}

impl Client {
    pub(crate) const fn new(target: Target) -> Self {
        Self { target, connection: None, generation: 0 }
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
    ///
    /// # Errors
    /// Those of `connect(2)` and `recvmsg(2)`; [`Errno::TIMEDOUT`]; [`Errno::TOOMANYREFS`] if the
    /// producer could not send a descriptor until the end.
    pub(crate) fn ask(&mut self, wanted: RemoteFd, timeout: Duration) -> Result<Answer, Errno> {
        if self.generation != fork::generation() {
            self.connection = None;
            self.generation = fork::generation();
        }
        let deadline = Deadline::after(timeout);
        loop {
            let answer = match self.request_once(wanted, deadline) {
                // The producer closes the oldest connections when it has too many: retry once with
                // a new connection. If the producer is ending, the new connection is refused.
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => self.request_once(wanted, deadline),
                other => other,
            };
            match answer {
                Ok(Answer::Busy) if deadline.left().is_err() => return Err(Errno::TOOMANYREFS),
                Ok(Answer::Busy) => std::thread::sleep(BUSY_RETRY),
                other => return other,
            }
        }
    }

    fn request_once(&mut self, wanted: RemoteFd, deadline: Deadline) -> Result<Answer, Errno> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => match self.connect(deadline)? {
                Ok(connection) => connection,
                Err(answer) => return Ok(answer),
            },
        };
        let request = match wanted {
            RemoteFd::Ledger(_) => Request::Ledger,
            RemoteFd::Data { slot, generation, .. } => Request::Data { slot, generation },
            RemoteFd::LeaseTable(_) => Request::LeaseTable,
        };
        send(&connection, &request.encode(self.target.nonce), deadline)?;
        failpoint!("socket.asked");
        let answer = receive(&connection, deadline)?;
        // The producer closes the connection after any other answer.
        if matches!(answer, Answer::Fd { .. } | Answer::Stale(_) | Answer::Busy) {
            self.connection = Some(connection);
        }
        tracing::trace!(pid = self.target.pid, ?answer, "socket answered");
        Ok(answer)
    }

    /// Connects to the socket, and checks the process that listens.
    fn connect(&self, deadline: Deadline) -> Result<Result<OwnedFd, Answer>, Errno> {
        let Target { nonce, key, allow, directory, .. } = &self.target;
        let name = super::directory_name(*nonce);
        let (connection, socket) = match directory {
            None => {
                let connection = connect(*nonce, deadline)?;
                let socket = super::abstract_socket(*nonce, connection.as_fd());
                (connection, socket)
            }
            Some(directory) => match connect_in(directory, &name, deadline) {
                Ok(connection) => (connection, name),
                Err(DirectoryError::OtherUser { owner, .. }) => {
                    let is_unmapped = umf_os::socket::is_unmapped(owner);
                    return Ok(Err(if is_unmapped { Answer::UnmappedUser } else { Answer::OtherUser }));
                }
                Err(error) => match error.errno() {
                    // No process listens, or there is no such name; or descriptors are exhausted.
                    Some(
                        errno @ (Errno::NOENT
                        | Errno::CONNREFUSED
                        | Errno::TIMEDOUT
                        | Errno::MFILE
                        | Errno::NFILE
                        | Errno::NOMEM),
                    ) => return Err(errno),
                    _ => return Ok(Err(Answer::Directory(error))),
                },
            },
        };
        failpoint!("socket.connected");
        let trust = peer_trust_by(*allow, connection.as_fd())?;
        match trust {
            PeerTrust::Trusted => {}
            _ if *allow == Allow::Handle => {}
            PeerTrust::Other => return Ok(Err(Answer::OtherUser)),
            PeerTrust::Unmapped => return Ok(Err(Answer::UnmappedUser)),
        }
        // Any process that may write to the directory may have taken the name.
        if directory.is_none() && trust == PeerTrust::Trusted {
            return Ok(Ok(connection));
        }
        Ok(match authenticate(&connection, *key, *nonce, &socket, deadline)? {
            Ok(()) => Ok(connection),
            Err(answer) => Err(answer),
        })
    }
}

/// Proves the key to the server of a new connection to the socket with this name, and lets the
/// server prove it.
///
/// # Errors
/// Those of [`receive`]. The inner error is [`Answer::NotProven`] or [`Answer::NotPermitted`].
pub fn authenticate(
    connection: &OwnedFd,
    key: Key,
    nonce: Nonce,
    socket: &str,
    deadline: Deadline,
) -> Result<Result<(), Answer>, Errno> {
    let own = ClientProof::new(key, nonce, socket)?;
    send(connection, &own.hello(), deadline)?;
    finish_authentication(connection, own, deadline)
}

/// Waits for the answer to [`ClientProof::hello`], checks it, and proves the key.
///
/// # Errors
/// As [`authenticate`].
pub fn finish_authentication(
    connection: &OwnedFd,
    own: ClientProof,
    deadline: Deadline,
) -> Result<Result<(), Answer>, Errno> {
    let mut bytes = [0; proof::PACKET_SIZE + 1];
    let (length, fds, _) = receive_packet(connection, &mut bytes, deadline)?;
    failpoint!("socket.challenged");
    let answer = &bytes[..length];
    if let Some(Reply::NotPermitted(rule)) = Reply::decode(answer) {
        return Ok(Err(Answer::NotPermitted(rule)));
    }
    let Some(packet) = own.check(answer).filter(|_| fds.is_empty()) else {
        return Ok(Err(Answer::NotProven));
    };
    send(connection, &packet, deadline)?;
    Ok(Ok(()))
}

/// Sends a packet. If this process is not permitted, the server answers and closes the connection
/// before it reads: then this does nothing.
fn send(connection: &OwnedFd, packet: &[u8], deadline: Deadline) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match deadline.wait_for(connection, PollFlags::OUT, || rustix::net::send(connection, packet, flags)) {
        Ok(sent) => debug_assert_eq!(sent, packet.len(), "packets are sent whole"),
        Err(Errno::PIPE) => {}
        Err(errno) => return Err(errno),
    }
    Ok(())
}

/// Connects to a name in a directory.
pub fn connect_in(directory: &Directory, name: &str, deadline: Deadline) -> Result<OwnedFd, DirectoryError> {
    loop {
        let left = deadline.left().map_err(|errno| directory.error("connecting to a socket", errno))?;
        match directory.connect(name, left) {
            Err(error) if matches!(error.errno(), Some(Errno::INTR | Errno::AGAIN)) => {}
            other => return other,
        }
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
    let address = SocketAddrUnix::new_abstract_name(&super::abstract_name(nonce))?;
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

/// Waits for a packet. Returns its length, its descriptors and its flags.
fn receive_packet(
    connection: &OwnedFd,
    bytes: &mut [u8],
    deadline: Deadline,
) -> Result<(usize, Vec<ReceivedFd>, ReturnFlags), Errno> {
    // SCM_MAX_FD descriptors, the most that a message can have. The kernel would close others in
    // this thread, which can take long.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = deadline.wait_for(connection, PollFlags::IN, || {
        rustix::net::recvmsg(connection, &mut [IoSliceMut::new(bytes)], &mut control, flags)
    })?;
    // Owns all received descriptors, so that surplus ones are closed.
    let mut fds: Vec<ReceivedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received.map(ReceivedFd::from));
        }
    }
    if received.bytes == 0 && fds.is_empty() {
        Err(Errno::CONNRESET)
    } else {
        Ok((received.bytes, fds, received.flags))
    }
}

/// Waits for the answer to a [`Request`].
///
/// # Errors
/// [`Errno::TIMEDOUT`]; [`Errno::CONNRESET`] if the producer closed the connection; the errors of
/// `recvmsg(2)`.
pub fn receive(connection: &OwnedFd, deadline: Deadline) -> Result<Answer, Errno> {
    let mut bytes = [0; REPLY_SIZE + 1];
    let (length, mut fds, flags) = receive_packet(connection, &mut bytes, deadline)?;
    failpoint!("socket.answered");
    match (Reply::decode(&bytes[..length]), fds.len()) {
        (Some(Reply::Ok { is_exclusive }), 1) => {
            Ok(fds.pop().map_or(Answer::Misbehaved("it sent no fd"), |fd| Answer::Fd { fd, is_exclusive }))
        }
        // The kernel drops descriptors for which this process has no free number.
        (Some(Reply::Ok { .. }), 0) if flags.contains(ReturnFlags::CTRUNC) => {
            // A security module takes descriptors out of messages too.
            rustix::io::fcntl_dupfd_cloexec(connection, 0).map(|_free| Answer::Withheld)
        }
        (Some(Reply::Ok { .. }), _) => Ok(Answer::Misbehaved("it did not send exactly one fd")),
        (Some(Reply::Stale(now)), 0) => Ok(Answer::Stale(now)),
        (Some(Reply::NotPermitted(rule)), 0) => Ok(Answer::NotPermitted(rule)),
        (Some(Reply::Busy), 0) => Ok(Answer::Busy),
        (Some(Reply::BadRequest), 0) => Ok(Answer::Misbehaved("it did not understand a request")),
        _ => Ok(Answer::Misbehaved("it sent an invalid answer")),
    }
}
