//! [`Link`]: messages and one-sided transfers with one peer.

use core::borrow::BorrowMut;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::channel::Channel;
use crate::engines::Engines;
use crate::inbox::{Inbox, from};
use crate::key::{RemoteAccess, RemoteKey};
use crate::parts::{Destination, Source};
use crate::queue::{Context, Matching};
use crate::receive::{Probed, Received, Receiving, RecvRequest};
use crate::registry::Registration;
use crate::remote::Direct;
use crate::send::{Lent, SendRequest};
use crate::spans::Spans;
use crate::view::View;
use crate::wait::{EAGER, Limit};
use crate::{Engine, Error, LinkStatistics, Result, TagMatch};

/// A channel between two processes of one machine: messages with tags in both directions, and
/// transfers to and from registered memory.
///
/// A link made by [`crate::Endpoint::accept`] or [`crate::LinkBuilder::connect`] has an [`Inbox`]
/// of its own. [`crate::Communicator::link`] borrows the link with a rank.
///
/// One thread uses a link at a time; two threads use two links. The link is closed when it and its
/// guards ([`View`], [`Lent`], [`SendRequest`]) are dropped. The peer receives messages that were
/// sent before, and then gets [`Error::Closed`]. If this process ends without closing, the peer
/// gets [`Error::PeerGone`]. A forked child does not have its parent's links ([`Error::Forked`]).
///
/// Messages arrive in the order in which they were sent, as far as tags do not select others.
#[derive(Debug)]
pub struct Link<I = Inbox> {
    pub(crate) inbox: I,
    pub(crate) index: usize,
}

impl Link {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        let mut inbox = Inbox::new(Arc::clone(&channel.shared), 1);
        inbox.insert(0, channel);
        Self { inbox, index: 0 }
    }
}

impl<I: BorrowMut<Inbox>> Link<I> {
    #[inline]
    fn parts(&mut self) -> (&mut Inbox, usize) {
        (self.inbox.borrow_mut(), self.index)
    }

    fn channel(&self) -> Result<&Arc<Channel>> {
        self.inbox.borrow().channel(self.index).ok_or(Error::WrongLink)
    }

    fn matching(&self, wanted: impl Into<TagMatch>) -> Matching {
        from(Some(self.index), wanted.into(), Context::Messages)
    }

    /// Sends a message. If it is at most [`crate::LinkSettings::eager_max`] bytes long, it is in
    /// the ring when this returns. A longer one was received by then, since its receiver fetches
    /// it. So was every message to a peer that keeps more than
    /// [`crate::LinkSettings::max_unexpected`] bytes.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`]; [`Error::TimedOut`]: the message was withdrawn and
    /// will not be received; [`Error::EngineImpossible`]; [`Error::Forked`], [`Error::Misbehaved`].
    #[inline]
    pub fn send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        let (inbox, index) = self.parts();
        inbox.send(index, tag, source.into())
    }

    /// Begins to send a message. Does not wait, except with `engine = inline`. A message for which
    /// the lane has no room goes to a backlog, whose length is not limited. It makes progress
    /// during calls of [`Link::test_send`], [`Link::wait_send`] and [`Link::finish`] that get the
    /// request.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn start_send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<SendRequest<'d>> {
        let (inbox, index) = self.parts();
        inbox.start_send(index, (tag, Context::Messages), source.into())
    }

    /// Returns whether a message was sent. Does not wait.
    ///
    /// # Errors
    /// As [`Link::send`]; [`Error::WrongLink`].
    pub fn test_send(&mut self, request: &mut SendRequest<'_>) -> Result<bool> {
        let (inbox, _) = self.parts();
        inbox.check_here()?;
        inbox.progress();
        inbox.test_send(request)
    }

    /// Waits until a message was sent.
    ///
    /// # Errors
    /// As [`Link::send`]; after [`Error::TimedOut`] the message was withdrawn.
    /// [`Error::WrongLink`].
    pub fn wait_send(&mut self, request: SendRequest<'_>) -> Result<()> {
        self.parts().0.finish(&mut [request], &mut [])
    }

    /// Hands memory over without copying it: the receiver gets a view of it ([`Link::recv_view`])
    /// and gives it back by dropping that. It costs one short message, whatever the size. It does
    /// not wait until the receiver maps the memory; it waits while the ring is full, and while 64
    /// blocks are with the peer. Both processes may write the memory meanwhile.
    ///
    /// # Errors
    /// As [`Link::send`]; [`Error::EngineImpossible`] if `source` is not [`crate::Memory`] or a
    /// part of it.
    #[inline]
    pub fn hand_over<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<Lent<'d>> {
        let (inbox, index) = self.parts();
        inbox.hand_over(index, (tag, Context::Messages), source.into())
    }

    /// Receives the first message that matches. What came before the end of the peer is still
    /// received.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`]; [`Error::TimedOut`]: no message is lost, but memory
    /// of a pool into which a longer message was being received may be written by a stopped peer
    /// once more; [`Error::Truncated`], [`Error::PartialElement`], [`Error::EngineImpossible`]: the
    /// message stays; [`Error::Forked`], [`Error::Misbehaved`].
    #[inline]
    pub fn recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        let (wanted, into) = (wanted.into(), into.into());
        let (inbox, index) = self.parts();
        inbox.check_here()?;
        let times = inbox.spin.polls(inbox.is_crowded, EAGER);
        match inbox.recv_fast(index, wanted, &into.0, times) {
            Some(received) => Ok(received),
            None => inbox.recv_slow(index, wanted, into),
        }
    }

    /// Posts a receive and does not wait. Of several posted receives, a message goes to the first
    /// one that matches it, in the order of these calls. Its memory is written during calls of
    /// [`Link::test_recv`], [`Link::wait_recv`] and [`Link::finish`] that get the request.
    pub fn start_recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> RecvRequest<'d> {
        let matching = self.matching(wanted);
        RecvRequest::new(self.inbox.borrow_mut(), matching, into.into())
    }

    /// Returns what was received, if it was. Does not wait.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::WrongLink`].
    pub fn test_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Option<Received>> {
        self.parts().0.test_recv(request)
    }

    /// Waits for the message of a posted receive.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::WrongLink`].
    pub fn wait_recv(&mut self, mut request: RecvRequest<'_>) -> Result<Received> {
        self.parts().0.wait_recv(&mut request)
    }

    /// Waits for all of these at once: none keeps another from making progress, here or in a peer.
    ///
    /// # Errors
    /// As [`Link::send`] and [`Link::recv`]; what is not done stays begun. [`Error::WrongLink`].
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        self.parts().0.finish(sends, receives)
    }

    /// Sends one message and receives another at the same time.
    ///
    /// # Errors
    /// As [`Link::finish`]; what was not sent by then is withdrawn.
    pub fn exchange<'s, 'd>(
        &mut self,
        tag: u64,
        source: impl Into<Source<'s>>,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        let mut receives = [self.start_recv(wanted, into)];
        let mut sends = [self.start_send(tag, source)?];
        self.finish(&mut sends, &mut receives)?;
        let [request] = receives;
        self.wait_recv(request)
    }

    /// Waits for a message that was handed over, and maps it without a copy. Dropping the view
    /// gives the memory back.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::WrongForm`] if the first message that matches was sent as a
    /// copy, and [`Error::Open`]: the message stays.
    #[inline]
    pub fn recv_view(&mut self, wanted: impl Into<TagMatch>) -> Result<View> {
        let matching = self.matching(wanted);
        let (inbox, index) = self.parts();
        inbox.check_here()?;
        let mut limit = Limit::new(inbox.timeout);
        inbox.wait(Some(index), &mut limit, "receiving", |inbox| inbox.attempt_view(&matching))
    }

    /// Returns the message that the next receive would take, if it has come. Does not wait.
    ///
    /// # Errors
    /// As [`Link::recv`].
    pub fn probe(&mut self, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        let matching = self.matching(wanted);
        let (inbox, _) = self.parts();
        inbox.check_here()?;
        Ok(inbox.probe(matching)?.and_then(|id| inbox.probed(id)))
    }

    /// Lets peers read or write a range of this process's memory by themselves, with
    /// [`Registration::key`], which may travel in any way. For memory of a pool ([`crate::Memory`],
    /// [`crate::Memory::part`]) that costs the peer one copy and this process nothing. Where the
    /// peer cannot reach the memory, this process copies for it, in calls that wait and in
    /// [`Link::progress`].
    ///
    /// # Errors
    /// [`Error::NotOnePiece`], [`Error::TooManyRanges`], [`Error::NotCombined`], [`Error::Forked`].
    ///
    /// # Safety
    /// Until the registration has ended ([`Registration::end`], or its drop), the memory stays, and
    /// is used as memory that another process may write (if `access` allows to put) at any time. So
    /// it is not forgotten (`mem::forget`) unless the memory stays for ever. [`Link::exposing`]
    /// needs no such promise.
    pub unsafe fn register<'d>(
        &self,
        range: impl Into<Destination<'d>>,
        access: RemoteAccess,
    ) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { Registration::new(&self.inbox.borrow().shared, range.into().0, access) }
    }

    /// As [`Link::register`], for memory that peers may read.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_source<'d>(&self, range: impl Into<Source<'d>>) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { Registration::new(&self.inbox.borrow().shared, range.into().0, RemoteAccess::Get) }
    }

    /// Registers a range while `run` runs. Peers may reach it by the key until then.
    ///
    /// # Errors
    /// As [`Link::register`]; [`Error::TimedOut`] if a peer does not leave the range.
    ///
    /// # Examples
    /// ```
    /// # use umf_link::{Link, RemoteAccess, RemoteKey, Result};
    /// # fn owner(mut link: Link) -> Result<()> {
    /// let mut board = vec![0; 1000];
    /// link.exposing(&mut board, RemoteAccess::Put, |link, key| {
    ///     link.send(1, &key.to_bytes())?;
    ///     link.recv(2, &mut [0; 1]) // the peer is done
    /// })??;
    /// # Ok(())
    /// # }
    /// # fn peer(mut link: Link) -> Result<()> {
    /// let mut bytes = [0; umf_link::KEY_SIZE];
    /// link.recv(1, &mut bytes)?;
    /// let key = RemoteKey::from_bytes(&bytes)?;
    /// link.put(&key, 100, b"written by the peer")?;
    /// link.send(2, &[1])
    /// # }
    /// ```
    pub fn exposing<'d, R>(
        &mut self,
        range: impl Into<Destination<'d>>,
        access: RemoteAccess,
        run: impl FnOnce(&mut Self, &RemoteKey) -> R,
    ) -> Result<R> {
        // SAFETY: the registration lives in this function, which ends it however it is left; the
        // range is borrowed until then.
        let mut registration = unsafe { self.register(range, access) }?;
        let done = run(self, &registration.key());
        registration.end(self.timeout())?;
        Ok(done)
    }

    /// Copies out of a range that the peer has registered. Returns the engine that copied. `spans`
    /// is an offset in the range, or pieces of it. The peer need not do anything, unless the engine
    /// is [`Engine::Bounce`]: then it copies itself, in calls that wait.
    ///
    /// # Errors
    /// [`Error::Expired`], [`Error::NotAllowed`], [`Error::OutOfBounds`],
    /// [`Error::LengthMismatch`], [`Error::ForeignKey`], [`Error::NotCombined`],
    /// [`Error::EngineImpossible`], [`Error::PeerGone`], [`Error::Closed`], [`Error::Forked`],
    /// [`Error::Misbehaved`], [`Error::Memory`], [`Error::TimedOut`]. A part of it may have been
    /// copied then.
    pub fn get<'p, 'd>(
        &mut self,
        key: &RemoteKey,
        spans: impl Into<Spans<'p>>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Engine> {
        let (inbox, index) = self.parts();
        inbox.transfer(index, Direct::Get, key, spans.into(), &into.into().0)
    }

    /// Copies into a range that the peer has registered; as [`Link::get`]. The bytes are there when
    /// it returns. If the engine is [`Engine::Bounce`] and it times out, the peer may still write
    /// them.
    ///
    /// # Errors
    /// As there.
    pub fn put<'p, 'd>(
        &mut self,
        key: &RemoteKey,
        spans: impl Into<Spans<'p>>,
        source: impl Into<Source<'d>>,
    ) -> Result<Engine> {
        let (inbox, index) = self.parts();
        inbox.transfer(index, Direct::Put, key, spans.into(), &source.into().0)
    }

    /// Reads what has come and answers requests of peers, without waiting. For programs without
    /// calls that wait, together with [`Link::event_fd`].
    ///
    /// # Errors
    /// As [`Link::check_alive`].
    pub fn progress(&mut self) -> Result<()> {
        let (inbox, index) = self.parts();
        inbox.check_here()?;
        inbox.progress();
        inbox.peers[index].as_mut().map_or(Err(Error::WrongLink), |peer| peer.check())
    }

    /// Sets how long calls may wait from now on; `None` waits until the peer is gone.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.inbox.borrow_mut().timeout = timeout;
    }

    /// Returns how long calls may wait; `None` is until the peer is gone.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.inbox.borrow().timeout
    }

    /// Returns what can carry messages to this process, and what each engine costs.
    ///
    /// # Panics
    /// If the rank was forgotten.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.channel().unwrap_or_else(|error| unreachable!("{error}")).engines
    }

    /// Returns what this side has done.
    #[must_use]
    pub fn statistics(&self) -> LinkStatistics {
        let peer = &self.inbox.borrow().peers[self.index];
        peer.as_ref().map_or_else(LinkStatistics::default, |peer| peer.statistics)
    }

    /// Returns the peer's pid in this pid namespace; 0 if the namespace does not show it.
    #[must_use]
    pub fn peer_pid(&self) -> u32 {
        self.channel().map_or(0, |channel| channel.pid.unsigned_abs())
    }

    /// Asks the kernel whether the peer is alive, without waiting.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`], [`Error::Forked`].
    pub fn check_alive(&self) -> Result<()> {
        self.channel()?.check_alive()
    }

    /// Returns a descriptor to poll: readable when the peer has done something since [`Link::arm`],
    /// and when it is gone. It stays the link's.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`], [`Error::Forked`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let channel = self.channel()?;
        channel.check_known()?;
        Ok(channel.socket())
    }

    /// Makes the event descriptor readable at the next thing that the peer does. What is waited for
    /// may have come before: try once more after this and before polling.
    ///
    /// # Errors
    /// As [`Link::check_alive`].
    pub fn arm(&self) -> Result<()> {
        let channel = self.channel()?;
        channel.check_known()?;
        channel.arm();
        Ok(())
    }
}

impl Inbox {
    /// Returns whether this process has the inbox: a forked child has not.
    #[inline]
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.shared.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }

    fn recv_slow(&mut self, index: usize, wanted: TagMatch, into: Destination<'_>) -> Result<Received> {
        let mut limit = Limit::new(self.timeout);
        let matching = from(Some(index), wanted, Context::Messages);
        let mut receiving = Receiving::new(matching, into, Some(limit));
        self.wait(Some(index), &mut limit, "receiving", |inbox| inbox.attempt(&mut receiving))
    }

    /// As [`Link::test_recv`].
    pub(crate) fn test_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Option<Received>> {
        request.check(self)?;
        if request.received.is_none() {
            request.received = self.test(&mut request.receiving)?;
        }
        Ok(request.received)
    }

    /// As [`Link::wait_recv`].
    pub(crate) fn wait_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Received> {
        request.check(self)?;
        if let Some(received) = request.received {
            return Ok(received);
        }
        let (mut limit, receiving) = (Limit::new(self.timeout), &mut request.receiving);
        self.wait(receiving.matching.peer, &mut limit, "receiving", |inbox| inbox.attempt(receiving))
    }

    /// As [`Link::finish`].
    pub(crate) fn finish(
        &mut self,
        sends: &mut [SendRequest<'_>],
        receives: &mut [RecvRequest<'_>],
    ) -> Result<()> {
        self.finish_while(sends, receives, |_, _| None)
    }

    /// As [`Link::finish`]; runs `meanwhile` before each poll, which returns why a receive from any
    /// peer cannot end, if it is told that there is one.
    pub(crate) fn finish_while(
        &mut self,
        sends: &mut [SendRequest<'_>],
        receives: &mut [RecvRequest<'_>],
        mut meanwhile: impl FnMut(&mut Self, bool) -> Option<Error>,
    ) -> Result<()> {
        sends.iter().try_for_each(|request| self.check_request(request))?;
        let mut limit = Limit::new(self.timeout);
        self.wait(None, &mut limit, "finishing requests", |inbox| {
            let is_from_any = |request: &RecvRequest<'_>| {
                request.received.is_none() && request.receiving.matching.peer.is_none()
            };
            let end = meanwhile(inbox, receives.iter().any(is_from_any));
            if end.is_some() {
                inbox.drain();
            }
            let mut is_done = true;
            for request in &mut *sends {
                is_done &= inbox.test_send(request)?;
            }
            for request in &mut *receives {
                is_done &= inbox.test_recv(request)?.is_some();
            }
            match end {
                Some(end) if receives.iter().any(is_from_any) => Err(end),
                _ => Ok(is_done.then_some(())),
            }
        })
    }
}
