//! How the processes of a link find each other, and whom they accept: abstract sockets of one user, or
//! sockets in a directory ([`umf_ipc::rendezvous`]) with a proof of the address's key.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::Shutdown;
use umf_ipc::fd_socket::{ClientProof, DIRECTORY_FAMILY, Deadline, ProofStep, ServerProof, directory_prefix};
use umf_ipc::rendezvous::{Directory, NameState, NamedSocket};
use umf_ipc::{Allow, Nonce};
use umf_os::socket::{PeerTrust, peer, peer_trust_by};
use umf_sync::failpoint;

use crate::endpoint::{Kind, PACKET_SIZE, Packet};
use crate::sys::CloseOnFork;
use crate::{Error, LinkAddress, LinkSettings, Result, sys};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// The nonce of proofs. The key is that of the address.
const PROTOCOL: Nonce = Nonce::from_bytes(*b"umf-link-0000001");
/// The first word of a refusal by a rule, whose place in [`Allow::ALL`] is the second.
pub(crate) const NOT_PERMITTED: u32 = 3;

/// A listening socket. It is non-blocking. Dropping it removes its name.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: CloseOnFork,
    /// Dropped after the socket.
    _named: Option<NamedSocket>,
}

impl Listener {
    /// Listens at the name of an address.
    pub(crate) fn bind(address: &LinkAddress, settings: &LinkSettings) -> Result<Self> {
        let name = address.socket();
        let Some(directory) = settings.place() else {
            let socket = sys::new_socket().map_err(Error::system("socket"))?;
            sys::listen(&socket, name.as_bytes()).map_err(|errno| match errno {
                Errno::ADDRINUSE => Error::NameTaken { name },
                errno => Error::system("bind")(errno),
            })?;
            // So that `accept` does not block if the connection was closed after `poll`.
            rustix::io::ioctl_fionbio(&socket, true).map_err(Error::system("ioctl"))?;
            let socket = CloseOnFork::new(socket).map_err(Error::system("fstat of a socket"))?;
            return Ok(Self { socket, _named: None });
        };
        let found = directory.remove_leftovers(DIRECTORY_FAMILY, &directory_prefix())?;
        tracing::debug!(path = %directory.path().display(), ?found, "looked for left-overs");
        let mut named = directory.bind(&name, settings.allow.socket_mode(), BACKLOG)?;
        match named.as_mut().and_then(NamedSocket::take_listener) {
            Some(socket) => Ok(Self { socket, _named: named }),
            None => Err(Error::NameTaken { name }),
        }
    }

    pub(crate) const fn socket(&self) -> &CloseOnFork {
        &self.socket
    }
}

/// Connects to the process that listens at an address, and checks it. Returns the connection and the
/// pid of the process; 0 if this pid namespace does not show it.
pub(crate) fn connect(
    address: &LinkAddress,
    settings: &LinkSettings,
    deadline: Deadline,
    failed: &impl Fn(Errno) -> Error,
) -> Result<(OwnedFd, i32)> {
    let (key, interrupt) = (address.key(), settings.interrupt);
    let socket = match settings.place() {
        directory if directory.is_some() != key.is_some() => {
            return Err(Error::OtherPlace { directory: settings.directory.clone() });
        }
        None => {
            let socket = sys::new_socket().map_err(Error::system("socket"))?;
            sys::connect(&socket, address.socket().as_bytes(), deadline, interrupt).map_err(failed)?;
            socket
        }
        Some(directory) => loop {
            let most = sys::next_slice(deadline, interrupt).map_err(failed)?;
            match directory.connect(&address.socket(), most) {
                Ok(socket) => break socket,
                Err(error) => match error.errno() {
                    Some(Errno::INTR | Errno::AGAIN) => {}
                    Some(errno @ (Errno::NOENT | Errno::CONNREFUSED)) => return Err(failed(errno)),
                    _ => return Err(error.into()),
                },
            }
        },
    };
    failpoint!("link.connected");
    let pid = trusted_pid(&socket, settings.rule())?;
    let Some(key) = key else { return Ok((socket, pid)) };
    // Any process that may write to the directory may have taken the name.
    let own = ClientProof::new(key, PROTOCOL).map_err(Error::system("getrandom"))?;
    sys::send(socket.as_fd(), &own.hello(), &[]).map_err(failed)?;
    let mut bytes = [0; PACKET_SIZE + 1];
    let (length, fds) = sys::receive(&socket, &mut bytes, deadline, interrupt).map_err(failed)?;
    if let Some(rule) = refusing_rule(&bytes[..length]) {
        return Err(Error::NotPermitted { pid, rule });
    }
    let Some(proof) = own.check(&bytes[..length]).filter(|_| fds.is_empty()) else {
        return Err(Error::NotProven { name: address.socket() });
    };
    sys::send(socket.as_fd(), &proof, &[]).map_err(failed)?;
    failpoint!("link.proven");
    Ok((socket, pid))
}

/// Returns the pid of the process at the other end of a socket.
///
/// # Errors
/// [`Error::OtherUser`] or [`Error::NotPermitted`], unless the rule permits the process. By
/// [`Allow::Handle`] it has still to prove the key.
fn trusted_pid(socket: &OwnedFd, rule: Allow) -> Result<i32> {
    let failed = Error::system("getsockopt");
    let is_trusted =
        rule == Allow::Handle || peer_trust_by(rule, socket.as_fd()).map_err(&failed)? == PeerTrust::Trusted;
    let (uid, pid) = peer(socket.as_fd()).map_err(&failed)?;
    match rule {
        _ if is_trusted => Ok(pid),
        Allow::SameUser => Err(Error::OtherUser { pid, uid, own_uid: sys::effective_uid() }),
        rule => Err(Error::NotPermitted { pid, rule }),
    }
}

/// Checks a process that has connected to the endpoint of an address, and receives its hello. Returns
/// its pid, the hello and its descriptors. The process is told if the rule refuses it.
pub(crate) fn receive_hello(
    socket: &OwnedFd,
    address: &LinkAddress,
    rule: Allow,
    deadline: Deadline,
) -> Result<(i32, Packet, Vec<OwnedFd>)> {
    let mut proof = address.key().map(|key| ServerProof::new(key, PROTOCOL));
    let pid = trusted_pid(socket, rule).inspect_err(|_| {
        if proof.is_some() {
            refuse(socket, rule);
        }
    })?;
    let mut bytes = [0; PACKET_SIZE + 1];
    loop {
        let (length, fds) =
            sys::receive(socket, &mut bytes, deadline, None).map_err(Error::system("receiving the hello"))?;
        let bytes = &bytes[..length];
        let Some(own) = &mut proof else {
            let hello = Packet::decode(bytes, Kind::Hello);
            let hello = hello.ok_or(Error::Misbehaved { pid, what: "its first packet is no hello" })?;
            return Ok((pid, hello, fds));
        };
        match own.receive(bytes) {
            ProofStep::Answer(answer) => {
                sys::send(socket.as_fd(), &answer, &[]).map_err(Error::system("answering a challenge"))?;
            }
            ProofStep::Proven => proof = None,
            ProofStep::Other | ProofStep::Wrong => {
                refuse(socket, rule);
                return Err(Error::NotPermitted { pid, rule });
            }
        }
    }
}

/// Tells a process that the rule refuses it.
fn refuse(socket: &OwnedFd, rule: Allow) {
    let place = Allow::ALL.iter().position(|known| *known == rule).unwrap_or(0) as u32;
    let packet = Packet { lane: 0, catalog: 0, base: 0, words: [NOT_PERMITTED, place, 0, 0] };
    let _ = sys::send(socket.as_fd(), &packet.encode(Kind::Refused), &[]);
    // Closing with an unread packet would send a reset, and the process would lose the answer.
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
    sys::drain(socket.as_fd());
}

/// Returns the rule of a refusal by a rule.
pub(crate) fn refusing_rule(packet: &[u8]) -> Option<Allow> {
    let [NOT_PERMITTED, place, ..] = Packet::decode(packet, Kind::Refused)?.words else { return None };
    Allow::ALL.get(place as usize).copied()
}

/// Returns whether no process listens at an address any more. `false` if that is unknown.
pub(crate) fn is_gone(directory: Option<&Directory>, address: &[u8; 64]) -> bool {
    let Ok(address) = LinkAddress::from_bytes(address) else {
        // No process has an address that is not valid.
        return true;
    };
    match (directory, address.key()) {
        (None, None) => sys::is_free(address.socket().as_bytes()).unwrap_or(false),
        (Some(directory), Some(_)) => directory
            .state(&address.socket())
            .is_ok_and(|state| matches!(state, NameState::Absent | NameState::Dead)),
        _ => true,
    }
}
