//! Helpers of the cases: allocation that panics on failure, and test patterns.

use core::ptr;

use umf_core::{Address, Layout, Provider, Region};

/// Allocates, or panics.
#[track_caller]
pub(super) fn allocate(provider: &dyn Provider, size: usize, align: usize) -> Region {
    let layout = Layout::new(size, align).expect("a valid layout");
    provider.allocate(layout).unwrap_or_else(|error| panic!("allocating {size} bytes at {align}: {error}"))
}

/// Frees, or panics.
#[track_caller]
pub(super) fn free(provider: &dyn Provider, region: Region) {
    // SAFETY: the cases free what they allocated, and do not use it any more.
    if let Err(error) = unsafe { provider.free(region) } {
        panic!("freeing {region:?}: {error}");
    }
}

/// Returns whether the CPU may access the memory.
pub(super) fn is_accessible(provider: &dyn Provider) -> bool {
    provider.memory_kind().is_host_accessible()
}

const STEP: usize = 509;

/// Returns the tested offsets: the first byte, the last byte, and some in every page between.
fn places(size: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(STEP).chain(core::iter::once(size - 1))
}

fn expected(seed: u8, place: usize) -> u8 {
    // Never 0, which is what lost memory reads as.
    (seed.wrapping_add((place / 7) as u8)) | 1
}

#[track_caller]
fn pointer(base: Address) -> *mut u8 {
    base.as_ptr().expect("host-accessible memory has pointers")
}

/// Writes a pattern to host-accessible memory.
#[track_caller]
pub(super) fn fill(base: Address, size: usize, seed: u8) {
    let base = pointer(base);
    for place in places(size) {
        // SAFETY: the provider calls the memory host-accessible, and it has `size` bytes.
        unsafe { ptr::write_volatile(base.add(place), expected(seed, place)) };
    }
}

/// Compares memory with the part of a pattern that begins `skipped` bytes into it.
fn holds_from(base: Address, size: usize, seed: u8, skipped: usize) -> Result<(), usize> {
    let base = pointer(base);
    let inside = |place: &usize| (skipped..skipped + size).contains(place);
    // The last byte of the pattern is tested by the caller that has all of it.
    for place in (0..skipped + size).step_by(STEP).filter(inside) {
        // SAFETY: the provider reports the memory as host-accessible, and it has `size` bytes.
        if unsafe { ptr::read_volatile(base.add(place - skipped)) } != expected(seed, place) {
            return Err(place);
        }
    }
    Ok(())
}

/// Panics unless the memory holds what [`fill`] wrote.
#[track_caller]
pub(super) fn assert_filled(base: Address, size: usize, seed: u8) {
    assert_part_filled(base, size, seed, 0);
    // SAFETY: the memory is host-accessible and has `size` bytes.
    let last = unsafe { ptr::read_volatile(pointer(base).add(size - 1)) };
    assert_eq!(last, expected(seed, size - 1), "last of {size} bytes at {base}");
}

/// As [`assert_filled`], for a part that begins `skipped` bytes into the pattern. Does not test the
/// last byte of the whole.
#[track_caller]
pub(super) fn assert_part_filled(base: Address, size: usize, seed: u8, skipped: usize) {
    if let Err(place) = holds_from(base, size, seed, skipped) {
        panic!("byte {place} of a region, of which {size} bytes are at {base}, is not what was written");
    }
}

/// Returns whether the memory holds the pattern, except for the last byte.
pub(super) fn is_filled(base: Address, size: usize, seed: u8, skipped: usize) -> bool {
    holds_from(base, size, seed, skipped).is_ok()
}

/// Returns whether every byte is 0.
pub(super) fn is_zero(base: Address, size: usize) -> bool {
    let base = pointer(base);
    // SAFETY: the memory is host-accessible and has `size` bytes.
    (0..size).all(|place| unsafe { ptr::read_volatile(base.add(place)) } == 0)
}
