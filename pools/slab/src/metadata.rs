//! [`Metadata`]: the memory of all records of a pool, and the lookup from an address to a block.
//!
//! The bottom of the crate. All metadata is out of band, and does not come from the global
//! allocator. Spans are in a table, indexed by the number that the tracker has for each granule.
//! State bytes, bitmaps, unit tables, bins and batches differ in length: an [`Arena`] allocates
//! them as contiguous runs of cache lines, so that reading them is one load.
//!
//! No metadata is unmapped while the pool lives. So a thread with a stale address reads a newer
//! record, never an unmapped page.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use umf_core::{Address, Error, Result};
use umf_runtime::tracker;
use umf_sync::Lock;
use umf_sync::chunks::{Chunks, Zeroable};
use umf_sync::table::Table;

use crate::span::BlockRef;
use crate::types::{Entry, Kind, Span};

/// Spans below this number are on the fast path: this many slabs of 64 KiB are a GiB.
const FIRST_SPANS: usize = 1 << 14;

/// The highest number of a span.
const MAX_SPANS: u32 = (1 << 24) - 1;

/// The records of one pool.
pub(crate) struct Metadata {
    spans: Table<Span, FIRST_SPANS>,
    first_spans: NonNull<Span>,
    /// State bytes only. A double free that races with the removal of a slab may exchange a byte in
    /// a run that another slab uses by then. It detects that and restores the byte, which is a
    /// state byte too.
    pub(crate) states: Arena,
    /// All other runs.
    pub(crate) runs: Arena,
}

// SAFETY: the pointer is into the table, which does not move; all else is `Send` and `Sync`.
unsafe impl Send for Metadata {}
// SAFETY: as above.
unsafe impl Sync for Metadata {}

impl Metadata {
    pub(crate) fn new() -> Result<Self> {
        let spans = Table::new(MAX_SPANS);
        let first_spans = NonNull::from(spans.first()?);
        Ok(Self { spans, first_spans, states: Arena::new(), runs: Arena::new() })
    }

    /// Allocates a span number, whose record is not in use.
    pub(crate) fn allocate_span(&self) -> Result<(u32, &Span)> {
        self.spans.allocate()
    }

    /// Releases a span number. Its record is retracted, or was never published.
    pub(crate) fn release_span(&self, number: u32) {
        self.spans.release(number);
    }

    /// Returns the record of a number.
    #[inline]
    pub(crate) fn span(&self, number: u32) -> Option<&Span> {
        self.spans.get(number)
    }

    /// Returns all records, those that are not in use included.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u32, &Span)> {
        (1..self.spans.end()).filter_map(|number| Some((number, self.spans.get(number)?)))
    }

    /// Returns the number of the span that the granule of `address` names. Another pool may have
    /// set it.
    #[inline]
    pub(crate) fn span_number(&self, address: Address) -> Option<u32> {
        tracker::span(address).map(|(_, number)| number)
    }

    /// Returns the span that the granule of `address` names, if it is one of the first.
    #[inline(always)]
    pub(crate) fn first_span_at(&self, address: Address) -> Option<(u32, &Span)> {
        let number = tracker::span_below(address, FIRST_SPANS as u32)?;
        // SAFETY: the first chunk of the table has that many records.
        Some((number, unsafe { self.first_spans.add(number as usize).as_ref() }))
    }

    /// Returns the block around `address`, live or not. Finds a large block only in the granule in
    /// which it begins.
    pub(crate) fn locate(&self, address: Address) -> Option<BlockRef<'_>> {
        // If another pool set the number, the span with it does not contain the address.
        let number = self.span_number(address)?;
        self.span(number)?.locate(number, address)
    }

    /// Returns the block that begins at `address`, live or not.
    pub(crate) fn locate_start(&self, address: Address) -> Option<BlockRef<'_>> {
        let number = self.span_number(address)?;
        self.span(number)?.locate_start(number, address)
    }

    /// Returns the span of a free large block.
    pub(crate) fn large_span(&self, entry: &Entry) -> Option<(u32, &Span)> {
        let number = self.span_number(Address::from_bits(entry.address))?;
        self.span(number).filter(|span| span.kind() == Kind::Block).map(|span| (number, span))
    }
}

const LINE: usize = 64;
const FIRST_LINES: usize = 4096;
const ORDERS: usize = 24;

#[repr(C, align(64))]
struct Line(UnsafeCell<[u8; LINE]>);

// SAFETY: the arena hands each line to one owner at a time, which synchronises access to it.
unsafe impl Sync for Line {}
// SAFETY: bytes of zero are valid.
unsafe impl Zeroable for Line {}

/// A run of lines: its first line, and the logarithm of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    first: u32,
    order: u32,
}

impl Run {
    /// Returns the number of its first line.
    pub(crate) const fn first(self) -> u32 {
        self.first
    }
}

struct ArenaState {
    /// The first line that was never handed out.
    next: u32,
    /// Per order: the first line of the first free run, plus one; 0 for none.
    free: [u32; ORDERS],
}

/// Runs of cache lines, whose lengths are powers of two. A released run serves the next request of
/// its length.
pub(crate) struct Arena {
    lines: Chunks<Line, FIRST_LINES>,
    /// For the first line of a free run: the next run of its order, as in `ArenaState::free`. The
    /// link is not in the run itself, which threads with stale addresses may still read.
    links: Chunks<AtomicU32, FIRST_LINES>,
    state: Lock<ArenaState>,
}

impl Arena {
    pub(crate) const fn new() -> Self {
        Self {
            lines: Chunks::new(),
            links: Chunks::new(),
            state: Lock::new(ArenaState { next: 0, free: [0; ORDERS] }),
        }
    }

    /// Allocates a run of at least `bytes` bytes. Its contents are unspecified.
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
        // Chunk `k` of `Chunks` begins at position FIRST_LINES << k, where positions are indices
        // plus FIRST_LINES. So a run that is aligned to its length, in positions, and no longer
        // than its position lies in one chunk, and is contiguous.
        let position = (state.next as usize + FIRST_LINES).max(lines).next_multiple_of(lines);
        let end = u32::try_from(position - FIRST_LINES + lines).map_err(|_| too_large)?;
        let first = end - lines as u32;
        self.lines.get_or_grow(first)?;
        // So that `release` cannot fail.
        self.links.get_or_grow(first)?;
        let place = self.line(first).ok_or(too_large)?;
        // The lines that the alignment skips become free runs.
        while state.next < first {
            let gap = state.next as usize + FIRST_LINES;
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

    /// Releases a run that is no longer in use.
    pub(crate) fn release(&self, run: Run) {
        self.push(&mut self.state.lock(), run);
    }

    fn push(&self, state: &mut ArenaState, run: Run) {
        if let Some(link) = self.links.get(run.first) {
            link.store(state.free[run.order as usize], Ordering::Relaxed);
            state.free[run.order as usize] = run.first + 1;
        }
    }

    /// Returns the pointer to line `number`; `None` if it was never allocated.
    #[inline]
    pub(crate) fn line(&self, number: u32) -> Option<NonNull<u8>> {
        self.lines.get(number).and_then(|line| NonNull::new(line.0.get().cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_contiguous_disjoint_and_reused() {
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
