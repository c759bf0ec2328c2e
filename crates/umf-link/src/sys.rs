//! System calls of this crate: sockets for the handshake, sleeping on a futex, and liveness checks.

use core::sync::atomic::AtomicU32;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::futex;
use umf_ipc::fd_socket::Deadline;

use crate::settings::check_interrupt;
use crate::wait::SLICE;

pub(crate) use umf_os::CloseOnFork;
pub(crate) use umf_os::process::effective_uid;

pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Most descriptors that one packet carries.
const MOST_FDS: usize = 4;

/// Makes a close-on-exec socket for packets.
pub(crate) fn new_socket() -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Binds an abstract name and listens there. Fails with `EADDRINUSE` if the name is taken.
pub(crate) fn listen(socket: &OwnedFd, name: &[u8]) -> Result<()> {
    rustix::net::bind(socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(socket, 128)
}

/// Returns whether no socket has an abstract name, by binding it. A socket with the name does not
/// notice. A free name is bound for a moment.
pub(crate) fn is_free(name: &[u8]) -> Result<bool> {
    match rustix::net::bind(new_socket()?, &SocketAddrUnix::new_abstract_name(name)?) {
        Ok(()) => Ok(true),
        Err(Errno::ADDRINUSE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the time until a call has to check the deadline, or `interrupt`. Fails with `EINTR` if
/// `interrupt` ends the call.
pub(crate) fn next_slice(deadline: Deadline, interrupt: Option<fn() -> bool>) -> Result<Option<Duration>> {
    let left = deadline.left()?;
    check_interrupt(interrupt).map_err(|_| Errno::INTR)?;
    Ok(slice(left, interrupt))
}

/// Returns the time for which a call may wait before it checks `interrupt`.
pub(crate) fn slice(left: Option<Duration>, interrupt: Option<fn() -> bool>) -> Option<Duration> {
    if interrupt.is_none() { left } else { Some(left.map_or(SLICE, |left| left.min(SLICE))) }
}

/// Connects to the socket that listens at an abstract name. Fails with `EINTR` if `interrupt` ends
/// the call.
pub(crate) fn connect(
    socket: &OwnedFd,
    name: &[u8],
    deadline: Deadline,
    interrupt: Option<fn() -> bool>,
) -> Result<()> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    loop {
        // Only `connect` waits for a full backlog; `poll` does not report it.
        set_socket_timeout(socket, Timeout::Send, next_slice(deadline, interrupt)?)?;
        match rustix::net::connect(socket, &address) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            other => return other,
        }
    }
}

/// Sends one packet with up to four descriptors.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// Waits for one packet. Returns its length and its descriptors. Fails with `ECONNRESET` if the
/// other end is closed, with `EINTR` if `interrupt` ends the call.
pub(crate) fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    deadline: Deadline,
    interrupt: Option<fn() -> bool>,
) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Ok(received) => {
                // All of them are owned, so that surplus descriptors are closed.
                let mut fds = Vec::new();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        fds.extend(received);
                    }
                }
                // The kernel drops descriptors beyond RLIMIT_NOFILE.
                if received.flags.contains(ReturnFlags::CTRUNC) && fds.len() < MOST_FDS {
                    return Err(Errno::MFILE);
                }
                if received.bytes == 0 && fds.is_empty() {
                    return Err(Errno::CONNRESET);
                }
                return Ok((received.bytes, fds));
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                is_ready(socket.as_fd(), PollFlags::IN, next_slice(deadline, interrupt)?)?;
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Wakes a process that polls the other end. If the queue of the socket is full, it is readable
/// already.
pub(crate) fn poke(socket: BorrowedFd<'_>) {
    let _ = rustix::net::send(socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Reads the bytes that [`poke`] sent.
pub(crate) fn drain(socket: BorrowedFd<'_>) {
    let mut byte = [0; 1];
    // The queue of a socket holds fewer. Bounded, because the peer may add to it meanwhile.
    for _ in 0..1024 {
        if !rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT).is_ok_and(|(_, count)| count > 0) {
            return;
        }
    }
}

/// Sleeps until the bell is rung, its value differs from `seen`, `most` has passed or a signal
/// arrives. Returns whether `most` has passed.
pub(crate) fn sleep(bell: &AtomicU32, seen: u32, most: Duration) -> bool {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    // The caller polls again, whatever the result.
    futex::wait(bell, futex::Flags::empty(), seen, Some(&most)) == Err(Errno::TIMEDOUT)
}

/// Wakes all threads that sleep on the bell.
pub(crate) fn wake(bell: &AtomicU32) {
    let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX.cast_unsigned());
}

/// Returns milliseconds of `CLOCK_MONOTONIC_COARSE`, which costs a few nanoseconds.
#[inline]
pub(crate) fn coarse_milliseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned().wrapping_mul(1000).wrapping_add(now.tv_nsec.cast_unsigned() / 1_000_000)
}

/// Returns the number of the processor on which the calling thread runs.
pub(crate) fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// Returns the number of processors that are online, at least one.
pub(crate) fn processors() -> usize {
    // SAFETY: sysconf touches no memory of the caller.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Waits until a descriptor is ready or `most` has passed. `None` waits without a timeout.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags, most: Option<Duration>) -> Result<bool> {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    match poll(&mut [PollFd::new(&fd, flags)], most.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns whether the other end of a socket is closed. Does not wait.
pub(crate) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&at_once)) {
            Ok(_) => return fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Returns whether no process has this id any more (`kill(2)`). A process that the pid namespace
/// hides counts as alive.
pub(crate) fn has_ended(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid).filter(|_| pid > 0);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbound_name_is_free() {
        let name = format!("umf-link-test-free-{}", std::process::id());
        let holder = new_socket().unwrap();
        listen(&holder, name.as_bytes()).unwrap();
        for _ in 0..3 {
            assert!(!is_free(name.as_bytes()).unwrap());
        }
        // The probe does not show up as a connection.
        assert!(!is_ready(holder.as_fd(), PollFlags::IN, Some(Duration::ZERO)).unwrap());
        drop(holder);
        assert!(is_free(name.as_bytes()).unwrap() && is_free(name.as_bytes()).unwrap());
    }
}
