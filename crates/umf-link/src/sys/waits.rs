//! Waiting, and what can be asked without.

use core::sync::atomic::AtomicU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::futex;

use super::Result;

/// Sleeps until the bell is rung, unless its value is not `seen` any more, and no longer than `most`. Returns early when
/// signals come.
pub(crate) fn sleep(bell: &AtomicU32, seen: u32, most: Duration) {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    // Whatever it says, the caller looks again.
    let _ = futex::wait(bell, futex::Flags::empty(), seen, Some(&most));
}

/// Wakes all that sleep on the bell, which are threads of one process.
pub(crate) fn wake(bell: &AtomicU32) {
    let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX.cast_unsigned());
}

/// Milliseconds of a clock that only goes forward, and costs a few nanoseconds (`CLOCK_MONOTONIC_COARSE`).
#[inline]
pub(crate) fn coarse_milliseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned().wrapping_mul(1000).wrapping_add(now.tv_nsec.cast_unsigned() / 1_000_000)
}

/// The number of the processor that the calling thread runs on just now. A few nanoseconds.
pub(crate) fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// Processors of this machine that run, at least one.
pub(crate) fn processors() -> usize {
    // SAFETY: it touches no memory of the caller.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// Waits until an fd is ready, or `most` is over; `None` is for ever.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags, most: Option<Duration>) -> Result<bool> {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    match poll(&mut [PollFd::new(&fd, flags)], most.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether the other end of `socket` was closed, and whether the process of `pidfd` has ended. Never waits.
pub(crate) fn either_is_ready(socket: BorrowedFd<'_>, pidfd: Option<BorrowedFd<'_>>) -> (bool, bool) {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let hung_up = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(socket, PollFlags::RDHUP),
            PollFd::from_borrowed_fd(pidfd.unwrap_or(socket), PollFlags::IN),
        ];
        let count = if pidfd.is_some() { 2 } else { 1 };
        match poll(&mut fds[..count], Some(&at_once)) {
            Ok(_) => {
                let ended = pidfd.is_some() && !fds[1].revents().is_empty();
                return (fds[0].revents().intersects(hung_up), ended);
            }
            Err(Errno::INTR) => {}
            Err(_) => return (false, false),
        }
    }
}

/// An fd that is readable when one of the others is, or its other end is closed (`epoll(7)`).
pub(crate) fn event_fd(socket: BorrowedFd<'_>, pidfd: Option<BorrowedFd<'_>>) -> Result<OwnedFd> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
    for (number, fd) in [Some(socket), pidfd].into_iter().flatten().enumerate() {
        epoll::add(&events, fd.as_fd(), epoll::EventData::new_u64(number as u64), flags)?;
    }
    Ok(events)
}
