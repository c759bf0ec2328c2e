//! The memory of a link.

use core::ptr::NonNull;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use umf_sync::failpoint;

use super::Result;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A close-on-exec memfd of `size` bytes with all of its pages, whose size is sealed: touching it cannot be SIGBUS.
pub(crate) fn memfd(name: &str, size: usize) -> Result<OwnedFd> {
    if size as u64 > umf_os::process::file_size_limit() {
        return Err(Errno::FBIG);
    }
    let fd = umf_os::memfd::create(name, size as u64)?;
    umf_os::file::reserve(&fd, 0, size as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Whether a file is memory of just this size, which no process can take away.
pub(crate) fn is_sealed_memory(fd: impl AsFd, size: usize) -> Result<bool> {
    Ok(umf_os::memfd::of_sealed_size(fd)?.is_some_and(|(_, found)| found == size as u64))
}

/// A shared, writable mapping of a whole file, which forked children do not get. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
    /// The process that has it, as [`umf_sync::fork::generation`] counts.
    process: u32,
}

// SAFETY: the mapping is memory; whoever reads or writes it takes care of races.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: impl AsFd, size: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Populated, so that the first messages do not wait for page faults.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), size, protection, flags, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { base, size, process: umf_sync::fork::generation() };
        // SAFETY: the range is this mapping; the advice changes nothing in this process.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, Advice::LinuxDontFork) }?;
        // SAFETY: as above.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), size, Advice::LinuxDontDump) }?;
        Ok(mapping)
    }

    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) const fn size(&self) -> usize {
        self.size
    }

    /// Whether this process has it, and not the one that it was forked from.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.process == umf_sync::fork::generation()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            // What is at its address now is somebody else's.
            return;
        }
        // SAFETY: the mapping is this object's own, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
        failpoint!("link.unmapped");
    }
}
