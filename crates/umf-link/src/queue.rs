//! Tags, and the tag queue of an inbox: messages that arrived before their receive, and receives
//! that were posted before their message.
//!
//! A message goes to the first posted receive that matches it, in the order of posting. A receive
//! gets the first message that it matches, in the order in which messages were read from the lanes.
//! For each peer that is the order of sending.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::offer::{BlockRecord, Offer};

/// Selects the messages that a receive takes: the first whose tag matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagMatch {
    tag: u64,
    mask: u64,
}

impl TagMatch {
    /// Any tag. A program without tags sends with tag 0 and receives with this.
    pub const ANY: Self = Self::masked(0, 0);

    /// Returns a match of one tag.
    #[must_use]
    pub const fn tag(tag: u64) -> Self {
        Self::masked(tag, u64::MAX)
    }

    /// Returns a match of all tags that are `tag` in the bits of `mask`.
    #[must_use]
    pub const fn masked(tag: u64, mask: u64) -> Self {
        Self { tag: tag & mask, mask }
    }

    /// Returns whether a tag matches.
    #[inline]
    #[must_use]
    pub const fn fits(self, tag: u64) -> bool {
        tag & self.mask == self.tag
    }
}

impl From<u64> for TagMatch {
    #[inline]
    fn from(tag: u64) -> Self {
        Self::tag(tag)
    }
}

/// The context of a message: a receive in one context takes no message of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Context {
    /// Messages of the application.
    Messages = 0,
    /// Messages of collectives.
    Collectives = 1,
    /// Messages without tags of a mesh.
    Untagged = 2,
    /// Messages that tell of a one-sided transfer of a mesh.
    Transfers = 3,
}

/// The criteria by which a receive matches messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matching {
    /// The sender; `None` for any peer.
    pub peer: Option<usize>,
    pub wanted: TagMatch,
    pub context: Context,
}

impl Matching {
    pub(crate) const fn new(peer: Option<usize>, wanted: TagMatch, context: Context) -> Self {
        Self { peer, wanted, context }
    }

    #[inline]
    pub(crate) fn takes(&self, peer: usize, tag: u64, context: Context) -> bool {
        self.wanted.fits(tag) && self.context == context && self.peer.is_none_or(|wanted| wanted == peer)
    }
}

/// Returns the bytes of memory of a queued message of this length.
pub(crate) const fn queued_size(length: usize) -> usize {
    length + size_of::<Message>()
}

/// The contents of a queued message.
#[derive(Debug)]
pub(crate) enum Body {
    /// The data.
    Data(Box<[u8]>),
    /// An offer. Its sender has the data.
    Offered(Box<Offer>),
    /// A block that was handed over.
    Block(BlockRecord),
}

impl Body {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Data(bytes) => bytes.len(),
            Self::Offered(offer) => offer.length,
            Self::Block(block) => block.length,
        }
    }

    /// Returns the bytes that count against `max_unexpected`. The number of offers and blocks is
    /// bounded.
    fn queued_size(&self) -> u64 {
        if let Self::Data(bytes) = self { queued_size(bytes.len()) as u64 } else { 0 }
    }
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    Free,
    /// Assigned to the posted receive with this id.
    Assigned(u64),
    /// Being copied by a receive.
    Busy,
}

/// A message that was read from a lane.
#[derive(Debug)]
pub(crate) struct Message {
    /// Unique in the queue.
    pub id: u64,
    /// The peer that has its offer.
    pub peer: usize,
    pub envelope: Envelope,
    state: MessageState,
    pub body: Body,
}

/// What a message says of itself, and receives match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The peer, or in a mesh the process that sent it.
    pub source: usize,
    pub tag: u64,
    pub context: Context,
    /// Immediate data of a mesh's message.
    pub immediate: Option<u64>,
}

#[derive(Debug)]
struct PostedReceive {
    id: u64,
    matching: Matching,
    message: Option<u64>,
}

/// A request that the application dropped, possibly in another thread, and that the inbox still
/// has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DroppedRequest {
    /// A posted receive.
    Receive(u64),
    /// A receive that was emptying bounce buffers, by the id of its message.
    Bounce(u64),
}

/// The dropped requests that the inbox has not removed yet.
#[derive(Debug, Default)]
pub(crate) struct DroppedRequests {
    is_any: AtomicBool,
    list: Mutex<Vec<DroppedRequest>>,
}

impl DroppedRequests {
    pub(crate) fn put(&self, request: DroppedRequest) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.is_any.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Vec<DroppedRequest> {
        if !self.is_any.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        core::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A guard of a posted receive. Dropping it cancels the receive.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub id: u64,
    dropped: Arc<DroppedRequests>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.dropped.put(DroppedRequest::Receive(self.id));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    messages: VecDeque<Message>,
    posted: VecDeque<PostedReceive>,
    pub dropped: Arc<DroppedRequests>,
    /// Bytes of memory of messages that are queued with their data.
    bytes: u64,
    next: u64,
}

impl Queue {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.posted.is_empty()
    }

    /// Whether it has no message, no posted receive and no dropped request.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && !self.dropped.is_any.load(Ordering::Relaxed)
    }

    /// Returns the bytes of memory of messages that are queued with their data.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a message, and assigns it to the first posted receive that matches it.
    pub(crate) fn push(&mut self, peer: usize, envelope: Envelope, body: Body) -> u64 {
        self.next += 1;
        self.bytes += body.queued_size();
        let id = self.next;
        self.messages.push_back(Message { id, peer, envelope, state: MessageState::Free, body });
        self.assign(self.messages.len() - 1);
        id
    }

    /// Assigns a free message to the first posted receive that matches it.
    fn assign(&mut self, position: usize) {
        let Message { id, envelope: Envelope { source, tag, context, .. }, .. } = self.messages[position];
        let mut open = self.posted.iter_mut().filter(|posted| posted.message.is_none());
        if let Some(posted) = open.find(|posted| posted.matching.takes(source, tag, context)) {
            posted.message = Some(id);
            self.messages[position].state = MessageState::Assigned(posted.id);
        }
    }

    /// Returns the posted receive to which a message would be assigned.
    #[inline]
    pub(crate) fn matching_receive(&self, peer: usize, tag: u64, context: Context) -> Option<u64> {
        let takes =
            |posted: &&PostedReceive| posted.message.is_none() && posted.matching.takes(peer, tag, context);
        self.posted.iter().find(takes).map(|posted| posted.id)
    }

    /// Posts a receive, and assigns the first free message that it matches.
    pub(crate) fn post(&mut self, matching: Matching) -> Ticket {
        self.next += 1;
        let id = self.next;
        self.posted.push_back(PostedReceive { id, matching, message: None });
        if let Some(message) = self.find(&matching) {
            self.assign_to(message, id);
        }
        Ticket { id, dropped: Arc::clone(&self.dropped) }
    }

    fn assign_to(&mut self, message: u64, receive: u64) {
        if let (Some(position), Some(posted)) = (self.position(message), self.posted_index(receive)) {
            self.messages[position].state = MessageState::Assigned(receive);
            self.posted[posted].message = Some(message);
        }
    }

    fn posted_index(&self, id: u64) -> Option<usize> {
        self.posted.binary_search_by_key(&id, |posted| posted.id).ok()
    }

    /// Removes a posted receive. If a message is assigned to it, that message is free again.
    pub(crate) fn cancel(&mut self, receive: u64) {
        let Some(posted) = self.posted_index(receive).and_then(|position| self.posted.remove(position))
        else {
            return;
        };
        if let Some(position) = posted.message.and_then(|message| self.position(message)) {
            self.messages[position].state = MessageState::Free;
            self.assign(position);
        }
    }

    /// Returns the message of a posted receive.
    pub(crate) fn assigned(&self, receive: u64) -> Option<u64> {
        self.posted[self.posted_index(receive)?].message
    }

    /// Returns the first free message that a receive takes.
    pub(crate) fn find(&self, matching: &Matching) -> Option<u64> {
        let takes = |message: &&Message| {
            let Envelope { source, tag, context, .. } = message.envelope;
            message.state == MessageState::Free && matching.takes(source, tag, context)
        };
        self.messages.iter().find(takes).map(|message| message.id)
    }

    fn position(&self, id: u64) -> Option<usize> {
        // Ids ascend.
        self.messages.binary_search_by_key(&id, |message| message.id).ok()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Message> {
        self.messages.get(self.position(id)?)
    }

    /// Marks a message as being copied.
    pub(crate) fn set_busy(&mut self, id: u64) {
        if let Some(position) = self.position(id) {
            self.messages[position].state = MessageState::Busy;
        }
    }

    /// Undoes [`Queue::set_busy`]: the message is assigned to its posted receive, or free again.
    pub(crate) fn release(&mut self, id: u64) {
        let Some(position) = self.position(id) else { return };
        match self.posted.iter().find(|posted| posted.message == Some(id)) {
            Some(posted) => self.messages[position].state = MessageState::Assigned(posted.id),
            None => {
                self.messages[position].state = MessageState::Free;
                self.assign(position);
            }
        }
    }

    /// Removes a message. The posted receive to which it was assigned gets the next message.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Message> {
        let message = self.messages.remove(self.position(id)?)?;
        self.bytes -= message.body.queued_size();
        if let Some(posted) = self.posted.iter_mut().find(|posted| posted.message == Some(id)) {
            posted.message = None;
            let (receive, matching) = (posted.id, posted.matching);
            if let Some(next) = self.find(&matching) {
                self.assign_to(next, receive);
            }
        }
        Some(message)
    }

    /// Sets the source of messages of a peer that had named itself in between.
    pub(crate) fn set_source(&mut self, peer: usize, source: usize) {
        for message in self.messages.iter_mut().filter(|message| message.peer == peer) {
            message.envelope.source = source;
        }
    }

    /// Returns the first free message after another one.
    pub(crate) fn free_after(&self, id: u64) -> Option<u64> {
        let start = self.messages.partition_point(|message| message.id <= id);
        let mut later = self.messages.range(start..);
        later.find(|message| message.state == MessageState::Free).map(|message| message.id)
    }

    /// Returns the number of the latest message.
    pub(crate) const fn latest(&self) -> u64 {
        self.next
    }

    /// Removes the messages of a peer that only the peer has.
    pub(crate) fn remove_offers(&mut self, peer: usize) {
        let is_kept = |message: &&Message| message.peer == peer && !matches!(message.body, Body::Data(_));
        let ids: Vec<u64> = self.messages.iter().filter(is_kept).map(|message| message.id).collect();
        ids.into_iter().for_each(|id| drop(self.remove(id)));
    }

    /// Returns whether there is a message of a peer.
    pub(crate) fn has_messages_of(&self, peer: usize) -> bool {
        self.messages.iter().any(|message| message.peer == peer)
    }

    /// Removes all messages of a peer.
    pub(crate) fn remove_peer(&mut self, peer: usize) {
        let of_peer = |message: &Message| (message.peer == peer).then_some(message.id);
        let ids: Vec<u64> = self.messages.iter().filter_map(of_peer).collect();
        ids.into_iter().for_each(|id| drop(self.remove(id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matching(kind: u64, peer: u64, tag: u64) -> Matching {
        let wanted = [TagMatch::ANY, TagMatch::tag(tag), TagMatch::masked(tag, 1)][kind as usize % 3];
        Matching { peer: (kind < 3).then_some(peer as usize), wanted, context: Context::Messages }
    }

    fn envelope(peer: u64, tag: u64, context: Context) -> Envelope {
        Envelope { source: peer as usize, tag, context, immediate: None }
    }

    /// A straightforward model of the queue.
    #[derive(Default)]
    struct Model {
        messages: Vec<(u64, usize, u64)>,
        posted: Vec<(u64, Matching)>,
        /// Assigned messages, each with its receive.
        pairs: Vec<(u64, u64)>,
    }

    impl Model {
        /// Assigns messages in order of arrival to receives in order of posting.
        fn settle(&mut self) {
            for (message, peer, tag) in &self.messages {
                if self.pairs.iter().any(|(paired, _)| paired == message) {
                    continue;
                }
                let takes = |(receive, matching): &&(u64, Matching)| {
                    !self.pairs.iter().any(|(_, paired)| paired == receive)
                        && matching.takes(*peer, *tag, Context::Messages)
                };
                if let Some((receive, _)) = self.posted.iter().find(takes) {
                    self.pairs.push((*message, *receive));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn queue_matches_in_order(steps in prop::collection::vec((0..5_u8, 0..6_u64, 0..3_u64, 0..4_u64), 1..150)) {
            let (mut queue, mut model) = (Queue::default(), Model::default());
            let mut tickets: Vec<Ticket> = Vec::new();
            for (step, kind, peer, tag) in steps {
                match step {
                    0 | 1 => {
                        let body = Body::Data(Box::from([0_u8; 3]));
                        let id = queue.push(peer as usize, envelope(peer, tag, Context::Messages), body);
                        let other = queue.push(peer as usize, envelope(peer, tag, Context::Collectives), Body::Data(Box::default()));
                        queue.remove(other).unwrap();
                        model.messages.push((id, peer as usize, tag));
                    }
                    2 => {
                        let ticket = queue.post(matching(kind, peer, tag));
                        model.posted.push((ticket.id, matching(kind, peer, tag)));
                        tickets.push(ticket);
                    }
                    3 if !tickets.is_empty() => {
                        // Received if it has a message, else cancelled.
                        let ticket = tickets.remove(kind as usize % tickets.len());
                        if let Some(message) = queue.assigned(ticket.id).filter(|_| tag > 0) {
                            model.pairs.retain(|(paired, _)| *paired != message);
                            model.messages.retain(|(id, ..)| *id != message);
                            model.posted.retain(|(id, _)| *id != ticket.id);
                            queue.cancel(ticket.id);
                            queue.remove(message).unwrap();
                        } else {
                            model.pairs.retain(|(_, paired)| *paired != ticket.id);
                            model.posted.retain(|(id, _)| *id != ticket.id);
                            queue.cancel(ticket.id);
                        }
                    }
                    _ => {
                        let free = |id: &u64| !model.pairs.iter().any(|(paired, _)| paired == id);
                        let wanted = matching(kind, peer, tag);
                        let takes = |(id, peer, tag): &&(u64, usize, u64)| free(id) && wanted.takes(*peer, *tag, Context::Messages);
                        let expected = model.messages.iter().find(takes).map(|(id, ..)| *id);
                        prop_assert_eq!(queue.find(&wanted), expected);
                        if let Some(id) = expected {
                            prop_assert_eq!(queue.remove(id).unwrap().envelope.tag, model.messages.iter().find(|(other, ..)| *other == id).unwrap().2);
                            model.messages.retain(|(other, ..)| *other != id);
                        }
                    }
                }
                model.settle();
                for ticket in &tickets {
                    let expected = model.pairs.iter().find(|(_, receive)| *receive == ticket.id).map(|(message, _)| *message);
                    prop_assert_eq!(queue.assigned(ticket.id), expected);
                }
                prop_assert_eq!(queue.bytes(), (queued_size(3) * model.messages.len()) as u64);
            }
            for (id, ..) in model.messages {
                queue.remove(id).unwrap();
            }
            prop_assert_eq!(queue.bytes(), 0);
        }

        #[test]
        fn tag_mask_selects_bits(tag in any::<u64>(), wanted in any::<u64>(), mask in any::<u64>()) {
            prop_assert_eq!(TagMatch::masked(wanted, mask).fits(tag), tag & mask == wanted & mask);
        }
    }
}
