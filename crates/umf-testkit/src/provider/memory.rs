//! Regions as the cases use them: allocated with a word of why it failed, filled with a pattern and looked
//! at.

use core::ptr;

use umf_core::{Address, Layout, Provider, Region};

/// Allocates, or fails the test.
#[track_caller]
pub(super) fn allocate(provider: &dyn Provider, size: usize, align: usize) -> Region {
    let layout = Layout::new(size, align).expect("a valid layout");
    provider.allocate(layout).unwrap_or_else(|error| panic!("allocating {size} bytes at {align}: {error}"))
}

/// Frees, or fails the test.
#[track_caller]
pub(super) fn free(provider: &dyn Provider, region: Region) {
    // SAFETY: the cases free what they allocated and do not use it any more.
    if let Err(error) = unsafe { provider.free(region) } {
        panic!("freeing {region:?}: {error}");
    }
}

/// Whether the CPU may look at the memory.
pub(super) fn is_accessible(provider: &dyn Provider) -> bool {
    provider.memory_kind().is_host_accessible()
}

const STEP: usize = 509;

/// The places that are looked at: the first and the last byte, and some in every page between.
fn places(size: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(STEP).chain(core::iter::once(size - 1))
}

fn expected(seed: u8, place: usize) -> u8 {
    // Never 0, which is what lost memory reads.
    (seed.wrapping_add((place / 7) as u8)) | 1
}

#[track_caller]
fn pointer(base: Address) -> *mut u8 {
    base.as_ptr().expect("host-accessible memory has pointers")
}

/// Fills host-accessible memory with a pattern.
#[track_caller]
pub(super) fn fill(base: Address, size: usize, seed: u8) {
    let base = pointer(base);
    for place in places(size) {
        // SAFETY: the provider calls the memory host-accessible, and it has `size` bytes.
        unsafe { ptr::write_volatile(base.add(place), expected(seed, place)) };
    }
}

/// Whether the memory holds the pattern, of which it begins `skipped` bytes in.
fn holds_from(base: Address, size: usize, seed: u8, skipped: usize) -> Result<(), usize> {
    let base = pointer(base);
    let inside = |place: &usize| (skipped..skipped + size).contains(place);
    // The last byte of the whole pattern is only looked at where all of it is.
    for place in (0..skipped + size).step_by(STEP).filter(inside) {
        // SAFETY: as in `fill`.
        if unsafe { ptr::read_volatile(base.add(place - skipped)) } != expected(seed, place) {
            return Err(place);
        }
    }
    Ok(())
}

/// Fails the test unless the memory holds what [`fill`] wrote.
#[track_caller]
pub(super) fn assert_filled(base: Address, size: usize, seed: u8) {
    assert_part_filled(base, size, seed, 0);
    // SAFETY: as in `fill`.
    let last = unsafe { ptr::read_volatile(pointer(base).add(size - 1)) };
    assert_eq!(last, expected(seed, size - 1), "last of {size} bytes at {base}");
}

/// As [`assert_filled`] for a part of what was filled, `skipped` bytes in, of which the last byte of the
/// whole is not looked at.
#[track_caller]
pub(super) fn assert_part_filled(base: Address, size: usize, seed: u8, skipped: usize) {
    if let Err(place) = holds_from(base, size, seed, skipped) {
        panic!("byte {place} of a region, of which {size} bytes are at {base}, is not what was written");
    }
}

/// Whether the memory holds the pattern at all places but the last.
pub(super) fn is_filled(base: Address, size: usize, seed: u8, skipped: usize) -> bool {
    holds_from(base, size, seed, skipped).is_ok()
}

/// Whether every byte is 0.
pub(super) fn is_zero(base: Address, size: usize) -> bool {
    let base = pointer(base);
    // SAFETY: as in `fill`.
    (0..size).all(|place| unsafe { ptr::read_volatile(base.add(place)) } == 0)
}
