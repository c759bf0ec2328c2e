//! System calls, and the mappings that they make.

use core::ptr::NonNull;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use umf_core::{Error, Result};
use umf_os::{Mapping, Place};

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
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let offset = i64::try_from(offset).map_err(|_| too_large)?;
    let map = |place: Place| {
        let (hint, fixed) = place.hint();
        let flags = kind.flags() | fixed.bits().cast_signed();
        // SAFETY: a new mapping, which replaces none.
        let mapped = unsafe { libc::mmap(hint, size, protection, flags, file.as_raw_fd(), offset) };
        if mapped == libc::MAP_FAILED {
            return Err(Errno::from_raw_os_error(last_errno()));
        }
        NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)
    };
    // SAFETY: `map` makes a mapping of `size` bytes, or fails.
    let mapping = unsafe { Mapping::placed(size, align, map) }.map_err(|errno| match errno {
        Errno::NOMEM => Error::OutOfMemory { size, owner: "file", native: errno.raw_os_error() },
        errno => Error::Native {
            call: "mmap",
            native: errno.raw_os_error(),
            hint: "the file system may not be able to map files so",
        },
    })?;
    let base = mapping.base();
    mapping.keep();
    Ok(base)
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
            Errno::NOSPC | Errno::FBIG | Errno::DQUOT => {
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
