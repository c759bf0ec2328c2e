//! Receiving by a [`Mesh`]: receives that are posted, messages that are fetched for them, probes and
//! claims.

use std::collections::VecDeque;

use umf_core::Access;

use crate::buffer::{Buffer, Destination};
use crate::offer::IMMEDIATE;
use crate::queue::{Body, Context, Matching};
use crate::receive::{FetchOutcome, Receiving};
use crate::ring::RecordHeader;
use crate::wait::Limit;
use crate::{Engine, Error, Result, TagMatch};

use super::{Completed, Mesh, Message, Process, UNNAMED, Wanted};

/// A receive without a message.
#[derive(Debug)]
pub(super) struct Posted {
    token: u64,
    pub matching: Matching,
    into: Destination<'static>,
    /// For a receive of many messages: the bytes that are used, and the least bytes that have to be
    /// left for another message.
    many: Option<(usize, usize)>,
}

/// A message of the queue that is being received.
#[derive(Debug)]
pub(super) struct Fetch {
    token: u64,
    /// Its number in the queue.
    id: u64,
    message: Message,
    receiving: Receiving<'static>,
    is_last: bool,
}

impl Wanted {
    fn matching(&self) -> Matching {
        let (wanted, context) = match self.tag {
            Some(tag) => (tag, Context::Messages),
            None => (TagMatch::ANY, Context::Untagged),
        };
        Matching::new(self.from.map(|process| process.0), wanted, context)
    }
}

impl Posted {
    /// Returns the memory for the next message, and whether the receive takes no further one.
    fn next(&mut self, length: usize) -> (Destination<'static>, bool) {
        let capacity = self.into.0.len();
        match &mut self.many {
            None => (Destination(self.into.0.clone()), true),
            Some((used, least)) => {
                let start = *used;
                let part = length.min(capacity - start);
                *used += part;
                let is_last = capacity - *used < *least || part < length;
                let into = self.into.0.subrange(start, part).unwrap_or_else(|| self.into.0.clone());
                (Destination(into), is_last)
            }
        }
    }
}

/// Returns the address of memory that receives.
fn address(into: &Buffer<'_>) -> usize {
    into.segments()[0].base.addr()
}

impl Mesh {
    /// Begins to receive a message. Its completion is always left by [`Mesh::progress`] or this
    /// call. `many` is, for memory that receives one message after the other, the least bytes that
    /// have to be left for another one.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::NotContiguous`] for a list that is to receive many messages; the
    /// end of the process, if messages of one are wanted.
    ///
    /// # Safety
    /// Until the completion, the memory of `into` can be written and is not used by this process.
    pub unsafe fn receive(
        &mut self,
        wanted: Wanted,
        into: Destination<'static>,
        many: Option<usize>,
        token: u64,
    ) -> Result<()> {
        self.check_process()?;
        if many.is_some() && into.0.segments().len() != 1 {
            return Err(Error::NotContiguous { pieces: into.0.segments().len() });
        }
        let matching = wanted.matching();
        let mut posted = Posted { token, matching, into, many: many.map(|least| (0, least)) };
        loop {
            // Receiving a message may add others to the queue, for receives that were posted before.
            self.settle();
            let Some(id) = self.inbox.queue.find(&matching) else { break };
            if self.assign(id, &mut posted) {
                return Ok(());
            }
        }
        // Messages that arrived before the end of the process were looked at above.
        let from = wanted.from.and_then(|from| self.peers.get(from.0));
        if let Some(end) = from.and_then(|peer| peer.end.clone()) {
            return Err(end);
        }
        self.posted.push_back(posted);
        Ok(())
    }

    /// Cancels a receive that has no message yet. Returns whether there was one; its completion is
    /// [`Completed::Cancelled`].
    pub fn cancel(&mut self, token: u64) -> bool {
        let Some(position) = self.posted.iter().position(|posted| posted.token == token) else {
            return false;
        };
        self.posted.remove(position);
        self.complete(token, Ok(Completed::Cancelled), None);
        true
    }

    /// Returns the first message that a receive would take. If `claim` has a number, the message is
    /// kept for [`Mesh::receive_claimed`] or [`Mesh::discard_claimed`] with that number.
    ///
    /// Looks at what earlier calls of [`Mesh::progress`] have found. (MPICH relies on that: of a
    /// message to itself and one of another process, it probes the latter and receives the former.)
    pub fn peek(&mut self, wanted: &Wanted, claim: Option<u64>) -> Option<Message> {
        self.settle();
        let id = self.inbox.queue.find(&wanted.matching())?;
        let message = self.message(id)?;
        if let Some(token) = claim {
            self.inbox.queue.set_busy(id);
            self.claimed.insert(token, id);
        }
        Some(message)
    }

    /// Receives a message that was claimed. Returns `false` if there is none.
    ///
    /// # Safety
    /// As [`Mesh::receive`].
    pub unsafe fn receive_claimed(&mut self, claim: u64, into: Destination<'static>, token: u64) -> bool {
        let Some(id) = self.claimed.remove(&claim) else { return false };
        let matching = Matching::new(None, TagMatch::ANY, Context::Messages);
        self.assign(id, &mut Posted { token, matching, into, many: None });
        true
    }

    /// Discards a message that was claimed. Returns `false` if there is none.
    pub fn discard_claimed(&mut self, claim: u64) -> bool {
        let Some(id) = self.claimed.remove(&claim) else { return false };
        self.consume(id);
        true
    }

    /// Removes a message from the queue. Its sender is told that it was received.
    pub(super) fn consume(&mut self, id: u64) -> Option<crate::queue::Message> {
        let message = self.inbox.queue.remove(id)?;
        if let Body::Offered(offer) = &message.body
            && let Some(channel) = self.inbox.channel(message.peer)
        {
            channel.take(offer.index, offer.number);
        }
        self.inbox.resume_data();
        Some(message)
    }

    /// Returns the message of the queue with this number.
    fn message(&self, id: u64) -> Option<Message> {
        let message = self.inbox.queue.get(id)?;
        let envelope = &message.envelope;
        Some(Message {
            from: Process(envelope.source),
            tag: envelope.tag,
            length: message.body.len(),
            immediate: envelope.immediate,
        })
    }

    /// Assigns a message of the queue to the first receive that takes it.
    pub(super) fn match_posted(&mut self, id: u64) {
        let Some(message) = self.inbox.queue.get(id) else { return };
        let (envelope, link) = (message.envelope, message.peer);
        if envelope.source == UNNAMED {
            return self.end_of_unnamed(link);
        }
        if envelope.context == Context::Transfers {
            return self.report_transfer(id);
        }
        let takes = |posted: &Posted| posted.matching.takes(envelope.source, envelope.tag, envelope.context);
        if let Some(position) = self.posted.iter().position(takes)
            && let Some(mut posted) = self.posted.remove(position)
            && !self.assign(id, &mut posted)
        {
            self.posted.insert(position, posted);
        }
    }

    /// Receives a message of the queue, or begins to. Returns whether the receive takes no further
    /// message.
    fn assign(&mut self, id: u64, posted: &mut Posted) -> bool {
        let Some(message) = self.message(id) else { return false };
        let (into, is_last) = posted.next(message.length);
        if message.length > into.0.len() {
            self.cut(posted.token, id, message, &into.0);
            return is_last;
        }
        self.inbox.queue.set_busy(id);
        let matching = Matching::new(Some(message.from.0), TagMatch::ANY, Context::Messages);
        // The memory stays valid until the completion, so the sender may write into it. If processes
        // share processors, one copies alone instead of waiting for the other.
        let limit = (!self.inbox.is_oversubscribed).then(|| Limit::new(None));
        let receiving = Receiving::new(matching, into, limit);
        let mut fetch = Fetch { token: posted.token, id, message, receiving, is_last };
        if !self.fetch(&mut fetch) {
            self.fetches.push(fetch);
        }
        is_last
    }

    /// Ends a receive whose message is longer than its memory, which gets the beginning if the data
    /// has arrived. What its sender keeps is not fetched.
    fn cut(&mut self, token: u64, id: u64, message: Message, into: &Buffer<'_>) {
        let consumed = self.consume(id);
        if let Some(Body::Data(bytes)) = consumed.map(|message| message.body) {
            // SAFETY: `into` is the caller's memory, and shorter than the message.
            unsafe { into.cursor().copy_in(bytes.as_ptr(), into.len()) };
        }
        let error = Error::Truncated { length: message.length, capacity: into.len() };
        self.complete(token, Err(error), Some(message));
    }

    /// Continues to receive messages. Returns whether there was anything to do.
    pub(super) fn progress_fetches(&mut self) -> bool {
        let mut is_any = false;
        for mut fetch in core::mem::take(&mut self.fetches) {
            if self.fetch(&mut fetch) {
                is_any = true;
            } else {
                self.fetches.push(fetch);
            }
        }
        is_any
    }

    /// Continues to receive a message. Returns whether the receive has ended.
    fn fetch(&mut self, fetch: &mut Fetch) -> bool {
        let outcome = loop {
            let outcome = if fetch.receiving.bouncing.is_some() {
                self.inbox.bounce(&mut fetch.receiving)
            } else {
                self.inbox.take(fetch.id, &mut fetch.receiving)
            };
            match outcome {
                Ok(None) => return false,
                Ok(Some(FetchOutcome::Bounce)) => {}
                outcome => break outcome,
            }
        };
        let (message, is_last) = (fetch.message, fetch.is_last);
        match outcome {
            Ok(Some(FetchOutcome::Received(_))) => {
                let address = address(&fetch.receiving.into.0);
                let received = Completed::Received { message, address, is_last };
                self.complete(fetch.token, Ok(received), None);
            }
            Ok(_) => {
                // Only a process that has ended withdraws a message.
                let pid = self.peers.get(message.from.0).map_or(0, |peer| peer.address.pid());
                let error = Error::PeerGone { pid: pid.cast_signed() };
                self.complete(fetch.token, Err(error), Some(message));
            }
            Err(error) => {
                self.inbox.discard(fetch.id, error.clone());
                self.complete(fetch.token, Err(error), Some(message));
            }
        }
        true
    }

    /// Copies a short message out of the lane into the memory of a receive.
    #[inline]
    pub(super) fn receive_inline(
        &mut self,
        link: usize,
        record: RecordHeader,
        position: usize,
    ) -> Result<()> {
        let peer = self.inbox.peer(link);
        let mut skipped = if record.kind == IMMEDIATE { size_of::<u64>() } else { 0 };
        let Some(length) = record.length.checked_sub(skipped) else {
            return Err(peer.channel.misbehaved("a message has no immediate data"));
        };
        let posted = &mut self.posted[position];
        let (into, is_last) = posted.next(length);
        let (token, capacity) = (posted.token, into.0.len());
        if is_last {
            self.posted.remove(position);
        }
        let guard = into.0.begin_access(Access::ReadWrite)?;
        let (mut cursor, mut left, mut immediate) = (into.0.cursor(), capacity, 0);
        // SAFETY: `into` has `capacity` bytes of the caller's memory; `read` passes `count` bytes
        // of the lane, of which the first piece has the immediate data.
        peer.reader.read(&peer.channel, record.length, |from, count| unsafe {
            if skipped > 0 {
                immediate = from.cast::<u64>().read_unaligned();
            }
            let count = count - skipped;
            let copied = count.min(left);
            cursor.copy_in(from.add(skipped), copied);
            left -= copied;
            skipped = 0;
        });
        drop(guard);
        peer.statistics.add_received(Engine::Inline, length);
        let immediate = (record.kind == IMMEDIATE).then_some(immediate);
        let message = Message { from: Process(peer.source), tag: record.tag, length, immediate };
        if length > capacity {
            self.complete(token, Err(Error::Truncated { length, capacity }), Some(message));
        } else {
            let received = Completed::Received { message, address: address(&into.0), is_last };
            self.complete(token, Ok(received), None);
        }
        Ok(())
    }

    /// Ends all receives that only a process that has ended could finish.
    pub(super) fn end_receives(&mut self, process: usize, error: &Error) {
        let is_of_process = |fetch: &Fetch| fetch.message.from.0 == process;
        let (ended, others): (Vec<_>, Vec<_>) =
            core::mem::take(&mut self.fetches).into_iter().partition(is_of_process);
        self.fetches = others;
        for fetch in ended {
            self.complete(fetch.token, Err(error.clone()), Some(fetch.message));
        }
        // A receive from any process might wait for this one forever. One that has closed its mesh
        // in order will send nothing, which its partners know.
        let is_killed = !matches!(error, Error::Closed { .. });
        let is_lost = |posted: &Posted| posted.matching.peer.map_or(is_killed, |from| from == process);
        let (ended, others): (VecDeque<_>, VecDeque<_>) =
            core::mem::take(&mut self.posted).into_iter().partition(is_lost);
        self.posted = others;
        for posted in ended {
            self.complete(posted.token, Err(error.clone()), None);
        }
    }
}
