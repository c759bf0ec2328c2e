//! [`Link`]: messages and one-sided transfers with one peer.

use core::borrow::BorrowMut;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Destination, Source};
use crate::channel::Channel;
use crate::engines::Engines;
use crate::inbox::Inbox;
use crate::key::{RemoteAccess, RemoteKey};
use crate::queue::{Context, Matching};
use crate::receive::{Probed, Received, Receiving, RecvRequest};
use crate::registry::Registration;
use crate::remote::Direct;
use crate::send::{Loan, SendRequest};
use crate::spans::Spans;
use crate::view::View;
use crate::wait::EAGER;
use crate::{Engine, Error, LinkStatistics, Result, TagMatch};

/// A channel between two processes of one machine: messages with tags in both directions, and
/// transfers to and from registered memory.
///
/// A link made by [`crate::Endpoint::accept`] or [`crate::LinkBuilder::connect`] has an [`Inbox`]
/// of its own. [`crate::Communicator::link`] borrows the link with a rank.
///
/// One thread uses a link at a time; two threads use two links. The link is closed when it and its
/// guards ([`View`], [`Loan`], [`SendRequest`]) are dropped. The peer receives messages that were
/// sent before, and then gets [`Error::Closed`]. If this process ends without closing, the peer
/// gets [`Error::PeerGone`]. A forked child cannot use its parent's links ([`Error::Forked`]).
///
/// Messages that match the same receive are received in the order of sending.
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
    fn inbox_and_index(&mut self) -> (&mut Inbox, usize) {
        (self.inbox.borrow_mut(), self.index)
    }

    fn channel(&self) -> Result<&Arc<Channel>> {
        self.inbox.borrow().channel(self.index).ok_or(Error::WrongLink)
    }

    fn matching(&self, wanted: impl Into<TagMatch>) -> Matching {
        Matching::new(Some(self.index), wanted.into(), Context::Messages)
    }

    /// Sends a message. If it is at most [`crate::LinkSettings::eager_max`] bytes long, returns
    /// once it is in the ring. If it is longer, returns once the receiver has fetched it. The same
    /// holds for every message to a peer that queues more than
    /// [`crate::LinkSettings::max_unexpected`] bytes.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`]; [`Error::TimedOut`]: the message was withdrawn and
    /// will not be received; [`Error::EngineImpossible`]; [`Error::Forked`], [`Error::Misbehaved`].
    #[inline]
    pub fn send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        let (inbox, index) = self.inbox_and_index();
        inbox.send(index, tag, source.into())
    }

    /// Begins to send a message. Does not wait, except with `engine = inline`. If the lane has no
    /// space, the message is queued in a backlog of unlimited length. It makes progress in calls of
    /// [`Link::test_send`], [`Link::wait_send`] and [`Link::finish`] with the request.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn start_send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<SendRequest<'d>> {
        let (inbox, index) = self.inbox_and_index();
        inbox.start_send(index, (tag, Context::Messages), source.into())
    }

    /// Returns whether a message was sent. Does not wait.
    ///
    /// # Errors
    /// As [`Link::send`]; [`Error::WrongLink`].
    pub fn test_send(&mut self, request: &mut SendRequest<'_>) -> Result<bool> {
        let (inbox, _) = self.inbox_and_index();
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
        self.inbox_and_index().0.finish(&mut [request], &mut [])
    }

    /// Hands memory over without a copy: the receiver gets a view of it ([`Link::recv_view`]) and
    /// returns it by dropping the view. The cost is one short message for any size. Waits while the
    /// ring is full, or while the peer has 64 blocks; does not wait until the receiver maps the
    /// memory. Both processes may write the memory meanwhile.
    ///
    /// # Errors
    /// As [`Link::send`]; [`Error::EngineImpossible`] if `source` is not [`crate::Memory`] or a
    /// part of it.
    #[inline]
    pub fn hand_over<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<Loan<'d>> {
        let (inbox, index) = self.inbox_and_index();
        inbox.hand_over(index, (tag, Context::Messages), source.into())
    }

    /// Receives the first message that matches. Messages that the peer sent before its end are
    /// still received.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`]; [`Error::TimedOut`]: no message is lost, but a
    /// stopped peer may still write memory of a pool into which it was copying;
    /// [`Error::Truncated`], [`Error::PartialElement`], [`Error::EngineImpossible`]: the message
    /// stays; [`Error::Forked`], [`Error::Misbehaved`].
    #[inline]
    pub fn recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        let (wanted, into) = (wanted.into(), into.into());
        let (inbox, index) = self.inbox_and_index();
        inbox.check_here()?;
        let times = inbox.spin.polls(inbox.is_oversubscribed, EAGER);
        match inbox.recv_fast(index, wanted, &into.0, times) {
            Some(received) => Ok(received),
            None => inbox.recv_slow(index, wanted, into),
        }
    }

    /// Posts a receive and does not wait. A message is assigned to the first posted receive that
    /// matches it, in the order of these calls. The memory is written in calls of
    /// [`Link::test_recv`], [`Link::wait_recv`] and [`Link::finish`] with the request.
    pub fn start_recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> RecvRequest<'d> {
        let matching = self.matching(wanted);
        RecvRequest::new(self.inbox.borrow_mut(), matching, into.into())
    }

    /// Returns the message of a posted receive, if it was received. Does not wait.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::WrongLink`].
    pub fn test_recv(&mut self, request: &mut RecvRequest<'_>) -> Result<Option<Received>> {
        self.inbox_and_index().0.test_recv(request)
    }

    /// Waits for the message of a posted receive.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::WrongLink`].
    pub fn wait_recv(&mut self, mut request: RecvRequest<'_>) -> Result<Received> {
        self.inbox_and_index().0.wait_recv(&mut request)
    }

    /// Waits for several requests. All of them make progress, whatever their order here or in a
    /// peer.
    ///
    /// # Errors
    /// As [`Link::send`] and [`Link::recv`]; requests that are not done stay in progress.
    /// [`Error::WrongLink`].
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        self.inbox_and_index().0.finish(sends, receives)
    }

    /// Sends one message and receives another at the same time.
    ///
    /// # Errors
    /// As [`Link::finish`]; if the message was not sent, it is withdrawn.
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
    /// returns the memory to the peer.
    ///
    /// # Errors
    /// As [`Link::recv`]; [`Error::WrongForm`] if the first message that matches was sent as a
    /// copy; [`Error::Open`]. After these two the message stays in the queue.
    #[inline]
    pub fn recv_view(&mut self, wanted: impl Into<TagMatch>) -> Result<View> {
        let matching = self.matching(wanted);
        let (inbox, index) = self.inbox_and_index();
        inbox.check_here()?;
        let mut limit = inbox.limit();
        inbox.wait(Some(index), &mut limit, "receiving", |inbox| inbox.attempt_view(&matching))
    }

    /// Returns the message that the next receive would take, if it has arrived. Does not wait.
    ///
    /// # Errors
    /// As [`Link::recv`].
    pub fn probe(&mut self, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        let matching = self.matching(wanted);
        let (inbox, _) = self.inbox_and_index();
        inbox.check_here()?;
        Ok(inbox.probe(matching)?.and_then(|id| inbox.probed(id)))
    }

    /// Registers a range of this process's memory for [`Link::get`] and [`Link::put`] of peers. A
    /// peer needs [`Registration::key`], which the application sends in any way. Memory of a pool
    /// ([`crate::Memory`], [`crate::Memory::part`]) costs the peer one copy and this process
    /// nothing. If a peer cannot reach the memory, this process copies for it, in calls that wait
    /// and in [`Link::progress`].
    ///
    /// # Errors
    /// [`Error::NotContiguous`], [`Error::TooManyRanges`], [`Error::NotCombined`],
    /// [`Error::Forked`].
    ///
    /// # Safety
    /// Until the registration has ended ([`Registration::end`], or its drop), the memory must stay
    /// valid. If `access` allows to put, other processes may write it at any time. If the
    /// registration is leaked (`mem::forget`), this holds for the rest of the process.
    /// [`Link::exposing`] is the safe form.
    pub unsafe fn register<'d>(
        &self,
        range: impl Into<Destination<'d>>,
        access: RemoteAccess,
    ) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { Registration::new(&self.inbox.borrow().shared, range.into().0, access) }
    }

    /// As [`Link::register`], for memory that peers may only read.
    ///
    /// # Errors
    /// As [`Link::register`].
    ///
    /// # Safety
    /// As [`Link::register`].
    pub unsafe fn register_source<'d>(&self, range: impl Into<Source<'d>>) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { Registration::new(&self.inbox.borrow().shared, range.into().0, RemoteAccess::Get) }
    }

    /// Registers a range while `run` runs, and passes the key to `run`.
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
        // SAFETY: the registration is dropped at the end of this function, also by a panic of
        // `run`. The range is borrowed until then.
        let mut registration = unsafe { self.register(range, access) }?;
        let done = run(self, &registration.key());
        registration.end(self.timeout())?;
        Ok(done)
    }

    /// Copies from a range that the peer has registered. Returns the engine that copied. `spans` is
    /// an offset in the range, or spans of it. The peer takes no part, unless the engine is
    /// [`Engine::Bounce`]: then the peer copies, in calls that wait.
    ///
    /// # Errors
    /// [`Error::Expired`], [`Error::NotAllowed`], [`Error::OutOfBounds`],
    /// [`Error::LengthMismatch`], [`Error::ForeignKey`], [`Error::NotCombined`],
    /// [`Error::EngineImpossible`], [`Error::PeerGone`], [`Error::Closed`], [`Error::Forked`],
    /// [`Error::Misbehaved`], [`Error::Memory`], [`Error::TimedOut`]. A part of the bytes may have
    /// been copied.
    pub fn get<'p, 'd>(
        &mut self,
        key: &RemoteKey,
        spans: impl Into<Spans<'p>>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Engine> {
        let (inbox, index) = self.inbox_and_index();
        inbox.transfer(index, Direct::Get, key, spans.into(), &into.into().0)
    }

    /// Copies into a range that the peer has registered; as [`Link::get`]. When it returns, all
    /// bytes are copied. If it times out with [`Engine::Bounce`], the peer may still write them.
    ///
    /// # Errors
    /// As [`Link::get`].
    pub fn put<'p, 'd>(
        &mut self,
        key: &RemoteKey,
        spans: impl Into<Spans<'p>>,
        source: impl Into<Source<'d>>,
    ) -> Result<Engine> {
        let (inbox, index) = self.inbox_and_index();
        inbox.transfer(index, Direct::Put, key, spans.into(), &source.into().0)
    }

    /// Reads records of peers and answers their requests, without waiting. For programs without
    /// calls that wait, together with [`Link::event_fd`].
    ///
    /// # Errors
    /// As [`Link::check_alive`].
    pub fn progress(&mut self) -> Result<()> {
        let (inbox, index) = self.inbox_and_index();
        inbox.check_here()?;
        inbox.progress();
        inbox.peers[index].as_mut().map_or(Err(Error::WrongLink), |peer| peer.check())
    }

    /// Sets the timeout of later calls. `None` waits until the peer is gone.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.inbox.borrow_mut().timeout = timeout;
    }

    /// Returns the timeout of calls. `None` waits until the peer is gone.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.inbox.borrow().timeout
    }

    /// Returns the engines that can carry messages to this process, and their costs.
    ///
    /// # Panics
    /// If the rank was forgotten.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.channel().unwrap_or_else(|error| unreachable!("{error}")).engines
    }

    /// Returns the counters of this process.
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

    /// Returns a descriptor to poll. It is readable after the first change by the peer since
    /// [`Link::arm`], and when the peer is gone. The link owns it.
    ///
    /// # Errors
    /// [`Error::PeerGone`], [`Error::Closed`], [`Error::Forked`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let channel = self.channel()?;
        channel.check_known()?;
        Ok(channel.socket())
    }

    /// Makes the event descriptor readable at the next change by the peer. A message may have
    /// arrived before: try once more after this call and before `poll`.
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
    /// Fails in a forked child.
    #[inline]
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.shared.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }

    fn recv_slow(&mut self, index: usize, wanted: TagMatch, into: Destination<'_>) -> Result<Received> {
        let mut limit = self.limit();
        let matching = Matching::new(Some(index), wanted, Context::Messages);
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
        let (mut limit, receiving) = (self.limit(), &mut request.receiving);
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

    /// As [`Link::finish`]. Calls `meanwhile` before each poll, with whether a receive from any
    /// peer is open. `meanwhile` returns an error if such a receive cannot complete.
    pub(crate) fn finish_while(
        &mut self,
        sends: &mut [SendRequest<'_>],
        receives: &mut [RecvRequest<'_>],
        mut meanwhile: impl FnMut(&mut Self, bool) -> Option<Error>,
    ) -> Result<()> {
        sends.iter().try_for_each(|request| self.check_request(request))?;
        let mut limit = self.limit();
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
