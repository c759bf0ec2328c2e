//! Large blocks that grow: their pages move, and nothing is copied.

use core::ptr::NonNull;

use umf_core::Address;

use crate::heap;

const PAGE: usize = 4096;

/// Moves the first `bytes` bytes from one block to another, if both are mappings of their own, of this process's memory. The old one
/// reads as zero then.
///
/// # Safety
/// Both have so many bytes, and are the caller's.
pub(crate) unsafe fn move_pages(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
    let is_own_mapping = |block: NonNull<u8>| {
        let found = heap::find(Address::from_ptr(block.as_ptr()));
        found.is_some_and(|(pool, block)| {
            heap::is_private(pool)
                && block.size > heap::LARGEST_POOLED
                && block.size.is_multiple_of(PAGE)
                && block.address.is_aligned_to(PAGE)
        })
    };
    if bytes <= heap::LARGEST_POOLED || !is_own_mapping(from) || !is_own_mapping(to) {
        return false;
    }
    // Both are whole pages.
    let size = bytes.next_multiple_of(PAGE);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller owns both, as whole pages; the old mapping stays, as does the rest of the new one.
    let moved = unsafe { libc::mremap(from.as_ptr().cast(), size, size, flags, to.as_ptr()) };
    if moved != libc::MAP_FAILED {
        return true;
    }
    // The kernel may have unmapped the target before it failed. What is mapped there is left alone.
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
    );
    // SAFETY: maps only where nothing is.
    unsafe { libc::mmap(to.as_ptr().cast(), size, access, flags, -1, 0) };
    false
}
