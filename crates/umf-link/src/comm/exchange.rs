//! [`Collective`]: the messages of one collective, and the waits for them.
//!
//! Messages of collectives have a context of their own. All ranks call the same collectives in the
//! same order, so the number of a collective identifies it in the tags of its messages.

use core::ops::Range;

use crate::buffer::{Buffer, Destination, Source};
use crate::inbox::Inbox;
use crate::queue::{Context, Matching};
use crate::receive::{Received, Receiving};
use crate::send::SendRequest;
use crate::wait::Limit;
use crate::{Error, Result, TagMatch};

pub(super) const OTHER_LENGTH: &str = "its memory has another length";
pub(super) const OTHER_CALL: &str = "it calls another collective, or another operation";

/// A kind of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectiveKind {
    Barrier = 1,
    Broadcast,
    Reduce,
    AllGather,
    AllToAll,
    ReduceScatter,
    AllReduceShort,
    AllReduce,
}

/// Kind (8 bits), reduction (8), step (8) and number of the collective (40).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CollectiveTag(u64);

impl CollectiveTag {
    pub(super) const fn new(kind: CollectiveKind, code: u8, number: u64) -> Self {
        Self((kind as u64) << 56 | (code as u64) << 48 | number & ((1 << 40) - 1))
    }

    pub(super) const fn step(self, step: u8) -> Self {
        Self(self.0 & !(0xff << 40) | (step as u64) << 40)
    }

    pub(super) const fn value(self) -> u64 {
        self.0
    }

    /// Returns a match of the same step of the same number, whatever collective the sender calls.
    pub(super) const fn any_kind(self) -> TagMatch {
        TagMatch::masked(self.0, (1 << 48) - 1)
    }
}

/// Returns the reason why a rank has ended its collectives, if it has. Messages that it sent before
/// may have arrived at the same time.
pub(super) fn ended_by(inbox: &Inbox, rank: usize) -> Option<Error> {
    match inbox.channel(rank)?.ended_collectives()? {
        0 => Some(Error::CollectivesEnded { rank }),
        pid => Some(Error::PeerGone { pid }),
    }
}

/// Returns the criteria for a message of the same step of the same collective, of any kind.
pub(super) const fn matching_step(from: usize, tag: CollectiveTag) -> Matching {
    Matching::new(Some(from), tag.any_kind(), Context::Collectives)
}

/// A message that a rank will send.
pub(super) struct Incoming<'d> {
    from: usize,
    tag: CollectiveTag,
    length: usize,
    receiving: Receiving<'d>,
    has_arrived: bool,
}

impl<'d> Incoming<'d> {
    pub(super) fn new(from: usize, tag: CollectiveTag, into: Destination<'d>) -> Self {
        let length = into.len();
        let matching = matching_step(from, tag);
        let mut receiving = Receiving::new(matching, into, None);
        receiving.is_collective = true;
        Self { from, tag, length, receiving, has_arrived: false }
    }

    /// As [`Incoming::new`], for a rank that sends nothing meanwhile. The sender may copy a part of
    /// the message (`both`).
    pub(super) fn alone(from: usize, tag: CollectiveTag, into: Destination<'d>, limit: Limit) -> Self {
        let mut incoming = Self::new(from, tag, into);
        incoming.receiving.limit = Some(limit);
        incoming
    }

    /// Checks that the sender calls the same collective with memory of the same length.
    fn check(&self, received: Received) -> Result<()> {
        let what = match received {
            Received { tag, .. } if tag != self.tag.value() => OTHER_CALL,
            Received { length, .. } if length != self.length => OTHER_LENGTH,
            _ => return Ok(()),
        };
        Err(Error::Mismatch { rank: self.from, what })
    }

    fn attempt(&mut self, inbox: &mut Inbox) -> Result<Option<Received>> {
        inbox.attempt(&mut self.receiving).map_err(|error| match error {
            Error::Truncated { .. } | Error::PartialElement { .. } => {
                Error::Mismatch { rank: self.from, what: OTHER_LENGTH }
            }
            error => error,
        })
    }

    /// Returns whether the message was received.
    pub(super) fn poll(&mut self, inbox: &mut Inbox) -> Result<bool> {
        if self.has_arrived {
            return Ok(true);
        }
        let mut received = self.attempt(inbox)?;
        if received.is_none()
            && let Some(end) = end_of(inbox, self.from)
        {
            // The last messages of the rank may have arrived.
            inbox.drain();
            received = Some(self.attempt(inbox)?.ok_or(end)?);
        }
        if let Some(received) = received {
            self.check(received)?;
            self.has_arrived = true;
        }
        Ok(self.has_arrived)
    }
}

/// Returns the reason why a rank takes no part any more: it is gone, or has ended its collectives.
fn end_of(inbox: &mut Inbox, rank: usize) -> Option<Error> {
    let gone = inbox.peers[rank].as_mut().map_or(Some(Error::WrongLink), |peer| peer.check().err());
    gone.or_else(|| ended_by(inbox, rank))
}

/// Returns a range of contiguous memory. The caller has checked the bounds.
pub(super) fn subrange<'d>(buffer: &Buffer<'d>, range: &Range<usize>) -> Result<Buffer<'d>> {
    let pieces = buffer.segments().len();
    buffer.subrange(range.start, range.len()).ok_or(Error::NotContiguous { pieces })
}

/// One call of a collective.
pub(super) struct Collective<'c> {
    pub inbox: &'c mut Inbox,
    pub own_rank: usize,
    pub size: usize,
    /// The number of the collective.
    pub number: u64,
    pub limit: Limit,
}

impl Collective<'_> {
    pub(super) const fn tag(&self, kind: CollectiveKind, code: u8) -> CollectiveTag {
        CollectiveTag::new(kind, code, self.number)
    }

    /// Returns all ranks but this one.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own_rank = self.own_rank;
        (0..self.size).filter(move |rank| *rank != own_rank)
    }

    /// Begins to send a message to a rank.
    pub(super) fn start<'d>(
        &mut self,
        to: usize,
        tag: CollectiveTag,
        buffer: Buffer<'d>,
    ) -> Result<SendRequest<'d>> {
        self.inbox.start_send(to, (tag.value(), Context::Collectives), Source(buffer))
    }

    /// Begins to send a message to each of `ranks`.
    pub(super) fn start_all<'d>(
        &mut self,
        ranks: impl Iterator<Item = usize>,
        tag: CollectiveTag,
        buffer: impl Fn(usize) -> Result<Buffer<'d>>,
    ) -> Result<Vec<SendRequest<'d>>> {
        ranks.map(|to| self.start(to, tag, buffer(to)?)).collect()
    }

    /// Waits for all of these. If `in_order`, messages are received in the order of the slice.
    pub(super) fn finish(
        &mut self,
        outgoing: &mut [SendRequest<'_>],
        incoming: &mut [Incoming<'_>],
        in_order: bool,
    ) -> Result<()> {
        self.inbox.wait(None, &mut self.limit, "a collective", |inbox| {
            let mut is_done = true;
            for request in &mut *outgoing {
                let mut is_sent = inbox.test_send(request)?;
                if !is_sent && let Some(error) = ended_by(inbox, request.peer) {
                    is_sent = inbox.test_send(request)?;
                    if !is_sent {
                        return Err(error);
                    }
                }
                is_done &= is_sent;
            }
            for message in &mut *incoming {
                let has_arrived = message.poll(inbox)?;
                is_done &= has_arrived;
                if in_order && !has_arrived {
                    break;
                }
            }
            Ok(is_done.then_some(()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_mask_ignores_collective_and_not_step() {
        let tag = CollectiveTag::new(CollectiveKind::AllReduce, 79, 5).step(3);
        assert!(tag.any_kind().fits(CollectiveTag::new(CollectiveKind::Barrier, 0, 5).step(3).value()));
        assert!(!tag.any_kind().fits(tag.step(2).value()));
        assert!(!tag.any_kind().fits(CollectiveTag::new(CollectiveKind::AllReduce, 79, 6).step(3).value()));
        assert_ne!(tag.value(), CollectiveTag::new(CollectiveKind::AllReduce, 78, 5).step(3).value());
        assert_eq!(tag.step(4).step(3), tag);
    }
}
