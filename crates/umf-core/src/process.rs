//! What the kernel says of this process, with an answer where a seccomp filter refuses the
//! question. (rustix expects that these calls cannot fail: it reads what was never written then.)

use core::mem::MaybeUninit;

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
