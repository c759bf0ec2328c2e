//! [`Arena`]: metadata of varying size, in runs of cache lines.
//!
//! State bytes, bitmaps and unit tables differ in length, and must lie in one piece so that reading them is
//! one load. Runs are powers of two of cache lines; one that is given back is kept for the next of its
//! length. Memory is never unmapped while the pool lives, so that a reader that comes too late reads
//! something newer, never nothing.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::{Error, Result};
use umf_sync::Lock;
use umf_sync::chunks::{Chunks, Zeroed};

const LINE: usize = 64;
const FIRST: usize = 4096;
const ORDERS: usize = 24;

#[repr(C, align(64))]
struct Line(UnsafeCell<[u8; LINE]>);

// SAFETY: the arena hands each line to one owner at a time, who sees to its synchronisation.
unsafe impl Sync for Line {}
// SAFETY: bytes of zero are valid.
unsafe impl Zeroed for Line {}

/// A run of lines: where it begins, and how long it is (a power of two).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    first: u32,
    order: u32,
}

impl Run {
    /// The number of its first line.
    pub(crate) const fn first(self) -> u32 {
        self.first
    }
}

struct State {
    /// The first line never handed out.
    next: u32,
    /// Per order: the first line of a free run, plus one; 0 for none.
    free: [u32; ORDERS],
}

/// Hands out runs of lines.
pub(crate) struct Arena {
    lines: Chunks<Line, FIRST>,
    /// For the first line of a free run: the next run of its order, as in `State::free`. Not in the run itself,
    /// which late readers may still look at.
    links: Chunks<AtomicU32, FIRST>,
    state: Lock<State>,
}

impl Arena {
    pub(crate) const fn new() -> Self {
        Self {
            lines: Chunks::new(),
            links: Chunks::new(),
            state: Lock::new(State { next: 0, free: [0; ORDERS] }),
        }
    }

    /// A run of at least `bytes` bytes, with whatever its last owner left in it.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<(Run, NonNull<u8>)> {
        let lines = bytes.div_ceil(LINE).next_power_of_two();
        let order = lines.ilog2();
        let too_large = Error::OutOfMemory { size: bytes, owner: "metadata", native: 0 };
        let mut state = self.state.lock();
        let free = state.free.get(order as usize).copied().ok_or(too_large)?;
        if let Some(first) = free.checked_sub(1) {
            let place = self.line(first).ok_or(too_large)?;
            state.free[order as usize] = self.links.get(first).map_or(0, |link| link.load(Ordering::Relaxed));
            return Ok((Run { first, order }, place));
        }
        // Chunk `k` of `Chunks` begins at position FIRST << k, where positions are indices plus FIRST. So a
        // run that is aligned to its length, in positions, and no longer than its position lies in one
        // chunk, and is contiguous.
        let position = (state.next as usize + FIRST).max(lines).next_multiple_of(lines);
        let end = u32::try_from(position - FIRST + lines).map_err(|_| too_large)?;
        let first = end - lines as u32;
        self.lines.get_or_grow(first)?;
        // So that taking the run back cannot fail.
        self.links.get_or_grow(first)?;
        let place = self.line(first).ok_or(too_large)?;
        // What alignment skips is cut into runs.
        while state.next < first {
            let gap = state.next as usize + FIRST;
            let order = gap.trailing_zeros().min((first - state.next).ilog2());
            let run = Run { first: state.next, order };
            let grown =
                self.lines.get_or_grow(run.first).is_ok() && self.links.get_or_grow(run.first).is_ok();
            if order as usize >= ORDERS || !grown {
                break;
            }
            self.push(&mut state, run);
            state.next += 1 << order;
        }
        state.next = end;
        Ok((Run { first, order }, place))
    }

    /// Takes a run back. Nobody uses it any more.
    pub(crate) fn release(&self, run: Run) {
        self.push(&mut self.state.lock(), run);
    }

    fn push(&self, state: &mut State, run: Run) {
        if let Some(link) = self.links.get(run.first) {
            link.store(state.free[run.order as usize], Ordering::Relaxed);
            state.free[run.order as usize] = run.first + 1;
        }
    }

    /// Where line `number` lies; `None` if it was never handed out.
    #[inline]
    pub(crate) fn line(&self, number: u32) -> Option<NonNull<u8>> {
        self.lines.get(number).and_then(|line| NonNull::new(line.0.get().cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_contiguous_distinct_and_used_again() {
        let arena = Arena::new();
        let mut runs = Vec::new();
        for round in 0..400_usize {
            let bytes = [1, 64, 65, 1000, 8192, 300_000, 70, 5_000_000][round % 8];
            let (run, place) = arena.allocate(bytes).unwrap();
            // SAFETY: the run is this test's own, and at least `bytes` long.
            unsafe { place.as_ptr().write_bytes(round as u8, bytes) };
            runs.push((run, place, bytes, round as u8));
        }
        for (_, place, bytes, value) in &runs {
            // SAFETY: as above.
            let content = unsafe { core::slice::from_raw_parts(place.as_ptr(), *bytes) };
            assert!(content.iter().all(|byte| byte == value));
        }
        let end = arena.state.lock().next;
        for (run, ..) in &runs {
            arena.release(*run);
        }
        for (_, _, bytes, _) in runs {
            arena.allocate(bytes).unwrap();
        }
        assert_eq!(arena.state.lock().next, end);
    }
}
