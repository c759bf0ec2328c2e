//! The exported C functions and their fast paths.
//!
//! They behave as `malloc(3)`, `posix_memalign(3)` and `malloc_usable_size(3)` describe. Blocks are
//! aligned to at least 16 bytes. Any thread may call any function at any time, from the first
//! instruction of the process to its last. `slow_path` serves what the fast paths do not.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use umf_core::{Address, Layout, Pool};

use crate::reentrancy::SavedErrno;
use crate::{ALIGN, heap, slow_path};

const PAGE: usize = 4096;

#[inline(always)]
fn allocate(size: usize, align: usize) -> *mut c_void {
    match allocate_fast(if size == 0 { 1 } else { size }, align) {
        Some(block) => block.as_ptr().cast(),
        None => slow_path::allocate_slow(size, align),
    }
}

/// Allocates a block on the fast path of the pool. `size` is not 0.
#[inline(always)]
pub(crate) fn allocate_fast(size: usize, align: usize) -> Option<NonNull<u8>> {
    let pool = heap::fast_pool()?;
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
    /// Blocks of at least this size may consist of pages that already read as zero.
    const LARGE: usize = 4096;
    let bytes = count.checked_mul(size);
    if let Some(bytes) = bytes.filter(|&bytes| bytes != 0 && bytes < LARGE)
        && let Some(block) = allocate_fast(bytes, ALIGN)
    {
        // SAFETY: the block has `bytes` bytes, and only this call knows it.
        unsafe { block.write_bytes(0, bytes) };
        return block.as_ptr().cast();
    }
    slow_path::allocate_zeroed(bytes)
}

/// `realloc(3)`. If `size` is 0, frees the block and returns null, as the GNU C library does.
///
/// # Safety
/// `block` is null, or a live block that no thread uses during the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(block) else { return malloc(size) };
    if size == 0 {
        // SAFETY: passed on to the caller.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: passed on to the caller.
    unsafe { slow_path::reallocate(old.cast(), size) }
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

/// `free(3)`. Ignores an address at which no live block begins.
///
/// # Safety
/// No thread uses the block any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: *mut c_void) {
    let Some(block) = NonNull::new(block.cast::<u8>()) else { return };
    if let Some(pool) = heap::fast_pool()
        // SAFETY: passed on to the caller.
        && unsafe { pool.try_free_owned(Address::from_ptr(block.as_ptr())) }
    {
        return;
    }
    // SAFETY: passed on to the caller.
    unsafe { slow_path::free_slow(block) };
}

/// `free_sized` of C23. Behaves as [`free`].
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _: usize) {
    // SAFETY: passed on to the caller.
    unsafe { free(block) };
}

/// `free_aligned_sized` of C23. Behaves as [`free`].
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _: usize, _: usize) {
    // SAFETY: passed on to the caller.
    unsafe { free(block) };
}

/// `aligned_alloc(3)`. Fails with `EINVAL` for an alignment that is not a power of two.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if align.is_power_of_two() { allocate(size, align.max(ALIGN)) } else { fail(libc::EINVAL) }
}

/// `memalign(3)`. Rounds an alignment that is not a power of two up to one, as the GNU C library
/// does.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => allocate(size, align.max(ALIGN)),
        None => fail(libc::EINVAL),
    }
}

/// `posix_memalign(3)`. Does not change `errno`.
///
/// # Safety
/// `out` is valid for a write.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let _errno = SavedErrno::save();
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

/// `malloc_usable_size(3)`. Returns 0 if no live block begins at the address. Returns `0xDEADBEEF`
/// for the address 1, by which programs detect the original library.
///
/// # Safety
/// As `malloc_usable_size`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    match NonNull::new(block.cast::<u8>()) {
        None => 0,
        Some(block) if block.addr().get() == 1 => 0xDEAD_BEEF,
        // SAFETY: passed on to the caller.
        Some(block) => unsafe { slow_path::usable_size(block) },
    }
}

/// `malloc_trim(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_trim(keep: usize) -> c_int {
    c_int::from(slow_path::trim(keep))
}

fn fail(errno: c_int) -> *mut c_void {
    SavedErrno::save().set(errno);
    ptr::null_mut()
}

/// Creates the pool when the library is loaded, unless an allocation came first.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        slow_path::create_pool();
    }
    at_load
};
