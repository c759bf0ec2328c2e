//! The slow paths of the exported C functions: allocation and free beyond the thread's bins,
//! `realloc`, misuse, and the requests that other allocators serve.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};

use umf_core::{Address, Error, Layout, Pool};

use crate::bootstrap::BOOTSTRAP;
use crate::heap::{self, HeapError};
use crate::reentrancy::{self, ReentrancyGuard, SavedErrno};
use crate::settings::report;
use crate::{ALIGN, exports};

const PAGE: usize = 4096;
/// If `realloc` grows a block of at least this size by less than a quarter, the block grows by a
/// quarter, because it is likely to grow again.
const QUARTER_GROWTH: usize = 4 << 10;
/// A block of at least this size grows by a half: pages that are not used cost no memory.
const HALF_GROWTH: usize = 64 << 10;
/// Blocks up to this size are never moved by a `realloc` that shrinks them.
const TINY: usize = 128;

/// A block, and whether all of it is known to read as zero.
type NewBlock = Option<(NonNull<u8>, bool)>;

/// Allocates a block of `size` bytes (not 0) at a multiple of `align` (a power of two).
fn allocate(size: usize, align: usize) -> NewBlock {
    if let Some(next) = heap::next_for(size) {
        return NonNull::new(next.allocate(size, align).cast()).map(|block| (block, false));
    }
    let layout = Layout::new(size, align.max(ALIGN)).ok()?;
    if let Some(_guard) = ReentrancyGuard::enter() {
        free_deferred();
        match heap::allocate(layout) {
            Ok(block) => {
                return NonNull::new(block.as_ptr()?).map(|block| (block, size > heap::LARGEST_POOLED));
            }
            Err(HeapError::OutOfMemory) => return None,
            Err(HeapError::NoPool) => {}
        }
    }
    BOOTSTRAP.allocate(size, align).map(|block| (block, true))
}

fn free_deferred() {
    reentrancy::take_deferred(|block| {
        // SAFETY: the thread that freed the block does not use it any more.
        let _ = unsafe { heap::free(Address::from_ptr(block.as_ptr())) };
    });
}

/// Returns the block to C, or null with `errno` set to `ENOMEM`.
fn returned(block: Option<NonNull<u8>>, mut errno: SavedErrno) -> *mut c_void {
    if block.is_none() {
        errno.set(libc::ENOMEM);
    }
    block.map_or(ptr::null_mut(), |block| block.as_ptr().cast())
}

/// Allocates a block that the fast path does not serve.
#[cold]
#[inline(never)]
pub(crate) fn allocate_slow(size: usize, align: usize) -> *mut c_void {
    let errno = SavedErrno::save();
    returned(allocate(size.max(1), align).map(|(block, _)| block), errno)
}

/// Allocates a zeroed block. `None` is a size that overflowed.
pub(crate) fn allocate_zeroed(size: Option<usize>) -> *mut c_void {
    let errno = SavedErrno::save();
    let zeroed = |size: usize| {
        if let Some(next) = heap::next_for(size) {
            return NonNull::new(next.allocate_zeroed(size).cast());
        }
        let (block, is_zero) = allocate(size, ALIGN)?;
        if !is_zero {
            // SAFETY: the block has `size` bytes, and only this call knows it.
            unsafe { block.write_bytes(0, size) };
        }
        Some(block)
    };
    returned(size.map(|size| size.max(1)).and_then(zeroed), errno)
}

/// Frees a block that the fast path does not free. Reports misuse once, and leaves a block of
/// unknown origin as it is.
///
/// # Safety
/// As `free`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn free_slow(block: NonNull<u8>) {
    let _errno = SavedErrno::save();
    let address = Address::from_ptr(block.as_ptr());
    let freed = match ReentrancyGuard::enter() {
        Some(_guard) => {
            free_deferred();
            // SAFETY: passed on to the caller.
            unsafe { heap::free(address) }
        }
        None if heap::find(address).is_some() => {
            reentrancy::defer_free(block);
            Ok(())
        }
        None => Err(Error::ForeignAddress { address, owner: "this library" }),
    };
    match freed {
        Ok(()) => {}
        Err(Error::ForeignAddress { .. }) => {
            if BOOTSTRAP.size_of(block.addr().get()).is_some() {
                // SAFETY: passed on to the caller.
                unsafe { BOOTSTRAP.free(block) };
            } else if !BOOTSTRAP.contains(block.addr().get())
                && let Some(next) = heap::next()
            {
                // SAFETY: neither a pool nor the bootstrap allocator has the block, so the next
                // allocator allocated it. The rest is passed on to the caller.
                unsafe { next.free(block.as_ptr().cast()) };
            }
        }
        Err(error) => report_once(error),
    }
}

fn report_once(error: Error) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        report(format_args!("free does nothing: {error}"));
    }
}

/// Returns the size of a block; `None` if it is one of the next allocator, or none at all.
fn size_of(block: NonNull<u8>) -> Option<usize> {
    let found = heap::find(Address::from_ptr(block.as_ptr()));
    found.map(|(_, found)| found.size).or_else(|| BOOTSTRAP.size_of(block.addr().get()))
}

/// Returns the size of a block of any allocator; 0 if there is none.
///
/// # Safety
/// As `malloc_usable_size`.
pub(crate) unsafe fn usable_size(block: NonNull<u8>) -> usize {
    let next = || {
        let next = heap::next().filter(|_| !BOOTSTRAP.contains(block.addr().get()))?;
        // SAFETY: neither a pool nor the bootstrap allocator has the block.
        Some(unsafe { next.usable_size(block.as_ptr().cast()) })
    };
    size_of(block).or_else(next).unwrap_or(0)
}

/// Reallocates a block to a size that is not 0.
///
/// # Safety
/// As `realloc`.
pub(crate) unsafe fn reallocate(block: NonNull<u8>, size: usize) -> *mut c_void {
    let errno = SavedErrno::save();
    let Some(old_size) = size_of(block) else {
        if let Some(next) = heap::next().filter(|_| !BOOTSTRAP.contains(block.addr().get())) {
            drop(errno);
            // SAFETY: neither a pool nor the bootstrap allocator has the block.
            return unsafe { next.reallocate(block.as_ptr().cast(), size) };
        }
        let address = Address::from_ptr(block.as_ptr());
        report_once(Error::ForeignAddress { address, owner: "this library" });
        return returned(None, errno);
    };
    if size <= old_size && (size >= old_size / 2 || old_size <= TINY) {
        return block.as_ptr().cast();
    }
    let more = old_size.saturating_add(if old_size >= HALF_GROWTH { old_size / 2 } else { old_size / 4 });
    let grows = old_size >= QUARTER_GROWTH && size > old_size && size < more;
    let padded = grows.then(|| allocate(more, ALIGN)).flatten();
    let fast = || exports::allocate_fast(size, ALIGN).map(|block| (block, false));
    let Some((new, _)) = padded.or_else(fast).or_else(|| allocate(size, ALIGN)) else {
        // Shrinking does not fail.
        return returned((size <= old_size).then_some(block), errno);
    };
    let bytes = size.min(old_size);
    // SAFETY: the old block is the caller's, only this call knows the new one, and both have
    // `bytes` bytes.
    unsafe {
        if !move_pages(block, new, bytes) {
            ptr::copy_nonoverlapping(block.as_ptr(), new.as_ptr(), bytes);
        }
        exports::free(block.as_ptr().cast());
    }
    returned(Some(new), errno)
}

/// Returns free memory to the system until at most `keep` bytes are free. Returns whether it
/// released any.
pub(crate) fn trim(keep: usize) -> bool {
    let _errno = SavedErrno::save();
    let Some(_guard) = ReentrancyGuard::enter() else { return false };
    free_deferred();
    heap::current_pool().is_some_and(|pool| pool.trim(keep).is_ok_and(|bytes| bytes > 0))
}

/// Creates the pool, if there is none.
pub(crate) fn create_pool() {
    let _errno = SavedErrno::save();
    if let Some(_guard) = ReentrancyGuard::enter() {
        heap::current_pool();
    }
}

/// Moves the pages with the first `bytes` bytes of a block to another block, without copying.
/// Returns `false` unless both blocks are mappings of their own, in private memory. The old block
/// reads as zero afterwards.
///
/// # Safety
/// Both blocks have `bytes` bytes, and no other thread uses them.
unsafe fn move_pages(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) -> bool {
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
    // Both blocks are whole pages.
    let size = bytes.next_multiple_of(PAGE);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller owns both blocks, which are whole pages. The old mapping stays, and so
    // does the rest of the new one.
    let moved = unsafe { libc::mremap(from.as_ptr().cast(), size, size, flags, to.as_ptr()) };
    if moved != libc::MAP_FAILED {
        return true;
    }
    // The kernel may have unmapped the target before it failed. `MAP_FIXED_NOREPLACE` fails if it
    // did not.
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
    );
    // SAFETY: the call maps only addresses without a mapping.
    unsafe { libc::mmap(to.as_ptr().cast(), size, access, flags, -1, 0) };
    false
}
