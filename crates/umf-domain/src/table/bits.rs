//! Sets of small numbers in shared words. Whoever changes one holds the domain's arbiter, so nothing needs to be atomic
//! but the single word; the order of stores is that of the program, for those who come after a death in between.

use core::sync::atomic::{AtomicU64, Ordering};

const fn split(index: usize) -> (usize, u64) {
    (index / 64, 1 << (index % 64))
}

pub(super) fn has(words: &[AtomicU64], index: usize) -> bool {
    let (word, bit) = split(index);
    words.get(word).is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
}

pub(super) fn set(words: &[AtomicU64], index: usize) {
    let (word, bit) = split(index);
    if let Some(word) = words.get(word) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

pub(super) fn clear(words: &[AtomicU64], index: usize) {
    let (word, bit) = split(index);
    if let Some(word) = words.get(word) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

pub(super) fn is_empty(words: &[AtomicU64]) -> bool {
    words.iter().all(|word| word.load(Ordering::Acquire) == 0)
}

pub(super) fn count(words: &[AtomicU64]) -> u32 {
    words.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum()
}

/// The smallest number that is not in the set.
pub(super) fn first_missing(words: &[AtomicU64]) -> Option<usize> {
    words.iter().enumerate().find_map(|(place, word)| {
        let word = word.load(Ordering::Acquire);
        (word != u64::MAX).then(|| place * 64 + word.trailing_ones() as usize)
    })
}

/// All that are in the set; each word is read once.
pub(super) fn members(words: &[AtomicU64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(place, word)| {
        let mut left = word.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let lowest = left.trailing_zeros() as usize;
            left = left.checked_sub(1)? & left;
            Some(place * 64 + lowest)
        })
    })
}
