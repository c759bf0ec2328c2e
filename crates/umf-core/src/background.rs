//! Threads that work in the background, for those who asked for one.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Begins a thread that runs `work` and gets none of the process's signals. `name`: for people, up to 15 bytes.
///
/// # Errors
/// What the system says, if it has no more threads.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(move || {
        block_signals();
        work();
    })
}

fn block_signals() {
    let mut set = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set; the mask is this thread's own.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), core::ptr::null_mut());
    }
}
