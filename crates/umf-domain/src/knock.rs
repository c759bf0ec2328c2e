//! Who is at an abstract socket's name.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use umf_os::socket::Peer;
use umf_os::socket::peer;
use umf_os::socket::peer_of;
use umf_sync::failpoint;

use crate::diag::owner;
use crate::sys;

/// Who answers the door.
#[derive(Debug)]
pub(crate) enum Knock {
    /// The name is free, or its owner is dead.
    Nobody,
    /// A process of another user, which has no business there. The pid is 0 if it is unknown.
    Stranger { uid: u32, pid: i32 },
    /// Somebody who has more connections waiting than the kernel keeps.
    Busy,
    /// A process of this user, or of root, connected to.
    Open(OwnedFd),
}

impl Knock {
    /// Whether a participant of the domain is there.
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self, Self::Busy | Self::Open(_))
    }
}

/// Connects to the name. Never waits.
pub(crate) fn knock(name: &[u8]) -> sys::Result<Knock> {
    knock_with(&mut None, name)
}

/// Connects to the name, with the socket that the last call left in `spare` if that found a free name. Probing a free
/// name takes one system call then, instead of three.
pub(crate) fn knock_with(spare: &mut Option<OwnedFd>, name: &[u8]) -> sys::Result<Knock> {
    let (socket, address) = match spare.take() {
        Some(socket) => (socket, sys::address(name)?),
        None => sys::socket(name)?,
    };
    match rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED) => {
            *spare = Some(socket);
            return Ok(Knock::Nobody);
        }
        Err(Errno::AGAIN) => {
            return Ok(stranger(name).map_or(Knock::Busy, |uid| Knock::Stranger { uid, pid: 0 }));
        }
        Err(errno) => return Err(errno),
    }
    failpoint!("domain.knocked");
    if peer_of(socket.as_fd())? != Peer::Trusted {
        let (uid, pid) = peer(socket.as_fd())?;
        return Ok(Knock::Stranger { uid, pid });
    }
    if sys::listener_has_ended(socket.as_fd()) { Ok(Knock::Nobody) } else { Ok(Knock::Open(socket)) }
}

/// The user who has the name, if that is neither root nor the user of this process; `None` if it is unknown.
pub(crate) fn stranger(name: &[u8]) -> Option<u32> {
    owner(name).filter(|&uid| uid != 0 && uid != sys::effective_uid())
}

/// Whether the process at the other end has neither closed the connection nor ended.
pub(crate) fn is_still_there(connection: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    let hung_up = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&at_once))) != Ok(0);
    !hung_up && !sys::listener_has_ended(connection.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_nobody_and_busy() {
        let name = format!("umf-test-knock-{}", std::process::id());
        let name = name.as_bytes();
        assert!(matches!(knock(name), Ok(Knock::Nobody)));
        let (listener, address) = sys::socket(name).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        assert!(matches!(knock(name), Ok(Knock::Nobody)), "bound, but nobody listens");
        rustix::net::listen(&listener, 1).unwrap();
        let mut kept = Vec::new();
        let busy = loop {
            match knock(name).unwrap() {
                Knock::Open(connection) => kept.push(connection),
                other => break other,
            }
            assert!(kept.len() < 10);
        };
        assert!(matches!(busy, Knock::Busy) && busy.is_alive());
        assert!(is_still_there(&kept[0]));
        drop(listener);
        assert!(!is_still_there(&kept[0]));
        assert!(matches!(knock(name), Ok(Knock::Nobody)));
    }
}
