//! Mapping of a device.

use core::ptr::{NonNull, null_mut};
use std::os::fd::{AsRawFd, BorrowedFd};

use umf_core::{Error, Result};

/// The pages of a device, in bytes.
pub(crate) const PAGE: usize = 2 << 20;

/// Maps `size` bytes at `offset`, both whole pages of the device. Only a DAX device can be mapped so.
pub(crate) fn map(device: BorrowedFd<'_>, offset: u64, size: usize, writable: bool) -> Result<NonNull<u8>> {
    let overflow = Error::SizeOverflow { size, align: PAGE };
    let offset = i64::try_from(offset).map_err(|_| overflow)?;
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
    // SAFETY: a new mapping where the kernel likes.
    let mapped = unsafe { libc::mmap(null_mut(), size, protection, flags, device.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED {
        let native = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let hint = "name a DAX device such as /dev/dax0.0, and not more bytes than it has";
        return Err(Error::Native { call: "mmap", native, hint });
    }
    NonNull::new(mapped.cast()).ok_or(overflow)
}

/// # Safety
/// The range was mapped by [`map`], and nobody uses it.
pub(crate) unsafe fn unmap(start: *mut u8, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    if unsafe { libc::munmap(start.cast(), size) } == 0 {
        return Ok(());
    }
    Err(Error::native("munmap", std::io::Error::last_os_error().raw_os_error().unwrap_or(0)))
}
