//! Ids, limits and rights of this process, and pidfds of others.
//!
//! A seccomp filter may forbid system calls that usually cannot fail. The functions here then
//! return a default. rustix assumes that these calls succeed, and would read uninitialised memory.

use core::cell::Cell;
use core::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::SystemResult as Result;

use umf_sync::{failpoint, fork};

/// Returns the effective user id (`geteuid(2)`). If the call is forbidden, returns the one at the
/// start of the program.
#[must_use]
pub fn effective_uid() -> u32 {
    // Not the C library's `geteuid`, which cannot report an error.
    // SAFETY: the call takes no argument and accesses no memory of this program.
    let uid = unsafe { libc::syscall(libc::SYS_geteuid) };
    // SAFETY: `getauxval` reads the auxiliary vector, which the kernel wrote at `execve`.
    let at_start = || unsafe { libc::getauxval(libc::AT_EUID) };
    // Both have 32 bits.
    if uid == -1 { at_start() as u32 } else { uid as u32 }
}

/// Returns the limit of the size of files, in bytes (`RLIMIT_FSIZE`, `getrlimit(2)`). Growing a
/// file beyond it raises SIGXFSZ, which by default ends the process.
#[must_use]
pub fn file_size_limit() -> u64 {
    limit(|limit| {
        // SAFETY: `limit` is valid for the write.
        unsafe { libc::getrlimit64(libc::RLIMIT_FSIZE, limit) }
    })
}

/// Returns the limit of open descriptors (`RLIMIT_NOFILE`, `getrlimit(2)`).
#[must_use]
pub fn descriptor_limit() -> u64 {
    limit(|limit| {
        // SAFETY: `limit` is valid for the write.
        unsafe { libc::getrlimit64(libc::RLIMIT_NOFILE, limit) }
    })
}

/// Returns a limit; `u64::MAX` if there is none, or if the call fails.
fn limit(get: impl FnOnce(*mut libc::rlimit64) -> i32) -> u64 {
    let mut limit = MaybeUninit::uninit();
    // SAFETY: `get` succeeded, so it wrote the limit.
    if get(limit.as_mut_ptr()) == 0 { unsafe { limit.assume_init() }.rlim_cur } else { u64::MAX }
}

/// Returns the id of the calling thread (`gettid(2)`). Makes one system call per thread and fork.
#[must_use]
pub fn thread_id() -> u32 {
    thread_local! {
        /// The id, and the process for which it was queried ([`fork::generation`]).
        static CACHED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    let generation = fork::generation();
    match CACHED.get() {
        (id, cached) if id != 0 && cached == generation => id,
        _ => {
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            CACHED.set((id, generation));
            id
        }
    }
}

/// Registers `function`, which is called when the process ends by `exit(3)` or a return from
/// `main`. Returns whether that succeeded.
///
/// It runs in the thread that ends the process, whose thread-local storage may be destroyed.
pub fn at_exit(function: extern "C" fn()) -> bool {
    // SAFETY: the function's library is never unloaded (see `umf_sync`).
    unsafe { libc::atexit(function) == 0 }
}

/// Returns the id of this process in its pid namespace.
#[must_use]
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Returns random bytes of the kernel (`getrandom(2)`).
///
/// # Errors
/// Those of `getrandom(2)`.
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

/// Returns whether `/proc` belongs to the pid namespace of this process. In the `/proc` of another
/// namespace, [`pid`] is the number of another process.
#[must_use]
pub fn sees_itself_in_proc() -> bool {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(16));
    target.is_ok_and(|target| target.to_str().is_ok_and(|text| text.parse() == Ok(pid())))
}

/// Returns the folder of a process's descriptors in another thread, if its main thread has exited
/// and others run. `/proc/<pid>/fd` is empty then, and only root may read it (`proc_pid_fd(5)`).
#[must_use]
pub fn fds_of_other_thread(pid: u32) -> Option<String> {
    // The state is field 3 of `proc_pid_stat(5)`, after the name, which may have any characters.
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

/// Opens a pidfd of a process (`pidfd_open(2)`).
///
/// # Errors
/// Those of `pidfd_open(2)`; `ESRCH` for an invalid pid.
pub fn pidfd_open(pid: u32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    failpoint!("process.opened");
    Ok(pidfd)
}

/// Duplicates the descriptor `number` of the process behind `pidfd`, close-on-exec.
///
/// # Errors
/// Those of `pidfd_getfd(2)`.
pub fn pidfd_getfd(pidfd: BorrowedFd<'_>, number: RawFd) -> Result<OwnedFd> {
    rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty())
}

/// Returns whether the process behind `pidfd` has ended (its pidfd is readable then).
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

/// Returns whether other processes of the same user may ptrace this one (`PR_GET_DUMPABLE`,
/// `prctl(2)`).
#[must_use]
pub fn is_dumpable() -> bool {
    matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::Dumpable) | Err(_))
}

/// Sets the processes that may ptrace this one in spite of Yama: the process with this pid and its
/// descendants, or any process for `None` (`PR_SET_PTRACER`, `prctl(2)`).
///
/// # Errors
/// `EINVAL` without Yama or without such a process; `ESRCH` for 0.
pub fn set_ptracer(pid: Option<u32>) -> Result<()> {
    use rustix::process::PTracer;
    let ptracer = match pid {
        None => PTracer::Any,
        Some(pid) => PTracer::ProcessID(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?),
    };
    rustix::process::set_ptracer(ptracer)
}
