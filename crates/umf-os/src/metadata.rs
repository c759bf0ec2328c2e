//! Memory for metadata of umf, which never comes from the global allocator: a pool may be it.

use core::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use umf_core::{Error, Result};

/// Maps `size` bytes of zeroed private memory. Pages are committed when first touched.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn map(size: usize) -> Result<NonNull<u8>> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            size,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let out_of_memory = |native| Error::OutOfMemory { size, owner: "metadata", native };
    let pointer = mapped.map_err(|errno| out_of_memory(errno.raw_os_error()))?;
    NonNull::new(pointer.cast::<u8>()).ok_or(out_of_memory(0))
}

/// Unmaps what [`map`] returned for this size, rounded up to whole pages.
///
/// # Safety
/// No thread uses the memory any more.
pub unsafe fn unmap(pointer: NonNull<u8>, size: usize) {
    // SAFETY: passed on to the caller. An error leaves the memory mapped.
    let _ = unsafe { rustix::mm::munmap(pointer.as_ptr().cast(), size) };
}
