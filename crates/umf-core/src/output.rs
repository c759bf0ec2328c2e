//! What is told: standard output and standard error without the locks of the standard library, and
//! events.
//!
//! A forked child finds these locks taken for ever if another thread of its parent was writing at
//! the fork.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sys;

/// Standard output or standard error. Each write is one `write(2)`.
#[derive(Clone, Copy, Debug)]
pub struct Stream(i32);

/// Standard output.
#[must_use]
pub const fn stdout() -> Stream {
    Stream(1)
}

/// Standard error.
#[must_use]
pub const fn stderr() -> Stream {
    Stream(2)
}

impl Write for Stream {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        Ok(sys::write_standard(self.0, text)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `send`, which sends an event, and catches its panic. A subscriber of the program may need
/// thread-local storage, which is gone where a thread ends. For places in the middle of other work,
/// and for those that may run in a destructor.
pub fn event(send: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(send)) {
        // Dropping it may panic again.
        core::mem::forget(payload);
    }
}
