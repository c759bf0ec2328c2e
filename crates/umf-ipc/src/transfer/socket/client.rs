//! The importer's end of the socket.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use umf_core::fork;

use super::wire::{self, REPLY_SIZE, Reply, Request};
use crate::identity::Nonce;
use crate::sys;
use crate::transfer::Wanted;

/// What came of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Fd(OwnedFd),
    /// The slot has this generation now.
    Stale(u64),
    NotPermitted,
    Misbehaved(&'static str),
}

/// A connection to one producer, made when needed and kept.
#[derive(Debug)]
pub(crate) struct Client {
    nonce: Nonce,
    pid: u32,
    connection: Option<OwnedFd>,
    /// A forked child must not use its parent's connection: answers would go to either.
    generation: u32,
}

impl Client {
    pub(crate) const fn new(nonce: Nonce, pid: u32) -> Self {
        Self { nonce, pid, connection: None, generation: 0 }
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the producer's end is known to be closed.
    pub(crate) fn has_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(connection) = &self.connection else { return false };
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|count| count > 0)
    }

    /// Asks for an fd; connects, or connects again, where needed.
    pub(crate) fn ask(&mut self, wanted: Wanted, timeout: Duration) -> Result<Answer, Errno> {
        if self.generation != fork::generation() {
            self.connection = None;
            self.generation = fork::generation();
        }
        let kept = self.connection.is_some();
        match self.ask_once(wanted, timeout) {
            // The producer may have closed an idle connection: once more with a new one.
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) if kept => {
                self.connection = None;
                self.ask_once(wanted, timeout)
            }
            other => other,
        }
    }

    fn ask_once(&mut self, wanted: Wanted, timeout: Duration) -> Result<Answer, Errno> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => match connect(self.nonce, timeout)? {
                Some(connection) => connection,
                None => return Ok(Answer::Misbehaved("its socket belongs to another user")),
            },
        };
        let request = match wanted {
            Wanted::Ledger(_) => Request::Ledger,
            Wanted::Data { slot, generation, .. } => Request::Data { slot, generation },
        };
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::send(&connection, &request.encode(self.nonce), SendFlags::NOSIGNAL)
        })?;
        debug_assert_eq!(sent, wire::REQUEST_SIZE, "packets are sent whole");
        let answer = receive(&connection)?;
        if !matches!(answer, Answer::Misbehaved(_)) {
            self.connection = Some(connection);
        }
        tracing::trace!(pid = self.pid, ?answer, "socket answered");
        Ok(answer)
    }
}

/// Connects, unless the socket belongs to another user than this one or root.
fn connect(nonce: Nonce, timeout: Duration) -> Result<Option<OwnedFd>, Errno> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    let address = SocketAddrUnix::new_abstract_name(&wire::name(nonce))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    let theirs = sys::peer_uid(socket.as_fd())?;
    Ok((theirs == sys::effective_uid() || theirs == 0).then_some(socket))
}

fn receive(connection: &OwnedFd) -> Result<Answer, Errno> {
    let mut bytes = [0; REPLY_SIZE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            connection,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    // All fds that came are owned here, so that surplus ones are closed.
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 0 && fds.is_empty() {
        return Err(Errno::CONNRESET);
    }
    match (Reply::decode(&bytes[..received.bytes]), fds.len()) {
        (Some(Reply::Ok), 1) => Ok(fds.pop().map_or(Answer::Misbehaved("it sent no fd"), Answer::Fd)),
        // The kernel drops fds for which the receiver has no room.
        (Some(Reply::Ok), 0) if received.flags.contains(ReturnFlags::CTRUNC) => Err(Errno::MFILE),
        (Some(Reply::Ok), _) => Ok(Answer::Misbehaved("it did not send exactly one fd")),
        (Some(Reply::Stale(now)), 0) => Ok(Answer::Stale(now)),
        (Some(Reply::NotPermitted), 0) => Ok(Answer::NotPermitted),
        (Some(Reply::BadRequest), 0) => Ok(Answer::Misbehaved("it did not understand a request")),
        _ => Ok(Answer::Misbehaved("it sent an answer that is none")),
    }
}
