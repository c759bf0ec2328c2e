//! What a link does that receives.

mod both;
mod bounce;
mod combine;
mod form;
mod incoming;
mod pull;
mod request;
mod view;

pub(crate) use form::Form;
pub use request::RecvRequest;
pub use view::View;

use std::sync::Arc;

use crate::link::Half;
use crate::parts::Destination;
use crate::wait::{Limit, Pulse, wait};
use crate::{Engine, Error, Link, LinkStatistics, Result, TagMatch};
pub(crate) use incoming::Receiving;
use incoming::{Found, Incoming};

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Its tag.
    pub tag: u64,
    /// Its bytes.
    pub length: usize,
    /// What carried it.
    pub engine: Engine,
}

/// A message that is there to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probed {
    /// Its tag.
    pub tag: u64,
    /// Its bytes.
    pub length: usize,
    /// Whether it can be received as a view.
    pub is_viewable: bool,
}

/// What a [`Link`] receives with.
#[derive(Debug)]
pub struct Receives {
    pulse: Pulse,
    incoming: Incoming,
}

/// The receiving half of a [`Link`], by [`Link::split`].
///
/// A receive takes the first message that came, of those whose tag fits. Those that do not fit are kept for later.
pub type Receiver = Link<(), Receives>;

impl Receives {
    pub(crate) fn new() -> Self {
        Self { pulse: Pulse::default(), incoming: Incoming::new() }
    }
}

impl Half for Receives {
    fn statistics(&self) -> LinkStatistics {
        self.incoming.statistics
    }
}

/// Receiving: with a link, or with the half of it that receives.
impl<S> Link<S, Receives> {
    /// Receives a message. What came before the peer's end is received still.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`]; [`Error::TimedOut`]: nothing is lost, but memory of a pool that a longer message
    /// was being received into may be written by a stopped peer once more when it goes on; [`Error::Truncated`],
    /// [`Error::UnexpectedLimit`], [`Error::EngineImpossible`]: the message stays; [`Error::Forked`], [`Error::Misbehaved`].
    #[inline]
    pub fn recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        if !self.shared.mine.is_here() {
            return Err(Error::Forked);
        }
        let mut limit = Limit::new(self.timeout);
        let mut receiving = Receiving::new(wanted.into(), into.into(), Some(limit));
        let Self { shared, receives: Receives { pulse, incoming }, .. } = self;
        wait(shared, pulse, &mut limit, "receiving", |asleep| {
            incoming.receive(shared, &mut receiving, asleep)
        })
    }

    /// Begins to receive a message, and does not wait. The message is looked for when [`Link::test_recv`],
    /// [`Link::wait_recv`] or [`crate::Link::finish`] is called with the request: of several, in the order of those calls.
    pub fn start_recv<'d>(
        &self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> RecvRequest<'d> {
        RecvRequest::new(Arc::clone(&self.shared), Receiving::new(wanted.into(), into.into(), None))
    }

    /// Makes progress with a receive that any of several links may do: as [`Link::test_recv`]. Once it is bouncing it is this
    /// link's.
    pub(crate) fn attempt(
        &mut self,
        receiving: &mut Receiving<'_>,
        asleep: bool,
    ) -> Result<Option<Received>> {
        self.shared.serve()?;
        let received = self.receives.incoming.receive(&self.shared, receiving, asleep)?;
        if received.is_none()
            && let Err(end) = self.receives.pulse.check(&self.shared)
        {
            // What it did last may have come.
            return self.receives.incoming.receive(&self.shared, receiving, true)?.map(Some).ok_or(end);
        }
        Ok(received)
    }

    /// What was received, if it was. Never waits.
    ///
    /// # Errors
    /// As [`Link::recv`].
    pub fn test_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Option<Received>> {
        self.own_recv(request)?;
        if let Some(received) = request.received {
            return Ok(Some(received));
        }
        request.received = self.attempt(&mut request.receiving, true)?;
        Ok(request.received)
    }

    /// Waits for a message that was begun.
    ///
    /// # Errors
    /// As [`Link::recv`].
    pub fn wait_recv(&mut self, mut request: RecvRequest<'_>) -> Result<Received> {
        self.own_recv(&request)?;
        if let Some(received) = request.received {
            return Ok(received);
        }
        let mut limit = Limit::new(self.timeout);
        let Self { shared, receives: Receives { pulse, incoming }, .. } = self;
        let receiving = &mut request.receiving;
        wait(shared, pulse, &mut limit, "receiving", |asleep| incoming.receive(shared, receiving, asleep))
    }

    fn own_recv(&self, request: &RecvRequest<'_>) -> Result<()> {
        if !self.shared.mine.is_here() {
            return Err(Error::Forked);
        }
        if request.is_of(&self.shared) { Ok(()) } else { Err(Error::OtherLink) }
    }

    /// Waits for a message that is memory of a pool, and opens it here, without a copy. Dropping the view gives the memory back.
    ///
    /// What was sent by [`crate::Link::hand_over`], and what was sent from [`crate::Memory`] and did not go in the ring.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::OtherForm`] if the first message that fits is none such, and [`Error::Open`]: the message
    /// stays.
    pub fn recv_view(&mut self, wanted: impl Into<TagMatch>) -> Result<View> {
        if !self.shared.mine.is_here() {
            return Err(Error::Forked);
        }
        let wanted = wanted.into();
        let mut limit = Limit::new(self.timeout);
        let Self { shared, receives: Receives { pulse, incoming }, .. } = self;
        wait(shared, pulse, &mut limit, "receiving", |asleep| {
            if let Some(view) = incoming.view_next(shared, wanted) {
                return Ok(Some(view));
            }
            match incoming.poll(shared, wanted, None, asleep)? {
                Some(Found::Queued(id)) => incoming.view(shared, id),
                _ => Ok(None),
            }
        })
    }

    /// What the next receive would take, if it is there. Never waits.
    ///
    /// # Errors
    /// As [`Link::recv`].
    pub fn probe(&mut self, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        if !self.shared.mine.is_here() {
            return Err(Error::Forked);
        }
        let wanted = wanted.into();
        self.shared.serve()?;
        if let Some(Found::Queued(id)) = self.receives.incoming.poll(&self.shared, wanted, None, true)? {
            return Ok(self.receives.incoming.probed(id));
        }
        self.receives.pulse.check(&self.shared)?;
        Ok(None)
    }

    /// Whether the peer is there, if that was not asked just now.
    pub(crate) fn is_there(&mut self) -> Result<()> {
        self.receives.pulse.check(&self.shared)
    }
}
