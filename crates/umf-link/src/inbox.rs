//! [`Inbox`]: the lanes, the tag queue and the peers that one thread uses.
//!
//! A link has an inbox with one peer. A communicator has an inbox with a peer for each other rank.
//! A call that waits reads all lanes: it moves messages to the tag queue and answers requests of
//! peers. Two processes that wait for each other therefore do not block each other. A receive whose
//! message has arrived reads one lane. After [`RECEIVES_BETWEEN_SWEEPS`] such receives, all lanes
//! are read.

use std::sync::Arc;
use std::time::Duration;

use core::sync::atomic::Ordering;

use umf_core::Access;

use crate::buffer::Buffer;
use crate::channel::{Channel, InboxShared};
use crate::handles::HandleTable;
use crate::layout::{ANNOUNCE_ONLY, OFFERS, Ring};
use crate::mesh::{Accepted, UNNAMED};
use crate::offer::{BLOCK, BlockRecord, IMMEDIATE, INLINE, NAME, OFFER, Offer, REQUEST};
use crate::peer::Peer;
use crate::queue::{Body, DroppedRequest, Envelope, Matching, Queue, queued_size};
use crate::receive::{FetchOutcome, Received, Receiving};
use crate::ring::{RecordHeader, unknown_kind};
use crate::wait::Spin;
use crate::{Engine, Error, Result, TagMatch};

/// The most records that a poll reads from one lane.
const BUDGET: usize = 32;
/// The number of lanes that one poll of a receive from any peer reads in rotation.
const ROTATION: usize = 8;
/// The number of lanes with recent messages, which each poll of a receive from any peer reads.
const RECENT: usize = 4;
/// The most bytes of messages from a peer after it was asked to announce only. Its rings hold less.
const OVERRUN: usize = 256 << 10;
/// Consecutive receives that read one lane only.
const RECEIVES_BETWEEN_SWEEPS: u8 = 128;

/// The message for which a poll searches.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'w> {
    pub matching: Matching,
    /// The receive, if it is posted.
    pub posted: Option<u64>,
    /// Memory for a short message.
    pub into: Option<&'w Buffer<'w>>,
}

/// The message that a poll has found.
#[derive(Debug)]
pub(crate) enum Found {
    /// The message was received.
    Received(Received),
    /// The message is in the queue, under this id.
    Queued(u64),
    /// The next record of a peer is a block that is handed over. It stays in the lane. Peer and
    /// tag.
    Block(usize, u64, BlockRecord),
}

/// The lanes, the tag queue and the peers that one thread uses. [`crate::Link`] and
/// [`crate::Communicator`] own an inbox.
#[derive(Debug)]
pub struct Inbox {
    pub(crate) shared: Arc<InboxShared>,
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    pub(crate) queue: Queue,
    pub(crate) handles: HandleTable,
    pub(crate) spin: Spin,
    /// A copy of [`InboxShared::is_oversubscribed`] for the fast path. A rank that waits then
    /// yields at once. A fuzz target sets it by itself.
    pub(crate) is_oversubscribed: bool,
    /// Lanes that may have unread records, one bit each.
    unread: Vec<u32>,
    pub(crate) timeout: Option<Duration>,
    /// The longest message that is sent in a ring.
    pub(crate) inline_max: usize,
    /// The buffer into which the kernel copies numbers before they are combined.
    pub(crate) stage: Vec<u8>,
    /// The first lane of the next rotation.
    cursor: usize,
    recent: [usize; RECENT],
    /// Whether peers are asked to announce messages instead of sending data.
    announces: bool,
    /// Receives since all lanes were read last.
    fast_receives: u8,
    /// Names of processes that were read from lanes; `None` if this is not the inbox of a mesh.
    pub(crate) names: Option<Vec<(usize, Box<[u8]>)>>,
    /// The links that other processes make to a mesh. A call that waits takes them, too, because
    /// the process for which it waits may wait for an answer over one of them.
    pub(crate) accepted: Option<Arc<Accepted>>,
    /// The indices of those that such calls have taken.
    pub(crate) taken: Vec<usize>,
}

impl Inbox {
    pub(crate) fn new(shared: Arc<InboxShared>, peers: usize) -> Self {
        let (timeout, inline_max) = (shared.settings.timeout, shared.settings.inline_max());
        Self {
            is_oversubscribed: shared.is_oversubscribed,
            unread: vec![0; peers.div_ceil(32)],
            shared,
            peers: (0..peers).map(|_| None).collect(),
            queue: Queue::default(),
            handles: HandleTable::new(),
            spin: Spin::default(),
            timeout,
            inline_max,
            stage: Vec::new(),
            cursor: 0,
            recent: [0; RECENT],
            announces: false,
            fast_receives: 0,
            names: None,
            accepted: None,
            taken: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, index: usize, channel: Arc<Channel>) {
        self.peers[index] = Some(Box::new(Peer::new(channel, index)));
        self.unread[index / 32] |= 1 << (index % 32);
    }

    /// Adds a peer, whose messages are those of `source`. Returns its index.
    pub(crate) fn add(&mut self, channel: Arc<Channel>, source: usize) -> usize {
        let is_free = |index: &usize| self.peers[*index].is_none() && !self.queue.has_messages_of(*index);
        let index = (0..self.peers.len()).find(is_free).unwrap_or(self.peers.len());
        if index == self.peers.len() {
            self.peers.push(None);
            self.unread.resize(self.peers.len().div_ceil(32), 0);
        }
        self.insert(index, channel);
        self.peer(index).source = source;
        index
    }

    /// Removes a peer and its messages.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Arc<Channel>> {
        self.queue.remove_peer(index);
        self.unlink(index)
    }

    /// Removes a peer. Its messages stay, as far as their data has arrived.
    pub(crate) fn unlink(&mut self, index: usize) -> Option<Arc<Channel>> {
        self.queue.remove_offers(index);
        self.resume_data();
        let peer = self.peers[index].take()?;
        for announced in peer.outgoing.announced() {
            self.handles.unpin(announced);
        }
        Some(Arc::clone(&peer.channel))
    }

    /// Returns a peer that was linked.
    #[inline]
    pub(crate) fn peer(&mut self, index: usize) -> &mut Peer {
        // Callers link a peer before they use its index.
        self.peers[index].as_mut().unwrap_or_else(|| unreachable!("peer {index} is linked"))
    }

    pub(crate) fn channel(&self, index: usize) -> Option<&Arc<Channel>> {
        self.peers[index].as_ref().map(|peer| &peer.channel)
    }

    /// Removes receives whose requests were dropped.
    #[inline]
    pub(crate) fn remove_dropped_requests(&mut self) {
        if self.queue.dropped.is_any() {
            self.remove_dropped_slow();
        }
    }

    #[cold]
    fn remove_dropped_slow(&mut self) {
        for request in self.queue.dropped.take() {
            match request {
                DroppedRequest::Receive(id) => self.queue.cancel(id),
                DroppedRequest::Bounce(id) => {
                    for peer in self.peers.iter_mut().flatten().filter(|peer| peer.bouncing == Some(id)) {
                        peer.bouncing = None;
                        self.queue.release(id);
                    }
                }
            }
        }
    }

    /// Searches for a message in the lanes. Moves earlier messages to the queue. Also moves the
    /// message itself there, unless it is short and fits `into`.
    #[inline]
    pub(crate) fn poll(&mut self, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        match wanted.matching.peer {
            Some(index) => self.poll_peer(index, wanted),
            None => self.poll_any(wanted),
        }
    }

    #[inline]
    fn poll_peer(&mut self, index: usize, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        for _ in 0..BUDGET {
            let Some(peer) = &mut self.peers[index] else { return Ok(None) };
            let Some(record) = peer.peek()? else { return Ok(None) };
            let RecordHeader { kind, context, tag, length } = record;
            if kind == REQUEST {
                self.serve_request(index, length)?;
                continue;
            }
            let is_wanted = match self.queue.matching_receive(index, tag, context) {
                Some(receive) => wanted.posted == Some(receive),
                None => wanted.posted.is_none() && wanted.matching.takes(index, tag, context),
            };
            match (kind, wanted.into) {
                (INLINE, Some(into)) if is_wanted && into.fits(length) => {
                    let guard = into.begin_access(Access::ReadWrite)?;
                    let mut cursor = into.cursor();
                    // SAFETY: `into` has `length` bytes of the caller's memory or more; `read`
                    // passes `count` bytes of the lane.
                    peer.reader.read(&peer.channel, length, |from, count| unsafe {
                        cursor.copy_in(from, count);
                    });
                    drop(guard);
                    peer.statistics.add_received(Engine::Inline, length);
                    return Ok(Some(Found::Received(Received {
                        from: index,
                        tag,
                        length,
                        engine: Engine::Inline,
                    })));
                }
                (BLOCK, None) if is_wanted && length == 8 * BlockRecord::WORDS => {
                    let words = peer.reader.words::<{ BlockRecord::WORDS }>(&peer.channel);
                    let block = decode_block(&peer.channel, &words)?;
                    return Ok(Some(Found::Block(index, tag, block)));
                }
                _ => {
                    let id = self.enqueue(index, record, is_wanted)?;
                    if is_wanted {
                        return Ok(Some(Found::Queued(id)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The fast path of [`crate::Link::recv`]. Receives a short message of one peer if the queue is
    /// idle and the message arrives within `times` polls. Reports no errors.
    #[inline]
    pub(crate) fn recv_fast(
        &mut self,
        index: usize,
        wanted: TagMatch,
        into: &Buffer<'_>,
        times: u32,
    ) -> Option<Received> {
        let is_idle = self.queue.is_idle() && !into.is_bracketed();
        let peer = self.peers[index].as_mut().filter(|peer| is_idle && peer.read_error.is_none())?;
        let (tag, length) = peer.reader.spin_for_inline(&peer.channel, times)?;
        if !wanted.fits(tag) || !into.fits(length) {
            return None;
        }
        let mut cursor = into.cursor();
        // SAFETY: `into` has `length` bytes of the caller's memory or more; `read` passes `count`
        // bytes of the lane.
        peer.reader.read(&peer.channel, length, |from, count| unsafe { cursor.copy_in(from, count) });
        peer.statistics.add_received(Engine::Inline, length);
        self.count_received();
        Some(Received { from: index, tag, length, engine: Engine::Inline })
    }

    /// Counts a receive. After [`RECEIVES_BETWEEN_SWEEPS`] receives, reads all lanes.
    #[inline]
    fn count_received(&mut self) {
        self.fast_receives = (self.fast_receives + 1) % RECEIVES_BETWEEN_SWEEPS;
        if self.fast_receives == 0 && self.peers.len() > 1 {
            self.progress();
        }
    }

    fn poll_any(&mut self, wanted: &Wanted<'_>) -> Result<Option<Found>> {
        let count = self.peers.len();
        let rotation = count.min(ROTATION);
        let start = self.cursor;
        self.cursor = (start + rotation) % count.max(1);
        let lanes = (start..start + rotation).map(|at| at % count);
        let recent = self.recent.into_iter().filter(|_| rotation < count);
        for index in lanes.chain(recent) {
            match self.poll_peer(index, wanted) {
                Ok(None) => {}
                Ok(found) => {
                    self.cursor = (index + 1) % count;
                    if !self.recent.contains(&index) {
                        self.recent.rotate_right(1);
                        self.recent[0] = index;
                    }
                    return Ok(found);
                }
                // The caller checks for the end of peers separately.
                Err(error) if error.is_final() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Moves the next record of a peer to the queue.
    #[cold]
    pub(crate) fn enqueue(&mut self, index: usize, record: RecordHeader, is_wanted: bool) -> Result<u64> {
        let RecordHeader { kind, context, tag, length } = record;
        let Self { peers, queue, shared, announces, .. } = self;
        let Some(peer) = &mut peers[index] else { return Err(Error::WrongLink) };
        let channel = Arc::clone(&peer.channel);
        let (mut slot, mut immediate) = (None, None);
        let body = match kind {
            INLINE | IMMEDIATE => {
                peer.overrun += if *announces { queued_size(length) } else { 0 };
                if peer.overrun > OVERRUN {
                    return Err(channel.misbehaved("it sends data though it was asked to announce only"));
                }
                let mut bytes = peer.reader.read_bytes(&channel, length);
                if kind == IMMEDIATE {
                    let (first, rest) = bytes
                        .split_first_chunk()
                        .ok_or(channel.misbehaved("a message has no immediate data"))?;
                    (immediate, bytes) = (Some(u64::from_ne_bytes(*first)), Box::from(rest));
                }
                Body::Data(bytes)
            }
            OFFER => {
                let words = peer.reader.read_words(&channel, length)?;
                let offer =
                    Offer::decode(&words).ok_or(channel.misbehaved("it makes an impossible offer"))?;
                (slot, immediate) = (Some(offer.index), offer.immediate);
                Body::Offered(Box::new(offer))
            }
            BLOCK => {
                let words = peer.reader.read_words(&channel, length)?;
                let block = decode_block(&channel, &words)?;
                slot = Some(OFFERS + block.index);
                Body::Block(block)
            }
            _ => return Err(unknown_kind(&channel)),
        };
        if !is_wanted {
            peer.statistics.unexpected.add(body.len());
        }
        if let Some(slot) = slot {
            // The peer reuses a slot only after its message was taken or withdrawn. Removing the
            // former message bounds the queue.
            if peer.offers.len() <= slot {
                peer.offers.resize(slot + 1, 0);
            }
            let before = core::mem::take(&mut peer.offers[slot]);
            if peer.bouncing != Some(before) && queue.remove(before).is_some() {
                peer.statistics.withdrawn += 1;
            }
        }
        let envelope = Envelope { source: peer.source, tag, context, immediate };
        let id = queue.push(index, envelope, body);
        if let Some(slot) = slot {
            peer.offers[slot] = id;
        }
        if !*announces && queue.bytes() > shared.settings.max_unexpected {
            *announces = true;
            shared.catalog.word(ANNOUNCE_ONLY).store(1, Ordering::Relaxed);
            tracing::debug!(bytes = queue.bytes(), "peers are asked to announce messages only");
        }
        Ok(id)
    }

    /// Lets peers send data again, if the queue has shrunk to half of its bound.
    pub(crate) fn resume_data(&mut self) {
        if self.announces && self.queue.bytes() <= self.shared.settings.max_unexpected / 2 {
            self.announces = false;
            self.shared.catalog.word(ANNOUNCE_ONLY).store(0, Ordering::Relaxed);
            for peer in self.peers.iter_mut().flatten() {
                peer.overrun = 0;
                // A sender with `engine = inline` waits for this.
                peer.channel.notify();
            }
        }
    }

    /// Reads all lanes, at most [`BUDGET`] records of each, and answers requests of peers. Does not
    /// wait. Returns whether records may be left. Calls that use a peer return its errors.
    pub(crate) fn progress(&mut self) -> bool {
        self.remove_dropped_requests();
        if self.accepted.as_ref().is_some_and(|accepted| accepted.has_news()) {
            self.take_accepted();
        }
        if self.shared.is_oversubscribed {
            for (word, lanes) in self.unread.iter_mut().enumerate() {
                *lanes |= self.shared.bell.take_marks(word);
            }
        } else {
            self.mark_all_unread();
        }
        // One record of each lane in turn, so that messages of busy senders alternate in the queue.
        for round in 0..BUDGET {
            let mut is_any_left = false;
            for word in 0..self.unread.len() {
                let mut lanes = self.unread[word];
                while lanes != 0 {
                    let lane = lanes.trailing_zeros();
                    lanes &= lanes - 1;
                    if self.advance_or_store_error(32 * word + lane as usize, round == 0) {
                        is_any_left = true;
                    } else {
                        self.unread[word] &= !(1 << lane);
                    }
                }
            }
            if !is_any_left {
                return false;
            }
        }
        true
    }

    #[cold]
    fn take_accepted(&mut self) {
        let channels = self.accepted.as_ref().map(|accepted| accepted.take()).unwrap_or_default();
        for channel in channels {
            let index = self.add(channel, UNNAMED);
            self.taken.push(index);
        }
    }

    /// Marks all lanes as unread, so that the next [`Inbox::progress`] reads them.
    pub(crate) fn mark_all_unread(&mut self) {
        let mut left = self.peers.len();
        for lanes in &mut self.unread {
            *lanes = if left < 32 { (1 << left) - 1 } else { u32::MAX };
            left = left.saturating_sub(32);
        }
    }

    /// Reads all records that peers can have sent before now.
    pub(crate) fn drain(&mut self) {
        const ROUNDS: usize = ((Ring::Small.slots() + Ring::Large.slots()) as usize).div_ceil(BUDGET);
        // A killed peer may not have marked its lane. The number of rounds is bounded, because
        // other peers may continue to send.
        self.mark_all_unread();
        let _is_left = (0..=ROUNDS).all(|_| self.progress());
    }

    /// As [`Inbox::advance`]. Stores an error for the calls that use the peer.
    fn advance_or_store_error(&mut self, index: usize, is_first: bool) -> bool {
        self.advance(index, is_first).unwrap_or_else(|error| {
            tracing::debug!(%error, "a lane cannot be read");
            if let Some(peer) = self.peers[index].as_mut().filter(|_| error.is_final()) {
                peer.set_read_error(error);
            }
            false
        })
    }

    /// Reads the next record of a lane. Returns whether there was one.
    fn advance(&mut self, index: usize, is_first: bool) -> Result<bool> {
        // A hostile peer can mark a lane that does not exist.
        let peer = self.peers.get(index).and_then(Option::as_ref);
        if peer.is_none_or(|peer| peer.read_error.is_some()) {
            return Ok(false);
        }
        if is_first {
            self.flush(index)?;
        }
        let peer = self.peer(index);
        let Some(record) = peer.peek()? else { return Ok(false) };
        match record.kind {
            REQUEST => self.serve_request(index, record.length)?,
            NAME if self.names.is_some() => self.read_name(index, record.length),
            _ => drop(self.enqueue(index, record, false)?),
        }
        Ok(true)
    }

    /// Reads the name of a process, which its mesh uses later.
    pub(crate) fn read_name(&mut self, index: usize, length: usize) {
        let peer = self.peer(index);
        let channel = Arc::clone(&peer.channel);
        let name = peer.reader.read_bytes(&channel, length);
        self.names.get_or_insert_default().push((index, name));
    }

    /// Makes progress with a receive, without waiting. Returns its message once it is complete.
    #[inline]
    pub(crate) fn attempt(&mut self, receiving: &mut Receiving<'_>) -> Result<Option<Received>> {
        self.remove_dropped_requests();
        loop {
            let posted = receiving.posted.as_ref().map(|ticket| ticket.id);
            let known = match posted {
                _ if receiving.bouncing.is_some() => None,
                _ if self.queue.is_empty() => None,
                Some(receive) => self.queue.assigned(receive),
                None => self.queue.find(&receiving.matching),
            };
            let outcome = if receiving.bouncing.is_some() {
                self.bounce(receiving)?
            } else if let Some(id) = known {
                self.take_or_discard(id, receiving)?
            } else {
                let wanted = Wanted { matching: receiving.matching, posted, into: Some(&receiving.into.0) };
                match self.poll(&wanted)? {
                    None => return Ok(None),
                    Some(Found::Received(received)) => Some(FetchOutcome::Received(received)),
                    Some(Found::Queued(id)) => self.take_or_discard(id, receiving)?,
                    Some(Found::Block(..)) => continue,
                }
            };
            match outcome {
                None => return Ok(None),
                Some(FetchOutcome::Received(received)) => {
                    if let Some(ticket) = receiving.posted.take() {
                        self.queue.cancel(ticket.id);
                    }
                    self.resume_data();
                    self.count_received();
                    return Ok(Some(received));
                }
                Some(_) => {}
            }
        }
    }

    /// As [`Inbox::attempt`]; also reports the end of the peer.
    pub(crate) fn test(&mut self, receiving: &mut Receiving<'_>) -> Result<Option<Received>> {
        let mut received = self.attempt(receiving)?;
        if received.is_none() && receiving.matching.peer.is_none() {
            self.progress();
            received = self.attempt(receiving)?;
        }
        if received.is_none()
            && let Some(peer) = receiving.matching.peer.and_then(|index| self.peers[index].as_mut())
            && let Err(end) = peer.check()
        {
            // Messages that the peer sent before its end may have arrived after the first attempt.
            self.drain();
            return self.attempt(receiving)?.map(Some).ok_or(end);
        }
        Ok(received)
    }

    /// Returns the first message that a receive would take, without waiting.
    pub(crate) fn probe(&mut self, matching: Matching) -> Result<Option<u64>> {
        self.progress();
        if let Some(id) = self.queue.find(&matching) {
            return Ok(Some(id));
        }
        if let Some(peer) = matching.peer.and_then(|index| self.peers[index].as_mut())
            && let Err(end) = peer.check()
        {
            self.drain();
            return self.queue.find(&matching).map(Some).ok_or(end);
        }
        Ok(None)
    }
}

/// Decodes the record of a block that is handed over.
fn decode_block(channel: &Channel, words: &[u64]) -> Result<BlockRecord> {
    BlockRecord::decode(words).ok_or(channel.misbehaved("it hands over an impossible block"))
}
