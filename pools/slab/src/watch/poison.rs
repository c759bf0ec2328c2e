//! What is freed is filled with one byte, and looked at again before it is used again: whoever writes to it meanwhile is found.
//!
//! The only place of this crate that touches the memory. A pool is poisoned only if its provider says that the CPU may.

use core::sync::atomic::Ordering;

use umf_core::{Address, Error, Result};

use crate::span::Span;
use crate::state::POISONED;
use crate::watch::Poison;
use crate::{SlabPool, SlabSettings};

const _: () = assert!(SlabSettings::FREED_BYTE != SlabSettings::NEW_BYTE);
const WORD: usize = size_of::<u64>();

/// Fills a block.
///
/// # Safety
/// The block is the caller's, and the CPU may write to it.
unsafe fn fill(address: Address, size: u64, byte: u8) {
    if let Some(pointer) = address.as_ptr() {
        // SAFETY: passed on to the caller.
        unsafe { pointer.write_bytes(byte, size as usize) };
    }
}

/// The offset of the first byte of a block that is another one.
///
/// # Safety
/// The block is nobody's or the caller's, and the CPU may read it. (Others may write to it meanwhile, which is what this finds.)
unsafe fn find_other(address: Address, size: u64, byte: u8) -> Option<usize> {
    let (pointer, size) = (address.as_ptr()?, size as usize);
    let is_other = |&offset: &usize| {
        // SAFETY: below the size. Volatile, since others may write to it.
        unsafe { pointer.add(offset).read_volatile() != byte }
    };
    let whole = u64::from_ne_bytes([byte; WORD]);
    // Blocks begin at multiples of 8 in all that a pool cuts; one that does not is looked at byte by byte.
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

impl SlabPool {
    fn poisons(&self) -> bool {
        !matches!(self.settings.watched.poison, Poison::Off)
    }

    /// Fills a free block that the caller alone has; the state that it has then.
    pub(crate) fn poison(&self, address: Address, size: u64) -> u8 {
        if !self.poisons() {
            return 0;
        }
        // SAFETY: the caller alone has the block, and `Watched::check` asked the provider.
        unsafe { fill(address, size, SlabSettings::FREED_BYTE) };
        POISONED
    }

    pub(crate) fn fill_new(&self, address: Address, size: u64) {
        // SAFETY: as above: it has not been handed out yet.
        unsafe { fill(address, size, SlabSettings::NEW_BYTE) };
    }

    /// Whether a block that was poisoned is what it was.
    pub(crate) fn check_poison(&self, address: Address, size: u64) -> Result<()> {
        // SAFETY: as above; its owner freed it.
        match unsafe { find_other(address, size, SlabSettings::FREED_BYTE) } {
            None => Ok(()),
            Some(offset) => {
                let by = self.watch.history.last_free(address, self.watch.now());
                let error = Error::WrittenAfterFree { address, size: size as usize, offset, by };
                self.found(error);
                Err(error)
            }
        }
    }

    /// Looks at all poisoned blocks of a span, before it is nobody's any more. The caller alone has it.
    pub(crate) fn check_span(&self, span: &Span) {
        let blocks = if self.poisons() { span.bytes().checked_div(span.block()).unwrap_or(0) } else { 0 };
        for index in 0..blocks {
            // SAFETY: the span is in use, and has that many blocks.
            let state = unsafe { span.state(index).as_ref() };
            if state.fetch_and(!POISONED, Ordering::AcqRel) & POISONED != 0 {
                let address = Address::from_bits(span.base().to_bits() + index * span.block());
                // What it finds is told later.
                let _ = self.check_poison(address, span.block());
            }
        }
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
            for place in 0..size as usize {
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
