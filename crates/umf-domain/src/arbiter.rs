//! [`Turn`]: the right to change a domain's table, which one process has at a time.
//!
//! It is a bound abstract name. The kernel gives a name to one socket, and takes it back when its process dies, at
//! whatever instruction: no lock in shared memory can be lost.

use std::os::fd::OwnedFd;
use std::time::Duration;

use umf_ipc::fd_socket::{Deadline, peer};

use crate::knock::{Knock, knock};
use crate::name::Name;
use crate::sockets::Sockets;
use crate::{Error, Result};

/// Held from [`turn`] until dropped: microseconds.
#[derive(Debug)]
pub(crate) struct Turn<'s> {
    sockets: &'s Sockets,
    socket: Option<OwnedFd>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.sockets.close_arbiter(socket);
        }
    }
}

const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// Waits for the turn until `deadline`, which is `timeout` from when the caller began.
pub(crate) fn turn<'s>(
    sockets: &'s Sockets,
    name: &Name,
    deadline: Deadline,
    timeout: Duration,
) -> Result<Turn<'s>> {
    let address = name.arbiter();
    let mut pause = SHORTEST;
    loop {
        let bound = sockets.bind_arbiter(&address).map_err(Error::system("bind of the arbiter's name"))?;
        if let Some(socket) = bound {
            return Ok(Turn { sockets, socket: Some(socket) });
        }
        let is_late = deadline.left().is_err();
        // Whoever follows the rules is done by now.
        if pause == LONGEST || is_late {
            check_holder(name, &address, is_late, timeout)?;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
}

/// An error if a stranger has the name, or if it is too late.
fn check_holder(name: &Name, address: &[u8], is_late: bool, timeout: Duration) -> Result<()> {
    let found = knock(address).map_err(Error::system("connect to the arbiter's name"))?;
    let socket = || String::from_utf8_lossy(address).into_owned();
    match found {
        Knock::Stranger { uid, pid } => Err(Error::OtherUser {
            domain: name.as_str().to_owned(),
            socket: socket(),
            uid,
            pid,
            mine: crate::sys::effective_uid(),
        }),
        _ if !is_late => Ok(()),
        other => Err(Error::Held {
            domain: name.as_str().to_owned(),
            socket: socket(),
            pid: match &other {
                Knock::Open(connection) => {
                    peer(std::os::fd::AsFd::as_fd(connection)).map_or(0, |(_, pid)| pid)
                }
                _ => 0,
            },
            milliseconds: milliseconds(timeout),
        }),
    }
}

pub(crate) fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}
