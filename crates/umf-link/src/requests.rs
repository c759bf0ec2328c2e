//! Requests: transfers that the owner of a range carries out, because the peer cannot reach the
//! range.
//!
//! A request is a record in the lane of the process that asks, with the bytes to put. The answer
//! goes to one of a few entries in the owner's lane, which the request chooses: answers need no
//! room in a ring.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::Access;
use umf_sync::failpoint;

use crate::inbox::Inbox;
use crate::layout::{self, ANSWERS, REQUEST_BYTES, REQUESTS};
use crate::offer::REQUEST;
use crate::parts::Cursor;
use crate::protocol::Load;
use crate::queue::Context;
use crate::remote::{Direct, Transfer};
use crate::wait::Limit;
use crate::{Error, Result, Span};

const WORDS: usize = 4;

/// What the owner answers.
const DONE: u64 = 1;
const EXPIRED: u64 = 2;
const NOT_ALLOWED: u64 = 3;
const OUTSIDE: u64 = 4;
const FAILED: u64 = 5;

/// Requests to one peer. No other process can write it.
#[derive(Debug)]
pub(crate) struct Requests {
    made: u64,
    answered: u64,
}

/// A piece of a transfer: what one request asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    /// Index of the span.
    span: usize,
    /// Bytes of the span before it.
    skipped: usize,
    /// Offset in the local memory.
    start: usize,
}

impl Piece {
    /// Returns the range of the piece and the next piece; `None` behind the last one.
    fn cut(self, spans: &[Span]) -> Option<(Span, Self)> {
        let span = spans.get(self.span)?;
        let length = (span.length - self.skipped).min(REQUEST_BYTES);
        let range = Span { offset: span.offset + self.skipped, length };
        let (skipped, start) = (self.skipped + length, self.start + length);
        let next = if skipped == span.length {
            Self { span: self.span + 1, skipped: 0, start }
        } else {
            Self { skipped, start, ..self }
        };
        Some((range, next))
    }
}

impl Requests {
    pub(crate) const fn new() -> Self {
        Self { made: 0, answered: 0 }
    }
}

impl Inbox {
    /// Carries a transfer out by requests to the owner. After an error a part of it may have been
    /// copied, and requests that were made are carried out when the owner reads them.
    pub(crate) fn transfer_by_requests(&mut self, index: usize, transfer: &Transfer<'_>) -> Result<()> {
        let channel = Arc::clone(&self.peer(index).channel);
        channel.populate_peer(ANSWERS)?;
        let time = transfer.local.touch(transfer.direction.local())?;
        let spans = transfer.spans.as_slice();
        let mut next = Piece::default();
        // Local offset and length of each request without an answer. Those of a transfer that was
        // given up have no length.
        let mut open = [(0, 0); REQUESTS as usize];
        let mut failed = None;
        let mut limit = Limit::new(self.timeout);
        let copied = self.wait(Some(index), &mut limit, "a one-sided transfer", |inbox| {
            let peer = inbox.peer(index);
            // Before the answers, so that those which came before the end of the range are read.
            let is_current = transfer.is_current(&channel);
            while peer.requests.answered < peer.requests.made {
                let number = peer.requests.answered;
                let answer = channel.peer_lane.word(layout::answer(number)).load(Ordering::Acquire);
                if answer as u32 != number as u32 || answer >> 32 == 0 {
                    break;
                }
                let (start, length) = core::mem::take(&mut open[(number % REQUESTS) as usize]);
                match answer >> 32 {
                    DONE if transfer.direction == Direct::Get => {
                        let from = channel.peer_lane.bytes(layout::answer_bytes(number), length);
                        let mut to = Cursor::at(transfer.local.parts(), start);
                        // SAFETY: bytes of the lane, and the caller's memory from there on.
                        unsafe { to.copy_in(from, length) };
                    }
                    DONE => {}
                    status if length > 0 => failed = failed.or(Some(status)),
                    _ => {}
                }
                peer.requests.answered += 1;
            }
            while failed.is_none()
                && peer.requests.made - peer.requests.answered < REQUESTS
                && let Some((range, following)) = next.cut(spans)
            {
                let put = if transfer.direction == Direct::Put { range.length } else { 0 };
                if range.length > 0 && !peer.writer.has_room(&channel, 8 * WORDS + put)? {
                    break;
                }
                let start = next.start;
                next = following;
                if range.length > 0 {
                    open[(peer.requests.made % REQUESTS) as usize] = (start, range.length);
                    let what = u64::from(peer.requests.made as u32) | (transfer.direction as u64) << 32;
                    let slot = (transfer.key.slot as u64) << 32 | range.length as u64;
                    let words = [what, slot, transfer.key.generation, range.offset as u64];
                    let mut bytes = Vec::with_capacity(8 * WORDS + put);
                    bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
                    bytes.resize(8 * WORDS + put, 0);
                    // SAFETY: the caller's memory, and as many bytes of the vector.
                    unsafe {
                        let to = bytes.as_mut_ptr().add(8 * WORDS);
                        Cursor::at(transfer.local.parts(), start).copy_out(to, put);
                    }
                    let mut from = &bytes[..];
                    let kind = (REQUEST, Context::Messages);
                    peer.writer.write(&channel, kind, 0, bytes.len(), |to, count| {
                        let (piece, rest) = from.split_at(count);
                        // SAFETY: `write` has room for `count` bytes.
                        unsafe { core::ptr::copy_nonoverlapping(piece.as_ptr(), to, count) };
                        from = rest;
                    });
                    peer.requests.made += 1;
                    failpoint!("link.asked");
                }
            }
            let is_over = failed.is_some() || next.span >= spans.len();
            let is_done = is_over && peer.requests.answered == peer.requests.made;
            if is_done || is_current { Ok(is_done.then_some(())) } else { Err(transfer.expired()) }
        });
        drop(time);
        copied?;
        match failed {
            None => Ok(()),
            Some(EXPIRED) => Err(transfer.expired()),
            Some(NOT_ALLOWED) => Err(transfer.not_allowed()),
            Some(OUTSIDE) => {
                let (offset, size) = (transfer.key.len(), transfer.key.len());
                Err(Error::OutOfBounds { offset, length: transfer.local.len(), size })
            }
            Some(FAILED) => Err(Error::RemoteFailed { pid: channel.pid }),
            Some(_) => Err(channel.misbehaved("it answers a request with something unknown")),
        }
    }

    /// Carries the next record of a peer out, which is a request. It is checked against the
    /// registry, so that no byte outside of a range is read or written.
    pub(crate) fn serve(&mut self, index: usize, length: usize) -> Result<()> {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        // First, so that the request stays if there is no memory for its answer.
        channel.populate(ANSWERS)?;
        // Read once: the peer may write its lane meanwhile.
        let bytes = peer.reader.read_bytes(&channel, length);
        let Some((words, put)) = bytes.split_at_checked(8 * WORDS) else {
            return Err(channel.misbehaved("a request is too short"));
        };
        let word = |number: usize| u64::from_ne_bytes(core::array::from_fn(|byte| words[8 * number + byte]));
        let number = u64::from(word(0) as u32);
        let status = self.carry_out(&channel, [word(0) >> 32, word(1), word(2), word(3)], number, put);
        if status == DONE {
            let bytes = (word(1) as u32) as usize;
            self.peer(index).statistics.served.add(bytes);
        }
        channel.own_lane.word(layout::answer(number)).store(number | status << 32, Ordering::Release);
        failpoint!("link.served");
        channel.notify();
        Ok(())
    }

    fn carry_out(
        &self,
        channel: &crate::channel::Channel,
        [direction, slot, generation, offset]: [u64; WORDS],
        number: u64,
        put: &[u8],
    ) -> u64 {
        let direction = match direction {
            1 => Direct::Get,
            2 => Direct::Put,
            _ => return NOT_ALLOWED,
        };
        let (slot, length) = ((slot >> 32) as usize, slot as u32 as usize);
        let registry = self.shared.registry();
        let Some(range) = registry.find(slot, generation) else { return EXPIRED };
        if !direction.is_allowed(range.access) {
            return NOT_ALLOWED;
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= range.list.len());
        if !is_inside || length > REQUEST_BYTES || direction == Direct::Put && length != put.len() {
            return OUTSIDE;
        }
        let access = if direction == Direct::Get { Access::ReadOnly } else { Access::ReadWrite };
        let Ok(time) = range.list.touch(access) else { return FAILED };
        let mut here = Cursor::at(range.list.parts(), offset);
        let answer = channel.own_lane.bytes(layout::answer_bytes(number), length);
        match direction {
            // SAFETY: in the range by the check above. The range is there while it is in the
            // registry, whose lock is held. The answer has room for `length` bytes.
            Direct::Get => unsafe { here.copy_out(answer.as_ptr(), length) },
            // SAFETY: as above; `put` has `length` bytes.
            Direct::Put => unsafe { here.copy_in(put.as_ptr(), length) },
        }
        drop(time);
        DONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_spans_in_order() {
        let spans: Vec<Span> = [(5, 40_000), (90_000, 1), (0, 5), (7, REQUEST_BYTES)]
            .into_iter()
            .map(|(offset, length)| Span { offset, length })
            .collect();
        let bytes = |span: &Span| span.offset..span.offset + span.length;
        let (mut piece, mut cut) = (Piece::default(), Vec::new());
        while let Some((range, next)) = piece.cut(&spans) {
            assert_eq!(piece.start, cut.len());
            assert!((1..=REQUEST_BYTES).contains(&range.length));
            cut.extend(bytes(&range));
            piece = next;
        }
        assert_eq!(cut, spans.iter().flat_map(bytes).collect::<Vec<_>>());
    }
}
