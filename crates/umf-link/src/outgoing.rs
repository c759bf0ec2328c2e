//! [`Outgoing`]: offers to one peer, their slots in the lane, and the backlog of messages for which
//! the lane had no space. Also the slots of blocks that were handed over.
//!
//! An offer occupies a slot until its message was taken or withdrawn. Until then it pins the handle
//! of its memory in the handle table.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use umf_sync::failpoint;

use crate::buffer::Buffer;
use crate::channel::Channel;
use crate::handles::Announced;
use crate::inbox::Inbox;
use crate::kernel_copy::Iov;
use crate::layout::{self, MAX_LOANS, MAX_RANGES, OFFERS};
use crate::offer::{OFFER, Offer, SourceRanges};
use crate::protocol::{self, Load, Offered, Verdict};
use crate::queue::Context;
use crate::receive::impossible;
use crate::{Engine, Result};

/// An offer for which the lane had no space. Later messages are queued behind it.
#[derive(Debug)]
pub(crate) struct BacklogEntry {
    pub tag: u64,
    pub context: Context,
    pub offer: Offer,
    /// The word of [`protocol::place`].
    pub placing: Arc<AtomicU64>,
}

/// The slot of an offer, and the number of its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferSlot {
    pub index: usize,
    pub number: u32,
}

impl OfferSlot {
    /// Whether the message was neither taken nor withdrawn.
    pub(crate) fn is_open(self, channel: &Channel) -> bool {
        let offered = channel.own_lane.word(layout::offered(self.index)).load(Ordering::Relaxed);
        let taken = channel.peer_lane.word(layout::taken(self.index)).load(Ordering::Acquire);
        offered == protocol::offered(self.number, Offered::Open)
            && taken != protocol::taken(self.number, Verdict::Taken)
    }
}

/// A slot of an offer or of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutgoingSlot {
    /// The number of the message or block; `None` if the slot is free.
    pub number: Option<u32>,
    pub announced: Option<Announced>,
}

/// The offers to one peer and the blocks that it has, in private memory.
#[derive(Debug)]
pub(crate) struct Outgoing {
    offers: Vec<OutgoingSlot>,
    pub backlog: VecDeque<BacklogEntry>,
    pub loans: [OutgoingSlot; MAX_LOANS],
    pub next_loan: usize,
    number: u32,
    /// The latest known value of the peer's `RETURNED` word.
    pub returned: u64,
    /// For each slot, its bit in `RETURNED` when the block was handed over.
    pub loan_bits: u64,
}

impl Outgoing {
    pub(crate) const fn new() -> Self {
        Self {
            offers: Vec::new(),
            backlog: VecDeque::new(),
            loans: [OutgoingSlot { number: None, announced: None }; MAX_LOANS],
            next_loan: 0,
            number: 0,
            returned: 0,
            loan_bits: 0,
        }
    }

    /// Returns the entries of the handle table that offers and blocks have pinned.
    pub(crate) fn announced(&self) -> Vec<Announced> {
        let slots = self.offers.iter().chain(&self.loans).filter_map(|slot| slot.announced);
        slots.chain(self.backlog.iter().filter_map(|queued| queued.offer.announced)).collect()
    }

    pub(crate) fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1).max(1);
        self.number
    }

    /// Frees slots of messages that were taken or withdrawn, and of blocks that were returned.
    /// Returns the handles that they had pinned.
    fn free(&mut self, channel: &Channel) -> Vec<Announced> {
        self.returned = channel.peer_lane.word(layout::RETURNED).load(Ordering::Acquire);
        let returned = self.returned ^ self.loan_bits;
        let mut unpinned = Vec::new();
        for (index, slot) in self.offers.iter_mut().enumerate() {
            if slot.number.is_some_and(|number| !OfferSlot { index, number }.is_open(channel)) {
                unpinned.extend(core::mem::take(slot).announced);
            }
        }
        for (index, slot) in self.loans.iter_mut().enumerate() {
            if slot.number.is_some() && returned >> index & 1 == 1 {
                unpinned.extend(core::mem::take(slot).announced);
            }
        }
        unpinned
    }

    /// Returns the lowest free slot for an offer, so that few pages are used, and the handle that
    /// its former message had pinned.
    fn free_offer(&mut self, channel: &Channel) -> Option<(usize, Option<Announced>)> {
        for (index, slot) in self.offers.iter_mut().enumerate() {
            if slot.number.is_none_or(|number| !OfferSlot { index, number }.is_open(channel)) {
                return Some((index, core::mem::take(slot).announced));
            }
        }
        let count = self.offers.len();
        self.offers.resize((count + 1).min(OFFERS), OutgoingSlot::default());
        (count < OFFERS).then_some((count, None))
    }
}

impl Inbox {
    /// Places offers of a peer's backlog while the lane has space.
    pub(crate) fn flush(&mut self, index: usize) -> Result<()> {
        while let Some(mut queued) = self.peer(index).outgoing.backlog.pop_front() {
            let BacklogEntry { tag, context, offer, placing } = &mut queued;
            let placed = self.place(index, (*tag, *context), offer, Some(placing));
            if matches!(placed, Ok(Some(_))) {
                continue;
            }
            if protocol::is_cancelled(&**placing) {
                offer.announced.iter().for_each(|announced| self.handles.unpin(*announced));
                continue;
            }
            self.peer(index).outgoing.backlog.push_front(queued);
            return placed.map(drop);
        }
        Ok(())
    }

    /// Unpins the handles of messages that are no longer open.
    pub(crate) fn unpin(&mut self, index: usize) {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        for announced in peer.outgoing.free(&channel) {
            self.handles.unpin(announced);
        }
    }

    /// Announces a handle. If all entries are pinned, frees slots of all peers and tries again.
    pub(crate) fn announce(&mut self, memory: &crate::Memory<'_>) -> Result<Option<Announced>> {
        if let Some(announced) = self.handles.announce(&self.shared, memory)? {
            return Ok(Some(announced));
        }
        for index in 0..self.peers.len() {
            if self.peers[index].is_some() {
                self.unpin(index);
            }
        }
        self.handles.announce(&self.shared, memory)
    }

    /// Makes the offer of a message, and pins its handle.
    pub(crate) fn describe(&mut self, buffer: &Buffer<'_>, awaited: bool) -> Result<Offer> {
        // A short message that found the ring full may use any engine.
        let engine = self.shared.settings.engine.filter(|_| buffer.len() > self.inline_max);
        let segments = buffer.segments();
        let refused = |engine, why: &str| Err(impossible(engine, why));
        match engine {
            Some(Engine::Inline) => return refused(Engine::Inline, "a ring takes messages of up to 32 KiB"),
            Some(Engine::Mapped) if buffer.memory().is_none() => {
                return refused(Engine::Mapped, "it is not sent from memory of an exportable pool (Memory)");
            }
            Some(engine) if engine != Engine::Bounce && segments.len() > MAX_RANGES => {
                return refused(engine, "the list has more than 1024 entries");
            }
            _ => {}
        }
        let by_address = matches!(engine, None | Some(Engine::Cma | Engine::Both));
        let may_map = matches!(engine, None | Some(Engine::Mapped | Engine::Both));
        let is_described = (by_address || may_map) && segments.len() <= MAX_RANGES;
        let ranges = match segments {
            _ if !is_described => SourceRanges::None,
            // The handle locates memory of a pool; the address is for kernel copies.
            [one] => SourceRanges::One(Iov {
                address: if by_address { one.iov().address } else { 0 },
                ..one.iov()
            }),
            many => SourceRanges::Many(many.iter().map(|segment| segment.iov()).collect()),
        };
        let memory = buffer.memory().filter(|_| may_map && is_described);
        let announced = memory.map(|memory| self.announce(memory)).transpose()?.flatten();
        announced.iter().for_each(|announced| self.handles.pin(*announced));
        let offset = match (memory, segments) {
            (Some(memory), [first, ..]) => (first.base.addr() - memory.base().addr()) as u64,
            _ => 0,
        };
        let (index, number, length) = (0, 0, buffer.len());
        let immediate = None;
        Ok(Offer { index, number, length, engine, announced, offset, by_address, awaited, immediate, ranges })
    }

    /// Offers a message. Returns `None` if the lane has no space, or if the message was cancelled
    /// in the backlog.
    pub(crate) fn place(
        &mut self,
        index: usize,
        (tag, context): (u64, Context),
        offer: &mut Offer,
        placing: Option<&AtomicU64>,
    ) -> Result<Option<OfferSlot>> {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        if !peer.writer.has_space(&channel, 8 * Offer::words(offer.ranges.as_slice().len()))? {
            return Ok(None);
        }
        let Some((slot, unpinned)) = peer.outgoing.free_offer(&channel) else { return Ok(None) };
        unpinned.into_iter().for_each(|announced| self.handles.unpin(announced));
        channel.populate(layout::offer_line(slot))?;
        channel.populate_peer(layout::accept_line(slot))?;
        let peer = self.peer(index);
        let place = OfferSlot { index: slot, number: peer.outgoing.next_number() };
        // Words of an earlier message could look like progress of this one.
        for word in [layout::progress(slot), layout::back(slot)] {
            channel.own_lane.word(word).store(0, Ordering::Relaxed);
        }
        let offered = protocol::offered(place.number, Offered::Open);
        channel.own_lane.word(layout::offered(slot)).store(offered, Ordering::Relaxed);
        if placing.is_none_or(|placing| protocol::place(placing, slot, place.number)) {
            peer.outgoing.offers[slot] =
                OutgoingSlot { number: Some(place.number), announced: offer.announced };
            (offer.index, offer.number) = (slot, place.number);
            peer.writer.write_words(&channel, (OFFER, context), tag, &offer.encode());
            failpoint!("link.offered");
            peer.statistics.sent.add(offer.length);
            return Ok(Some(place));
        }
        Ok(None)
    }
}
