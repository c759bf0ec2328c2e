//! What the kernel says of this process, with an answer where a seccomp filter refuses the
//! question. (rustix expects that these calls cannot fail: it reads what was never written then.)

use core::cell::Cell;
use core::mem::MaybeUninit;

use umf_sync::fork;

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
