//! What the C functions do, beyond what is a matter of a few instructions.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};

use umf_core::{Address, Error, Layout, Pool};

use crate::busy::Busy;
use crate::early::EARLY;
use crate::errno::Errno;
use crate::heap::{self, Lacking};
use crate::tell::tell;
use crate::{ALIGN, calls, deferred, moved};

/// Blocks from here on that grow by little get a quarter more than is asked for: they will grow again.
const GROWS: usize = 4 << 10;
/// From here on they get half as much again: pages that are not touched are not there.
const GROWS_MORE: usize = 64 << 10;
/// Blocks up to here stay where they are, however little is wanted of them.
const TINY: usize = 128;

/// A block, and whether all of it is known to read as zero.
type Fresh = Option<(NonNull<u8>, bool)>;

/// A block of `size` bytes (not 0) at a multiple of `align` (a power of two).
fn allocate(size: usize, align: usize) -> Fresh {
    if let Some(next) = heap::next_for(size) {
        return NonNull::new(next.allocate(size, align).cast()).map(|block| (block, false));
    }
    let layout = Layout::new(size, align.max(ALIGN)).ok()?;
    if let Some(_busy) = Busy::begin() {
        free_deferred();
        match heap::allocate(layout) {
            Ok(block) => {
                return NonNull::new(block.as_ptr()?).map(|block| (block, size > heap::LARGEST_POOLED));
            }
            Err(Lacking::Memory) => return None,
            Err(Lacking::Pool) => {}
        }
    }
    EARLY.allocate(size, align).map(|block| (block, true))
}

fn free_deferred() {
    deferred::each(|block| {
        // SAFETY: whoever deferred it does not use it.
        let _ = unsafe { heap::free(Address::from_ptr(block.as_ptr())) };
    });
}

/// What C is told: the block, or nothing and `ENOMEM`.
fn told(block: Option<NonNull<u8>>, mut errno: Errno) -> *mut c_void {
    if block.is_none() {
        errno.set(libc::ENOMEM);
    }
    block.map_or(ptr::null_mut(), |block| block.as_ptr().cast())
}

#[cold]
#[inline(never)]
pub(crate) fn allocate_else(size: usize, align: usize) -> *mut c_void {
    let errno = Errno::keep();
    told(allocate(size.max(1), align).map(|(block, _)| block), errno)
}

/// `calloc` of so many bytes; `None` is more than there can be.
pub(crate) fn allocate_zeroed(size: Option<usize>) -> *mut c_void {
    let errno = Errno::keep();
    let zeroed = |size: usize| {
        if let Some(next) = heap::next_for(size) {
            return NonNull::new(next.allocate_zeroed(size).cast());
        }
        let (block, is_zero) = allocate(size, ALIGN)?;
        if !is_zero {
            // SAFETY: the block has so many bytes, and is this call's.
            unsafe { block.write_bytes(0, size) };
        }
        Some(block)
    };
    told(size.map(|size| size.max(1)).and_then(zeroed), errno)
}

/// # Safety
/// As `free`. (An address that is none of ours is left alone.)
#[cold]
#[inline(never)]
pub(crate) unsafe fn free_else(block: NonNull<u8>) {
    let _errno = Errno::keep();
    let address = Address::from_ptr(block.as_ptr());
    let freed = match Busy::begin() {
        Some(_busy) => {
            free_deferred();
            // SAFETY: passed on to the caller.
            unsafe { heap::free(address) }
        }
        None if heap::find(address).is_some() => {
            deferred::defer(block);
            Ok(())
        }
        None => Err(Error::ForeignAddress { address, owner: "this library" }),
    };
    match freed {
        Ok(()) => {}
        Err(Error::ForeignAddress { .. }) => {
            if EARLY.size_of(block.addr().get()).is_some() {
                // SAFETY: passed on to the caller.
                unsafe { EARLY.free(block) };
            } else if !EARLY.has(block.addr().get())
                && let Some(next) = heap::next()
            {
                // SAFETY: what is not ours is what it allocated, and the rest is passed on to the caller.
                unsafe { next.free(block.as_ptr().cast()) };
            }
            // Otherwise nobody knows whose it is, and it stays.
        }
        Err(error) => tell_once(error),
    }
}

fn tell_once(error: Error) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        tell(format_args!("free does nothing: {error}"));
    }
}

/// How many bytes the block has; `None` if it is none of ours.
fn size_of(block: NonNull<u8>) -> Option<usize> {
    let found = heap::find(Address::from_ptr(block.as_ptr()));
    found.map(|(_, found)| found.size).or_else(|| EARLY.size_of(block.addr().get()))
}

/// # Safety
/// As `malloc_usable_size`.
pub(crate) unsafe fn usable_size(block: NonNull<u8>) -> usize {
    let next = || {
        let next = heap::next().filter(|_| !EARLY.has(block.addr().get()))?;
        // SAFETY: what is not ours is what it allocated.
        Some(unsafe { next.usable_size(block.as_ptr().cast()) })
    };
    size_of(block).or_else(next).unwrap_or(0)
}

/// `realloc` of a block to a size that is not 0.
///
/// # Safety
/// As `realloc`.
pub(crate) unsafe fn reallocate(block: NonNull<u8>, size: usize) -> *mut c_void {
    let errno = Errno::keep();
    let Some(has) = size_of(block) else {
        if let Some(next) = heap::next().filter(|_| !EARLY.has(block.addr().get())) {
            drop(errno);
            // SAFETY: what is not ours is what it allocated, and stays its own.
            return unsafe { next.reallocate(block.as_ptr().cast(), size) };
        }
        let address = Address::from_ptr(block.as_ptr());
        tell_once(Error::ForeignAddress { address, owner: "this library" });
        return told(None, errno);
    };
    if size <= has && (size >= has / 2 || has <= TINY) {
        return block.as_ptr().cast();
    }
    let more = has.saturating_add(if has >= GROWS_MORE { has / 2 } else { has / 4 });
    let roomy = (has >= GROWS && size > has && size < more).then(|| allocate(more, ALIGN)).flatten();
    let at_once = || calls::allocate_at_once(size, ALIGN).map(|block| (block, false));
    let Some((new, _)) = roomy.or_else(at_once).or_else(|| allocate(size, ALIGN)) else {
        // Shrinking does not fail.
        return told((size <= has).then_some(block), errno);
    };
    let bytes = size.min(has);
    // SAFETY: the old block is the caller's, the new one this call's; both have so many bytes.
    unsafe {
        if !moved::move_pages(block, new, bytes) {
            ptr::copy_nonoverlapping(block.as_ptr(), new.as_ptr(), bytes);
        }
        calls::free(block.as_ptr().cast());
    }
    told(Some(new), errno)
}

/// Gives free memory back but for `keep` bytes; `true` if any went.
pub(crate) fn trim(keep: usize) -> bool {
    let _errno = Errno::keep();
    let Some(_busy) = Busy::begin() else { return false };
    free_deferred();
    heap::serving().is_some_and(|pool| pool.trim(keep).is_ok_and(|bytes| bytes > 0))
}

/// Makes the pool now, while nobody is in the middle of anything.
pub(crate) fn begin() {
    let _errno = Errno::keep();
    if let Some(_busy) = Busy::begin() {
        heap::serving();
    }
}
