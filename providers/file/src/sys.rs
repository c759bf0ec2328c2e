//! System calls, and the mappings that they make.

use core::ptr::{NonNull, null_mut};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FallocateFlags;
use umf_core::{Error, Result};

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Bytes of a page of the system.
pub(crate) fn page_size() -> usize {
    rustix::param::page_size()
}

/// How a range is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Private,
    Shared,
    /// Shared, past the page cache.
    Synchronous,
}

impl Kind {
    const fn flags(self) -> i32 {
        match self {
            Self::Private => libc::MAP_PRIVATE,
            Self::Shared => libc::MAP_SHARED,
            Self::Synchronous => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
        }
    }
}

/// Maps `size` bytes at `offset` of a file at a multiple of `align`, a power of two; all of them whole pages.
pub(crate) fn map(
    file: BorrowedFd<'_>,
    offset: u64,
    size: usize,
    align: usize,
    kind: Kind,
    writable: bool,
) -> Result<NonNull<u8>> {
    let too_large = Error::SizeOverflow { size, align };
    let room = if align > page_size() { size.checked_add(align).ok_or(too_large)? } else { size };
    let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping where the kernel likes.
    let whole = unsafe { libc::mmap(null_mut(), room, libc::PROT_NONE, reserve, -1, 0) };
    if whole == libc::MAP_FAILED {
        return Err(Error::OutOfMemory { size, owner: "file", native: last_errno() });
    }
    let head = whole.addr().next_multiple_of(align) - whole.addr();
    let start = whole.wrapping_byte_add(head);
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let offset = i64::try_from(offset).map_err(|_| too_large)?;
    // SAFETY: replaces a part of the mapping made above, which nobody uses.
    let mapped = unsafe {
        libc::mmap(start, size, protection, kind.flags() | libc::MAP_FIXED, file.as_raw_fd(), offset)
    };
    if mapped == libc::MAP_FAILED {
        let native = last_errno();
        // SAFETY: as above.
        unsafe { libc::munmap(whole, room) };
        return Err(Error::Native {
            call: "mmap",
            native,
            hint: "the file system may not be able to map files so",
        });
    }
    // SAFETY: what lies before and behind, which nobody uses.
    unsafe {
        if head > 0 {
            libc::munmap(whole, head);
        }
        if room - head > size {
            libc::munmap(start.wrapping_byte_add(size), room - head - size);
        }
    }
    NonNull::new(start.cast()).ok_or(too_large)
}

/// # Safety
/// The range was mapped by [`map`], and nobody uses it.
pub(crate) unsafe fn unmap(start: *mut u8, size: usize) -> Result<()> {
    // SAFETY: passed on to the caller.
    if unsafe { libc::munmap(start.cast(), size) } == 0 {
        return Ok(());
    }
    Err(Error::native("munmap", last_errno()))
}

/// Gives a range blocks on the medium, so that storing to it cannot fail: without them it is SIGBUS where the medium is full.
pub(crate) fn reserve(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), offset, size as u64) {
        Ok(()) => Ok(()),
        Err(errno) => Err(match errno {
            rustix::io::Errno::NOSPC | rustix::io::Errno::FBIG | rustix::io::Errno::DQUOT => {
                Error::OutOfMemory { size, owner: "file", native: errno.raw_os_error() }
            }
            errno => Error::native("fallocate", errno.raw_os_error()),
        }),
    }
}

/// Whether it is a memfd that anyone may still truncate. (What has a name on a tmpfs is sealed against sealing.)
pub(crate) fn is_unsealed_memory(file: BorrowedFd<'_>) -> bool {
    let sealed = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::SEAL;
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| !seals.intersects(sealed))
}

/// Gives a range back to the file system; it then reads as zero. `false` if this file system cannot.
pub(crate) fn punch(file: BorrowedFd<'_>, offset: u64, size: usize) -> bool {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, offset, size as u64).is_ok()
}
