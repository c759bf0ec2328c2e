//! [`Trust`]: whether a thread will free a large block by itself that it has freed by itself before.
//!
//! A life that is the thread's own is cheap to take, and dear to take from it: a hundred times what it saves. So what a thread has
//! never freed itself stays nobody's, and each life that had to be taken from it costs many more frees without.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};

/// For each life that was taken from it, a thread frees so many blocks by atomic exchange before it gets another one.
const PRICE: u32 = 256;
/// No more than so many.
const MOST: u32 = 1 << 16;

/// What a thread may count on.
pub(crate) struct Trust {
    /// How often it turned out wrong. Written by others.
    revoked: AtomicU32,
    /// Touched by the thread alone.
    seen: Cell<u32>,
    debt: Cell<u32>,
}

impl Trust {
    /// A life was taken from the thread. By whoever takes it.
    pub(crate) fn revoke(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was.
    #[cfg(test)]
    pub(crate) fn revoked(&self) -> u32 {
        self.revoked.load(Ordering::Relaxed)
    }

    /// The thread frees a large block that it took: whether its life is to be the thread's own.
    #[inline]
    pub(crate) fn lends(&self) -> bool {
        let revoked = self.revoked.load(Ordering::Relaxed);
        let wrong = revoked.wrapping_sub(self.seen.replace(revoked));
        let debt = self.debt.get().saturating_add(wrong.saturating_mul(PRICE)).min(MOST);
        self.debt.set(debt.saturating_sub(1));
        debt == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Of those that a thread frees itself, the ones that it is lent and that it later passes on. Every `part`th block is passed on,
    /// and found by the other thread after `window` more.
    fn lent_and_revoked(part: usize, window: usize) -> (u32, u32) {
        let trust = Trust { revoked: AtomicU32::new(0), seen: Cell::new(0), debt: Cell::new(0) };
        let (mut lent, mut revoked) = (0, 0);
        let mut travelling = VecDeque::new();
        for number in 1..=1_000_000_usize {
            let lends = trust.lends();
            lent += u32::from(lends);
            travelling.push_back(lends && number.is_multiple_of(part));
            if travelling.len() > window && travelling.pop_front() == Some(true) {
                trust.revoke();
                revoked += 1;
            }
        }
        (lent, revoked)
    }

    #[test]
    fn who_frees_all_that_he_takes_is_lent_all() {
        assert_eq!(lent_and_revoked(usize::MAX, 1), (1_000_000, 0));
    }

    #[test]
    fn one_mistake_does_not_end_it() {
        let (lent, revoked) = lent_and_revoked(400_000, 100);
        assert!(revoked == 2 && lent > 990_000, "{lent}, {revoked}");
    }

    #[test]
    fn who_passes_some_on_is_lent_few() {
        for part in [1, 2, 10] {
            for window in [1, 100, 1000] {
                let (_, revoked) = lent_and_revoked(part, window);
                assert!(revoked <= 20_000, "{revoked} of every {part}th after {window}");
            }
        }
    }
}
