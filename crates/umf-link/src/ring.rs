//! The two ends of the rings of a lane: [`Writer`] and [`Reader`]. Their positions are in private
//! memory, which no peer can write.

use core::sync::atomic::Ordering;

use umf_sync::failpoint;

use crate::channel::Channel;
use crate::layout::{self, FIRST, FIRST_PAYLOAD, LARGE_RING, NEXT, NEXT_PAYLOAD, Ring};
use crate::offer::{GROWN, INLINE};
use crate::protocol::{self, Load, SlotHeader};
use crate::queue::Context;
use crate::{Error, Result};

/// The sending end of a lane.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Ring,
    /// Slots that were used.
    sent: u64,
    /// Slots that are known to be consumed.
    consumed: u64,
}

impl Writer {
    pub(crate) const fn new() -> Self {
        Self { ring: Ring::Small, sent: 0, consumed: 0 }
    }

    /// Returns whether the ring has space for a record of this length. Switches to the large ring
    /// if the small one is too small.
    #[inline]
    pub(crate) fn has_space(&mut self, channel: &Channel, length: usize) -> Result<bool> {
        if self.ring == Ring::Large {
            return self.has_slots(channel, layout::slots(length));
        }
        // One slot is reserved for the record that announces the large ring.
        let fits = length <= self.ring.longest() && self.has_slots(channel, layout::slots(length) + 1)?;
        if fits { Ok(true) } else { self.grow(channel, length) }
    }

    /// Returns whether a record of this length fits into the slots that are known to be free.
    #[inline]
    pub(crate) const fn has_known_space(&self, length: usize) -> bool {
        let reserved = if matches!(self.ring, Ring::Small) { 1 } else { 0 };
        let used = self.sent.wrapping_sub(self.consumed);
        length <= self.ring.longest() && used + layout::slots(length) + reserved <= self.ring.slots()
    }

    #[inline]
    fn has_slots(&mut self, channel: &Channel, slots: u64) -> Result<bool> {
        let words = (&channel.peer_lane.word(layout::CONSUMED), channel.own_lane.word(layout::WANTS_SPACE));
        protocol::has_space(words, &mut self.consumed, self.sent, slots, self.ring.slots())
            .ok_or(channel.misbehaved("it claims to have consumed more than was sent"))
    }

    #[cold]
    fn grow(&mut self, channel: &Channel, length: usize) -> Result<bool> {
        match channel.populate(LARGE_RING) {
            Ok(()) => {}
            // The small ring will have space.
            Err(error) if length <= Ring::Small.longest() => {
                tracing::debug!(%error, "a ring stays small");
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.write(channel, (GROWN, Context::Messages), 0, 0, |_, _| {});
        self.ring = Ring::Large;
        failpoint!("link.grown");
        self.has_slots(channel, layout::slots(length))
    }

    /// Writes a record for which the ring has space. Calls `fill` for each piece of the payload.
    #[inline]
    pub(crate) fn write(
        &mut self,
        channel: &Channel,
        (kind, context): (u8, Context),
        tag: u64,
        length: usize,
        mut fill: impl FnMut(*mut u8, usize),
    ) {
        let (lane, ring, first) = (&channel.own_lane, self.ring, self.sent);
        let at = ring.slot(first);
        lane.word(at + 8).store(tag, Ordering::Relaxed);
        let count = length.min(FIRST_PAYLOAD);
        fill(lane.bytes(at + FIRST, count).as_ptr(), count);
        let mut left = length - count;
        let mut number = first + 1;
        while left > 0 {
            let at = ring.slot(number);
            protocol::go_on(lane.word(at), number);
            let count = left.min(NEXT_PAYLOAD);
            fill(lane.bytes(at + NEXT, count).as_ptr(), count);
            left -= count;
            number += 1;
        }
        let header = SlotHeader { kind, length: length as u16, context: context as u8 };
        protocol::announce(lane.word(at), first, header);
        self.sent = number;
        failpoint!("link.sent");
        channel.notify();
    }

    /// Writes a record whose payload is `words`, for which the ring has space.
    #[inline]
    pub(crate) fn write_words(&mut self, channel: &Channel, kind: (u8, Context), tag: u64, words: &[u64]) {
        let mut from = words.as_ptr().cast::<u8>();
        self.write(channel, kind, tag, size_of_val(words), |to, count| {
            // SAFETY: `write` passes `count` bytes of the lane, in total the size of `words`.
            unsafe { core::ptr::copy_nonoverlapping(from, to, count) };
            from = from.wrapping_add(count);
        });
    }
}

/// The header of the next record of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordHeader {
    pub kind: u8,
    pub context: Context,
    pub tag: u64,
    pub length: usize,
}

/// The receiving end of a lane.
#[derive(Debug)]
pub(crate) struct Reader {
    ring: Ring,
    /// The next slot to read.
    next: u64,
    /// Slots that the sender knows to be consumed.
    published: u64,
}

impl Reader {
    pub(crate) const fn new() -> Self {
        Self { ring: Ring::Small, next: 0, published: 0 }
    }

    /// Spins for the next record. Returns tag and length if the record arrives and is a short
    /// message.
    #[inline]
    pub(crate) fn spin_for_inline(&self, channel: &Channel, times: u32) -> Option<(u64, usize)> {
        let at = self.ring.slot(self.next);
        let word = channel.peer_lane.word(at);
        let header = (0..times).find_map(|_| protocol::arrived(&word, self.next))?;
        let length = usize::from(header.length);
        let is_short = header.kind == INLINE && header.context == Context::Messages as u8;
        let tag = channel.peer_lane.word(at + 8).load(Ordering::Relaxed);
        (is_short && length <= self.ring.longest()).then_some((tag, length))
    }

    /// Returns whether the next record has arrived.
    #[inline]
    pub(crate) fn has_record(&self, channel: &Channel) -> bool {
        protocol::arrived(&channel.peer_lane.word(self.ring.slot(self.next)), self.next).is_some()
    }

    /// Returns the header of the next record, if the record has arrived.
    #[inline]
    pub(crate) fn peek(&mut self, channel: &Channel) -> Result<Option<RecordHeader>> {
        loop {
            let at = self.ring.slot(self.next);
            let Some(header) = protocol::arrived(&channel.peer_lane.word(at), self.next) else {
                return Ok(None);
            };
            let length = usize::from(header.length);
            let context = match header.context {
                0 => Context::Messages,
                1 => Context::Collectives,
                2 => Context::Untagged,
                3 => Context::Transfers,
                _ => return Err(channel.misbehaved("a record has an unknown context")),
            };
            if length > self.ring.longest() {
                return Err(channel.misbehaved("a record is longer than its ring allows"));
            }
            if header.kind != GROWN {
                let tag = channel.peer_lane.word(at + 8).load(Ordering::Relaxed);
                return Ok(Some(RecordHeader { kind: header.kind, context, tag, length }));
            }
            if self.ring == Ring::Large {
                return Err(channel.misbehaved("its large ring announces another one"));
            }
            channel.populate_peer(LARGE_RING)?;
            self.next += 1;
            self.ring = Ring::Large;
        }
    }

    /// Returns `COUNT` words of the payload of the next record, from its first slot. The record
    /// stays.
    #[inline]
    pub(crate) fn words<const COUNT: usize>(&self, channel: &Channel) -> [u64; COUNT] {
        const { assert!(COUNT * 8 <= FIRST_PAYLOAD) };
        let at = self.ring.slot(self.next) + FIRST;
        core::array::from_fn(|number| channel.peer_lane.word(at + 8 * number).load(Ordering::Relaxed))
    }

    /// Consumes the next record, of this length. Calls `copy` for each piece of the payload.
    #[inline]
    pub(crate) fn read(&mut self, channel: &Channel, length: usize, mut copy: impl FnMut(*const u8, usize)) {
        let (lane, ring) = (&channel.peer_lane, self.ring);
        let count = length.min(FIRST_PAYLOAD);
        copy(lane.bytes(ring.slot(self.next) + FIRST, count), count);
        let mut left = length - count;
        self.next += 1;
        while left > 0 {
            let count = left.min(NEXT_PAYLOAD);
            copy(lane.bytes(ring.slot(self.next) + NEXT, count), count);
            left -= count;
            self.next += 1;
        }
        if self.next - self.published >= self.ring.quarter() {
            self.publish(channel);
        }
    }

    /// Consumes the next record, of this length, into memory of this process.
    pub(crate) fn read_bytes(&mut self, channel: &Channel, length: usize) -> Box<[u8]> {
        let mut bytes: Vec<u8> = Vec::with_capacity(length);
        let mut to = bytes.as_mut_ptr();
        self.read(channel, length, |from, count| {
            // SAFETY: `bytes` has a capacity of `length` bytes, which is the total of `count`.
            unsafe { core::ptr::copy_nonoverlapping(from, to, count) };
            to = to.wrapping_add(count);
        });
        // SAFETY: written above.
        unsafe { bytes.set_len(length) };
        bytes.into_boxed_slice()
    }

    /// Consumes the next record as words.
    pub(crate) fn read_words(&mut self, channel: &Channel, length: usize) -> Result<Vec<u64>> {
        if !length.is_multiple_of(8) {
            return Err(channel.misbehaved("a record of words has a broken length"));
        }
        let bytes = self.read_bytes(channel, length);
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        Ok(bytes.chunks_exact(8).map(word).collect())
    }

    #[cold]
    fn publish(&mut self, channel: &Channel) {
        let consumed = channel.own_lane.word(layout::CONSUMED);
        let is_wanted = protocol::release(consumed, &channel.peer_lane.word(layout::WANTS_SPACE), self.next);
        self.published = self.next;
        failpoint!("link.consumed");
        if is_wanted {
            channel.notify();
        }
    }
}

/// Returns the error for a record of a kind that does not exist.
#[cold]
pub(crate) fn unknown_kind(channel: &Channel) -> Error {
    channel.misbehaved("a record is of an unknown kind")
}
