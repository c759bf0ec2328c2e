//! [`ReentrancyGuard`], which keeps a thread from entering the pool twice; deferred frees; and
//! `errno`.
//!
//! The slow paths of the pool may call the C library, which may allocate in turn: for a thread's
//! first value under a late pthread key, in the dynamic linker for thread-local storage, in
//! `dlsym`. While a fork is in progress, the forking thread holds all locks of the pool. In both
//! cases the thread must not enter the pool again. Its allocations come from the
//! [`bootstrap`](crate::bootstrap) allocator, and its frees go into the list of deferred frees.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use crate::bootstrap::BOOTSTRAP;

unsafe extern "C" {
    /// Returns the calling thread's depth, 0 at first (`c/busy.c`).
    safe fn umf_proxy_busy() -> *mut u32;
}

/// A guard in whose scope the calling thread may enter the pool, and only once.
pub(crate) struct ReentrancyGuard(PhantomData<*const ()>);

impl ReentrancyGuard {
    /// Returns a guard; `None` if the calling thread already has one, or forks.
    pub(crate) fn enter() -> Option<Self> {
        let depth = umf_proxy_busy();
        // SAFETY: the word belongs to the calling thread.
        unsafe {
            if *depth != 0 {
                return None;
            }
            *depth = 1;
        }
        Some(Self(PhantomData))
    }

    /// Keeps the calling thread out of the pool until [`ReentrancyGuard::end_fork`], in this
    /// process and in the child.
    pub(crate) fn begin_fork() {
        // SAFETY: the word belongs to the calling thread.
        unsafe { *umf_proxy_busy() += 1 };
    }

    /// Ends [`ReentrancyGuard::begin_fork`], in the thread that called it or in its copy in the
    /// child.
    pub(crate) fn end_fork() {
        // SAFETY: the word belongs to the calling thread, and `begin_fork` raised it.
        unsafe { *umf_proxy_busy() -= 1 };
    }
}

impl Drop for ReentrancyGuard {
    fn drop(&mut self) {
        // SAFETY: the word belongs to the calling thread.
        unsafe { *umf_proxy_busy() = 0 };
    }
}

/// A deferred free. It is not stored in the block: the block stays live until the free is carried
/// out, the program may free it twice, and a forked child may map a copy of it.
struct DeferredFree {
    block: NonNull<u8>,
    next: *mut Self,
}

/// The latest deferred free.
static DEFERRED: AtomicPtr<DeferredFree> = AtomicPtr::new(ptr::null_mut());

/// Defers the free of a block until the next call of [`take_deferred`]. Without memory for the
/// record the block is leaked.
pub(crate) fn defer_free(block: NonNull<u8>) {
    let Some(record) = BOOTSTRAP.allocate(size_of::<DeferredFree>(), align_of::<DeferredFree>()) else {
        return;
    };
    let record = record.cast::<DeferredFree>();
    let mut first = DEFERRED.load(Ordering::Relaxed);
    loop {
        // SAFETY: the record has this size and alignment, and no other thread refers to it yet.
        unsafe { record.write(DeferredFree { block, next: first }) };
        match DEFERRED.compare_exchange_weak(first, record.as_ptr(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

/// Passes each block whose free was deferred to `free`, once.
#[inline]
pub(crate) fn take_deferred(free: impl FnMut(NonNull<u8>)) {
    if !DEFERRED.load(Ordering::Relaxed).is_null() {
        take_all_deferred(free);
    }
}

#[cold]
fn take_all_deferred(mut free: impl FnMut(NonNull<u8>)) {
    let mut next = DEFERRED.swap(ptr::null_mut(), Ordering::Acquire);
    while let Some(record) = NonNull::new(next) {
        // SAFETY: `defer_free` wrote the record, and since the swap it belongs to this call.
        let deferred = unsafe { record.read() };
        // SAFETY: the record was read, and nothing refers to it any more.
        unsafe { BOOTSTRAP.free(record.cast()) };
        next = deferred.next;
        free(deferred.block);
    }
}

/// The calling thread's `errno`, which is restored when this is dropped. A `malloc` or `free` that
/// succeeds must not change it.
pub(crate) struct SavedErrno(c_int);

impl SavedErrno {
    /// Saves `errno`.
    pub(crate) fn save() -> Self {
        // SAFETY: `errno` belongs to the calling thread.
        Self(unsafe { *libc::__errno_location() })
    }

    /// Sets the value that `errno` gets instead of the saved one.
    pub(crate) fn set(&mut self, errno: c_int) {
        self.0 = errno;
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        // SAFETY: `errno` belongs to the calling thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_cannot_be_nested() {
        let guard = ReentrancyGuard::enter().unwrap();
        assert!(ReentrancyGuard::enter().is_none());
        assert!(std::thread::spawn(|| ReentrancyGuard::enter().is_some()).join().unwrap());
        drop(guard);
        ReentrancyGuard::begin_fork();
        assert!(ReentrancyGuard::enter().is_none());
        ReentrancyGuard::end_fork();
        assert!(ReentrancyGuard::enter().is_some());
    }

    #[test]
    fn deferred_frees_are_taken_once() {
        let mut blocks = [[0_usize; 2]; 3];
        let deferred: Vec<_> = blocks.iter_mut().map(|block| NonNull::from(block).cast::<u8>()).collect();
        for &block in &deferred {
            defer_free(block);
        }
        let mut taken = Vec::new();
        take_deferred(|block| taken.push(block));
        taken.reverse();
        assert_eq!(taken, deferred);
        take_deferred(|_| panic!("taken twice"));
    }
}
