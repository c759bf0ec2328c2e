//! Filling a freed block with one byte, and finding another one there later. Only this module
//! touches the memory, and only if the provider says that the CPU may.

use umf_core::Address;

const WORD: usize = size_of::<u64>();

/// Fills a block.
///
/// # Safety
/// The block is the caller's, and the CPU may write to it.
pub(super) unsafe fn fill(address: Address, size: usize, byte: u8) {
    if let Some(pointer) = address.as_ptr() {
        // SAFETY: passed on to the caller.
        unsafe { pointer.write_bytes(byte, size) };
    }
}

/// The offset of the first byte of a block that is another one.
///
/// # Safety
/// The block is free or the caller's, and the CPU may read it. (Others may write to it meanwhile,
/// which is what this finds.)
pub(super) unsafe fn find_other(address: Address, size: usize, byte: u8) -> Option<usize> {
    let pointer = address.as_ptr()?;
    let is_other = |&offset: &usize| {
        // SAFETY: below the size. Volatile, since others may write to it.
        unsafe { pointer.add(offset).read_volatile() != byte }
    };
    let whole = u64::from_ne_bytes([byte; WORD]);
    // Blocks begin at multiples of 8 in all that a pool cuts; one that does not is looked at byte
    // by byte.
    let words = if pointer.addr().is_multiple_of(WORD) { size / WORD } else { 0 };
    let other_word = (0..words).find(|&word| {
        // SAFETY: aligned, and below the size.
        unsafe { pointer.cast::<u64>().add(word).read_volatile() != whole }
    });
    match other_word {
        Some(word) => (word * WORD..size).find(is_other),
        None => (words * WORD..size).find(is_other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_is_another_is_found_wherever_it_is() {
        let mut memory = [0_u64; 20];
        let base = Address::from_ptr(memory.as_mut_ptr());
        for (start, size) in [(0, 1), (0, 8), (0, 100), (0, 160), (1, 57), (3, 8)] {
            let address = base.checked_add(start).unwrap();
            // SAFETY: within the array.
            unsafe { fill(address, size, 7) };
            // SAFETY: as above.
            assert_eq!(unsafe { find_other(address, size, 7) }, None);
            for place in 0..size {
                // SAFETY: as above.
                unsafe { address.as_ptr().unwrap().add(place).write(8) };
                // SAFETY: as above.
                let found = unsafe { find_other(address, size, 7) };
                assert_eq!(found, Some(place), "{size} from {start}");
                // SAFETY: as above.
                unsafe { address.as_ptr().unwrap().add(place).write(7) };
            }
        }
    }
}
