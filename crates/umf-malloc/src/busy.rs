//! [`Busy`]: the calling thread is in what this library does seldom.
//!
//! There the C library may be called, which may allocate in turn: a thread's first value under a late key, the dynamic linker
//! for thread-local storage, `dlsym`. And while a fork is going on, the forking thread holds all locks of the pool. Either way the
//! pool is not to be entered again by this thread.

use core::marker::PhantomData;

unsafe extern "C" {
    /// The calling thread's word, 0 at first (`c/busy.c`).
    safe fn umf_proxy_busy() -> *mut u32;
}

/// The calling thread is busy until this is dropped.
pub(crate) struct Busy(PhantomData<*const ()>);

impl Busy {
    /// `None` if it is already.
    pub(crate) fn begin() -> Option<Self> {
        let word = umf_proxy_busy();
        // SAFETY: the thread's own word.
        unsafe {
            if *word != 0 {
                return None;
            }
            *word = 1;
        }
        Some(Self(PhantomData))
    }

    /// The calling thread is busy until [`Busy::end_fork`], in this process and in the child.
    pub(crate) fn begin_fork() {
        // SAFETY: the thread's own word.
        unsafe { *umf_proxy_busy() += 1 };
    }

    pub(crate) fn end_fork() {
        // SAFETY: the thread's own word, which `begin_fork` raised in it, or in the one of which this is the forked copy.
        unsafe { *umf_proxy_busy() -= 1 };
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // SAFETY: the thread's own word.
        unsafe { *umf_proxy_busy() = 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_busy_once() {
        let busy = Busy::begin().unwrap();
        assert!(Busy::begin().is_none());
        assert!(std::thread::spawn(|| Busy::begin().is_some()).join().unwrap());
        drop(busy);
        Busy::begin_fork();
        assert!(Busy::begin().is_none());
        Busy::end_fork();
        assert!(Busy::begin().is_some());
    }
}
