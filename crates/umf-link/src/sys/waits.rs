//! Waiting, and what can be asked without.

use core::sync::atomic::AtomicU32;
use std::os::fd::BorrowedFd;
use std::time::Duration;

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

/// Whether the other end of a socket was closed. Never waits.
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

/// Whether there is no process with this id any more (`kill(2)`); one that another namespace hides is there.
pub(crate) fn has_ended(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid).filter(|_| pid > 0);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
}
