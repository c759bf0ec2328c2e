//! Standard output and standard error without the locks of the standard library; and `tracing`
//! events.
//!
//! If a thread is writing while another one forks, the standard library's lock stays locked in the
//! child for ever.

use core::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Standard output or standard error. Each write is one `write(2)`.
#[derive(Clone, Copy, Debug)]
pub struct Stream(i32);

/// Returns standard output.
#[must_use]
pub const fn stdout() -> Stream {
    Stream(1)
}

/// Returns standard error.
#[must_use]
pub const fn stderr() -> Stream {
    Stream(2)
}

impl Write for Stream {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // SAFETY: borrowed for this call only, which fails if the descriptor is closed.
        let stream = unsafe { rustix::fd::BorrowedFd::borrow_raw(self.0) };
        Ok(rustix::io::write(stream, text)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `send`, which sends a `tracing` event, and catches its panic: a subscriber of the program
/// may use thread-local storage, which is destroyed when a thread exits. For code that must not
/// unwind, or that may run in a destructor.
pub fn event(send: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(send)) {
        // Dropping the payload may panic again.
        core::mem::forget(payload);
    }
}

/// Writes `umf: `, a text and a line end to standard error. Does not use the global allocator.
pub fn write_to_stderr(text: &dyn fmt::Display) {
    /// A buffer, and the number of bytes in it.
    struct Stderr([u8; 512], usize);
    impl Stderr {
        fn flush(&mut self) {
            // Standard error may be closed. There is no other place to report that.
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
