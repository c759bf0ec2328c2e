//! The functions that programs call, by the names that C has for them.
//!
//! As `malloc(3)`, `posix_memalign(3)` and `malloc_usable_size(3)` say. Blocks are aligned to 16 bytes at least. All of them may be called
//! by any thread at any time, from the process's first instruction to its last.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use umf_core::{Address, Layout, Pool};

use crate::{ALIGN, heap, requests};

const PAGE: usize = 4096;

#[inline(always)]
fn allocate(size: usize, align: usize) -> *mut c_void {
    match allocate_at_once(if size == 0 { 1 } else { size }, align) {
        Some(block) => block.as_ptr().cast(),
        None => requests::allocate_else(size, align),
    }
}

/// A block that is at hand.
#[inline(always)]
pub(crate) fn allocate_at_once(size: usize, align: usize) -> Option<NonNull<u8>> {
    let pool = heap::at_once()?;
    NonNull::new(pool.allocate_fast(Layout::new(size, align).ok()?)?.as_ptr()?)
}

/// `malloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(size, ALIGN)
}

/// `calloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    /// From here on what is new is not written to.
    const LARGE: usize = 4096;
    let bytes = count.checked_mul(size);
    if let Some(bytes) = bytes.filter(|&bytes| bytes != 0 && bytes < LARGE)
        && let Some(block) = allocate_at_once(bytes, ALIGN)
    {
        // SAFETY: the block has so many bytes, and is this call's.
        unsafe { block.write_bytes(0, bytes) };
        return block.as_ptr().cast();
    }
    requests::allocate_zeroed(bytes)
}

/// `realloc(3)`. Of a block to 0 bytes: frees it and yields null, as the GNU C library does.
///
/// # Safety
/// `block` is null, or a live block that nobody else uses.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(block) else { return malloc(size) };
    if size == 0 {
        // SAFETY: passed on to the caller.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: passed on to the caller.
    unsafe { requests::reallocate(old.cast(), size) }
}

/// `reallocarray(3)`.
///
/// # Safety
/// As [`realloc`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on to the caller.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => fail(libc::ENOMEM),
    }
}

/// `free(3)`. What is no live block is left alone.
///
/// # Safety
/// Nobody uses the block any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: *mut c_void) {
    let Some(block) = NonNull::new(block.cast::<u8>()) else { return };
    if let Some(pool) = heap::at_once()
        // SAFETY: passed on to the caller.
        && unsafe { pool.free_own_fast(Address::from_ptr(block.as_ptr())) }
    {
        return;
    }
    // SAFETY: passed on to the caller.
    unsafe { requests::free_else(block) };
}

/// `free_sized` of C23: as [`free`].
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _: usize) {
    // SAFETY: passed on to the caller.
    unsafe { free(block) };
}

/// `free_aligned_sized` of C23: as [`free`].
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _: usize, _: usize) {
    // SAFETY: passed on to the caller.
    unsafe { free(block) };
}

/// `aligned_alloc(3)`: `EINVAL` for an alignment that is no power of two.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if align.is_power_of_two() { allocate(size, align.max(ALIGN)) } else { fail(libc::EINVAL) }
}

/// `memalign(3)`: an alignment that is no power of two is rounded up to one, as in the GNU C library.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => allocate(size, align.max(ALIGN)),
        None => fail(libc::EINVAL),
    }
}

/// `posix_memalign(3)`. Leaves `errno` as it is.
///
/// # Safety
/// `out` can be written to.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let _errno = crate::errno::Errno::keep();
    let block = allocate(size, align.max(ALIGN));
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: passed on to the caller.
    unsafe { out.write(block) };
    0
}

/// `valloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    allocate(size, PAGE)
}

/// `pvalloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(size) => allocate(size, PAGE),
        None => fail(libc::ENOMEM),
    }
}

/// `malloc_usable_size(3)`; 0 of what is no live block. Of the address 1 it is `0xDEADBEEF`: so programs that know the original ask whether
/// they are served by this library.
///
/// # Safety
/// As `malloc_usable_size`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    match NonNull::new(block.cast::<u8>()) {
        None => 0,
        Some(block) if block.addr().get() == 1 => 0xDEAD_BEEF,
        // SAFETY: passed on to the caller.
        Some(block) => unsafe { requests::usable_size(block) },
    }
}

/// `malloc_trim(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_trim(keep: usize) -> c_int {
    c_int::from(requests::trim(keep))
}

fn fail(errno: c_int) -> *mut c_void {
    crate::errno::Errno::keep().set(errno);
    ptr::null_mut()
}

/// The pool is made when the library is loaded, if not before.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        requests::begin();
    }
    at_load
};
