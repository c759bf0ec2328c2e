//! Requests: one-sided transfers that the owner of a registered range carries out, where the peer
//! cannot map or read the range.
//!
//! A request is a record in the lane of the requesting process, with the bytes to put. It names one
//! of [`REQUESTS`] answer entries in the owner's lane. An answer therefore needs no space in a
//! ring.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use umf_core::Access;
use umf_sync::failpoint;

use crate::buffer::Cursor;
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::layout::{self, ANSWERS, REQUEST_BYTES, REQUESTS};
use crate::offer::REQUEST;
use crate::peer::Peer;
use crate::protocol::Load;
use crate::queue::Context;
use crate::remote::{Direct, Transfer};
use crate::{Atomic, Error, RemoteKey, Result, Span};

/// Words of a request before the bytes to put.
const WORDS: usize = 4;

/// Statuses of answers.
const DONE: u64 = 1;
const EXPIRED: u64 = 2;
const NOT_ALLOWED: u64 = 3;
const OUTSIDE: u64 = 4;
const FAILED: u64 = 5;

/// The direction of a request for an atomic operation, whose code follows in the same word.
const ATOMIC: u64 = 3;

/// Counters of the requests to one peer, in private memory.
#[derive(Debug)]
pub(crate) struct Requests {
    sent: u64,
    answered: u64,
}

impl Requests {
    pub(crate) const fn new() -> Self {
        Self { sent: 0, answered: 0 }
    }
}

/// A position in the spans of a transfer, from which the next request is cut.
#[derive(Clone, Copy, Debug, Default)]
struct SpanCursor {
    /// The index of the span.
    span: usize,
    /// Bytes of the span before the position.
    skipped: usize,
    /// The offset in the local memory.
    start: usize,
}

impl SpanCursor {
    /// Returns the range of the next request and the position after it; `None` at the end.
    fn next_range(self, spans: &[Span]) -> Option<(Span, Self)> {
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

/// The progress of a transfer that the owner carries out.
struct RequestedTransfer<'t> {
    transfer: &'t Transfer<'t>,
    channel: Arc<Channel>,
    next: SpanCursor,
    /// Local offset and length of each request without an answer. The length is 0 for requests of
    /// an earlier transfer, which ended with an error.
    outstanding: [(usize, usize); REQUESTS as usize],
    /// The first status of an answer that is not [`DONE`].
    failed: Option<u64>,
}

impl RequestedTransfer<'_> {
    /// Reads answers, in the order of the requests.
    fn read_answers(&mut self, peer: &mut Peer) {
        while peer.requests.answered < peer.requests.sent {
            let number = peer.requests.answered;
            let answer = self.channel.peer_lane.word(layout::answer(number)).load(Ordering::Acquire);
            if answer as u32 != number as u32 || answer >> 32 == 0 {
                return;
            }
            let (start, length) = core::mem::take(&mut self.outstanding[(number % REQUESTS) as usize]);
            match answer >> 32 {
                DONE if self.transfer.direction == Direct::Get => {
                    let from = self.channel.peer_lane.bytes(layout::answer_bytes(number), length);
                    let mut to = Cursor::at(self.transfer.local.segments(), start);
                    // SAFETY: `from` has `length` bytes of the lane; the caller's memory has as
                    // many from `start` on.
                    unsafe { to.copy_in(from, length) };
                }
                DONE => {}
                status if length > 0 => self.failed = self.failed.or(Some(status)),
                _ => {}
            }
            peer.requests.answered += 1;
        }
    }

    /// Sends requests while answer entries are free and the lane has space.
    fn send_requests(&mut self, peer: &mut Peer) -> Result<()> {
        while self.failed.is_none()
            && peer.requests.sent - peer.requests.answered < REQUESTS
            && let Some((range, following)) = self.next.next_range(self.transfer.spans.as_slice())
        {
            let put = if self.transfer.direction == Direct::Put { range.length } else { 0 };
            if range.length > 0 && !peer.writer.has_space(&self.channel, 8 * WORDS + put)? {
                return Ok(());
            }
            let start = self.next.start;
            self.next = following;
            if range.length > 0 {
                self.send_request(peer, range, start, put);
            }
        }
        Ok(())
    }

    /// Sends a request for a range, with `put` bytes of the local memory from `start` on.
    fn send_request(&mut self, peer: &mut Peer, range: Span, start: usize, put: usize) {
        let Self { transfer, channel, outstanding, .. } = self;
        outstanding[(peer.requests.sent % REQUESTS) as usize] = (start, range.length);
        let first = u64::from(peer.requests.sent as u32) | (transfer.direction as u64) << 32;
        let slot = (transfer.key.slot as u64) << 32 | range.length as u64;
        let words = [first, slot, transfer.key.generation, range.offset as u64];
        let mut bytes = Vec::with_capacity(8 * WORDS + put);
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.resize(8 * WORDS + put, 0);
        // SAFETY: the caller's memory has `put` bytes from `start` on, and the vector as many after
        // the words.
        unsafe {
            let to = bytes.as_mut_ptr().add(8 * WORDS);
            Cursor::at(transfer.local.segments(), start).copy_out(to, put);
        }
        let mut rest = &bytes[..];
        peer.writer.write(channel, (REQUEST, Context::Messages), 0, bytes.len(), |to, count| {
            let (chunk, after) = rest.split_at(count);
            // SAFETY: `write` passes `count` bytes of the lane.
            unsafe { core::ptr::copy_nonoverlapping(chunk.as_ptr(), to, count) };
            rest = after;
        });
        peer.requests.sent += 1;
        failpoint!("link.asked");
    }

    fn is_done(&self, peer: &Peer) -> bool {
        let is_sent = self.failed.is_some() || self.next.span >= self.transfer.spans.as_slice().len();
        is_sent && peer.requests.answered == peer.requests.sent
    }
}

impl Inbox {
    /// Carries a transfer out by requests to the owner of the range. After an error, a part of the
    /// bytes may have been copied, and the owner still carries out requests that it has not read.
    pub(crate) fn transfer_by_requests(&mut self, index: usize, transfer: &Transfer<'_>) -> Result<()> {
        let channel = Arc::clone(&self.peer(index).channel);
        channel.populate_peer(ANSWERS)?;
        let guard = transfer.local.begin_access(transfer.direction.local())?;
        let mut requested = RequestedTransfer {
            transfer,
            channel: Arc::clone(&channel),
            next: SpanCursor::default(),
            outstanding: [(0, 0); REQUESTS as usize],
            failed: None,
        };
        let mut limit = self.limit();
        let copied = self.wait(Some(index), &mut limit, "a one-sided transfer", |inbox| {
            let peer = inbox.peer(index);
            // Before the answers, so that answers from before the end of the registration are read.
            let is_current = transfer.is_current(&channel);
            requested.read_answers(peer);
            requested.send_requests(peer)?;
            let is_done = requested.is_done(peer);
            if is_done || is_current { Ok(is_done.then_some(())) } else { Err(transfer.expired()) }
        });
        drop(guard);
        copied?;
        match requested.failed {
            None => Ok(()),
            Some(EXPIRED) => Err(transfer.expired()),
            Some(NOT_ALLOWED) => Err(transfer.not_allowed()),
            Some(OUTSIDE) => {
                let (offset, size) = (transfer.key.len(), transfer.key.len());
                Err(Error::OutOfBounds { offset, length: transfer.local.len(), size })
            }
            Some(FAILED) => Err(Error::RemoteFailed { pid: channel.pid }),
            Some(_) => Err(channel.misbehaved("it answers a request with an unknown status")),
        }
    }

    /// Reads and carries out the request that is the next record of a peer. The request is checked
    /// against the registry, so that no byte outside of a registered range is read or written.
    pub(crate) fn serve_request(&mut self, index: usize, length: usize) -> Result<()> {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        // Before the request is read, so that it stays in the ring if no memory is left.
        channel.populate(ANSWERS)?;
        // Copied, because the peer may change its lane.
        let bytes = peer.reader.read_bytes(&channel, length);
        let Some((words, put)) = bytes.split_at_checked(8 * WORDS) else {
            return Err(channel.misbehaved("a request is too short"));
        };
        let word = |number: usize| u64::from_ne_bytes(core::array::from_fn(|byte| words[8 * number + byte]));
        let number = u64::from(word(0) as u32);
        let status = self.execute_request(&channel, [word(0) >> 32, word(1), word(2), word(3)], number, put);
        if status == DONE {
            let bytes = (word(1) as u32) as usize;
            self.peer(index).statistics.served.add(bytes);
        }
        channel.own_lane.word(layout::answer(number)).store(number | status << 32, Ordering::Release);
        failpoint!("link.served");
        channel.notify();
        Ok(())
    }

    /// Returns the status for the answer.
    fn execute_request(
        &self,
        channel: &Channel,
        [direction, slot, generation, offset]: [u64; WORDS],
        number: u64,
        put: &[u8],
    ) -> u64 {
        let direction = match direction {
            1 => Direct::Get,
            2 => Direct::Put,
            code if code & 0xff == ATOMIC => {
                return self.execute_atomic(channel, [code >> 8, slot, generation, offset], number, put);
            }
            _ => return NOT_ALLOWED,
        };
        let (slot, length) = ((slot >> 32) as usize, slot as u32 as usize);
        let registry = self.shared.registry();
        let Some(range) = registry.find(slot, generation) else { return EXPIRED };
        if !direction.is_allowed(range.access) {
            return NOT_ALLOWED;
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= range.buffer.len());
        if !is_inside || length > REQUEST_BYTES || direction == Direct::Put && length != put.len() {
            return OUTSIDE;
        }
        let access = if direction == Direct::Get { Access::ReadOnly } else { Access::ReadWrite };
        let Ok(guard) = range.buffer.begin_access(access) else { return FAILED };
        let mut local = Cursor::at(range.buffer.segments(), offset);
        let answer = channel.own_lane.bytes(layout::answer_bytes(number), length);
        match direction {
            // SAFETY: the bytes lie in the range by the check above. The memory of a range is valid
            // while it is in the registry, whose lock is held. The answer has `length` bytes.
            Direct::Get => unsafe { local.copy_out(answer.as_ptr(), length) },
            // SAFETY: as above; `put` has `length` bytes.
            Direct::Put => unsafe { local.copy_in(put.as_ptr(), length) },
        }
        drop(guard);
        DONE
    }

    /// As [`Inbox::execute_request`], for an atomic operation.
    fn execute_atomic(
        &self,
        channel: &Channel,
        [code, slot, generation, offset]: [u64; WORDS],
        number: u64,
        bytes: &[u8],
    ) -> u64 {
        let Some(atomic) = Atomic::from_code(code) else { return NOT_ALLOWED };
        let (slot, length) = ((slot >> 32) as usize, slot as u32 as usize);
        let registry = self.shared.registry();
        let Some(range) = registry.find(slot, generation) else { return EXPIRED };
        if !range.access.allows_get() || atomic.writes() && !range.access.allows_put() {
            return NOT_ALLOWED;
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= range.buffer.len());
        let operands = length * if atomic.compares() { 2 } else { 1 };
        if !is_inside || length > Atomic::MOST_BYTES || operands != bytes.len() {
            return OUTSIDE;
        }
        let base = range.buffer.segments()[0].base.wrapping_add(offset);
        if !base.addr().is_multiple_of(atomic.size()) || !length.is_multiple_of(atomic.size()) {
            return FAILED;
        }
        let Ok(guard) = range.buffer.begin_access(Access::ReadWrite) else { return FAILED };
        let (operands, compared) = bytes.split_at(length);
        let mut previous = vec![0; length];
        // SAFETY: the bytes lie in the range by the check above, and are aligned. The memory of a
        // range is valid while it is in the registry, whose lock is held.
        unsafe { atomic.execute(base, operands, compared, &mut previous) };
        drop(guard);
        let answer = channel.own_lane.bytes(layout::answer_bytes(number), length);
        // SAFETY: both have `length` bytes.
        unsafe { core::ptr::copy_nonoverlapping(previous.as_ptr(), answer.as_ptr(), length) };
        DONE
    }

    /// Has the owner of a range execute an atomic operation, and waits for it. `bytes` are the
    /// operands, and after them as many bytes of second operands if the operation has some. Copies
    /// the previous numbers to `previous`.
    pub(crate) fn request_atomic(
        &mut self,
        index: usize,
        key: &RemoteKey,
        offset: usize,
        atomic: Atomic,
        (operands, previous): (&[u8], &mut [u8]),
    ) -> Result<()> {
        let channel = Arc::clone(&self.peer(index).channel);
        channel.populate_peer(ANSWERS)?;
        let slot = (key.slot as u64) << 32 | previous.len() as u64;
        let (mut asked, mut status) = (None, None);
        let mut limit = self.limit();
        self.wait(Some(index), &mut limit, "an atomic operation", |inbox| {
            let peer = inbox.peer(index);
            let length = 8 * WORDS + operands.len();
            let is_free = peer.requests.sent - peer.requests.answered < REQUESTS;
            if asked.is_none() && is_free && peer.writer.has_space(&channel, length)? {
                let number = peer.requests.sent;
                let first = u64::from(number as u32) | (ATOMIC | atomic.code() << 8) << 32;
                let words = [first, slot, key.generation, offset as u64];
                let bytes: Vec<u8> = words
                    .iter()
                    .flat_map(|word| word.to_ne_bytes())
                    .chain(operands.iter().copied())
                    .collect();
                let mut rest = &bytes[..];
                peer.writer.write(&channel, (REQUEST, Context::Messages), 0, length, |to, count| {
                    let (chunk, after) = rest.split_at(count);
                    // SAFETY: `write` passes `count` bytes of the lane.
                    unsafe { core::ptr::copy_nonoverlapping(chunk.as_ptr(), to, count) };
                    rest = after;
                });
                peer.requests.sent += 1;
                asked = Some(number);
                failpoint!("link.asked");
            }
            while peer.requests.answered < peer.requests.sent {
                let number = peer.requests.answered;
                let answer = channel.peer_lane.word(layout::answer(number)).load(Ordering::Acquire);
                if answer as u32 != number as u32 || answer >> 32 == 0 {
                    break;
                }
                if asked == Some(number) {
                    let from = channel.peer_lane.bytes(layout::answer_bytes(number), previous.len());
                    // SAFETY: both have that many bytes; the peer may write its lane at any time.
                    unsafe { core::ptr::copy(from, previous.as_mut_ptr(), previous.len()) };
                    status = Some(answer >> 32);
                }
                peer.requests.answered += 1;
            }
            Ok(status)
        })
        .and_then(|status| match status {
            DONE => Ok(()),
            EXPIRED => Err(Error::Expired { slot: key.slot, generation: key.generation }),
            NOT_ALLOWED => {
                Err(Error::NotAllowed { what: "change by atomic operations", allowed: key.access })
            }
            OUTSIDE => Err(Error::OutOfBounds { offset, length: previous.len(), size: key.len() }),
            FAILED => Err(Error::RemoteFailed { pid: channel.pid }),
            _ => Err(channel.misbehaved("it answers a request with an unknown status")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_cover_all_spans_in_order() {
        let spans: Vec<Span> = [(5, 40_000), (90_000, 1), (0, 5), (7, REQUEST_BYTES)]
            .into_iter()
            .map(|(offset, length)| Span { offset, length })
            .collect();
        let bytes = |span: &Span| span.offset..span.offset + span.length;
        let (mut cursor, mut requested) = (SpanCursor::default(), Vec::new());
        while let Some((range, next)) = cursor.next_range(&spans) {
            assert_eq!(cursor.start, requested.len());
            assert!((1..=REQUEST_BYTES).contains(&range.length));
            requested.extend(bytes(&range));
            cursor = next;
        }
        assert_eq!(requested, spans.iter().flat_map(bytes).collect::<Vec<_>>());
    }
}
