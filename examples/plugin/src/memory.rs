//! Anonymous private memory.

use std::ffi::c_void;
use std::ptr::null_mut;

/// Returns the size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps `size` bytes at a multiple of `align`, both multiples of the page size. Returns NULL with
/// errno on failure.
pub(crate) fn map(size: usize, align: usize) -> *mut c_void {
    let extra = align.saturating_sub(page_size());
    let padded = size.saturating_add(extra);
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
    let start = unsafe { libc::mmap(null_mut(), padded, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return null_mut();
    }
    let before = start.addr().next_multiple_of(align.max(1)) - start.addr();
    let base = start.wrapping_byte_add(before);
    for (part, len) in [(start, before), (base.wrapping_byte_add(size), extra - before)] {
        if len > 0 {
            // SAFETY: the part lies in the mapping made above, and is not in use.
            unsafe { libc::munmap(part, len) };
        }
    }
    base
}
