//! The content of blocks. Each word is a hash of the block's number and the word's index.
//!
//! No word is zero, so that released pages differ from content. Two blocks almost certainly have no
//! word in common, so that a wrong word identifies its block.

use std::sync::atomic::{Ordering, fence};

use umf::{Address, View};
use umf_core::Pool;

/// Bytes of a word.
pub const WORD: u64 = 8;

/// Returns a word of the content of a block: the finalizer of SplitMix64 over both numbers.
pub const fn word(id: u64, index: u64) -> u64 {
    let mut mixed = id.wrapping_shl(24).wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) | 1
}

/// Returns the content of a block, as bytes.
pub fn bytes(id: u64, size: u64) -> Vec<u8> {
    (0..size / WORD).flat_map(|index| word(id, index).to_le_bytes()).collect()
}

/// A word that differs from the content of its block.
#[derive(Clone, Copy, Debug)]
pub struct Mismatch {
    pub index: u64,
    pub found: u64,
    /// Number of words of the block that are zero.
    pub zeros: u64,
}

/// Result of a comparison of memory with the content of a block.
pub type Comparison = Result<Zeros, Mismatch>;

/// Whether some words were zero in a comparison that permits zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeros(pub bool);

/// Compares words with the content of a block. With `release`, words may be zero.
pub fn compare(words: impl Iterator<Item = u64> + Clone, id: u64, release: bool) -> Comparison {
    let mut zeros = Zeros(false);
    for (index, found) in (0..).zip(words.clone()) {
        if found == word(id, index) {
            continue;
        }
        if release && is_partly_released(found, word(id, index)) {
            zeros = Zeros(true);
            continue;
        }
        let zeros = words.filter(|word| *word == 0).count() as u64;
        return Err(Mismatch { index, found, zeros });
    }
    Ok(zeros)
}

/// Returns whether each byte of a word is zero or that of the content. A copy of a page that is
/// released meanwhile can have such words.
fn is_partly_released(found: u64, content: u64) -> bool {
    let bytes = found.to_le_bytes().into_iter().zip(content.to_le_bytes());
    bytes.into_iter().all(|(found, content)| found == 0 || found == content)
}

/// Compares shared memory with the content of a block.
pub fn compare_memory(memory: View<'_>, id: u64, size: u64, release: bool) -> Comparison {
    let words = memory.cast::<u64>().unwrap_or_else(|_| View::empty());
    let load = |index: u64| words.atomic(index as usize).map_or(0, |word| word.load(Ordering::Acquire));
    compare((0..size / WORD).map(load), id, release)
}

/// Compares copied bytes with the content of a block.
pub fn compare_bytes(copied: &[u8], id: u64, release: bool) -> Comparison {
    let words = copied.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
    compare(words, id, release)
}

/// Writes the content of a block. If the CPU cannot access the memory, the device writes it.
///
/// # Errors
/// The error of the device.
pub fn fill(pool: &dyn Pool, address: Address, id: u64, size: u64) -> umf_core::Result<()> {
    let transfer = pool.provider().transfer().filter(|_| !pool.provider().memory_kind().is_host_accessible());
    match (transfer, address.as_ptr()) {
        (Some(transfer), _) => {
            // SAFETY: the block is live, has at least `size` bytes, and no reference into it
            // exists.
            unsafe { transfer.write(address, &bytes(id, size)) }?;
        }
        (None, Some(start)) => {
            for index in 0..size / WORD {
                // SAFETY: the block is live, has at least `size` bytes, and is aligned to a word.
                unsafe { start.cast::<u64>().add(index as usize).write_volatile(word(id, index)) };
            }
        }
        (None, None) => {}
    }
    fence(Ordering::SeqCst);
    Ok(())
}

/// Describes a wrong word, with the block that has it as content. Searches the blocks below `end`,
/// the latest first.
pub fn describe(mismatch: Mismatch, end: u64) -> String {
    let Mismatch { index, found, zeros } = mismatch;
    let owner = match found {
        0 => "zero".to_owned(),
        _ => (end.saturating_sub(400_000)..end)
            .rev()
            .find(|id| word(*id, index) == found)
            .map_or_else(|| "content of no known block".to_owned(), |id| format!("content of block {id}")),
    };
    format!("word {index} is {found:#x} ({owner}), {zeros} words of the block are zero")
}
