//! Abstract sockets: binding a name, probing one, and the holder of the arbiter.
//!
//! A bound name proves that its process is alive, since the kernel frees the name with the last
//! descriptor of the socket. Forked children therefore close the sockets of their parent.
//!
//! The arbiter is the lock under which a domain's table is changed. It is a socket name too: the
//! process that has bound it holds the lock. The kernel gives a name to one socket, and frees it
//! when the process dies, at any instruction. A lock word in shared memory would stay locked.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use umf_os::socket::{PeerTrust, peer, peer_trust};
use umf_sync::failpoint;

use crate::name::Probe;
use crate::sys::{self, CloseOnFork};
use crate::{Error, Result};

/// Binds an abstract name, and listens. Returns `None` if another socket has the name.
pub(crate) fn bind(name: &[u8]) -> sys::Result<Option<CloseOnFork>> {
    let bound = bind_first([(0, name.to_vec())])?;
    Ok(bound.map(|(_, socket)| socket))
}

/// Binds the first abstract name that no socket has, and returns its number with the socket.
/// Returns `None` if all names are bound. Forks wait until it returns.
pub(crate) fn bind_first(
    names: impl IntoIterator<Item = (u16, Vec<u8>)>,
) -> sys::Result<Option<(u16, CloseOnFork)>> {
    let mut bound = 0;
    let made = CloseOnFork::make(|| {
        let mut names = names.into_iter();
        let (number, name) = names.next().ok_or(Errno::ADDRINUSE)?;
        let (socket, mut address) = sys::socket(&name)?;
        bound = number;
        // After EADDRINUSE the same socket can be bound to another name.
        while let Err(errno) = rustix::net::bind(&socket, &address) {
            let next = names.next().filter(|_| errno == Errno::ADDRINUSE);
            let (number, name) = next.ok_or(errno)?;
            (bound, address) = (number, sys::address(&name)?);
        }
        failpoint!("domain.bound");
        // A process that connects gets the owner's user and pid from the kernel.
        rustix::net::listen(&socket, 128)?;
        failpoint!("domain.listening");
        Ok(socket)
    });
    match made {
        Ok(socket) => Ok(Some((bound, socket))),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Connects to the name. Does not block.
pub(crate) fn probe(name: &[u8]) -> sys::Result<Probe> {
    probe_with(&mut None, name)
}

/// Connects to the name. Uses the socket in `spare`, if it has one.
///
/// If the name is free, stores the unused socket in `spare`. Probing the next name then takes one
/// system call instead of three.
pub(crate) fn probe_with(spare: &mut Option<OwnedFd>, name: &[u8]) -> sys::Result<Probe> {
    let (socket, address) = match spare.take() {
        Some(socket) => (socket, sys::address(name)?),
        None => sys::socket(name)?,
    };
    match rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => {
            *spare = Some(socket);
            return Ok(Probe::Free);
        }
        Err(Errno::AGAIN) => {
            return Ok(foreign_owner(name).map_or(Probe::Busy, |uid| Probe::OtherUser { uid, pid: 0 }));
        }
        Err(errno) => return Err(errno),
    }
    failpoint!("domain.knocked");
    if peer_trust(socket.as_fd())? != PeerTrust::Trusted {
        let (uid, pid) = peer(socket.as_fd())?;
        return Ok(Probe::OtherUser { uid, pid });
    }
    if sys::listener_has_ended(socket.as_fd()) { Ok(Probe::Free) } else { Ok(Probe::Connected(socket)) }
}

/// Returns the uid of the socket that has the name. Returns `None` for root, for this process's
/// user, and if the uid is unknown.
pub(crate) fn foreign_owner(name: &[u8]) -> Option<u32> {
    sock_diag::owner(name).filter(|&uid| uid != 0 && uid != sys::effective_uid())
}

/// Returns whether the process that listens at the other end has neither closed the connection nor
/// ended.
pub(crate) fn is_peer_alive(connection: &OwnedFd) -> bool {
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    let is_closed = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&no_wait))) != Ok(0);
    !is_closed && !sys::listener_has_ended(connection.as_fd())
}

/// Returns the pid of the holder, if it is known. Fails if the holder belongs to another user.
pub(crate) fn check_holder(domain: &str, address: &[u8]) -> Result<Option<i32>> {
    let other = match probe(address).map_err(Error::system("connect to the arbiter's name"))? {
        Probe::OtherUser { uid, pid } => Some((uid, pid)),
        Probe::Connected(connection) => return Ok(peer(connection.as_fd()).ok().map(|(_, pid)| pid)),
        // The name can be bound by a socket that does not listen.
        Probe::Free => foreign_owner(address).map(|uid| (uid, 0)),
        Probe::Busy => None,
    };
    let Some((uid, pid)) = other else { return Ok(None) };
    Err(Error::OtherUser {
        domain: domain.to_owned(),
        socket: String::from_utf8_lossy(address).into_owned(),
        uid,
        pid,
        own_uid: sys::effective_uid(),
    })
}

/// `sock_diag(7)`: the uid of a bound socket, also if it accepts no connection.
mod sock_diag {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

    // Constants of `netlink(7)` and `linux/unix_diag.h`.
    /// Bytes of a request: header and `unix_diag_req`.
    const LENGTH: u32 = 40;
    /// Bytes of a header.
    const HEADER: usize = 16;
    const BY_FAMILY: u16 = 20;
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    const REQUEST_DUMP: u16 = 0x301;
    const AF_UNIX: u8 = 1;
    const SEQPACKET: u8 = 5;
    /// Bound or listening sockets. Connected ones have the name of their listener too.
    const STATES: u32 = 1 << 7 | 1 << 10;
    const SHOW_NAME_AND_UID: u32 = 0x41;
    const NAME: u16 = 0;
    const UID: u16 = 7;
    /// The length of a `unix_diag_msg`. Attributes follow it.
    const MESSAGE: usize = 16;

    /// Returns the user whose process made the `SOCK_SEQPACKET` socket with this abstract name.
    ///
    /// Returns `None` if the name is free, or the kernel does not report it (no `CONFIG_UNIX_DIAG`,
    /// or before Linux 5.3).
    pub(crate) fn owner(name: &[u8]) -> Option<u32> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            Some(netlink::SOCK_DIAG),
        );
        let socket = socket.ok()?;
        let mut request = Vec::with_capacity(LENGTH as usize);
        request.extend(LENGTH.to_ne_bytes());
        request.extend(BY_FAMILY.to_ne_bytes());
        request.extend(REQUEST_DUMP.to_ne_bytes());
        request.extend([0; 8]);
        request.extend([AF_UNIX, 0, 0, 0]);
        request.extend(STATES.to_ne_bytes());
        request.extend([0; 4]);
        request.extend(SHOW_NAME_AND_UID.to_ne_bytes());
        request.extend([0; 8]);
        rustix::net::send(&socket, &request, SendFlags::empty()).ok()?;
        let mut buffer = vec![0; 32 << 10];
        loop {
            let received =
                rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut *buffer, RecvFlags::DONTWAIT));
            let mut rest = &buffer[..received.ok()?.0];
            while let Some((length, kind)) =
                rest.split_at_checked(6).map(|(head, _)| (u32_at(head, 0), u16_at(head, 4)))
            {
                let (message, next) = split(rest, length as usize)?;
                match kind {
                    DONE | ERROR => return None,
                    BY_FAMILY => {
                        let uid = message.get(HEADER..).and_then(|message| uid_of(message, name));
                        if uid.is_some() {
                            return uid;
                        }
                    }
                    _ => {}
                }
                rest = next;
            }
        }
    }

    /// Returns the user of the socket that a message describes, if the socket has the name.
    fn uid_of(message: &[u8], name: &[u8]) -> Option<u32> {
        let (head, mut attributes) = message.split_at_checked(MESSAGE)?;
        if head[1] != SEQPACKET {
            return None;
        }
        let (mut is_named, mut uid) = (false, None);
        while let Some((head, _)) = attributes.split_at_checked(4) {
            let (attribute, next) = split(attributes, usize::from(u16_at(head, 0)))?;
            match (u16_at(head, 2), attribute.get(4..)?) {
                (NAME, [0, found @ ..]) => is_named = found == name,
                (UID, found) if found.len() == 4 => uid = Some(u32_at(found, 0)),
                _ => {}
            }
            attributes = next;
        }
        uid.filter(|_| is_named)
    }

    /// Splits off an item of this length, with the padding to a multiple of 4.
    fn split(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
        let first = bytes.get(..length).filter(|first| first.len() >= 4)?;
        Some((first, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
    }

    fn u16_at(bytes: &[u8], at: usize) -> u16 {
        u16::from_ne_bytes([bytes[at], bytes[at + 1]])
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType};

    use super::*;

    #[test]
    fn probe_tells_free_from_connected_and_busy() {
        let name = format!("umf-test-probe-{}", std::process::id());
        let name = name.as_bytes();
        assert!(matches!(probe(name), Ok(Probe::Free)));
        let (listener, address) = sys::socket(name).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        assert!(matches!(probe(name), Ok(Probe::Free)), "bound, but not listening");
        rustix::net::listen(&listener, 1).unwrap();
        let mut connections = Vec::new();
        let busy = loop {
            match probe(name).unwrap() {
                Probe::Connected(connection) => connections.push(connection),
                other => break other,
            }
            assert!(connections.len() < 10);
        };
        assert!(matches!(busy, Probe::Busy) && busy.is_alive());
        assert!(is_peer_alive(&connections[0]));
        drop(listener);
        assert!(!is_peer_alive(&connections[0]));
        assert!(matches!(probe(name), Ok(Probe::Free)));
    }

    #[test]
    fn owner_of_bound_name_is_its_user() {
        let name = format!("umf-test-owner-{}", std::process::id());
        let name = name.as_bytes();
        let own_uid = sys::effective_uid();
        // Sockets of another type have names of their own.
        let (_, address) = sys::socket(name).unwrap();
        let stream = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&stream, &address).unwrap();
        assert_eq!(sock_diag::owner(name), None);
        let (socket, address) = sys::socket(name).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        if sock_diag::owner(name).is_none() {
            println!("umf-skip: owner_of_bound_name_is_its_user: no sock_diag with users (Linux 5.3)");
            return;
        }
        assert_eq!(sock_diag::owner(name), Some(own_uid), "bound");
        rustix::net::listen(&socket, 1).unwrap();
        let (connected, address) = sys::socket(name).unwrap();
        rustix::net::connect(&connected, &address).unwrap();
        assert_eq!(sock_diag::owner(name), Some(own_uid), "listening");
        assert_eq!(sock_diag::owner(&name[1..]), None);
        drop(socket);
        assert_eq!(sock_diag::owner(name), None);
    }
}
