//! The system calls of this crate.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicUsize};

use umf_core::{Error, Result};

/// Bytes of a page; larger ones are multiples.
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

/// Unmaps.
///
/// # Safety
/// The range is a mapping of [`map`], and nothing uses it any more.
pub(crate) unsafe fn unmap(base: NonNull<u8>, size: usize) {
    // SAFETY: passed on to the caller.
    unsafe { libc::munmap(base.as_ptr().cast(), size) };
}

/// Gives forked children zeros in place of this page (Linux 4.14, `madvise(2)`).
///
/// # Safety
/// The range is a mapping of [`map`].
pub(crate) unsafe fn wipe_on_fork(page: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: the caller has the mapping; the advice changes nothing in this process.
    match unsafe { libc::madvise(page.as_ptr().cast(), size, libc::MADV_WIPEONFORK) } {
        0 => Ok(()),
        _ => Err(Error::native("madvise(MADV_WIPEONFORK)", last_errno())),
    }
}

/// Sleeps while the word is `expected`, until it is woken. May return at any time.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let forever = ptr::null::<libc::timespec>();
    // SAFETY: the word is valid, and there is no timeout.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, forever) };
}

/// Wakes as many sleepers.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) };
}

/// The half of a word that changes when one is added.
pub(crate) fn low_half(word: &AtomicUsize) -> &AtomicU32 {
    let halves = size_of::<AtomicUsize>() / size_of::<AtomicU32>();
    let offset = if cfg!(target_endian = "big") { halves - 1 } else { 0 };
    // SAFETY: the half lies in the word, and both are atomics without padding.
    unsafe { &*word.as_ptr().cast::<AtomicU32>().add(offset) }
}

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: takes numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Asks for [`barrier`] to be possible in this process.
pub(crate) fn register_barrier() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// Has every running thread of this process pass a full memory fence; `false` if the kernel does
/// not.
pub(crate) fn barrier() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
}

/// A number of the calling thread that a forked child keeps (`pthread_self(3)`), not 0.
pub(crate) fn this_thread() -> usize {
    // SAFETY: has no preconditions.
    (unsafe { libc::pthread_self() }) as usize
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Lets other threads run, for about as many nanoseconds if that is not 0.
pub(crate) fn pause(nanoseconds: u32) {
    if nanoseconds == 0 {
        // SAFETY: has no preconditions.
        unsafe { libc::sched_yield() };
    } else {
        let time = libc::timespec { tv_sec: 0, tv_nsec: libc::c_long::from(nanoseconds as i32) };
        // SAFETY: the structure is valid for the read; a signal may end the sleep.
        unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
    }
}

/// All signals of the calling thread are blocked until this is dropped.
#[derive(Debug)]
pub struct BlockedSignals {
    /// The mask before; `None` if it could not be changed.
    before: Option<libc::sigset_t>,
    /// The mask is the calling thread's.
    not_send: PhantomData<*const ()>,
}

impl BlockedSignals {
    /// Blocks them.
    #[must_use]
    pub fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigfillset` initialises the set, and `before` is valid for the write.
        let is_blocked = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
        };
        // SAFETY: a call that succeeds writes it.
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
            // SAFETY: the mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}
