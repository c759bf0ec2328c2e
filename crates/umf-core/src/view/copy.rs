//! Copies of memory that other threads and processes may write at the same time.
//!
//! A plain load that races with a write is undefined behaviour. The compiler may also read memory
//! twice where the program reads it once, so that a value changes after it was checked. Therefore
//! single elements are loaded and stored with relaxed atomics, and ranges are copied by inline
//! assembly. Under Miri, and on processors other than x86-64 and AArch64, ranges are copied with
//! relaxed atomics, which is about half as fast.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Plain;

/// Loads an element. It cannot be torn if it has 1, 2, 4 or 8 bytes and is aligned to its size.
///
/// # Safety
/// The element is aligned and readable.
#[inline(always)]
pub(super) unsafe fn load<T: Plain>(from: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let into = value.as_mut_ptr();
    // SAFETY: passed on to the caller. The copy initialises the value, and any bytes are a valid
    // `T`.
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => into.cast::<u8>().write((*from.cast::<AtomicU8>()).load(Ordering::Relaxed)),
            (2, 2..) => into.cast::<u16>().write((*from.cast::<AtomicU16>()).load(Ordering::Relaxed)),
            (4, 4..) => into.cast::<u32>().write((*from.cast::<AtomicU32>()).load(Ordering::Relaxed)),
            (8, 8..) => into.cast::<u64>().write((*from.cast::<AtomicU64>()).load(Ordering::Relaxed)),
            (size, _) => copy(from.cast(), into.cast(), size),
        }
        value.assume_init()
    }
}

/// Stores an element. It cannot be torn if it has 1, 2, 4 or 8 bytes and is aligned to its size.
///
/// # Safety
/// The element is aligned and writable.
#[inline(always)]
pub(super) unsafe fn store<T: Plain>(into: *mut T, value: T) {
    let from = &raw const value;
    // SAFETY: passed on to the caller. A plain value has no padding, so all its bytes are
    // initialised.
    unsafe {
        match (size_of::<T>(), align_of::<T>()) {
            (1, _) => (*into.cast::<AtomicU8>()).store(from.cast::<u8>().read(), Ordering::Relaxed),
            (2, 2..) => (*into.cast::<AtomicU16>()).store(from.cast::<u16>().read(), Ordering::Relaxed),
            (4, 4..) => (*into.cast::<AtomicU32>()).store(from.cast::<u32>().read(), Ordering::Relaxed),
            (8, 8..) => (*into.cast::<AtomicU64>()).store(from.cast::<u64>().read(), Ordering::Relaxed),
            (size, _) => copy(from.cast(), into.cast(), size),
        }
    }
}

/// The size from which the string instruction of x86-64 is faster than a loop.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const MIN_STRING_SIZE: usize = 1024;

/// Copies `size` bytes forwards. The ranges may overlap if `into` lies before `from`.
///
/// # Safety
/// `from` is readable and `into` is writable.
#[inline]
pub(super) unsafe fn copy(mut from: *const u8, mut into: *mut u8, mut size: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if size >= MIN_STRING_SIZE {
        // SAFETY: passed on to the caller. The direction flag is clear, by the calling convention.
        unsafe {
            core::arch::asm!(
                "rep movsb",
                inout("rcx") size => _,
                inout("rsi") from => _,
                inout("rdi") into => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    if size >= 64 {
        // SAFETY: passed on to the caller. Each iteration copies 64 bytes while at least 64 are
        // left.
        unsafe { (from, into, size) = copy_lines(from, into, size) };
    }
    // SAFETY: passed on to the caller, for the rest.
    unsafe { copy_words(from, into, size) };
}

/// Copies 64 bytes at a time. Returns the pointers and the size of the rest, at most 63 bytes.
///
/// # Safety
/// As [`copy`]; `size` is at least 64.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#[inline(always)]
unsafe fn copy_lines(mut from: *const u8, mut into: *mut u8, mut size: usize) -> (*const u8, *mut u8, usize) {
    // SAFETY: passed on to the caller.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{into}], {a}",
            "movups [{into} + 16], {b}",
            "movups [{into} + 32], {c}",
            "movups [{into} + 48], {d}",
            "add {from}, 64",
            "add {into}, 64",
            "sub {size}, 64",
            "cmp {size}, 64",
            "jae 2b",
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            from = inout(reg) from, into = inout(reg) into, size = inout(reg) size,
            options(nostack)
        );
    }
    // SAFETY: passed on to the caller.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "stp {a:q}, {b:q}, [{into}]",
            "stp {c:q}, {d:q}, [{into}, #32]",
            "add {from}, {from}, #64",
            "add {into}, {into}, #64",
            "sub {size}, {size}, #64",
            "cmp {size}, #64",
            "b.hs 2b",
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            from = inout(reg) from, into = inout(reg) into, size = inout(reg) size,
            options(nostack)
        );
    }
    (from, into, size)
}

/// Copies words of 8 bytes, then bytes.
///
/// # Safety
/// As [`copy`].
#[inline]
unsafe fn copy_words(from: *const u8, into: *mut u8, size: usize) {
    let byte = |offset: usize| {
        // SAFETY: passed on to the caller; bytes are always aligned.
        unsafe {
            let value = (*from.add(offset).cast::<AtomicU8>()).load(Ordering::Relaxed);
            (*into.add(offset).cast::<AtomicU8>()).store(value, Ordering::Relaxed);
        }
    };
    let mut done = 0;
    if cfg!(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64")))) {
        // Atomics must be aligned.
        if !(from.addr() ^ into.addr()).is_multiple_of(8) {
            return (0..size).for_each(byte);
        }
        done = from.align_offset(8).min(size);
        (0..done).for_each(byte);
    }
    while size - done >= 8 {
        // SAFETY: passed on to the caller. Where `copy_word` uses atomics, both are aligned here.
        unsafe { copy_word(from.add(done), into.add(done)) };
        done += 8;
    }
    (done..size).for_each(byte);
}

/// Copies 8 bytes.
///
/// # Safety
/// As [`copy`]. Where this uses atomics, both pointers are aligned to 8.
#[inline(always)]
unsafe fn copy_word(from: *const u8, into: *mut u8) {
    // SAFETY: passed on to the caller.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        core::arch::asm!(
            "mov {word}, [{from}]",
            "mov [{into}], {word}",
            word = out(reg) _, from = in(reg) from, into = in(reg) into,
            options(nostack, preserves_flags)
        );
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        core::arch::asm!(
            "ldr {word}, [{from}]",
            "str {word}, [{into}]",
            word = out(reg) _, from = in(reg) from, into = in(reg) into,
            options(nostack, preserves_flags)
        );
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        (*into.cast::<AtomicU64>())
            .store((*from.cast::<AtomicU64>()).load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Copies `size` bytes of ranges that may overlap, as `memmove(3)` does.
///
/// # Safety
/// As [`copy`].
pub(super) unsafe fn copy_overlapping(from: *const u8, into: *mut u8, size: usize) {
    let distance = into.addr().wrapping_sub(from.addr());
    if distance >= size {
        // SAFETY: passed on to the caller. `into` does not begin inside of `from`.
        return unsafe { copy(from, into, size) };
    }
    // Backwards, through a buffer.
    let mut chunk = [const { MaybeUninit::<u8>::uninit() }; super::CHUNK];
    let mut left = size;
    while left > 0 {
        let count = left.min(chunk.len());
        left -= count;
        // SAFETY: passed on to the caller. `count` is at most the size of the chunk.
        unsafe {
            copy(from.add(left), chunk.as_mut_ptr().cast(), count);
            copy(chunk.as_ptr().cast(), into.add(left), count);
        }
    }
}
