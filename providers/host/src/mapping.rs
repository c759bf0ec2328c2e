//! [`Mapping`]: mapped memory that is unmapped when dropped, and how it gets its alignment.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use umf_core::{Address, Error, Region, Result};

use crate::sys::{self, Advise, Place};

const MAP_COUNT_HINT: &str = "raise vm.max_map_count if this process has that many mappings";

/// How often to try for an address that another thread may take first.
const TRIES: usize = 64;

/// Memory mapped by this crate, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

impl Mapping {
    /// Zeroed private memory at a multiple of `align`.
    pub(crate) fn private(size: usize, align: usize) -> Result<Self, Errno> {
        if align <= sys::page_size() {
            return Ok(Self { base: sys::map_private(Place::Anywhere, size, None)?, size });
        }
        // Map what surely holds an aligned part, and trim.
        let all = size.checked_add(align - sys::page_size()).ok_or(Errno::NOMEM)?;
        let whole = Self { base: sys::map_private(Place::Anywhere, all, None)?, size: all };
        whole.trim_to(size, align)
    }

    /// Zeroed private memory on huge pages of `huge_page` bytes, of which `size` is a multiple.
    pub(crate) fn private_huge(size: usize, align: usize, huge_page: usize) -> Result<Self, Errno> {
        // Not trimmed: every page that is mapped is taken from those that are reserved.
        Self::place(size, align, |place| sys::map_private(place, size, Some(huge_page)))
    }

    /// `size` bytes of `file` at `offset`, at a multiple of `align`.
    pub(crate) fn shared(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        align: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        Self::place(size, align, |place| sys::map_file(place, file, offset, size, writable))
    }

    /// Whether there are `size` bytes of addresses in one piece.
    pub(crate) fn probe(size: usize) -> Result<(), Errno> {
        drop(Self { base: sys::reserve_addresses(size)?, size });
        Ok(())
    }

    /// Maps at a multiple of `align` what cannot be trimmed: the byte at the base must be the first of its
    /// file range.
    ///
    /// Never replaces a mapping (`MAP_FIXED` would, and leaves a hole when it fails, into which another
    /// thread may map something before it can be closed).
    fn place(
        size: usize,
        align: usize,
        map: impl Fn(Place) -> Result<NonNull<u8>, Errno>,
    ) -> Result<Self, Errno> {
        // Often right at once: the kernel aligns what can have huge pages.
        let first = Self { base: map(Place::Anywhere)?, size };
        if first.base.addr().get().is_multiple_of(align) {
            return Ok(first);
        }
        drop(first);
        let room = size.checked_add(align).ok_or(Errno::NOMEM)?;
        for _ in 0..TRIES {
            let free = Self { base: sys::reserve_addresses(room)?, size: room };
            let target = free.base.addr().get().next_multiple_of(align);
            drop(free);
            match map(Place::At(target)) {
                Ok(base) if base.addr().get() == target => return Ok(Self { base, size }),
                // Before Linux 4.17: something else lies there.
                Ok(base) => drop(Self { base, size }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::NOMEM)
    }

    /// Unmaps all but `size` bytes at the first multiple of `align`.
    fn trim_to(self, size: usize, align: usize) -> Result<Self, Errno> {
        let whole = ManuallyDrop::new(self);
        let head = whole.base.addr().get().next_multiple_of(align) - whole.base.addr().get();
        // SAFETY: `align` was added to the size when mapping, so the aligned part lies inside.
        let (base, end) = unsafe { (whole.base.add(head), whole.base.add(head + size)) };
        let tail = whole.size - head - size;
        // Each part is a mapping of its own from here on, and is unmapped when dropped. That may fail only
        // for want of memory in the kernel; the part then stays mapped, unused.
        for (base, size) in [(whole.base, head), (end, tail)] {
            if size > 0 {
                drop(Self { base, size });
            }
        }
        Ok(Self { base, size })
    }

    /// Its first byte.
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its size in bytes.
    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Keeps it out of core dumps, if the kernel will.
    pub(crate) fn keep_from_dumps(&self) {
        // SAFETY: our own mapping; the advice changes no content.
        let _ = unsafe { sys::advise(self.base, self.size, Advise::DontDump) };
    }

    /// Asks for huge pages.
    pub(crate) fn advise_huge_pages(&self) -> Result<(), Errno> {
        // SAFETY: our own mapping; the advice changes no content.
        unsafe { sys::advise(self.base, self.size, Advise::HugePages) }
    }

    /// Puts the first `size` bytes, a multiple of `huge_page`, onto huge pages now.
    pub(crate) fn collapse(&self, size: usize, huge_page: usize) -> Result<(), Errno> {
        debug_assert!(size <= self.size);
        // A stretch without a single page counts as truncated and is left alone.
        for start in (0..size).step_by(huge_page) {
            // SAFETY: inside of our own fresh mapping, which nobody else knows.
            unsafe { self.base.add(start).write_volatile(0) };
        }
        // SAFETY: our own mapping; collapsing changes no content.
        unsafe { sys::advise(self.base, size, Advise::Collapse) }
    }

    /// Makes all pages now.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        // SAFETY: our own mapping; populating changes no content.
        match unsafe { sys::advise(self.base, self.size, Advise::Populate) } {
            // Before Linux 5.14: pages come when touched.
            Err(Errno::INVAL) => Ok(()),
            other => other,
        }
    }

    /// Gives the pages back; reads zeros from now on. For private memory.
    ///
    /// # Safety
    /// Nobody needs the content.
    pub(crate) unsafe fn discard(&self, start: usize, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller; the range is checked in `advise_part`.
        unsafe { self.advise_part(start, size, Advise::DontNeed) }
            .map_err(|errno| Error::native("madvise(MADV_DONTNEED)", errno.raw_os_error()))
    }

    /// Lets the kernel take the pages when it needs them. For private memory.
    ///
    /// # Safety
    /// Nobody needs the content.
    pub(crate) unsafe fn discard_lazily(&self, start: usize, size: usize) -> Result<()> {
        // SAFETY: passed on to the caller; the range is checked in `advise_part`.
        unsafe { self.advise_part(start, size, Advise::Free) }
            .map_err(|errno| Error::native("madvise(MADV_FREE)", errno.raw_os_error()))
    }

    /// # Safety
    /// As [`sys::advise`], for a part that lies in the mapping.
    unsafe fn advise_part(&self, start: usize, size: usize, advice: Advise) -> Result<(), Errno> {
        if start.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(Errno::INVAL);
        }
        // SAFETY: inside of our own mapping, as was just checked; content is the caller's business.
        unsafe { sys::advise(self.base.add(start), size, advice) }
    }

    /// Leaves the memory mapped, for a region that is to be had back with [`Mapping::of`].
    pub(crate) fn keep(self) -> Address {
        Address::from_ptr(ManuallyDrop::new(self).base.as_ptr())
    }

    /// Unmaps, or fails and leaves everything as it was.
    pub(crate) fn unmap(self) -> Result<()> {
        let this = ManuallyDrop::new(self);
        // SAFETY: our own mapping, which nobody uses any more (see `of`).
        unsafe { sys::unmap(this.base, this.size) }.map_err(|errno| Error::Native {
            call: "munmap",
            native: errno.raw_os_error(),
            hint: MAP_COUNT_HINT,
        })
    }

    /// The mapping of a region that [`Mapping::keep`] left.
    ///
    /// # Safety
    /// The region is one of this crate's, live, and nobody uses it while the mapping exists unless that is
    /// kept again.
    pub(crate) unsafe fn of(region: &Region) -> Option<Self> {
        let base = NonNull::new(region.base().as_ptr()?)?;
        Some(Self { base, size: region.size() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        let _ = unsafe { sys::unmap(self.base, self.size) };
    }
}

/// The error for a mapping that could not be made.
pub(crate) fn map_error(size: usize, errno: Errno) -> Error {
    match errno {
        Errno::NOMEM | Errno::OVERFLOW | Errno::AGAIN => {
            Error::OutOfMemory { size, owner: "host", native: errno.raw_os_error() }
        }
        _ => Error::native("mmap", errno.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_beyond_the_page() {
        for align in [1, 4096, 1 << 16, 1 << 21, 1 << 30] {
            for size in [4096, 12288, 1 << 21] {
                let mapping = Mapping::private(size, align).unwrap();
                assert_eq!(mapping.base().addr().get() % align, 0);
                // SAFETY: both bytes lie in the mapping.
                unsafe {
                    mapping.base().write(1);
                    mapping.base().add(size - 1).write(1);
                }
            }
        }
        assert!(Mapping::private(1 << 60, 1 << 21).is_err());
    }

    #[test]
    fn files_are_mapped_at_their_offset_whatever_the_alignment() {
        let file = sys::memfd(c"umf-test", None).unwrap();
        sys::set_size(std::os::fd::AsFd::as_fd(&file), 1 << 20).unwrap();
        rustix::io::pwrite(&file, b"here", 8192).unwrap();
        for align in [4096, 1 << 16, 1 << 21, 1 << 30] {
            let file = std::os::fd::AsFd::as_fd(&file);
            let mapping = Mapping::shared(file, 8192, 4096, align, true).unwrap();
            assert_eq!(mapping.base().addr().get() % align, 0);
            // SAFETY: the mapping has 4096 bytes.
            assert_eq!(unsafe { mapping.base().cast::<[u8; 4]>().read() }, *b"here");
        }
    }
}
