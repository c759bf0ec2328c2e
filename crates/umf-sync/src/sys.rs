//! The system calls of this crate.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicUsize};

use umf_core::{Error, Result};

/// The size of the smallest pages in bytes. Other page sizes are multiples of it.
pub(crate) const PAGE: usize = 4096;

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Maps `size` bytes of zeroed private memory. Pages are committed when first touched.
pub(crate) fn map(size: usize) -> Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(Error::OutOfMemory { size, owner: "metadata", native: last_errno() });
    }
    NonNull::new(mapped.cast()).ok_or(Error::OutOfMemory { size, owner: "metadata", native: 0 })
}

/// Unmaps a range.
///
/// # Safety
/// The range is a mapping of [`map`], and is not in use any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, size: usize) {
    // SAFETY: passed on to the caller.
    unsafe { libc::munmap(base.as_ptr().cast(), size) };
}

/// Makes the page read as zeros in forked children (`MADV_WIPEONFORK`, Linux 4.14, `madvise(2)`).
///
/// # Safety
/// The range is a mapping of [`map`].
pub(crate) unsafe fn wipe_on_fork(page: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller; the advice changes nothing in this process.
    match unsafe { libc::madvise(page.as_ptr().cast(), size, libc::MADV_WIPEONFORK) } {
        0 => Ok(()),
        _ => Err(Error::native("madvise(MADV_WIPEONFORK)", last_errno())),
    }
}

/// Sleeps until woken, unless the word differs from `expected`. May return spuriously.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let forever = ptr::null::<libc::timespec>();
    // SAFETY: the word is valid, and there is no timeout.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, forever) };
}

/// Wakes up to `count` threads that sleep on the word.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) };
}

/// Returns the half of a word with the low bits.
pub(crate) fn low_half(word: &AtomicUsize) -> &AtomicU32 {
    let halves = size_of::<AtomicUsize>() / size_of::<AtomicU32>();
    let offset = if cfg!(target_endian = "big") { halves - 1 } else { 0 };
    // SAFETY: the half lies in the word, and both are atomics without padding.
    unsafe { &*word.as_ptr().cast::<AtomicU32>().add(offset) }
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: the arguments are numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for [`barrier`]. Returns whether that succeeded.
pub(crate) fn register_barrier() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// Makes every running thread of this process pass a full memory fence. Returns `false` if the
/// kernel does not support it.
pub(crate) fn barrier() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

/// Returns the id of the calling thread, which is the same in a forked child (`pthread_self(3)`),
/// and not 0.
pub(crate) fn this_thread() -> usize {
    // SAFETY: the call has no preconditions.
    (unsafe { libc::pthread_self() }) as usize
}

/// Returns the nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Sleeps for about `nanoseconds`; yields the processor if that is 0.
pub(crate) fn pause(nanoseconds: u32) {
    if nanoseconds == 0 {
        // SAFETY: the call has no preconditions.
        unsafe { libc::sched_yield() };
    } else {
        let time = libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(nanoseconds as i32) };
        // SAFETY: the structure is valid for the read; a signal may end the sleep.
        unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
    }
}

/// A scope in which all signals of the calling thread are blocked, until this is dropped.
#[derive(Debug)]
pub struct BlockedSignals {
    /// The previous mask; `None` if it could not be changed.
    before: Option<libc::sigset_t>,
    /// The mask is the calling thread's.
    not_send: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks all signals.
    #[must_use]
    pub fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigfillset` initialises the set, and `before` is valid for the write.
        let is_blocked = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
        };
        // SAFETY: the call succeeded, so it wrote `before`.
        let before = is_blocked.then(|| unsafe { before.assume_init() });
        Self { before, not_send: PhantomData }
    }
}

impl Default for BlockedSignals {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: the guard is not `Send`, so this is the thread whose mask was saved.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}
