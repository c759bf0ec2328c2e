//! Lines on standard error, made without memory.

use core::fmt::{self, Write as _};

/// A line of up to so many bytes.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is the line's end.
        let room = self.bytes.len() - 1 - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Writes one line; what is too long is cut.
pub(crate) fn tell(what: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 400], len: 0 };
    let _ = line.write_str("umf_proxy: ");
    let _ = line.write_fmt(what);
    line.bytes[line.len] = b'\n';
    // With a closed stderr there is nobody to tell. (By the bare system call: no thread is cancelled in `malloc`.)
    // SAFETY: the buffer has that many bytes.
    let _ = unsafe { libc::syscall(libc::SYS_write, 2, line.bytes.as_ptr(), line.len + 1) };
}

/// Bytes as text: what is not printable ASCII becomes a question mark.
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0.iter().take(100) {
            f.write_char(if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '?' })?;
        }
        Ok(())
    }
}
