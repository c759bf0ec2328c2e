//! Addresses of this process's own.

use core::ptr::NonNull;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::sys::Result;

/// A range of address space with nothing in it: what is written there goes nowhere, what is read is zero. Unmapped when
/// dropped, whatever was put there meanwhile.
#[derive(Debug)]
pub(crate) struct AddressRange {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the range is memory; whoever reads or writes it takes care of races.
unsafe impl Send for AddressRange {}

impl AddressRange {
    /// `size` bytes at a multiple of `size`, a power of two.
    pub(crate) fn aligned(size: usize) -> Result<Self> {
        debug_assert!(size.is_power_of_two());
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let whole =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), size * 2, protection, flags) }?;
        let before = whole.addr().next_multiple_of(size) - whole.addr();
        let base = NonNull::new(whole.cast::<u8>().wrapping_add(before)).ok_or(Errno::NOMEM)?;
        let range = Self { base, size };
        if before > 0 {
            // SAFETY: the part of the mapping before the range, which nobody has seen.
            unsafe { rustix::mm::munmap(whole, before) }?;
        }
        // SAFETY: the part behind it.
        unsafe { rustix::mm::munmap(base.as_ptr().wrapping_add(size).cast(), size - before) }?;
        Ok(range)
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Puts a part of a file at `place` in the range, which forked children do not get.
    pub(crate) fn show(&self, place: usize, fd: impl AsFd, offset: u64, size: usize) -> Result<()> {
        assert!(place + size <= self.size, "inside of the range");
        let at = self.base.as_ptr().wrapping_add(place).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is this object's own; at every moment something is mapped there.
        unsafe { rustix::mm::mmap(at, size, protection, flags, fd, offset) }?;
        // SAFETY: the range is this object's; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(at, size, Advice::LinuxDontFork) }?;
        // SAFETY: as above. (A sparse table would make a core dump of its whole size.)
        unsafe { rustix::mm::madvise(at, size, Advice::LinuxDontDump) }
    }

    /// Puts nothing there again, from `place` on.
    pub(crate) fn clear(&self, place: usize) -> Result<()> {
        assert!(place < self.size, "inside of the range");
        let at = self.base.as_ptr().wrapping_add(place).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: as in `show`.
        unsafe { rustix::mm::mmap_anonymous(at, self.size - place, protection, flags) }?;
        Ok(())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: the range is this object's own, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// Gives forked children zeros in place of this memory (Linux 4.14, `madvise(2)`).
///
/// # Safety
/// The range is whole pages of a private anonymous mapping.
pub(crate) unsafe fn wipe_on_fork(address: NonNull<u8>, size: usize) -> Result<()> {
    // SAFETY: the advice changes nothing in this process.
    unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxWipeOnFork) }
}

/// Gives the page at `address` its memory, so that writing there cannot be SIGBUS (`MADV_POPULATE_WRITE`, Linux 5.14; on
/// older ones nothing happens).
///
/// # Safety
/// `address` is the beginning of a page of a mapping that may be written.
pub(crate) unsafe fn populate(address: NonNull<u8>, size: usize) -> Result<()> {
    loop {
        // SAFETY: passed on to the caller; the contents stay.
        match unsafe { rustix::mm::madvise(address.as_ptr().cast(), size, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) | Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
