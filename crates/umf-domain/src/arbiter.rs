//! [`Turn`]: the right to change a domain's table, which one process has at a time.
//!
//! It is a bound abstract name. The kernel gives a name to one socket, and takes it back when its process dies, at
//! whatever instruction: no lock in shared memory can be lost.

use std::os::fd::AsFd;
use std::time::Duration;

use umf_ipc::fd_socket::Deadline;
use umf_os::socket::peer;
use umf_sync::failpoint;

use crate::knock::{Knock, knock, stranger};
use crate::name::Name;
use crate::sockets::bind;
use crate::sys::CloseOnFork;
use crate::{Error, Result};

/// Held from [`turn`] until dropped: microseconds.
#[derive(Debug)]
pub(crate) struct Turn {
    socket: Option<CloseOnFork>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.socket.take());
        failpoint!("domain.turn_given_back");
    }
}

const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);
/// After so many tries somebody holds it longer than anybody should; then it is looked at again only after as many, since
/// each look leaves a connection in the holder's queue.
const PATIENCE: u32 = 16;

/// Waits for the turn until `deadline`, which is `timeout` from when the caller began.
pub(crate) fn turn(name: &Name, deadline: Deadline, timeout: Duration) -> Result<Turn> {
    let address = name.arbiter();
    let mut pause = SHORTEST;
    let mut holder = 0;
    for attempt in 1_u32.. {
        let bound = bind(&address).map_err(Error::system("bind of the arbiter's name"))?;
        if let Some(socket) = bound {
            return Ok(Turn { socket: Some(socket) });
        }
        if attempt.is_multiple_of(PATIENCE) {
            holder = check_holder(name, &address)?.unwrap_or(holder);
        }
        if deadline.left().is_err() {
            holder = check_holder(name, &address)?.unwrap_or(holder);
            break;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
    }
    Err(Error::Held {
        domain: name.as_str().to_owned(),
        socket: String::from_utf8_lossy(&address).into_owned(),
        pid: holder,
        milliseconds: milliseconds(timeout),
    })
}

/// The process that has the name now; an error if it is a stranger.
fn check_holder(name: &Name, address: &[u8]) -> Result<Option<i32>> {
    let found = match knock(address).map_err(Error::system("connect to the arbiter's name"))? {
        Knock::Stranger { uid, pid } => Some((uid, pid)),
        Knock::Open(connection) => return Ok(peer(connection.as_fd()).ok().map(|(_, pid)| pid)),
        // It may be bound, and its owner does not listen.
        Knock::Nobody => stranger(address).map(|uid| (uid, 0)),
        Knock::Busy => None,
    };
    let Some((uid, pid)) = found else { return Ok(None) };
    Err(Error::OtherUser {
        domain: name.as_str().to_owned(),
        socket: String::from_utf8_lossy(address).into_owned(),
        uid,
        pid,
        mine: crate::sys::effective_uid(),
    })
}

pub(crate) fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}
