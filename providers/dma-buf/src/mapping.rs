//! [`Mapping`]: mapped memory that is unmapped when dropped, and how it gets its alignment.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use umf_core::{Address, Error, Result};

use crate::sys;

/// How often to try for an address that another thread may take first.
const TRIES: usize = 64;

/// Memory mapped by this crate, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: it is memory that belongs to nobody else, and unmapping may be done by any thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing is done through a shared reference but to tell where it is.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `size` bytes of a dma-buf at `offset`, at a multiple of `align`.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        align: usize,
        writable: bool,
    ) -> Result<Self> {
        Self::place(size, align, |place| sys::map(place, file, offset, size, writable)).map_err(|errno| {
            match errno {
                Errno::NOMEM | Errno::OVERFLOW | Errno::AGAIN => {
                    Error::OutOfMemory { size, owner: "this process's addresses", native: errno.raw_os_error() }
                }
                Errno::ACCESS | Errno::PERM => Error::Native {
                    call: "mmap of a dma-buf",
                    native: errno.raw_os_error(),
                    hint: "it was exported read-only (without DRM_RDWR or O_RDWR): import it read-only, or export it otherwise",
                },
                Errno::NODEV | Errno::INVAL | Errno::OPNOTSUPP => Error::NotSupported {
                    what: "mapping this dma-buf",
                    owner: "the driver that exported it",
                    native: errno.raw_os_error(),
                },
                _ => Error::native("mmap of a dma-buf", errno.raw_os_error()),
            }
        })
    }

    /// Never replaces a mapping: `MAP_FIXED` would, and leaves a hole when it fails, into which another thread may map
    /// something before it can be closed.
    fn place(
        size: usize,
        align: usize,
        map: impl Fn(Option<usize>) -> Result<NonNull<u8>, Errno>,
    ) -> Result<Self, Errno> {
        let first = Self { base: map(None)?, size };
        if first.base.addr().get().is_multiple_of(align) {
            return Ok(first);
        }
        drop(first);
        let room = size.checked_add(align).ok_or(Errno::NOMEM)?;
        for _ in 0..TRIES {
            let free = Self { base: sys::reserve_addresses(room)?, size: room };
            let target = free.base.addr().get().next_multiple_of(align);
            drop(free);
            match map(Some(target)) {
                Ok(base) if base.addr().get() == target => return Ok(Self { base, size }),
                // Before Linux 4.17: something else lies there.
                Ok(base) => drop(Self { base, size }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::NOMEM)
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> Address {
        Address::from_ptr(self.base.as_ptr())
    }

    /// Its size in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Unmaps, or fails and gives it back.
    pub(crate) fn unmap(self) -> Result<(), (Self, Error)> {
        let this = ManuallyDrop::new(self);
        // SAFETY: our own mapping, which nobody uses any more.
        match unsafe { sys::unmap(this.base, this.size) } {
            Ok(()) => Ok(()),
            Err(errno) => {
                let hint = "raise vm.max_map_count if this process has that many mappings";
                let error = Error::Native { call: "munmap", native: errno.raw_os_error(), hint };
                Err((ManuallyDrop::into_inner(this), error))
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        let _ = unsafe { sys::unmap(self.base, self.size) };
    }
}
