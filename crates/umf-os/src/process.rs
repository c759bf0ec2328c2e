//! What the kernel says of this process, with an answer where a seccomp filter refuses the
//! question. (rustix expects that these calls cannot fail: it reads what was never written then.)

use core::cell::Cell;
use core::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::SystemResult as Result;

use umf_sync::{failpoint, fork};

/// The effective user id (`geteuid(2)`); if that is refused, the one with which the program was
/// started.
#[must_use]
pub fn effective_uid() -> u32 {
    // Not by the C library's function, which cannot say that it failed.
    // SAFETY: takes no argument and reads no memory of ours.
    let uid = unsafe { libc::syscall(libc::SYS_geteuid) };
    // SAFETY: reads what the kernel gave this process at `execve`.
    let at_start = || unsafe { libc::getauxval(libc::AT_EUID) };
    // (Both are 32 bits wide.)
    if uid == -1 { at_start() as u32 } else { uid as u32 }
}

/// The largest file that this process may make, in bytes (`RLIMIT_FSIZE`, `getrlimit(2)`). Growing
/// a file past it is not just an error but a signal that ends the process.
#[must_use]
pub fn file_size_limit() -> u64 {
    limit(|limit| {
        // SAFETY: `limit` is valid for the write.
        unsafe { libc::getrlimit64(libc::RLIMIT_FSIZE, limit) }
    })
}

/// How many descriptors this process may have open (`RLIMIT_NOFILE`, `getrlimit(2)`).
#[must_use]
pub fn descriptor_limit() -> u64 {
    limit(|limit| {
        // SAFETY: `limit` is valid for the write.
        unsafe { libc::getrlimit64(libc::RLIMIT_NOFILE, limit) }
    })
}

/// The largest number where there is no limit, or where the kernel does not say.
fn limit(get: impl FnOnce(*mut libc::rlimit64) -> i32) -> u64 {
    let mut limit = MaybeUninit::uninit();
    // SAFETY: where `get` succeeds it has written the limit.
    if get(limit.as_mut_ptr()) == 0 { unsafe { limit.assume_init() }.rlim_cur } else { u64::MAX }
}

/// The system's number of the calling thread, as `gettid(2)` returns it and `top -H` shows it. Asks
/// the system once per thread and fork.
#[must_use]
pub fn thread_id() -> u32 {
    thread_local! {
        /// The number, and the process in which it was asked for, as [`fork::generation`] counts.
        static KNOWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    let generation = fork::generation();
    match KNOWN.get() {
        (id, known) if id != 0 && known == generation => id,
        _ => {
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            KNOWN.set((id, generation));
            id
        }
    }
}

/// Has `function` called when the process ends by `exit(3)` or by returning from `main`; returns
/// whether that is possible.
///
/// It runs in the thread that ends the process, whose thread-local values may be gone.
pub fn at_exit(function: extern "C" fn()) -> bool {
    // SAFETY: the function is of a library that stays loaded (see `umf_sync`).
    unsafe { libc::atexit(function) == 0 }
}

/// The id of this process in its pid namespace.
#[must_use]
pub fn pid() -> u32 {
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

/// Whether `/proc` is of the pid namespace in which [`pid`] is counted; in another one pids name
/// other processes.
#[must_use]
pub fn sees_itself_in_proc() -> bool {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(16));
    target.is_ok_and(|target| target.to_str().is_ok_and(|text| text.parse() == Ok(pid())))
}

/// Returns the folder of a process's descriptors in another thread, if its main thread has exited
/// and others run. `/proc/<pid>/fd` is empty then, and only root may read it (`proc_pid_fd(5)`).
#[must_use]
pub fn fds_of_other_thread(pid: u32) -> Option<String> {
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

/// Opens a pidfd of a process (`pidfd_open(2)`).
///
/// # Errors
/// Those of the call; `ESRCH` for a pid that no process can have.
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

/// Whether other processes of the same user may attach to this one (`PR_GET_DUMPABLE`, `prctl(2)`).
#[must_use]
pub fn is_dumpable() -> bool {
    matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::Dumpable) | Err(_))
}

/// Sets the processes that may attach to this one in spite of yama: the process with this pid and
/// its children, or any process (`PR_SET_PTRACER`, `prctl(2)`).
///
/// # Errors
/// `EINVAL` where there is no yama or no such process, `ESRCH` for 0.
pub fn set_ptracer(pid: Option<u32>) -> Result<()> {
    use rustix::process::PTracer;
    let ptracer = match pid {
        None => PTracer::Any,
        Some(pid) => PTracer::ProcessID(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?),
    };
    rustix::process::set_ptracer(ptracer)
}
