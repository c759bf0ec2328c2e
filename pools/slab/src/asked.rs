//! [`Asked`]: how much of what is handed out was asked for.
//!
//! What a request asked for is not kept anywhere: there is nowhere to keep it that would cost nothing. But some requests take
//! a slower path (each time a thread's bin is filled, for one), and those say how much of a block of their class is used.

use core::sync::atomic::{AtomicU64, Ordering};

/// After so many blocks, what was long ago counts half.
const MEMORY: u64 = 4096;

/// What some requests of one class asked for, and what they got.
#[derive(Debug)]
pub(crate) struct Asked {
    asked: AtomicU64,
    got: AtomicU64,
}

impl Asked {
    pub(crate) const fn new() -> Self {
        Self { asked: AtomicU64::new(0), got: AtomicU64::new(0) }
    }

    /// A request of `asked` bytes was served with `got`.
    pub(crate) fn note(&self, asked: usize, got: usize) {
        let (asked, got) = (asked.min(got) as u64, got as u64);
        // (Two who do this at once lose a few of thousands.)
        let before = self.got.load(Ordering::Relaxed);
        if before / MEMORY > got || before.checked_add(got).is_none() {
            self.asked.store(self.asked.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            self.got.store(before / 2, Ordering::Relaxed);
        }
        self.asked.fetch_add(asked, Ordering::Relaxed);
        self.got.fetch_add(got, Ordering::Relaxed);
    }

    /// How much of `live` bytes was asked for, if requests are what they were.
    pub(crate) fn of(&self, live: u64) -> u64 {
        let (asked, got) = (self.asked.load(Ordering::Relaxed), self.got.load(Ordering::Relaxed));
        let part = (u128::from(live) * u128::from(asked)).checked_div(u128::from(got));
        part.map_or(live, |part| u64::try_from(part).unwrap_or(live).min(live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requests_are_told_exactly_and_new_ones_count_more_than_old_ones() {
        let asked = Asked::new();
        assert_eq!(asked.of(1000), 1000);
        (0..100).for_each(|_| asked.note(50, 100));
        assert_eq!(asked.of(1000), 500);
        (0..20 * MEMORY).for_each(|_| asked.note(90, 100));
        assert!((890..=900).contains(&asked.of(1000)), "{}", asked.of(1000));
        // Sizes that no sum can hold.
        (0..1000).for_each(|_| asked.note(usize::MAX / 4, usize::MAX / 2));
        assert!(asked.of(u64::MAX) <= u64::MAX / 2 + u64::MAX / 8);
    }
}
