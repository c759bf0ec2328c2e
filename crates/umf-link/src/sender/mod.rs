//! What a link does that sends.

mod lent;
mod outgoing;
mod push;
mod request;

pub use lent::Lent;
pub(crate) use push::FAILED;
pub use request::SendRequest;

use std::sync::Arc;

use crate::key::{RemoteAccess, RemoteKey};
use crate::link::Half;
use crate::parts::{Destination, List, Source};
use crate::remote::{Asking, Places, Registration, Remote, Way};
use crate::tag::Context;
use crate::wait::{Limit, Pulse, wait};
use crate::{Engine, Error, Link, LinkStatistics, Result};
use outgoing::{Outgoing, Sending};

/// What a [`Link`] sends with.
#[derive(Debug)]
pub struct Sends {
    pulse: Pulse,
    outgoing: Outgoing,
    remote: Remote,
}

/// The sending half of a [`Link`], by [`Link::split`].
///
/// Messages of one link arrive in the order in which they were sent, as far as their tags do not let receives pick.
pub type Sender = Link<Sends, ()>;

impl Sends {
    pub(crate) fn new() -> Self {
        Self { pulse: Pulse::default(), outgoing: Outgoing::new(), remote: Remote::new() }
    }
}

impl Half for Sends {
    fn statistics(&self) -> LinkStatistics {
        self.outgoing.statistics
    }
}

/// Sending, and reaching memory of the peer: with a link, or with the half of it that sends.
impl<R> Link<Sends, R> {
    /// Sends a message. What is short ([`crate::LinkSettings::eager_max`]) is on its way when this returns; what is longer was
    /// received, since it is fetched from where it is.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`]; [`Error::TimedOut`]: the message was withdrawn and will not be received;
    /// [`Error::EngineImpossible`]; [`Error::Forked`], [`Error::Misbehaved`].
    #[inline]
    pub fn send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        let source = source.into();
        self.may_send()?;
        if source.len() <= self.shared.settings.inline_max()
            && self.sends.outgoing.send_inline(&self.shared, (tag, Context::Messages), &source.0)?
        {
            return Ok(());
        }
        self.send_and_wait(tag, source)
    }

    fn send_and_wait(&mut self, tag: u64, source: Source<'_>) -> Result<()> {
        let mut sending = Sending::new(tag, Context::Messages, source, true);
        let mut limit = Limit::new(self.timeout);
        let Self { shared, sends: Sends { pulse, outgoing, .. }, .. } = self;
        let sent = wait(shared, pulse, &mut limit, "sending", |_| outgoing.poll(shared, &mut sending));
        match sent {
            Err(error) if outgoing.withdraw(shared, &mut sending) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the link can be used.
    #[inline]
    fn may_send(&mut self) -> Result<()> {
        self.sends.pulse.check(&self.shared)?;
        if self.shared.has_closed() { self.shared.look() } else { Ok(()) }
    }

    /// Begins to send a message, and does not wait. It makes progress when [`Link::test_send`], [`Link::wait_send`] or
    /// [`crate::Link::finish`] is called with the request; dropping the request withdraws the message if it was not received.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn start_send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<SendRequest<'d>> {
        self.start_send_in((tag, Context::Messages), source.into())
    }

    pub(crate) fn start_send_in<'d>(
        &mut self,
        (tag, context): (u64, Context),
        source: Source<'d>,
    ) -> Result<SendRequest<'d>> {
        self.may_send()?;
        let sending = Sending::new(tag, context, source, false);
        let mut request = SendRequest::new(Arc::clone(&self.shared), sending);
        self.test_send(&mut request)?;
        Ok(request)
    }

    /// Whether a message that was begun was sent. Never waits.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn test_send(&mut self, request: &mut SendRequest<'_>) -> Result<bool> {
        if !request.is_done() {
            self.own_send(request)?;
            self.shared.serve()?;
            let done = self.sends.outgoing.poll(&self.shared, &mut request.sending)?;
            if done.is_none() {
                self.may_send()?;
            }
        }
        Ok(request.is_done())
    }

    /// Waits for a message that was begun.
    ///
    /// # Errors
    /// As [`Link::send`]; after [`Error::TimedOut`] the message was withdrawn.
    pub fn wait_send(&mut self, mut request: SendRequest<'_>) -> Result<()> {
        self.own_send(&request)?;
        let mut limit = Limit::new(self.timeout);
        let Self { shared, sends: Sends { pulse, outgoing, .. }, .. } = self;
        let sending = &mut request.sending;
        wait(shared, pulse, &mut limit, "sending", |_| outgoing.poll(shared, sending))
    }

    fn own_send(&self, request: &SendRequest<'_>) -> Result<()> {
        self.shared.known()?;
        if request.is_of(&self.shared) { Ok(()) } else { Err(Error::OtherLink) }
    }

    /// Hands memory over without copying it: the receiver gets a view of it ([`crate::Link::recv_view`]) and gives it back
    /// by dropping that. Costs one short message, whatever the size. Does not wait for the receiver; what the result is for is to
    /// know when the memory is free again.
    ///
    /// Both may write the memory meanwhile, and see what the other writes.
    ///
    /// # Errors
    /// As [`Link::send`]; [`Error::EngineImpossible`] if `source` is no [`crate::Memory`] or a part of one.
    pub fn hand_over<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<Lent<'d>> {
        self.hand_over_in((tag, Context::Messages), source.into())
    }

    #[inline]
    pub(crate) fn hand_over_in<'d>(&mut self, tag: (u64, Context), source: Source<'d>) -> Result<Lent<'d>> {
        self.may_send()?;
        let (Some(memory), &[part]) = (source.0.memory(), source.0.parts()) else {
            let why =
                "only memory of a pool, in one piece, can be handed over (Memory, Memory::part)".to_owned();
            return Err(Error::EngineImpossible { engine: Engine::Mapped, why });
        };
        if self.shared.settings.enforce && !source.0.is_confined() {
            let why = "link.enforce (UMF_LINK_ENFORCE) is set: only all of a block that has a file of its own (isolated pools) can \
                       be handed over"
                .to_owned();
            return Err(Error::EngineImpossible { engine: Engine::Mapped, why });
        }
        let Self { shared, sends: Sends { pulse, outgoing, .. }, .. } = self;
        let place = match outgoing.lend(shared, tag, memory, part)? {
            Some(place) => place,
            None => {
                let mut limit = Limit::new(self.timeout);
                wait(shared, pulse, &mut limit, "handing memory over", |_| {
                    outgoing.lend(shared, tag, memory, part)
                })?
            }
        };
        Ok(Lent::new(Arc::clone(shared), place))
    }

    /// Lets the peer read or write a range of this process's memory by itself, with [`Registration::key`], which may travel in any
    /// way. On memory of a pool ([`crate::Memory`], [`crate::Memory::part`]) that costs the peer one copy, and this process nothing.
    ///
    /// Where the peer cannot reach the memory by itself, or is not to ([`crate::LinkSettings::enforce`]), this process copies for it,
    /// in calls that wait and in [`crate::Link::progress`].
    ///
    /// # Errors
    /// [`Error::NotOnePiece`], [`Error::TooManyRanges`], [`Error::NotCombined`]; as [`crate::Link::look`] by what is known.
    ///
    /// # Safety
    /// Until the registration has ended ([`Registration::end`], or it is dropped), the memory stays, and is used as what another
    /// process may write (if `access` allows to put) at any time. So it is not forgotten (`mem::forget`) unless the memory stays for
    /// ever. [`crate::Link::exposing`] needs no such promise.
    pub unsafe fn register<'d>(
        &self,
        range: impl Into<Destination<'d>>,
        access: RemoteAccess,
    ) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { Registration::new(&self.shared, range.into().0, access) }
    }

    /// As [`Link::register`], of memory that the peer may read.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_source<'d>(&self, range: impl Into<Source<'d>>) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { Registration::new(&self.shared, range.into().0, RemoteAccess::Get) }
    }

    /// Copies out of a range that the peer has registered; returns the engine that did it. `from` is an offset in the range, or
    /// pieces of it; the peer need not do anything, unless the engine is [`Engine::Bounce`]: then it copies itself, in calls on its
    /// link that wait.
    ///
    /// # Errors
    /// [`Error::Expired`], [`Error::NotAllowed`], [`Error::OutOfBounds`], [`Error::Lengths`], [`Error::OtherKey`], [`Error::NotCombined`];
    /// [`Error::EngineImpossible`]; [`Error::TimedOut`], [`Error::PeerGone`], [`Error::Closed`], [`Error::Forked`],
    /// [`Error::Misbehaved`], [`Error::Memory`]. Then a part of it may have been copied.
    pub fn get<'d>(
        &mut self,
        key: &RemoteKey,
        from: impl Into<Places<'d>>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Engine> {
        self.transfer(Way::Get, key, from.into(), &into.into().0)
    }

    /// Copies into a range that the peer has registered; as [`Link::get`]. The bytes are there when it returns.
    ///
    /// # Errors
    /// As there.
    pub fn put<'d>(
        &mut self,
        key: &RemoteKey,
        to: impl Into<Places<'d>>,
        source: impl Into<Source<'d>>,
    ) -> Result<Engine> {
        self.transfer(Way::Put, key, to.into(), &source.into().0)
    }

    fn transfer(
        &mut self,
        way: Way,
        key: &RemoteKey,
        places: Places<'_>,
        local: &List<'_>,
    ) -> Result<Engine> {
        self.may_send()?;
        let Self { shared, timeout, sends: Sends { pulse, outgoing, remote }, .. } = self;
        let limit = Limit::new(*timeout);
        let asking = Asking { shared, pulse, limit, statistics: &mut outgoing.statistics };
        remote.transfer(asking, way, key, places, local)
    }
}
