//! System calls of this crate.

mod copies;
mod sockets;
mod waits;

pub(crate) use copies::{Direction, Iov, across};
pub(crate) use sockets::{connect, drain, is_free, listen, new_socket, poke, receive, send};
pub(crate) use waits::{
    coarse_milliseconds, has_ended, has_hung_up, is_ready, processor, processors, sleep, wake,
};

pub(crate) use umf_os::CloseOnFork;
pub(crate) use umf_os::process::effective_uid;

pub(crate) type Result<T> = core::result::Result<T, rustix::io::Errno>;
