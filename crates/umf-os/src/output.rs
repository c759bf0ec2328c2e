//! What is told: standard output and standard error without the locks of the standard library, and
//! events.
//!
//! A forked child finds these locks taken for ever if another thread of its parent was writing at
//! the fork.

use core::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

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
        // SAFETY: a descriptor that was closed meanwhile is an error of this one call.
        let stream = unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) };
        Ok(rustix::io::write(stream, text)?)
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

/// Writes a text to standard error, without the global allocator.
pub fn write_to_stderr(text: &dyn fmt::Display) {
    struct Stderr([u8; 512], usize);
    impl Stderr {
        fn flush(&mut self) {
            // A closed stderr takes nothing.
            let _ = stderr().write_all(&self.0[..self.1]);
            self.1 = 0;
        }
    }
    impl fmt::Write for Stderr {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for part in text.as_bytes().chunks(self.0.len()) {
                if self.1 + part.len() > self.0.len() {
                    self.flush();
                }
                self.0[self.1..self.1 + part.len()].copy_from_slice(part);
                self.1 += part.len();
            }
            Ok(())
        }
    }
    let mut stderr = Stderr([0; 512], 0);
    let _ = fmt::write(&mut stderr, format_args!("umf: {text}\n"));
    stderr.flush();
}
