//! How the processes of a link find each other, and which processes they accept: abstract sockets
//! of one user, or sockets in a directory ([`umf_ipc::rendezvous`]) with a proof of the address's
//! key.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::Shutdown;
use umf_ipc::fd_socket::{ClientProof, Deadline, ProofStep, ServerProof};
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
        umf_ipc::rendezvous::remove_leftovers_before_bind(&directory);
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

/// Connects to the process that listens at an address, and checks it. Returns the connection, the
/// pid of the process (0 if this pid namespace does not show it), and what the process has to prove
/// first ([`prove`]).
pub(crate) fn connect(
    address: &LinkAddress,
    settings: &LinkSettings,
    deadline: Deadline,
    failed: &impl Fn(Errno) -> Error,
) -> Result<(OwnedFd, i32, Option<ClientProof>)> {
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
    let Some(key) = key else { return Ok((socket, pid, None)) };
    // Any process that may write to the directory may have taken the name.
    let own = ClientProof::new(key, PROTOCOL, &address.socket()).map_err(Error::system("getrandom"))?;
    sys::send(socket.as_fd(), &own.hello(), &[]).map_err(failed)?;
    Ok((socket, pid, Some(own)))
}

/// Proves the key to the process that listens, if `answer` proves that it has the key, too.
pub(crate) fn prove(socket: BorrowedFd<'_>, own: ClientProof, answer: &[u8]) -> sys::Result<bool> {
    let Some(proof) = own.check(answer) else { return Ok(false) };
    sys::send(socket, &proof, &[])?;
    failpoint!("link.proven");
    Ok(true)
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

/// Checks a process that has connected to the endpoint of an address, and receives its hello.
/// Returns its pid, the hello and its descriptors. The process is told if the rule refuses it.
pub(crate) fn receive_hello(
    socket: &OwnedFd,
    address: &LinkAddress,
    rule: Allow,
    deadline: Deadline,
) -> Result<(i32, Packet, Vec<OwnedFd>)> {
    let mut proof = address.key().map(|key| ServerProof::new(key, PROTOCOL, &address.socket()));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

    use std::time::Duration;

    use rustix::event::PollFlags;
    use umf_ipc::fd_socket::Key;

    use super::*;
    use crate::LinkBuilder;
    use crate::endpoint::Endpoint;

    const LONG: Option<Duration> = Some(Duration::from_secs(30));

    fn receive(socket: &OwnedFd) -> Vec<u8> {
        let mut bytes = [0; PACKET_SIZE + 1];
        let received = sys::receive(socket, &mut bytes, Deadline::after(Duration::from_secs(30)), None);
        bytes[..received.map_or(0, |(length, _)| length)].to_vec()
    }

    #[test]
    fn process_without_key_is_refused_at_either_end() {
        let folder = std::env::temp_dir().join(format!("umf-link-contact-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let settings =
            LinkSettings { directory: Some(folder.clone()), allow: Allow::Handle, ..LinkSettings::default() };
        let (builder, directory) = (LinkBuilder::new().settings(settings.clone()), Directory::new(&folder));
        let address = LinkAddress::unique(&settings).unwrap();
        assert_eq!(
            builder.connect(&address, LONG).unwrap_err(),
            Error::NotListening {
                name: address.socket(),
                pid: address.pid(),
                directory: Some(folder.clone())
            }
        );
        // It has taken the name of the endpoint.
        let mut squatter = directory.bind(&address.socket(), 0o666, 4).unwrap().unwrap();
        let listener = squatter.take_listener().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sys::is_ready(listener.as_fd(), PollFlags::IN, LONG).unwrap();
                let connection = rustix::net::accept(&listener).unwrap();
                // A challenge with a wrong tag.
                let mut packet = receive(&connection);
                packet[6] = 2;
                sys::send(connection.as_fd(), &packet, &[]).unwrap();
                assert!(receive(&connection).is_empty(), "nothing follows");
            });
            let connected = builder.connect(&address, LONG);
            assert_eq!(connected.unwrap_err(), Error::NotProven { name: address.socket() });
        });
        assert!(matches!(Endpoint::listen(builder.clone(), address), Err(Error::NameTaken { .. })));
        drop((squatter, listener));
        // It connects to the endpoint. The next process is accepted.
        let endpoint = Endpoint::listen(builder.clone(), address).unwrap();
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| endpoint.accept(LONG));
            let hello = Packet { lane: 1, catalog: 2, base: 3, words: [0; 4] }.encode(Kind::Hello);
            for is_hello_first in [true, false] {
                let socket = directory.connect(&address.socket(), LONG).unwrap();
                let own = ClientProof::new(Key::new([7; 16]), PROTOCOL, &address.socket()).unwrap();
                if !is_hello_first {
                    sys::send(socket.as_fd(), &own.hello(), &[]).unwrap();
                    assert_eq!(own.check(&receive(&socket)), None);
                }
                sys::send(socket.as_fd(), &hello, &[]).unwrap();
                assert_eq!(refusing_rule(&receive(&socket)), Some(Allow::Handle));
            }
            let mut link = builder.connect(&address, LONG).unwrap();
            let mut other = accepted.join().unwrap().unwrap();
            link.send(1, b"after").unwrap();
            let mut into = [0; 5];
            other.recv(1, &mut into).unwrap();
            assert_eq!(&into, b"after");
        });
        let outside = LinkBuilder::new().connect(&address, LONG).unwrap_err();
        assert_eq!(outside, Error::OtherPlace { directory: None });
        drop(endpoint);
        // Fails if a file is left.
        std::fs::remove_dir(&folder).unwrap();
    }
}
