//! The child that tries to get at its sibling's secret.

use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use rustix::io::Errno;

use super::say;
use super::siblings::{Refusal, Target, Way, Word};
use crate::sys;

/// Tries one way and prints the word that it read.
pub(super) fn reach(way: Way, target: &Target, time: Duration) -> std::io::Result<()> {
    let word: Word = match way {
        Way::Pidfd => by_pidfd(target),
        Way::Procfs => by_procfs(target),
        Way::Socket => by_socket(target, time / 2),
        Way::Memory => by_memory(target),
    };
    say(&word)
}

fn by_pidfd(target: &Target) -> Word {
    let pidfd = sys::pidfd(target.pid).map_err(Refusal::at("pidfd_open"))?;
    let fd = sys::fetch_fd(pidfd.as_fd(), target.held.fd).map_err(Refusal::at("pidfd_getfd"))?;
    sys::read_word(fd.as_fd()).map_err(Refusal::at("read"))
}

fn by_procfs(target: &Target) -> Word {
    let path = format!("/proc/{}/fd/{}", target.pid, target.held.fd);
    let fd = sys::open_to_read(&path).map_err(Refusal::at("open"))?;
    sys::read_word(fd.as_fd()).map_err(Refusal::at("read"))
}

fn by_socket(target: &Target, time: Duration) -> Word {
    let name = target.held.socket.as_ref().map_err(Clone::clone)?;
    let address = SocketAddr::from_abstract_name(name).map_err(Refusal::of_io("name"))?;
    let stream = UnixStream::connect_addr(&address).map_err(Refusal::of_io("connect"))?;
    if !sys::wait_readable(&[stream.as_fd()], time).map_err(Refusal::at("poll"))? {
        return Err(Refusal::at("wait")(Errno::TIMEDOUT));
    }
    let fd = sys::receive_fd(stream.as_fd()).map_err(Refusal::at("recvmsg"))?;
    sys::read_word(fd.as_fd()).map_err(Refusal::at("read"))
}

fn by_memory(target: &Target) -> Word {
    let bytes = sys::read_remote(target.pid, target.held.address).map_err(Refusal::at("process_vm_readv"))?;
    Ok(u64::from_ne_bytes(bytes))
}
