//! This process and others.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::sys::Result;

pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Random bytes of the kernel's (`getrandom(2)`).
///
/// # Errors
/// What `getrandom(2)` says.
pub fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(bytes)
}

/// Nanoseconds since the machine was booted (`CLOCK_BOOTTIME`, `clock_gettime(2)`): the same in all processes, and goes on
/// while the machine sleeps.
pub(crate) fn boot_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Whether `/proc` is of the pid namespace in which [`pid`] is counted; in another one pids name other processes.
pub(crate) fn sees_itself_in_proc() -> bool {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(16));
    target.is_ok_and(|target| target.to_str().is_ok_and(|text| text.parse() == Ok(pid())))
}

/// Returns the folder of a process's descriptors in another thread, if its main thread has exited and
/// others run. `/proc/<pid>/fd` is empty then, and only root may read it (`proc_pid_fd(5)`).
pub(crate) fn fds_of_other_thread(pid: u32) -> Option<String> {
    // Field 3 of `proc_pid_stat(5)`, behind the name, which may have any characters.
    let has_exited = |path: String| {
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
    };
    if !has_exited(format!("/proc/{pid}/stat")) {
        return None;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse::<u32>().ok());
    let thread =
        threads.find(|thread| *thread != pid && !has_exited(format!("/proc/{pid}/task/{thread}/stat")))?;
    Some(format!("/proc/{pid}/task/{thread}/fd"))
}

pub(crate) fn pidfd_open(pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// A duplicate of fd `number` of the process behind `pidfd`, close-on-exec.
pub(crate) fn pidfd_getfd(pidfd: BorrowedFd<'_>, number: RawFd) -> Result<OwnedFd> {
    rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())
}

/// Whether the process behind `pidfd` has ended (its pidfd is readable then).
#[must_use]
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&at_once)) {
            Ok(count) => return count > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Whether other processes of the same user may attach to this one (`PR_GET_DUMPABLE`, `prctl(2)`).
pub(crate) fn is_dumpable() -> bool {
    matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::Dumpable) | Err(_))
}

/// `PR_SET_PTRACER` (`prctl(2)`): who may attach in spite of yama. EINVAL where there is no yama.
pub(crate) fn set_ptracer(who: crate::exporter::Ptracer) -> Result<()> {
    use rustix::process::PTracer;
    let ptracer = match who {
        crate::exporter::Ptracer::None => return Ok(()),
        crate::exporter::Ptracer::Any => PTracer::Any,
        crate::exporter::Ptracer::Process(pid) => {
            PTracer::ProcessID(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?)
        }
    };
    rustix::process::set_ptracer(ptracer)
}
