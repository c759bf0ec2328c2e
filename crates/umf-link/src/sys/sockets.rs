//! The sockets over which two processes meet.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use umf_ipc::fd_socket::Deadline;

use super::{Result, is_ready};

/// A close-on-exec socket for packets.
pub(crate) fn new_socket() -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Binds an abstract name, and listens there. `EADDRINUSE` if somebody has it.
pub(crate) fn listen(socket: &OwnedFd, name: &[u8]) -> Result<()> {
    rustix::net::bind(socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(socket, 128)
}

/// Whether nobody has an abstract name. Who has it does not notice; if nobody does, it is taken for a moment. `socket`: kept from
/// one question to the next.
pub(crate) fn is_free(socket: &mut Option<OwnedFd>, name: &[u8]) -> Result<bool> {
    let asking = match socket.take() {
        Some(asking) => asking,
        None => new_socket()?,
    };
    match rustix::net::bind(&asking, &SocketAddrUnix::new_abstract_name(name)?) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRINUSE) => {
            *socket = Some(asking);
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

/// Connects to whoever listens at an abstract name.
pub(crate) fn connect(socket: &OwnedFd, name: &[u8], deadline: Deadline) -> Result<()> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    loop {
        // For a place among those that were not accepted yet connect alone can wait (no poll tells).
        set_socket_timeout(socket, Timeout::Send, deadline.left()?)?;
        match rustix::net::connect(socket, &address) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            other => return other,
        }
    }
}

/// Sends one packet, with up to four fds.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Waits for one packet; its length and the fds that came with it. `ECONNRESET` if the other side has closed.
pub(crate) fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    deadline: Deadline,
) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Ok(received) => {
                // All that came are owned here, so that surplus ones are closed.
                let mut fds = Vec::new();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        fds.extend(received);
                    }
                }
                if received.bytes == 0 && fds.is_empty() {
                    return Err(Errno::CONNRESET);
                }
                return Ok((received.bytes, fds));
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                is_ready(socket.as_fd(), PollFlags::IN, deadline.left()?)?;
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Wakes who polls the other end. If its queue is full it is awake.
pub(crate) fn poke(socket: BorrowedFd<'_>) {
    let _ = rustix::net::send(socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Takes what [`poke`] sent. Whether the other end was closed is not asked here.
pub(crate) fn drain(socket: BorrowedFd<'_>) {
    let mut byte = [0; 1];
    // As many as the queue of a socket may hold, whatever comes meanwhile.
    for _ in 0..1024 {
        if !rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT).is_ok_and(|(_, count)| count > 0) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_once_nobody_has_it() {
        let name = format!("umf-link-test-free-{}", std::process::id());
        let mut asking = None;
        let holder = new_socket().unwrap();
        listen(&holder, name.as_bytes()).unwrap();
        for _ in 0..3 {
            assert!(!is_free(&mut asking, name.as_bytes()).unwrap());
        }
        // Whoever listens has nobody to let in.
        assert!(!is_ready(holder.as_fd(), PollFlags::IN, Some(std::time::Duration::ZERO)).unwrap());
        drop(holder);
        for _ in 0..3 {
            assert!(is_free(&mut asking, name.as_bytes()).unwrap());
        }
    }
}
