//! Bitmaps of shared words: the participant ids in use, the used slots, the registrants of a slot.
//!
//! A process that changes a bitmap holds the domain's arbiter, so only single words need to be
//! atomic. Stores keep program order, so that a process that dies between two of them leaves the
//! first one only.

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

/// Returns the lowest bit that is clear.
pub(super) fn first_missing(words: &[AtomicU64]) -> Option<usize> {
    words.iter().enumerate().find_map(|(word_index, word)| {
        let word = word.load(Ordering::Acquire);
        (word != u64::MAX).then(|| word_index * 64 + word.trailing_ones() as usize)
    })
}

/// Returns the bits that are set, in order. Each word is read once.
pub(super) fn members(words: &[AtomicU64]) -> impl Iterator<Item = usize> {
    words.iter().enumerate().flat_map(|(word_index, word)| {
        let mut left = word.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            let lowest = left.trailing_zeros() as usize;
            left = left.checked_sub(1)? & left;
            Some(word_index * 64 + lowest)
        })
    })
}
