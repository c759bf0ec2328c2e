//! Distinguishing a dma-buf from other files.

use std::os::fd::{AsRawFd, BorrowedFd};

use umf_core::{Error, Result};

/// Returns whether a descriptor is a dma-buf. `fdinfo` shows the exporter of a dma-buf, and of no
/// other file (Linux 5.3). No operation of the file itself is called: a foreign file system could
/// block for ever.
///
/// # Errors
/// [`Error::Native`] if `/proc` cannot be read.
pub fn is_dma_buf(fd: BorrowedFd<'_>) -> Result<bool> {
    let path = format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd());
    match std::fs::read(&path) {
        // A name may hold what is no text.
        Ok(text) => Ok(text.split(|&byte| byte == b'\n').any(|line| line.starts_with(b"exp_name:\t"))),
        Err(error) => Err(Error::Native {
            call: "read of /proc/thread-self/fdinfo",
            native: error.raw_os_error().unwrap_or(0),
            hint: "mount /proc: without it a dma-buf cannot be told from other files",
        }),
    }
}
