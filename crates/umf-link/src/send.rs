//! Sending: a short message is copied into a ring; a longer one is offered, and the receiver
//! fetches it. Also handing over blocks.
//!
//! A message in progress ([`Sending`]) is new, queued in the backlog if the lane has no space,
//! offered, and done once it was received. [`crate::outgoing`] has slots and backlog.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use umf_core::Access;
use umf_sync::failpoint;

use crate::both::BackCopy;
use crate::bounce;
use crate::buffer::{Buffer, Cursor, Source};
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::layout::{self, ANNOUNCE_ONLY, MAX_LOANS};
use crate::offer::{BLOCK, BOUNCE, BlockRecord, COPY_BACK, IMMEDIATE, INLINE};
use crate::outgoing::{BacklogEntry, OfferSlot, OutgoingSlot};
use crate::peer::Peer;
use crate::protocol::{self, Load};
use crate::queue::Context;
use crate::receive::impossible;
use crate::{Engine, Error, LinkStatistics, Result};

/// A message of [`crate::Link::start_send`] in progress. It makes progress in calls to which this
/// request is passed. Dropping the request withdraws the message if it was not received.
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

/// A block that was handed over by [`crate::Link::hand_over`]. It borrows the memory, because the
/// peer opens it later. Dropping it does not take the block from the peer.
#[derive(Debug)]
pub struct Loan<'d> {
    channel: Arc<Channel>,
    slot: usize,
    number: u32,
    /// The bit of the slot in `RETURNED` when the block was handed over.
    before: bool,
    memory: PhantomData<&'d [u8]>,
}

impl Loan<'_> {
    /// Returns whether the peer has returned the block, so that no view of it is left.
    #[must_use]
    pub fn is_returned(&self) -> bool {
        let bits = || self.channel.peer_lane.word(layout::RETURNED).load(Ordering::Acquire);
        // A slot is reused only after its block was returned.
        let is_latest = self.channel.loans[self.slot].load(Ordering::Relaxed) == self.number;
        self.channel.own_lane.is_own_process()
            && (!is_latest || (bits() >> self.slot & 1 == 1) != self.before)
    }

    /// Waits until the peer has returned the block or is gone. `None` waits without a timeout. Does
    /// not answer requests of peers meanwhile.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::PeerGone`] (then no view is left), [`Error::Closed`],
    /// [`Error::Forked`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.channel.check_known()?;
        self.channel.wait_until(timeout, "the return of memory", || self.is_returned())
    }
}

/// A message in progress.
#[derive(Debug)]
pub(crate) struct Sending<'d> {
    tag: u64,
    context: Context,
    /// Immediate data of a mesh's message.
    immediate: Option<u64>,
    /// Whether a short message is offered, too, so that its end tells that it was received.
    is_acknowledged: bool,
    source: Source<'d>,
    /// Whether the caller waits until the message is received.
    awaited: bool,
    state: SendState,
}

#[derive(Debug)]
enum SendState {
    New,
    /// In the backlog of its peer, because the lane had no space.
    Queued(Arc<AtomicU64>),
    Offered(OfferSlot, Attempt),
    Done,
}

/// The sender's part of the receiver's attempt to fetch a message.
#[derive(Debug, Default)]
struct Attempt {
    /// The receiver's number of the attempt; 0 for none.
    epoch: u16,
    /// The number of chunks that were filled or copied.
    count: u64,
    back_copy: Option<BackCopy>,
}

impl Attempt {
    /// Serves the request of the receiver, if there is one.
    fn serve(
        &mut self,
        channel: &Channel,
        place: OfferSlot,
        buffer: &Buffer<'_>,
        statistics: &mut LinkStatistics,
    ) -> Result<()> {
        let request = channel.peer_lane.word(layout::request(place.index)).load(Ordering::Acquire);
        let epoch = (request >> 48) as u16;
        if request as u32 != place.number || epoch == 0 {
            return Ok(());
        }
        if epoch != self.epoch {
            *self = Self { epoch, count: 0, back_copy: None };
        }
        match (request >> 32) as u8 {
            BOUNCE => bounce::fill(channel, place.index, epoch, &mut self.count, buffer, statistics),
            COPY_BACK => {
                let new = || BackCopy::new(channel, place.index, buffer.len(), statistics);
                let back_copy = self.back_copy.get_or_insert_with(new);
                back_copy.run(channel, place.index, epoch, &mut self.count, buffer, statistics);
                Ok(())
            }
            _ => Err(channel.misbehaved("its request is of an unknown kind")),
        }
    }
}

impl<'d> Sending<'d> {
    pub(crate) const fn new(tag: u64, context: Context, source: Source<'d>, awaited: bool) -> Self {
        let (immediate, is_acknowledged) = (None, false);
        Self { tag, context, immediate, is_acknowledged, source, awaited, state: SendState::New }
    }

    pub(crate) const fn of_mesh(mut self, immediate: Option<u64>, is_acknowledged: bool) -> Self {
        self.immediate = immediate;
        self.is_acknowledged = is_acknowledged;
        self
    }

    /// Returns whether no part of it is in the lane yet.
    pub(crate) const fn is_new(&self) -> bool {
        matches!(self.state, SendState::New)
    }

    /// Withdraws the message. Returns `false` if it was received or copied into a ring.
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

impl Inbox {
    /// Sends a message and waits until it is in the ring, or received.
    #[inline]
    pub(crate) fn send(&mut self, index: usize, tag: u64, source: Source<'_>) -> Result<()> {
        let is_short = source.len() <= self.inline_max;
        let peer = self.peer(index);
        if is_short && peer.is_fresh() && peer.send_fast((tag, Context::Messages), None, &source.0) {
            return Ok(());
        }
        self.send_slow(index, tag, source)
    }

    #[cold]
    fn send_slow(&mut self, index: usize, tag: u64, source: Source<'_>) -> Result<()> {
        self.peer(index).check_open()?;
        let mut sending = Sending::new(tag, Context::Messages, source, true);
        let mut limit = self.limit();
        let sent =
            self.wait(Some(index), &mut limit, "sending", |inbox| inbox.poll_send(index, &mut sending));
        let Err(error) = sent else { return Ok(()) };
        let is_new = sending.is_new();
        let peer = self.peer(index);
        if !sending.withdraw(&peer.channel) {
            return Ok(());
        }
        peer.statistics.withdrawn += u64::from(!is_new);
        Err(error)
    }

    /// Begins to send a message. If the lane has no space, the message is queued in the backlog,
    /// and later messages behind it.
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
            // An `inline` message is sent in the ring only, so the call waits for space.
            let mut limit = self.limit();
            self.wait(Some(index), &mut limit, "sending", |inbox| inbox.poll_send(index, &mut sending))?;
        } else if self.poll_send(index, &mut sending)?.is_none() && sending.is_new() {
            let offer = self.describe(&sending.source.0, false)?;
            let placing = Arc::<AtomicU64>::default();
            sending.state = SendState::Queued(Arc::clone(&placing));
            self.peer(index).outgoing.backlog.push_back(BacklogEntry { tag, context, offer, placing });
        }
        Ok(self.request(index, sending))
    }

    /// Returns the request of a message. Dropping it withdraws the message.
    pub(crate) fn request<'d>(&mut self, index: usize, sending: Sending<'d>) -> SendRequest<'d> {
        SendRequest { channel: Arc::clone(&self.peer(index).channel), peer: index, sending }
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
        request.channel.check_known()?;
        let channel = self.peers.get(request.peer).and_then(|peer| peer.as_ref()).map(|peer| &peer.channel);
        let is_own = channel.is_some_and(|channel| Arc::ptr_eq(channel, &request.channel));
        if is_own { Ok(()) } else { Err(Error::WrongLink) }
    }

    /// Makes progress with a message, without waiting. Returns `Some` when it was sent.
    pub(crate) fn poll_send(&mut self, index: usize, sending: &mut Sending<'_>) -> Result<Option<()>> {
        self.flush(index)?;
        if sending.is_new() {
            let (tag, buffer) = ((sending.tag, sending.context), &sending.source.0);
            if !self.peer(index).outgoing.backlog.is_empty() {
                return Ok(None);
            }
            let is_short = buffer.len() <= self.inline_max && !sending.is_acknowledged;
            let is_inline = self.shared.settings.engine == Some(Engine::Inline);
            if is_short && self.peer(index).send_inline(tag, sending.immediate, buffer)? {
                sending.state = SendState::Done;
            } else if is_short && (is_inline || !self.peer(index).announces()) {
                return Ok(None);
            } else {
                let mut offer = self.describe(buffer, sending.awaited)?;
                offer.immediate = sending.immediate;
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

    /// Hands a block over. Waits while the ring is full or no slot is free.
    #[inline]
    pub(crate) fn hand_over<'d>(
        &mut self,
        index: usize,
        tag: (u64, Context),
        source: Source<'d>,
    ) -> Result<Loan<'d>> {
        self.peer(index).check_open()?;
        let (Some(memory), &[segment]) = (source.0.memory(), source.0.segments()) else {
            let why = "only memory of a pool, in one piece, can be handed over (Memory, Memory::part)";
            return Err(impossible(Engine::Mapped, why));
        };
        let offset = segment.base.addr() - memory.base().addr();
        let block = (memory, offset as u64, segment.length);
        if let Some(loan) = self.try_hand_over(index, tag, block)? {
            return Ok(loan);
        }
        let mut limit = self.limit();
        self.wait(Some(index), &mut limit, "handing memory over", |inbox| {
            inbox.flush(index)?;
            inbox.try_hand_over(index, tag, block)
        })
    }

    /// Hands a block over without waiting. Returns `None` if the ring is full or no slot is free.
    #[inline]
    fn try_hand_over<'d>(
        &mut self,
        index: usize,
        (tag, context): (u64, Context),
        (memory, offset, length): (&crate::Memory<'_>, u64, usize),
    ) -> Result<Option<Loan<'d>>> {
        let Self { peers, handles, shared, .. } = self;
        let Some(peer) = &mut peers[index] else { return Err(Error::WrongLink) };
        let Peer { channel, outgoing, writer, statistics, .. } = &mut **peer;
        if !outgoing.backlog.is_empty() || !writer.has_space(channel, 8 * BlockRecord::WORDS)? {
            return Ok(None);
        }
        let slot = outgoing.next_loan;
        if outgoing.loans[slot].number.is_some() {
            if (outgoing.returned ^ outgoing.loan_bits) >> slot & 1 == 0 {
                outgoing.returned = channel.peer_lane.word(layout::RETURNED).load(Ordering::Acquire);
            }
            if (outgoing.returned ^ outgoing.loan_bits) >> slot & 1 == 0 {
                // Another slot may be free: the peer returns blocks in any order.
                outgoing.next_loan = (slot + 1) % MAX_LOANS;
                self.unpin(index);
                let loans = &self.peer(index).outgoing.loans;
                let Some(free) = loans.iter().position(|slot| slot.number.is_none()) else { return Ok(None) };
                self.peer(index).outgoing.next_loan = free;
                return self.try_hand_over(index, (tag, context), (memory, offset, length));
            }
            if let Some(announced) = core::mem::take(&mut outgoing.loans[slot]).announced {
                handles.unpin(announced);
            }
        }
        let announced = match handles.announce(shared, memory)? {
            Some(announced) => announced,
            None => match self.announce(memory)? {
                Some(_) => return self.try_hand_over(index, (tag, context), (memory, offset, length)),
                None => return Ok(None),
            },
        };
        handles.pin(announced);
        let number = outgoing.next_number();
        outgoing.loans[slot] = OutgoingSlot { number: Some(number), announced: Some(announced) };
        outgoing.next_loan = (slot + 1) % MAX_LOANS;
        // The peer flips the bit when it returns the block.
        let before = outgoing.returned >> slot & 1 == 1;
        outgoing.loan_bits = outgoing.loan_bits & !(1 << slot) | u64::from(before) << slot;
        channel.loans[slot].store(number, Ordering::Relaxed);
        let words = BlockRecord { index: slot, length, announced, offset }.encode();
        writer.write(channel, (BLOCK, context), tag, 8 * BlockRecord::WORDS, |to, _| {
            // SAFETY: the record has one slot, of which `write` passes all bytes of the payload.
            unsafe { to.cast::<[u64; BlockRecord::WORDS]>().write_unaligned(words) };
        });
        failpoint!("link.lent");
        statistics.sent.add(length);
        let channel = Arc::clone(channel);
        Ok(Some(Loan { channel, slot, number, before, memory: PhantomData }))
    }
}

impl Peer {
    /// Fails if the peer is gone or has closed the link.
    #[inline]
    pub(crate) fn check_open(&mut self) -> Result<()> {
        self.check()?;
        if self.channel.has_closed() { self.channel.check_alive() } else { Ok(()) }
    }

    /// Whether the peer asked to be sent announcements instead of data.
    #[inline]
    fn announces(&self) -> bool {
        self.channel.peer_catalog.word(ANNOUNCE_ONLY).load(Ordering::Relaxed) != 0
    }

    /// The fast path of [`Peer::send_inline`]. Returns `false` on any obstacle.
    #[inline]
    pub(crate) fn send_fast(
        &mut self,
        tag: (u64, Context),
        immediate: Option<u64>,
        buffer: &Buffer<'_>,
    ) -> bool {
        let length = buffer.len() + if immediate.is_some() { size_of::<u64>() } else { 0 };
        let is_blocked = self.announces() || !self.outgoing.backlog.is_empty() || buffer.is_bracketed();
        if is_blocked || !self.writer.has_known_space(length) {
            return false;
        }
        self.write_inline(tag, immediate, buffer);
        true
    }

    /// Copies a short message into the ring. Returns `false` if the ring is full or the peer
    /// accepts announcements only.
    #[inline]
    fn send_inline(
        &mut self,
        tag: (u64, Context),
        immediate: Option<u64>,
        buffer: &Buffer<'_>,
    ) -> Result<bool> {
        let length = buffer.len() + if immediate.is_some() { size_of::<u64>() } else { 0 };
        let is_blocked = self.announces() || !self.outgoing.backlog.is_empty();
        if is_blocked || !self.writer.has_space(&self.channel, length)? {
            return Ok(false);
        }
        let guard = buffer.begin_access(Access::ReadOnly)?;
        self.write_inline(tag, immediate, buffer);
        drop(guard);
        Ok(true)
    }

    /// Copies a short message into the ring, which has space for it.
    #[inline]
    fn write_inline(&mut self, (tag, context): (u64, Context), immediate: Option<u64>, buffer: &Buffer<'_>) {
        let mut cursor = Cursor::new(buffer.segments());
        match immediate {
            None => self.writer.write(&self.channel, (INLINE, context), tag, buffer.len(), |to, count| {
                // SAFETY: `buffer` borrows the caller's memory; `write` passes `count` bytes of the
                // lane.
                unsafe { cursor.copy_out(to, count) };
            }),
            Some(immediate) => {
                let (mut first, length) = (size_of::<u64>(), buffer.len() + size_of::<u64>());
                self.writer.write(&self.channel, (IMMEDIATE, context), tag, length, |to, count| {
                    // SAFETY: as above. The first piece has at least the 8 bytes, as the first slot
                    // of a record has space for more.
                    unsafe {
                        if first > 0 {
                            to.cast::<u64>().write_unaligned(immediate);
                        }
                        cursor.copy_out(to.add(first), count - first);
                    }
                    first = 0;
                });
            }
        }
        self.statistics.sent.add(buffer.len());
    }
}
