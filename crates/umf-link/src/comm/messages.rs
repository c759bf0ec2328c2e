//! Messages between ranks: the calls of [`Communicator`] with a rank, or with any.

use super::{Communicator, end};
use crate::inbox::from;
use crate::parts::{Destination, Source};
use crate::queue::Context;
use crate::receive::{Probed, Received, Receiving, RecvRequest};
use crate::send::SendRequest;
use crate::wait::{FRESH, Limit};
use crate::{Error, Result, TagMatch, sys};

/// Returns the process of a rank that cannot be received from any more.
const fn ended(error: &Error) -> i32 {
    match error {
        Error::PeerGone { pid } | Error::Closed { pid } | Error::Misbehaved { pid, .. } => *pid,
        _ => 0,
    }
}

impl Communicator {
    /// Sends a message to a rank: [`crate::Link::send`].
    ///
    /// # Errors
    /// As there and as [`Communicator::link`].
    pub fn send<'d>(&mut self, to: usize, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        self.link(to)?.send(tag, source)
    }

    /// Receives a message from a rank: [`crate::Link::recv`].
    ///
    /// # Errors
    /// As there and as [`Communicator::link`].
    pub fn recv<'d>(
        &mut self,
        from: usize,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        self.link(from)?.recv(wanted, into)
    }

    /// Receives a message from any rank. Of several ranks that have sent one, each gets its turn.
    ///
    /// # Errors
    /// As [`crate::Link::recv`]. The end of a rank ([`Error::PeerGone`], [`Error::Closed`]) is
    /// reported once, after all that it sent was received, and also if it was not linked; then the
    /// other ranks are waited for, until all are gone.
    pub fn recv_any<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        let matching = from(None, wanted.into(), Context::Messages);
        let limit = Limit::new(self.inbox.timeout);
        self.receive_any(&mut Receiving::new(matching, into.into(), Some(limit)))
    }

    fn receive_any(&mut self, receiving: &mut Receiving<'_>) -> Result<Received> {
        self.check_here()?;
        let mut limit = Limit::new(self.inbox.timeout);
        let Self { own_rank, inbox, states, ranks, .. } = self;
        let mut looked = 0;
        inbox.wait(None, &mut limit, "receiving", |inbox| {
            states.adopt_links(inbox, ranks);
            if let Some(received) = inbox.attempt(receiving)? {
                return Ok(Some(received));
            }
            let now = sys::coarse_milliseconds();
            if now.wrapping_sub(looked) <= FRESH {
                return Ok(None);
            }
            looked = now;
            let (mut is_any_left, mut latest) = (false, None);
            for rank in (0..states.pids.len()).filter(|rank| rank != own_rank) {
                let Some(end) = end(inbox, ranks, rank) else {
                    is_any_left = true;
                    continue;
                };
                let process = Some(ended(&end));
                if states.reported[rank] != process {
                    // What it did last may have arrived.
                    states.adopt_links(inbox, ranks);
                    inbox.drain();
                    if let Some(received) = inbox.attempt(receiving)? {
                        return Ok(Some(received));
                    }
                    states.reported[rank] = process;
                    return Err(end);
                }
                latest = Some(end);
            }
            if is_any_left {
                return Ok(None);
            }
            latest.map_or(Ok(None), Err)
        })
    }

    /// Returns the message that [`Communicator::recv`] (`from` a rank) or
    /// [`Communicator::recv_any`] (`None`) would take next, if it has come. Does not wait.
    ///
    /// # Errors
    /// As [`crate::Link::probe`]; ends of ranks are reported for one rank only.
    pub fn probe(&mut self, from_rank: Option<usize>, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        self.check_here()?;
        from_rank.map_or(Ok(()), |rank| self.check(rank))?;
        self.adopt_links();
        let matching = from(from_rank, wanted.into(), Context::Messages);
        Ok(self.inbox.probe(matching)?.and_then(|id| self.inbox.probed(id)))
    }

    /// Begins to send a message to a rank: [`crate::Link::start_send`].
    ///
    /// # Errors
    /// As there and as [`Communicator::link`].
    pub fn start_send<'d>(
        &mut self,
        to: usize,
        tag: u64,
        source: impl Into<Source<'d>>,
    ) -> Result<SendRequest<'d>> {
        self.link(to)?.start_send(tag, source)
    }

    /// Posts a receive from a rank, or from any (`None`): [`crate::Link::start_recv`]. Dropping the
    /// request cancels it.
    ///
    /// # Errors
    /// [`Error::BadRank`], [`Error::Forked`].
    pub fn start_recv<'d>(
        &mut self,
        from_rank: Option<usize>,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<RecvRequest<'d>> {
        self.check_here()?;
        from_rank.map_or(Ok(()), |rank| self.check(rank))?;
        let matching = from(from_rank, wanted.into(), Context::Messages);
        Ok(RecvRequest::new(&mut self.inbox, matching, into.into()))
    }

    /// Returns whether a message was sent. Does not wait.
    ///
    /// # Errors
    /// As [`crate::Link::test_send`].
    pub fn test_send(&mut self, request: &mut SendRequest<'_>) -> Result<bool> {
        self.check_here()?;
        self.adopt_links();
        self.inbox.progress();
        self.inbox.test_send(request)
    }

    /// Returns what was received, if it was. Does not wait.
    ///
    /// # Errors
    /// As [`crate::Link::test_recv`].
    pub fn test_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Option<Received>> {
        self.check_here()?;
        self.adopt_links();
        self.inbox.test_recv(request)
    }

    /// Waits until a message was sent.
    ///
    /// # Errors
    /// As [`crate::Link::wait_send`].
    pub fn wait_send(&mut self, request: SendRequest<'_>) -> Result<()> {
        self.finish(&mut [request], &mut [])
    }

    /// Waits for the message of a posted receive.
    ///
    /// # Errors
    /// As [`crate::Link::wait_recv`]; from any rank as [`Communicator::recv_any`]; from a rank that
    /// has not joined as [`Communicator::link`].
    pub fn wait_recv(&mut self, mut request: RecvRequest<'_>) -> Result<Received> {
        request.check(&self.inbox)?;
        match (request.received, request.receiving.matching.peer) {
            (Some(received), _) => Ok(received),
            (None, None) => self.receive_any(&mut request.receiving),
            (None, Some(rank)) => self.link(rank)?.inbox.wait_recv(&mut request),
        }
    }

    /// Waits for all of these at once: [`crate::Link::finish`].
    ///
    /// # Errors
    /// As there, and as [`Communicator::wait_recv`] for ranks that have not joined. If a message is
    /// to come from any rank and all others are gone: the end of one.
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        self.check_here()?;
        for rank in receives.iter().filter_map(|request| request.receiving.matching.peer) {
            self.link(rank)?;
        }
        let Self { own_rank, inbox, states, ranks, .. } = self;
        let mut looked = 0;
        inbox.finish_while(sends, receives, |inbox, is_from_any| {
            states.adopt_links(inbox, ranks);
            let now = sys::coarse_milliseconds();
            if !is_from_any || now.wrapping_sub(looked) <= FRESH {
                return None;
            }
            looked = now;
            let mut others = (0..states.pids.len()).filter(|rank| rank != own_rank);
            let last = others.next_back()?;
            let end = end(inbox, ranks, last)?;
            others.all(|rank| self::end(inbox, ranks, rank).is_some()).then_some(end)
        })
    }
}
