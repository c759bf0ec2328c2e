//! Transfers that the owner of a range does, at the request of this side: what is possible everywhere, and reaches nothing that is
//! not registered.

use core::sync::atomic::Ordering;

use umf_core::Access;
use umf_sync::failpoint;

use super::{Asking, Span, Transfer, Way};
use crate::layout::{self, ANSWERING, ASKING, CALL_BYTES, CALL_SPANS, CALLS};
use crate::parts::Cursor;
use crate::protocol::{self, Load, Offered};
use crate::shared::Shared;
use crate::wait::wait;
use crate::{Error, Result};

/// What the owner answers.
pub(super) const DONE: u64 = 1;
pub(super) const EXPIRED: u64 = 2;
pub(super) const NOT_ALLOWED: u64 = 3;
pub(super) const OUTSIDE: u64 = 4;
pub(super) const FAILED: u64 = 5;
pub(super) const WITHDRAWN: u64 = 6;

/// Tells requests in one place apart. Fresh memory is no request, as that is 0 altogether.
pub(super) const fn number(call: u64) -> u32 {
    call as u32
}

/// The answer to a request.
pub(super) const fn answer(call: u64, status: u64) -> u64 {
    number(call) as u64 | status << 32
}

/// What is asked for.
pub(super) const fn question(way: Way, slot: usize, spans: usize) -> u64 {
    way as u64 | (slot as u64) << 8 | (spans as u64) << 32
}

/// The requests of this side. No other process can write it.
#[derive(Debug)]
pub(super) struct Calls {
    /// Requests that were made, and how many of them were answered.
    made: u64,
    answered: u64,
}

/// A piece of a transfer: as much as goes in one request.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The first span, and how much of it was asked for before.
    span: usize,
    skipped: usize,
    /// Where it begins in the local memory.
    start: usize,
}

impl Piece {
    /// What is asked for now, and the next piece.
    fn cut(self, all: &[Span], into: &mut Vec<Span>) -> (usize, Self) {
        into.clear();
        let (mut next, mut length) = (self, 0);
        while let Some(span) = all.get(next.span)
            && into.len() < CALL_SPANS
            && length < CALL_BYTES
        {
            let count = (span.length - next.skipped).min(CALL_BYTES - length);
            into.push(Span { offset: span.offset + next.skipped, length: count });
            length += count;
            next.skipped += count;
            if next.skipped == span.length {
                next.span += 1;
                next.skipped = 0;
            }
        }
        next.start += length;
        (length, next)
    }
}

impl Calls {
    pub(super) const fn new() -> Self {
        Self { made: 0, answered: 0 }
    }

    /// Copies all of it, or fails; what was copied until then stays copied.
    pub(super) fn transfer(&mut self, asking: &mut Asking<'_>, transfer: &Transfer<'_>) -> Result<()> {
        let shared = asking.shared;
        shared.populate(ASKING)?;
        shared.populate_theirs(ANSWERING)?;
        let access = if transfer.way == Way::Get { Access::ReadWrite } else { Access::ReadOnly };
        let time = transfer.local.touch(access)?;
        let mut next = Piece { span: 0, skipped: 0, start: 0 };
        let mut spans: Vec<Span> = Vec::with_capacity(CALL_SPANS);
        // Of the requests that are made and not answered: where they begin here, and how long they are. Those of a transfer before
        // this one, which was given up, have no bytes.
        let mut open = [(0, 0); CALLS as usize];
        let mut failed = None;
        let copied = wait(shared, asking.pulse, &mut asking.limit, "a one-sided transfer", |_| {
            // Looked at before the answers, so that those which came before the end are seen.
            let is_current = transfer.is_current(shared);
            while self.answered < self.made {
                let (start, length) = open[(self.answered % CALLS) as usize];
                let Some(status) = status(shared, self.answered) else { break };
                open[(self.answered % CALLS) as usize] = (0, 0);
                if status == DONE && transfer.way == Way::Get {
                    let from = shared.theirs.bytes(layout::answer_bytes(self.answered), length);
                    let mut to = Cursor::at(transfer.local.parts(), start);
                    // SAFETY: bytes of the lane, and the caller's memory, which has that many from there on.
                    unsafe { to.copy_in(from, length) };
                } else if length > 0 && status != DONE {
                    failed.get_or_insert(status);
                }
                self.answered += 1;
            }
            while failed.is_none()
                && self.made - self.answered < CALLS
                && next.span < transfer.spans.as_slice().len()
            {
                let start = next.start;
                let (length, following) = next.cut(transfer.spans.as_slice(), &mut spans);
                next = following;
                if length > 0 {
                    open[(self.made % CALLS) as usize] = (start, length);
                    self.make(shared, transfer, &spans, (start, length));
                }
            }
            if !is_current && failed.is_none() && (self.answered < self.made) {
                return Err(transfer.expired());
            }
            let is_over = failed.is_some() || next.span >= transfer.spans.as_slice().len();
            Ok((is_over && self.answered == self.made).then_some(()))
        });
        drop(time);
        if copied.is_err() {
            self.withdraw(shared);
        }
        copied?;
        match failed {
            None => Ok(()),
            Some(EXPIRED) => Err(transfer.expired()),
            Some(NOT_ALLOWED) => Err(transfer.not_allowed()),
            Some(OUTSIDE) => Err(Error::OutOfBounds {
                offset: transfer.key.len(),
                length: transfer.local.len(),
                size: transfer.key.len(),
            }),
            Some(FAILED) => Err(Error::RemoteFailed { pid: shared.pid }),
            Some(_) => Err(shared.misbehaved("it answers what there is not")),
        }
    }

    fn make(
        &mut self,
        shared: &Shared,
        transfer: &Transfer<'_>,
        spans: &[Span],
        (start, length): (usize, usize),
    ) {
        let (lane, call) = (&shared.mine, self.made);
        if transfer.way == Way::Put {
            let to = lane.bytes(layout::asked_bytes(call), length);
            // SAFETY: the caller's memory, which has that many bytes from there on; room in the lane that the other side reads after
            // the request alone.
            unsafe { Cursor::at(transfer.local.parts(), start).copy_out(to.as_ptr(), length) };
        }
        for (index, span) in spans.iter().enumerate() {
            let at = layout::asked_span(call, index);
            lane.word(at).store(span.offset as u64, Ordering::Relaxed);
            lane.word(at + 8).store(span.length as u64, Ordering::Relaxed);
        }
        let asked = question(transfer.way, transfer.key.slot, spans.len());
        for (word, value) in [asked, transfer.key.generation].into_iter().enumerate() {
            lane.word(layout::asked_word(call, word)).store(value, Ordering::Relaxed);
        }
        // Release: all of the above comes before it.
        lane.word(layout::asked(call))
            .store(protocol::offered(number(call), Offered::Open), Ordering::Release);
        self.made += 1;
        failpoint!("link.asked");
        shared.notify();
    }

    /// Takes back what the other side has not begun.
    fn withdraw(&self, shared: &Shared) {
        for call in self.answered..self.made {
            protocol::withdraw(shared.mine.word(layout::asked(call)), number(call));
        }
        shared.notify();
    }
}

/// What was answered to a request, if it was.
fn status(shared: &Shared, call: u64) -> Option<u64> {
    let now = shared.theirs.word(layout::answer(call)).load(Ordering::Acquire);
    (now as u32 == number(call) && now >> 32 != 0).then_some(now >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_it_in_order() {
        let all: Vec<Span> = [(5, 40_000), (90_000, 1), (0, 5), (7, 16_384)]
            .into_iter()
            .chain((0..300).map(|number| (200_000 + 10 * number, 3)))
            .map(|(offset, length)| Span { offset, length })
            .collect();
        let bytes = |spans: &[Span]| -> Vec<usize> {
            spans.iter().flat_map(|span| span.offset..span.offset + span.length).collect()
        };
        let (mut piece, mut spans, mut cut) =
            (Piece { span: 0, skipped: 0, start: 0 }, Vec::new(), Vec::new());
        while piece.span < all.len() {
            let start = piece.start;
            let (length, next) = piece.cut(&all, &mut spans);
            assert_eq!((start, length), (cut.len(), bytes(&spans).len()));
            assert!((1..=CALL_BYTES).contains(&length) && spans.len() <= CALL_SPANS);
            cut.extend(bytes(&spans));
            piece = next;
        }
        assert_eq!(cut, bytes(&all));
    }
}
