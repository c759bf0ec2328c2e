//! Sending: short messages go in a ring, longer ones are offered and fetched by their receiver, blocks of
//! pools are handed over.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use umf_core::Access;
use umf_sync::failpoint;

use crate::both::BackCopy;
use crate::bounce;
use crate::channel::Channel;
use crate::handles::Announced;
use crate::inbox::{Inbox, Peer};
use crate::kernel_copy::Iov;
use crate::layout::{self, ANNOUNCE_ONLY, MAX_LENT, MAX_RANGES, OFFERS};
use crate::offer::{BLOCK, BOUNCE, BlockRecord, COPY_BACK, INLINE, OFFER, Offer, SourceRanges};
use crate::parts::{Cursor, List, Source};
use crate::protocol::{self, Load, Offered, Verdict};
use crate::queue::Context;
use crate::receive::impossible;
use crate::wait::Limit;
use crate::{Engine, Error, LinkStatistics, Result};

/// A message begun by [`crate::Link::start_send`]. Calls that get this request make progress with it.
/// Dropping it withdraws the message if it was not received.
#[derive(Debug)]
pub struct SendRequest<'d> {
    channel: Arc<Channel>,
    pub(crate) peer: usize,
    pub(crate) sending: Sending<'d>,
}

impl SendRequest<'_> {
    /// Returns whether the message was sent.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self.sending.state, SendState::Done)
    }
}

impl Drop for SendRequest<'_> {
    fn drop(&mut self) {
        if self.channel.own_lane.is_own_process() {
            self.sending.withdraw(&self.channel);
        }
    }
}

/// Memory that was handed over by [`crate::Link::hand_over`]. It borrows the memory, which the peer opens
/// later. Dropping it leaves the memory with the peer.
#[derive(Debug)]
pub struct Lent<'d> {
    channel: Arc<Channel>,
    slot: usize,
    number: u32,
    /// The bit of the slot when the memory was handed over.
    before: bool,
    memory: PhantomData<&'d [u8]>,
}

impl Lent<'_> {
    /// Returns whether the peer has given the memory back: no view of it is left.
    #[must_use]
    pub fn is_back(&self) -> bool {
        let bits = || self.channel.peer_lane.word(layout::GIVEN_BACK).load(Ordering::Acquire);
        // A slot is used again only when its memory is back.
        let is_latest = self.channel.lent[self.slot].load(Ordering::Relaxed) == self.number;
        self.channel.own_lane.is_own_process()
            && (!is_latest || (bits() >> self.slot & 1 == 1) != self.before)
    }

    /// Waits until the peer has given the memory back; `None` waits until then or until the peer is gone.
    /// Requests of peers are not answered meanwhile.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PeerGone`] (then no view is left), [`Error::Closed`],
    /// [`Error::Forked`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.channel.known()?;
        self.channel.wait_until(timeout, "the return of memory", || self.is_back())
    }
}

/// A message in progress.
#[derive(Debug)]
pub(crate) struct Sending<'d> {
    tag: u64,
    context: Context,
    source: Source<'d>,
    /// Whether its caller waits for it.
    awaited: bool,
    state: SendState,
}

#[derive(Debug)]
enum SendState {
    New,
    /// It waits in the backlog of its peer for room in the lane.
    Queued(Arc<AtomicU64>),
    Offered(OfferSlot, Attempt),
    Done,
}

/// An offer for which the lane had no room. Later messages wait behind it.
#[derive(Debug)]
struct BacklogEntry {
    tag: u64,
    context: Context,
    offer: Offer,
    /// The word of [`protocol::place`].
    placing: Arc<AtomicU64>,
}

/// The slot of an offer, and the number of its message.
#[derive(Clone, Copy, Debug)]
struct OfferSlot {
    index: usize,
    number: u32,
}

impl OfferSlot {
    /// Returns whether the message was neither taken nor withdrawn.
    fn is_open(self, channel: &Channel) -> bool {
        let offered = channel.own_lane.word(layout::offered(self.index)).load(Ordering::Relaxed);
        let taken = channel.peer_lane.word(layout::taken(self.index)).load(Ordering::Acquire);
        offered == protocol::offered(self.number, Offered::Open)
            && taken != protocol::taken(self.number, Verdict::Taken)
    }
}

/// The sender's part of an attempt to fetch a message.
#[derive(Debug, Default)]
struct Attempt {
    /// The receiver's number of the attempt; 0 for none.
    epoch: u16,
    /// Chunks that were filled or copied.
    count: u64,
    push: Option<BackCopy>,
}

impl Attempt {
    fn serve(
        &mut self,
        channel: &Channel,
        place: OfferSlot,
        list: &List<'_>,
        statistics: &mut LinkStatistics,
    ) -> Result<()> {
        let request = channel.peer_lane.word(layout::request(place.index)).load(Ordering::Acquire);
        let epoch = (request >> 48) as u16;
        if request as u32 != place.number || epoch == 0 {
            return Ok(());
        }
        if epoch != self.epoch {
            *self = Self { epoch, count: 0, push: None };
        }
        match (request >> 32) as u8 {
            BOUNCE => bounce::fill(channel, place.index, epoch, &mut self.count, list, statistics),
            COPY_BACK => {
                let push = &mut self.push;
                let push =
                    push.get_or_insert_with(|| BackCopy::new(channel, place.index, list.len(), statistics));
                push.run(channel, place.index, epoch, &mut self.count, list, statistics);
                Ok(())
            }
            _ => Err(channel.misbehaved("it asks for something unknown")),
        }
    }
}

impl<'d> Sending<'d> {
    pub(crate) const fn new(tag: u64, context: Context, source: Source<'d>, awaited: bool) -> Self {
        Self { tag, context, source, awaited, state: SendState::New }
    }

    /// Withdraws the message. Returns `false` if it was received or is in a ring.
    fn withdraw(&mut self, channel: &Channel) -> bool {
        match core::mem::replace(&mut self.state, SendState::Done) {
            SendState::New => true,
            SendState::Done => false,
            SendState::Queued(placing) => {
                protocol::cancel(&*placing).is_none_or(|(index, number)| channel.withdraw(index, number))
            }
            SendState::Offered(place, _) => channel.withdraw(place.index, place.number),
        }
    }
}

/// A slot of an offer or of a block.
#[derive(Clone, Copy, Debug, Default)]
struct OutgoingSlot {
    place: Option<u32>,
    announced: Option<Announced>,
}

/// What was offered and handed over to one peer. No other process can write it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    offers: Vec<OutgoingSlot>,
    backlog: VecDeque<BacklogEntry>,
    lends: [OutgoingSlot; MAX_LENT],
    next_lend: usize,
    number: u32,
    /// Bits of blocks that were given back, as they were read last.
    given_back: u64,
    /// Bits of the slots for blocks when those were handed over.
    lent_bits: u64,
}

impl Outgoing {
    pub(crate) const fn new() -> Self {
        Self {
            offers: Vec::new(),
            backlog: VecDeque::new(),
            lends: [OutgoingSlot { place: None, announced: None }; MAX_LENT],
            next_lend: 0,
            number: 0,
            given_back: 0,
            lent_bits: 0,
        }
    }

    /// Returns the entries of the handle table that it has pinned.
    pub(crate) fn announced(&self) -> Vec<Announced> {
        let slots = self.offers.iter().chain(&self.lends).filter_map(|slot| slot.announced);
        slots.chain(self.backlog.iter().filter_map(|queued| queued.offer.announced)).collect()
    }

    fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1).max(1);
        self.number
    }

    /// Frees the slots whose messages are taken, withdrawn or given back. Returns what they had pinned.
    fn free(&mut self, channel: &Channel) -> Vec<Announced> {
        self.given_back = channel.peer_lane.word(layout::GIVEN_BACK).load(Ordering::Acquire);
        let is_away = |slot: usize, given_back: u64, bits: u64| (given_back ^ bits) >> slot & 1 == 0;
        let mut unpinned = Vec::new();
        for (index, slot) in self.offers.iter_mut().enumerate() {
            if slot.place.is_some_and(|number| !OfferSlot { index, number }.is_open(channel)) {
                unpinned.extend(core::mem::take(slot).announced);
            }
        }
        for (index, slot) in self.lends.iter_mut().enumerate() {
            if slot.place.is_some() && !is_away(index, self.given_back, self.lent_bits) {
                unpinned.extend(core::mem::take(slot).announced);
            }
        }
        unpinned
    }

    /// Returns the lowest free slot for an offer, so that few pages are used. The second value is what its
    /// former message had pinned.
    fn free_offer(&mut self, channel: &Channel) -> Option<(usize, Option<Announced>)> {
        for (index, slot) in self.offers.iter_mut().enumerate() {
            if slot.place.is_none_or(|number| !OfferSlot { index, number }.is_open(channel)) {
                return Some((index, core::mem::take(slot).announced));
            }
        }
        let count = self.offers.len();
        self.offers.resize((count + 1).min(OFFERS), OutgoingSlot::default());
        (count < OFFERS).then_some((count, None))
    }
}

impl Inbox {
    /// Sends a message and waits until it is in the ring, or received.
    #[inline]
    pub(crate) fn send(&mut self, index: usize, tag: u64, source: Source<'_>) -> Result<()> {
        let is_short = source.len() <= self.inline_max;
        let peer = self.peer(index);
        if is_short && peer.is_fresh() && peer.send_fast((tag, Context::Messages), &source.0) {
            return Ok(());
        }
        self.send_slow(index, tag, source)
    }

    #[cold]
    fn send_slow(&mut self, index: usize, tag: u64, source: Source<'_>) -> Result<()> {
        self.peer(index).check_open()?;
        let mut sending = Sending::new(tag, Context::Messages, source, true);
        let mut limit = Limit::new(self.timeout);
        let sent =
            self.wait(Some(index), &mut limit, "sending", |inbox| inbox.poll_send(index, &mut sending));
        let Err(error) = sent else { return Ok(()) };
        let is_new = matches!(sending.state, SendState::New);
        let peer = self.peer(index);
        if !sending.withdraw(&peer.channel) {
            return Ok(());
        }
        peer.statistics.withdrawn += u64::from(!is_new);
        Err(error)
    }

    /// Begins to send a message. If there is no room in the lane, it waits in a backlog, and later messages
    /// behind it.
    pub(crate) fn start_send<'d>(
        &mut self,
        index: usize,
        (tag, context): (u64, Context),
        source: Source<'d>,
    ) -> Result<SendRequest<'d>> {
        self.peer(index).check_open()?;
        self.flush(index)?;
        let mut sending = Sending::new(tag, context, source, false);
        if self.shared.settings.engine == Some(Engine::Inline) {
            // The data has no other place: this waits for room.
            let mut limit = Limit::new(self.timeout);
            self.wait(Some(index), &mut limit, "sending", |inbox| inbox.poll_send(index, &mut sending))?;
        } else if self.poll_send(index, &mut sending)?.is_none() && matches!(sending.state, SendState::New) {
            let offer = self.describe(&sending.source.0, false)?;
            let placing = Arc::<AtomicU64>::default();
            sending.state = SendState::Queued(Arc::clone(&placing));
            self.peer(index).outgoing.backlog.push_back(BacklogEntry { tag, context, offer, placing });
        }
        Ok(SendRequest { channel: Arc::clone(&self.peer(index).channel), peer: index, sending })
    }

    /// Places offers of the backlog of a peer for which there is room now.
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

    /// Makes progress with a message. Returns whether it was sent.
    pub(crate) fn test_send(&mut self, request: &mut SendRequest<'_>) -> Result<bool> {
        if request.is_done() {
            return Ok(true);
        }
        self.check_request(request)?;
        let is_done = self.poll_send(request.peer, &mut request.sending)?.is_some();
        if !is_done {
            self.peer(request.peer).check_open()?;
        }
        Ok(is_done)
    }

    pub(crate) fn check_request(&self, request: &SendRequest<'_>) -> Result<()> {
        request.channel.known()?;
        let channel = self.peers.get(request.peer).and_then(|peer| peer.as_ref()).map(|peer| &peer.channel);
        let is_own = channel.is_some_and(|channel| Arc::ptr_eq(channel, &request.channel));
        if is_own { Ok(()) } else { Err(Error::WrongLink) }
    }

    /// Makes what progress is possible without waiting. Returns `Some` when the message was sent.
    pub(crate) fn poll_send(&mut self, index: usize, sending: &mut Sending<'_>) -> Result<Option<()>> {
        self.flush(index)?;
        if matches!(sending.state, SendState::New) {
            let (tag, list) = ((sending.tag, sending.context), &sending.source.0);
            if !self.peer(index).outgoing.backlog.is_empty() {
                return Ok(None);
            }
            let is_short = list.len() <= self.inline_max;
            let is_inline = self.shared.settings.engine == Some(Engine::Inline);
            if is_short && self.peer(index).send_inline(tag, list)? {
                sending.state = SendState::Done;
            } else if is_short && (is_inline || !self.peer(index).announces()) {
                return Ok(None);
            } else {
                let mut offer = self.describe(list, sending.awaited)?;
                let placed = self.place(index, tag, &mut offer, None);
                let Ok(Some(place)) = placed else {
                    offer.announced.iter().for_each(|announced| self.handles.unpin(*announced));
                    return placed.map(|_| None);
                };
                sending.state = SendState::Offered(place, Attempt::default());
            }
        }
        if let SendState::Queued(placing) = &sending.state {
            let Some((index, number)) = protocol::placed(&**placing) else { return Ok(None) };
            sending.state = SendState::Offered(OfferSlot { index, number }, Attempt::default());
        }
        if let SendState::Offered(place, attempt) = &mut sending.state {
            let peer = self.peer(index);
            if place.is_open(&peer.channel) {
                attempt.serve(&peer.channel, *place, &sending.source.0, &mut peer.statistics)?;
                return Ok(None);
            }
            sending.state = SendState::Done;
        }
        Ok(Some(()))
    }

    /// Unpins the handles of messages that are no longer open.
    fn unpin(&mut self, index: usize) {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        for announced in peer.outgoing.free(&channel) {
            self.handles.unpin(announced);
        }
    }

    /// Announces a handle, if need be after a look at the messages of all peers.
    fn announce(&mut self, memory: &crate::Memory<'_>) -> Result<Option<Announced>> {
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

    /// Describes a message for its receiver. Its handle is pinned.
    fn describe(&mut self, list: &List<'_>, awaited: bool) -> Result<Offer> {
        // A short message finds no room in the ring: any engine may carry it.
        let engine = self.shared.settings.engine.filter(|_| list.len() > self.inline_max);
        let parts = list.parts();
        let refused = |engine, why: &str| Err(impossible(engine, why));
        match engine {
            Some(Engine::Inline) => return refused(Engine::Inline, "a ring takes messages of up to 32 KiB"),
            Some(Engine::Mapped) if list.memory().is_none() => {
                return refused(Engine::Mapped, "it is not sent from memory of an exportable pool (Memory)");
            }
            Some(engine) if engine != Engine::Bounce && parts.len() > MAX_RANGES => {
                return refused(engine, "the list has more than 1024 entries");
            }
            _ => {}
        }
        let by_address = matches!(engine, None | Some(Engine::Cma | Engine::Both));
        let may_map = matches!(engine, None | Some(Engine::Mapped | Engine::Both));
        let is_described = (by_address || may_map) && parts.len() <= MAX_RANGES;
        let ranges = match parts {
            _ if !is_described => SourceRanges::None,
            // Memory of a pool is found by its handle.
            [one] => SourceRanges::One(Iov {
                address: if by_address { one.iov().address } else { 0 },
                ..one.iov()
            }),
            many => SourceRanges::Many(many.iter().map(|part| part.iov()).collect()),
        };
        let memory = list.memory().filter(|_| may_map && is_described);
        let announced = memory.map(|memory| self.announce(memory)).transpose()?.flatten();
        announced.iter().for_each(|announced| self.handles.pin(*announced));
        let offset = match (memory, parts) {
            (Some(memory), [first, ..]) => (first.base.addr() - memory.base().addr()) as u64,
            _ => 0,
        };
        let (index, number, length) = (0, 0, list.len());
        Ok(Offer { index, number, length, engine, announced, offset, by_address, awaited, ranges })
    }

    /// Offers a message. Returns `None` if there is no room now, or if it was cancelled in the backlog.
    fn place(
        &mut self,
        index: usize,
        (tag, context): (u64, Context),
        offer: &mut Offer,
        placing: Option<&AtomicU64>,
    ) -> Result<Option<OfferSlot>> {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        if !peer.writer.has_room(&channel, 8 * Offer::words(offer.ranges.as_slice().len()))? {
            return Ok(None);
        }
        let Some((slot, unpinned)) = peer.outgoing.free_offer(&channel) else { return Ok(None) };
        unpinned.into_iter().for_each(|announced| self.handles.unpin(announced));
        channel.populate(layout::offer_line(slot))?;
        channel.populate_peer(layout::accept_line(slot))?;
        let peer = self.peer(index);
        let place = OfferSlot { index: slot, number: peer.outgoing.next_number() };
        // What was said of an earlier message may look like progress of this one.
        for word in [layout::progress(slot), layout::back(slot)] {
            channel.own_lane.word(word).store(0, Ordering::Relaxed);
        }
        let offered = protocol::offered(place.number, Offered::Open);
        channel.own_lane.word(layout::offered(slot)).store(offered, Ordering::Relaxed);
        if placing.is_none_or(|placing| protocol::place(placing, slot, place.number)) {
            peer.outgoing.offers[slot] =
                OutgoingSlot { place: Some(place.number), announced: offer.announced };
            (offer.index, offer.number) = (slot, place.number);
            peer.writer.write_words(&channel, (OFFER, context), tag, &offer.encode());
            failpoint!("link.offered");
            peer.statistics.sent.add(offer.length);
            return Ok(Some(place));
        }
        Ok(None)
    }

    /// Hands memory over; waits for room if need be.
    #[inline]
    pub(crate) fn hand_over<'d>(
        &mut self,
        index: usize,
        tag: (u64, Context),
        source: Source<'d>,
    ) -> Result<Lent<'d>> {
        self.peer(index).check_open()?;
        let (Some(memory), &[part]) = (source.0.memory(), source.0.parts()) else {
            let why = "only memory of a pool, in one piece, can be handed over (Memory, Memory::part)";
            return Err(impossible(Engine::Mapped, why));
        };
        let offset = part.base.addr() - memory.base().addr();
        let block = (memory, offset as u64, part.length);
        if let Some(lent) = self.lend(index, tag, block)? {
            return Ok(lent);
        }
        let mut limit = Limit::new(self.timeout);
        self.wait(Some(index), &mut limit, "handing memory over", |inbox| {
            inbox.flush(index)?;
            inbox.lend(index, tag, block)
        })
    }

    /// Returns `None` if there is no room now.
    #[inline]
    fn lend<'d>(
        &mut self,
        index: usize,
        (tag, context): (u64, Context),
        (memory, offset, length): (&crate::Memory<'_>, u64, usize),
    ) -> Result<Option<Lent<'d>>> {
        let Self { peers, handles, shared, .. } = self;
        let Some(peer) = &mut peers[index] else { return Err(Error::WrongLink) };
        let Peer { channel, outgoing, writer, statistics, .. } = &mut **peer;
        if !outgoing.backlog.is_empty() || !writer.has_room(channel, 8 * BlockRecord::WORDS)? {
            return Ok(None);
        }
        let slot = outgoing.next_lend;
        if outgoing.lends[slot].place.is_some() {
            if (outgoing.given_back ^ outgoing.lent_bits) >> slot & 1 == 0 {
                outgoing.given_back = channel.peer_lane.word(layout::GIVEN_BACK).load(Ordering::Acquire);
            }
            if (outgoing.given_back ^ outgoing.lent_bits) >> slot & 1 == 0 {
                // Another slot may be free: the order in which blocks come back is the peer's.
                outgoing.next_lend = (slot + 1) % MAX_LENT;
                self.unpin(index);
                let lends = &self.peer(index).outgoing.lends;
                let Some(free) = lends.iter().position(|slot| slot.place.is_none()) else { return Ok(None) };
                self.peer(index).outgoing.next_lend = free;
                return self.lend(index, (tag, context), (memory, offset, length));
            }
            if let Some(announced) = core::mem::take(&mut outgoing.lends[slot]).announced {
                handles.unpin(announced);
            }
        }
        let announced = match handles.announce(shared, memory)? {
            Some(announced) => announced,
            None => match self.announce(memory)? {
                Some(_) => return self.lend(index, (tag, context), (memory, offset, length)),
                None => return Ok(None),
            },
        };
        handles.pin(announced);
        let number = outgoing.next_number();
        outgoing.lends[slot] = OutgoingSlot { place: Some(number), announced: Some(announced) };
        outgoing.next_lend = (slot + 1) % MAX_LENT;
        // The block is back when the peer turns the bit.
        let before = outgoing.given_back >> slot & 1 == 1;
        outgoing.lent_bits = outgoing.lent_bits & !(1 << slot) | u64::from(before) << slot;
        channel.lent[slot].store(number, Ordering::Relaxed);
        let words = BlockRecord { index: slot, length, announced, offset }.encode();
        writer.write(channel, (BLOCK, context), tag, 8 * BlockRecord::WORDS, |to, _| {
            // SAFETY: the record is one slot, in which `write` has room for it.
            unsafe { to.cast::<[u64; BlockRecord::WORDS]>().write_unaligned(words) };
        });
        failpoint!("link.lent");
        statistics.sent.add(length);
        let channel = Arc::clone(channel);
        Ok(Some(Lent { channel, slot, number, before, memory: PhantomData }))
    }
}

impl Peer {
    /// Returns whether the peer can be sent to.
    #[inline]
    pub(crate) fn check_open(&mut self) -> Result<()> {
        self.check()?;
        if self.channel.has_closed() { self.channel.check_alive() } else { Ok(()) }
    }

    /// Returns whether the peer asks for announcements instead of data.
    #[inline]
    fn announces(&self) -> bool {
        self.channel.peer_catalog.word(ANNOUNCE_ONLY).load(Ordering::Relaxed) != 0
    }

    /// As [`Peer::send_inline`]; leaves errors to that.
    #[inline]
    fn send_fast(&mut self, (tag, context): (u64, Context), list: &List<'_>) -> bool {
        let length = list.len();
        let is_blocked = self.announces() || !self.outgoing.backlog.is_empty() || list.is_bracketed();
        if is_blocked || !self.writer.has_room_now(length) {
            return false;
        }
        let mut cursor = Cursor::new(list.parts());
        // SAFETY: the caller's memory, borrowed by `list`; `write` yields room in the lane.
        self.writer.write(&self.channel, (INLINE, context), tag, length, |to, count| unsafe {
            cursor.copy_out(to, count);
        });
        self.statistics.sent.add(length);
        true
    }

    /// Sends a short message. Returns `false` if there is no room now, or the peer takes no data.
    #[inline]
    fn send_inline(&mut self, (tag, context): (u64, Context), list: &List<'_>) -> Result<bool> {
        let length = list.len();
        let is_blocked = self.announces() || !self.outgoing.backlog.is_empty();
        if is_blocked || !self.writer.has_room(&self.channel, length)? {
            return Ok(false);
        }
        let time = list.touch(Access::ReadOnly)?;
        let mut cursor = Cursor::new(list.parts());
        // SAFETY: the caller's memory, borrowed by `list`; `write` yields room in the lane.
        self.writer.write(&self.channel, (INLINE, context), tag, length, |to, count| unsafe {
            cursor.copy_out(to, count);
        });
        drop(time);
        self.statistics.sent.add(length);
        Ok(true)
    }
}
