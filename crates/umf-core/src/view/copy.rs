//! Copies of memory that others may write meanwhile.
//!
//! For the compiler, a plain load of memory that something else writes is undefined; it may also
//! read such memory twice where the program reads it once, and then a value changes after it was
//! checked. So single elements are loaded and stored by relaxed atomics, and ranges by instructions
//! in `asm!`, which the compiler takes as they are. Under Miri, and on other processors than x86-64
//! and AArch64, ranges are copied by relaxed atomics, which is about half as fast.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Plain;

/// Loads an element: whole if it has 1, 2, 4 or 8 bytes and is aligned to them.
///
/// # Safety
/// It is aligned and mapped for reading.
#[inline(always)]
pub(super) unsafe fn load<T: Plain>(from: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let into = value.as_mut_ptr();
    // SAFETY: the caller's promise. What is written fills the value, and any bytes are a `T`.
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

/// Stores an element: whole if it has 1, 2, 4 or 8 bytes and is aligned to them.
///
/// # Safety
/// It is aligned and mapped for writing.
#[inline(always)]
pub(super) unsafe fn store<T: Plain>(into: *mut T, value: T) {
    let from = &raw const value;
    // SAFETY: the caller's promise. A plain value has no padding, so all its bytes can be read.
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

/// Below so many bytes the string instruction of x86-64 costs more than a loop.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING: usize = 1024;

/// Copies `size` bytes forwards. `into` may overlap `from` if it lies before it.
///
/// # Safety
/// `from` is mapped for reading and `into` for writing.
#[inline]
pub(super) unsafe fn copy(mut from: *const u8, mut into: *mut u8, mut size: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if size >= STRING {
        // SAFETY: the caller's promise. The direction flag is clear, by the calling convention.
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
        // SAFETY: the caller's promise: the loop runs while 64 bytes are left, and copies those.
        unsafe { (from, into, size) = copy_lines(from, into, size) };
    }
    // SAFETY: the caller's promise, of what is left.
    unsafe { copy_words(from, into, size) };
}

/// Copies 64 bytes at a time, and returns what is left: at most 63 bytes.
///
/// # Safety
/// As [`copy`]; `size` is at least 64.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
#[inline(always)]
unsafe fn copy_lines(mut from: *const u8, mut into: *mut u8, mut size: usize) -> (*const u8, *mut u8, usize) {
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise; bytes are aligned.
        unsafe {
            let value = (*from.add(offset).cast::<AtomicU8>()).load(Ordering::Relaxed);
            (*into.add(offset).cast::<AtomicU8>()).store(value, Ordering::Relaxed);
        }
    };
    let mut done = 0;
    if cfg!(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64")))) {
        // Atomics have to be aligned.
        if !(from.addr() ^ into.addr()).is_multiple_of(8) {
            return (0..size).for_each(byte);
        }
        done = from.align_offset(8).min(size);
        (0..done).for_each(byte);
    }
    while size - done >= 8 {
        // SAFETY: the caller's promise; where `copy_word` asks for it, both are aligned here.
        unsafe { copy_word(from.add(done), into.add(done)) };
        done += 8;
    }
    (done..size).for_each(byte);
}

/// Copies 8 bytes: at any alignment where instructions do it, else aligned ones.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_word(from: *const u8, into: *mut u8) {
    // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise; forwards is right if `into` is not inside of `from`.
        return unsafe { copy(from, into, size) };
    }
    // From the end on, through a buffer.
    let mut chunk = [const { MaybeUninit::<u8>::uninit() }; super::CHUNK];
    let mut left = size;
    while left > 0 {
        let some = left.min(chunk.len());
        left -= some;
        // SAFETY: the caller's promise; the chunk has room for so many bytes.
        unsafe {
            copy(from.add(left), chunk.as_mut_ptr().cast(), some);
            copy(chunk.as_ptr().cast(), into.add(left), some);
        }
    }
}
