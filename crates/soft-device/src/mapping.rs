//! Addresses of this process.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::{Access, Error, Result, sys};

/// Addresses that belong to this value, and go when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: addresses; what is done at them is unsafe by itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// All of a file, for reading and writing.
    pub fn of(file: BorrowedFd<'_>, size: usize) -> Result<Self> {
        let start = sys::map(file, size).map_err(Error::of("mmap"))?;
        Ok(Self { start, size })
    }

    /// Addresses where nothing can be accessed, aligned to `alignment` (a power of two).
    pub fn reserve(size: usize, alignment: usize) -> Result<Self> {
        let failed = Error::of("mmap");
        let page = sys::page_size();
        if alignment <= page {
            return Ok(Self { start: sys::reserve(None, size).map_err(failed)?, size });
        }
        let more = size.checked_add(alignment).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let all = sys::reserve(None, more).map_err(failed)?;
        let before = all.align_offset(alignment);
        // SAFETY: `before` is less than `alignment`, so that `size` bytes from there are within what was reserved; what is
        // around them belongs to nobody.
        unsafe {
            let start = all.add(before);
            if before > 0 {
                sys::unmap(all.as_ptr(), before);
            }
            if before < alignment {
                sys::unmap(start.add(size).as_ptr(), alignment - before);
            }
            Ok(Self { start, size })
        }
    }

    /// As [`Mapping::reserve`], at an address; fails if something is there.
    pub fn reserve_at(address: usize, size: usize) -> Result<Self> {
        let start = sys::reserve(Some(address), size).map_err(Error::of("mmap"))?;
        Ok(Self { start, size })
    }

    /// Shows a part of a file at `offset`, or takes what is there away.
    pub fn show(
        &self,
        offset: usize,
        size: usize,
        file: Option<(BorrowedFd<'_>, u64)>,
        access: Access,
    ) -> Result<()> {
        if offset.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(Error::OutOfBounds { address: self.address() + offset, size });
        }
        // SAFETY: within addresses that are ours; who reads or writes there follows what is shown.
        unsafe { sys::replace(self.start.as_ptr().add(offset), size, file, access) }
            .map_err(Error::of("mmap"))
    }

    /// Where it begins.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Where it begins, as a number.
    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, and whoever uses them has this value.
        unsafe { sys::unmap(self.start.as_ptr(), self.size) };
    }
}
