//! Messages between ranks: the calls of [`Communicator`] that send and receive.

use super::{Communicator, end_of_rank};
use crate::buffer::{Destination, Source};
use crate::queue::{Context, Matching};
use crate::receive::{Probed, Received, Receiving, RecvRequest};
use crate::send::SendRequest;
use crate::wait::FRESH;
use crate::{Error, Result, TagMatch, sys};

/// Returns the pid of an ended rank from its error.
const fn ended_pid(error: &Error) -> i32 {
    match error {
        Error::PeerGone { pid } | Error::Closed { pid } | Error::Misbehaved { pid, .. } => *pid,
        _ => 0,
    }
}

impl Communicator {
    /// Sends a message to a rank: [`crate::Link::send`].
    ///
    /// # Errors
    /// As [`crate::Link::send`] and [`Communicator::link`].
    pub fn send<'d>(&mut self, to: usize, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        self.link(to)?.send(tag, source)
    }

    /// Receives a message from a rank: [`crate::Link::recv`].
    ///
    /// # Errors
    /// As [`crate::Link::recv`] and [`Communicator::link`].
    pub fn recv<'d>(
        &mut self,
        from: usize,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        self.link(from)?.recv(wanted, into)
    }

    /// Receives a message from any rank. If several ranks have sent one, they take turns.
    ///
    /// # Errors
    /// As [`crate::Link::recv`]. Reports the end of each rank once ([`Error::PeerGone`],
    /// [`Error::Closed`]), after all its messages were received, also if the rank was not linked.
    /// If all ranks have ended, every call returns such an error.
    pub fn recv_any<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        let matching = Matching::new(None, wanted.into(), Context::Messages);
        let limit = self.inbox.limit();
        self.receive_any(&mut Receiving::new(matching, into.into(), Some(limit)))
    }

    fn receive_any(&mut self, receiving: &mut Receiving<'_>) -> Result<Received> {
        self.check_here()?;
        let mut limit = self.inbox.limit();
        let Self { own_rank, inbox, states, ranks, .. } = self;
        let mut checked = 0;
        inbox.wait(None, &mut limit, "receiving", |inbox| {
            states.adopt_links(inbox, ranks);
            if let Some(received) = inbox.attempt(receiving)? {
                return Ok(Some(received));
            }
            let now = sys::coarse_milliseconds();
            if now.wrapping_sub(checked) <= FRESH {
                return Ok(None);
            }
            checked = now;
            let (mut is_any_alive, mut latest) = (false, None);
            for rank in (0..states.pids.len()).filter(|rank| rank != own_rank) {
                let Some(end) = end_of_rank(inbox, ranks, rank) else {
                    is_any_alive = true;
                    continue;
                };
                let pid = Some(ended_pid(&end));
                if states.reported[rank] != pid {
                    // The last messages of the rank may have arrived.
                    states.adopt_links(inbox, ranks);
                    inbox.drain();
                    if let Some(received) = inbox.attempt(receiving)? {
                        return Ok(Some(received));
                    }
                    states.reported[rank] = pid;
                    return Err(end);
                }
                latest = Some(end);
            }
            if is_any_alive {
                return Ok(None);
            }
            latest.map_or(Ok(None), Err)
        })
    }

    /// Returns the message that [`Communicator::recv`] (`from` a rank) or
    /// [`Communicator::recv_any`] (`None`) would take next, if it has arrived. Does not wait.
    ///
    /// # Errors
    /// As [`crate::Link::probe`]. With `None`, does not report the end of ranks.
    pub fn probe(&mut self, from: Option<usize>, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        self.check_here()?;
        from.map_or(Ok(()), |rank| self.check(rank))?;
        self.adopt_links();
        let matching = Matching::new(from, wanted.into(), Context::Messages);
        Ok(self.inbox.probe(matching)?.and_then(|id| self.inbox.probed(id)))
    }

    /// Begins to send a message to a rank: [`crate::Link::start_send`].
    ///
    /// # Errors
    /// As [`crate::Link::start_send`] and [`Communicator::link`].
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
        from: Option<usize>,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<RecvRequest<'d>> {
        self.check_here()?;
        from.map_or(Ok(()), |rank| self.check(rank))?;
        let matching = Matching::new(from, wanted.into(), Context::Messages);
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

    /// Returns the message of a posted receive, if it was received. Does not wait.
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

    /// Waits for several requests: [`crate::Link::finish`].
    ///
    /// # Errors
    /// As [`crate::Link::finish`], and as [`Communicator::wait_recv`] for ranks that have not
    /// joined. If a receive from any rank is open and all other ranks have ended: the end of one of
    /// them.
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        self.check_here()?;
        for rank in receives.iter().filter_map(|request| request.receiving.matching.peer) {
            self.link(rank)?;
        }
        let Self { own_rank, inbox, states, ranks, .. } = self;
        let mut checked = 0;
        inbox.finish_while(sends, receives, |inbox, is_from_any| {
            states.adopt_links(inbox, ranks);
            let now = sys::coarse_milliseconds();
            if !is_from_any || now.wrapping_sub(checked) <= FRESH {
                return None;
            }
            checked = now;
            let mut others = (0..states.pids.len()).filter(|rank| rank != own_rank);
            let last = others.next_back()?;
            let end = end_of_rank(inbox, ranks, last)?;
            others.all(|rank| end_of_rank(inbox, ranks, rank).is_some()).then_some(end)
        })
    }
}
