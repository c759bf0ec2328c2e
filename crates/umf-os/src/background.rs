//! [`spawn`]: background threads that can be started in a forked child.
//!
//! They are started with `pthread_create(3)`. A thread of `std::thread` acquires a lock of the
//! standard library when it starts and when it ends. In a child that is forked meanwhile, the lock
//! stays locked for ever, so the child cannot start threads of `std::thread`.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use umf_sync::BlockedSignals;

type Work = Box<dyn FnOnce() + Send>;

/// A running thread. Dropping this detaches it.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

// SAFETY: any thread may join or detach a thread, once.
unsafe impl Send for Thread {}
// SAFETY: a shared reference has no methods.
unsafe impl Sync for Thread {}

impl Thread {
    /// Waits until the thread has ended.
    pub fn join(self) {
        let thread = core::mem::ManuallyDrop::new(self);
        // SAFETY: the thread was neither joined nor detached, and this value is not used any more.
        unsafe { libc::pthread_join(thread.0, ptr::null_mut()) };
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: the thread was neither joined nor detached.
        unsafe { libc::pthread_detach(self.0) };
    }
}

/// Starts a thread that runs `work`, with all signals blocked. A panic of `work` ends the thread.
///
/// `name` has up to 15 bytes. `stack_size` is in bytes; if it is too small for the thread-local
/// storage of the program, the system's default is used.
///
/// # Errors
/// Those of `pthread_create(3)`.
pub fn spawn(
    name: &'static CStr,
    stack_size: usize,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    let start: Box<(&'static CStr, Work)> = Box::new((name, Box::new(work)));
    let start = Box::into_raw(start);
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let mut create = |attributes| {
        // SAFETY: `thread` is valid for the write, the attributes are null or initialised, and
        // `start` is of the type that `run` expects.
        unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes, run, start.cast()) }
    };
    // A new thread inherits the signal mask of its creator.
    let blocked = BlockedSignals::new();
    let result = match with_stack_size(stack_size, &mut create) {
        libc::EINVAL => create(ptr::null()),
        result => result,
    };
    drop(blocked);
    if result != 0 {
        // SAFETY: `start` came from `Box::into_raw`, and no thread was started that owns it.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: the call succeeded, so it wrote `thread`.
    Ok(Thread(unsafe { thread.assume_init() }))
}

fn with_stack_size(size: usize, create: impl FnOnce(*const libc::pthread_attr_t) -> i32) -> i32 {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: `attributes` is valid for the write.
    let result = unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) };
    if result != 0 {
        return result;
    }
    // SAFETY: the attributes were initialised above.
    let result = match unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), size) } {
        0 => create(attributes.as_ptr()),
        error => error,
    };
    // SAFETY: the attributes were initialised above, and are not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    result
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passed the ownership of the box to this thread.
    let (name, work) = *unsafe { Box::from_raw(start.cast::<(&'static CStr, Work)>()) };
    // A name that is too long is not set.
    // SAFETY: the thread is the calling one, and the name is a C string.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        // Dropping the payload may panic again, and this function must not unwind.
        core::mem::forget(payload);
    }
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Returns whether the calling thread has an alternate signal stack.
    fn has_signal_stack() -> bool {
        let mut stack = MaybeUninit::<libc::stack_t>::uninit();
        // SAFETY: `stack` is valid for the write; nothing is changed.
        assert_eq!(unsafe { libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) }, 0);
        // SAFETY: the call succeeded, so it wrote `stack`.
        unsafe { stack.assume_init() }.ss_flags & libc::SS_DISABLE == 0
    }

    /// The standard library allocates an alternate signal stack for each of its threads,
    /// under its lock.
    #[test]
    #[cfg(not(miri))]
    fn threads_start_without_the_standard_library() {
        assert!(
            std::thread::spawn(has_signal_stack).join().unwrap(),
            "std does not make signal stacks any more: this test checks nothing"
        );
        let (to, from) = mpsc::channel();
        spawn(c"umf-test", 256 << 10, move || to.send(has_signal_stack()).unwrap()).unwrap().join();
        assert!(!from.recv().unwrap());
    }

    #[test]
    fn thread_has_its_name_blocks_signals_and_may_panic() {
        let (to, from) = mpsc::channel();
        let work = move || {
            let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: `mask` is valid for the write, and written before it is read.
            let blocked = unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr());
                libc::sigismember(mask.as_ptr(), libc::SIGTERM)
            };
            to.send((std::fs::read_to_string("/proc/thread-self/comm").unwrap(), blocked)).unwrap();
            // `resume_unwind` does not call the panic hook.
            std::panic::resume_unwind(Box::new("a mistake"));
        };
        // The stack is too small, so the system's default is used.
        spawn(c"umf-test", 1, work).unwrap().join();
        assert_eq!(from.recv().unwrap(), ("umf-test\n".to_owned(), 1));
    }
}
