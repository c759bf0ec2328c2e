//! The content of blocks: each word depends on the block's number and on the word's place.
//!
//! No word is zero, so that pages that were released can be told from content. Two blocks have no
//! word in common, with overwhelming probability, so that a wrong word says which block it belongs
//! to.

use std::sync::atomic::{Ordering, fence};

use umf::{Address, View};
use umf_core::Pool;

/// Bytes of a word.
pub const WORD: u64 = 8;

/// The word at a place in the content of a block: the finalizer of SplitMix64 over both numbers.
pub const fn word(id: u64, place: u64) -> u64 {
    let mut mixed = id.wrapping_shl(24).wrapping_add(place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) | 1
}

/// The content of a block, as bytes.
pub fn bytes(id: u64, size: u64) -> Vec<u8> {
    (0..size / WORD).flat_map(|place| word(id, place).to_le_bytes()).collect()
}

/// A word that is neither the content of its block nor permitted otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Wrong {
    pub place: u64,
    pub found: u64,
    /// How many words of the block are zero.
    pub zeros: u64,
}

/// What a reader found in a block.
pub type Found = Result<Zeros, Wrong>;

/// Whether some words were zero, where zeros are permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeros(pub bool);

/// Compares words with the content of a block. Zeros are permitted if `release`.
pub fn compare(words: impl Iterator<Item = u64> + Clone, id: u64, release: bool) -> Found {
    let mut zeros = Zeros(false);
    for (place, found) in (0..).zip(words.clone()) {
        if found == word(id, place) {
            continue;
        }
        if release && is_partly_released(found, word(id, place)) {
            zeros = Zeros(true);
            continue;
        }
        let zeros = words.filter(|word| *word == 0).count() as u64;
        return Err(Wrong { place, found, zeros });
    }
    Ok(zeros)
}

/// Whether each byte of a word is zero or that of the content. A page that is released while it is
/// copied byte by byte leaves such a word.
fn is_partly_released(found: u64, content: u64) -> bool {
    let bytes = found.to_le_bytes().into_iter().zip(content.to_le_bytes());
    bytes.into_iter().all(|(found, content)| found == 0 || found == content)
}

/// Compares memory that other processes may write at any time.
pub fn compare_memory(memory: View<'_>, id: u64, size: u64, release: bool) -> Found {
    let words = memory.cast::<u64>().unwrap_or_else(|_| View::empty());
    let load = |place: u64| words.atomic(place as usize).map_or(0, |word| word.load(Ordering::Acquire));
    compare((0..size / WORD).map(load), id, release)
}

/// Compares bytes that were copied out.
pub fn compare_bytes(copied: &[u8], id: u64, release: bool) -> Found {
    let words = copied.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
    compare(words, id, release)
}

/// Writes the content of a block. The CPU writes it, or the device if the CPU must not touch the
/// memory.
///
/// # Errors
/// Those of the device.
pub fn fill(pool: &dyn Pool, address: Address, id: u64, size: u64) -> umf_core::Result<()> {
    let transfer = pool.provider().transfer().filter(|_| !pool.provider().memory_kind().is_host_accessible());
    match (transfer, address.as_ptr()) {
        (Some(transfer), _) => {
            // SAFETY: the block is live, has at least `size` bytes, and no reference into it
            // exists.
            unsafe { transfer.write(address, &bytes(id, size)) }?;
        }
        (None, Some(start)) => {
            for place in 0..size / WORD {
                // SAFETY: the block is live, has at least `size` bytes, and is aligned to a word.
                unsafe { start.cast::<u64>().add(place as usize).write_volatile(word(id, place)) };
            }
        }
        (None, None) => {}
    }
    fence(Ordering::SeqCst);
    Ok(())
}

/// Which block a wrong word belongs to. Searches the blocks below `end`, the latest first.
pub fn describe(wrong: Wrong, end: u64) -> String {
    let Wrong { place, found, zeros } = wrong;
    let owner = match found {
        0 => "zero".to_owned(),
        _ => (end.saturating_sub(400_000)..end)
            .rev()
            .find(|id| word(*id, place) == found)
            .map_or_else(|| "content of no known block".to_owned(), |id| format!("content of block {id}")),
    };
    format!("word {place} is {found:#x} ({owner}), {zeros} words of the block are zero")
}
