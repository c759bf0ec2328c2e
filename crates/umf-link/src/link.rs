//! [`Link`]: both halves.

use core::sync::atomic::Ordering;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::engines::Engines;
use crate::key::{RemoteAccess, RemoteKey};
use crate::parts::{Destination, Source};
use crate::receiver::{Probed, Received, Receiver, RecvRequest, View};
use crate::remote::{Places, Registration};
use crate::sender::{Lent, SendRequest, Sender};
use crate::shared::Shared;
use crate::wait::{Limit, Pulse, wait};
use crate::{Carried, Engine, LinkStatistics, Result, TagMatch};

/// A channel between two processes of one machine: messages with tags, both ways.
///
/// One thread uses it at a time; [`Link::split`] makes two halves for two threads. Dropping both closes the link: the peer
/// receives what was sent before, and is then told [`crate::Error::Closed`]. If this process ends otherwise, the peer is told
/// [`crate::Error::PeerGone`].
///
/// A forked child does not have its parent's links ([`crate::Error::Forked`]).
#[derive(Debug)]
pub struct Link {
    sender: Sender,
    receiver: Receiver,
    /// Of waits for both halves at once.
    pulse: Pulse,
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            sender: Sender::new(Arc::clone(&shared)),
            receiver: Receiver::new(shared),
            pulse: Pulse::default(),
        }
    }

    /// Both halves, each of which may be used by another thread.
    #[must_use]
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// As [`Shared::gives_way`].
    pub(crate) fn gives_way(&self) -> bool {
        self.sender.shared.gives_way()
    }

    /// The halves, to be used in turn.
    pub const fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.sender, &mut self.receiver)
    }

    /// As [`Sender::send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<()> {
        self.sender.send(tag, source)
    }

    /// As [`Receiver::recv`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Received> {
        self.receiver.recv(wanted, into)
    }

    /// As [`Sender::hand_over`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn hand_over<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<Lent<'d>> {
        self.sender.hand_over(tag, source)
    }

    /// As [`Receiver::recv_view`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn recv_view(&mut self, wanted: impl Into<TagMatch>) -> Result<View> {
        self.receiver.recv_view(wanted)
    }

    /// As [`Receiver::probe`].
    ///
    /// # Errors
    /// As there.
    pub fn probe(&mut self, wanted: impl Into<TagMatch>) -> Result<Option<Probed>> {
        self.receiver.probe(wanted)
    }

    /// As [`Sender::start_send`].
    ///
    /// # Errors
    /// As there.
    pub fn start_send<'d>(&mut self, tag: u64, source: impl Into<Source<'d>>) -> Result<SendRequest<'d>> {
        self.sender.start_send(tag, source)
    }

    /// As [`Receiver::start_recv`].
    pub fn start_recv<'d>(
        &mut self,
        wanted: impl Into<TagMatch>,
        into: impl Into<Destination<'d>>,
    ) -> RecvRequest<'d> {
        self.receiver.start_recv(wanted, into)
    }

    /// As [`Sender::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get<'d>(
        &mut self,
        key: &RemoteKey,
        from: impl Into<Places<'d>>,
        into: impl Into<Destination<'d>>,
    ) -> Result<Engine> {
        self.sender.get(key, from, into)
    }

    /// As [`Sender::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put<'d>(
        &mut self,
        key: &RemoteKey,
        to: impl Into<Places<'d>>,
        source: impl Into<Source<'d>>,
    ) -> Result<Engine> {
        self.sender.put(key, to, source)
    }

    /// As [`Sender::register`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register<'d>(
        &self,
        range: impl Into<Destination<'d>>,
        access: RemoteAccess,
    ) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { self.sender.register(range, access) }
    }

    /// As [`Sender::register_source`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_source<'d>(&self, range: impl Into<Source<'d>>) -> Result<Registration<'d>> {
        // SAFETY: by this function's contract.
        unsafe { self.sender.register_source(range) }
    }

    /// Registers a range while `run` runs: the peer may reach it by the key until then, and not afterwards.
    ///
    /// # Errors
    /// As [`Sender::register`]; [`crate::Error::TimedOut`] if the peer does not leave the range.
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
        // SAFETY: it lives in this function, which ends it however it is left; the range is borrowed until then.
        let mut registration = unsafe { self.sender.register(range, access) }?;
        let done = run(self, &registration.key());
        registration.end(self.sender.timeout)?;
        Ok(done)
    }

    /// Does what the peer asks for of registered ranges, and does not wait. For programs that make no calls which wait: together with
    /// [`Link::event_fd`].
    ///
    /// # Errors
    /// As [`Link::look`].
    pub fn progress(&mut self) -> Result<()> {
        self.sender.shared.known()?;
        self.sender.shared.serve()?;
        self.receiver.check()
    }

    /// Waits for all of these at once: none keeps another from making progress, here or in the peer.
    ///
    /// # Errors
    /// As [`Sender::send`] and [`Receiver::recv`]; what was not done by then stays begun.
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        let shared = Arc::clone(&self.sender.shared);
        let Self { sender, receiver, pulse } = self;
        let mut limit = Limit::new(receiver.timeout);
        wait(&shared, pulse, &mut limit, "finishing requests", |_| {
            let mut is_done = true;
            for request in &mut *sends {
                is_done &= sender.test_send(request)?;
            }
            for request in &mut *receives {
                is_done &= receiver.test_recv(request)?.is_some();
            }
            Ok(is_done.then_some(()))
        })
    }

    /// Sends one message and receives another, at the same time: as when both sides do this.
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
        let mut sends = [self.start_send(tag, source)?];
        let mut receives = [self.start_recv(wanted, into)];
        self.finish(&mut sends, &mut receives)?;
        let [request] = receives;
        self.receiver.wait_recv(request)
    }

    /// How long calls may wait from now on; `None` is until the peer is gone.
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.sender.set_timeout(timeout);
        self.receiver.set_timeout(timeout);
    }

    /// What can carry messages to this process, and what each engine costs.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.sender.shared.engines
    }

    /// What this side has done.
    #[must_use]
    pub fn statistics(&self) -> LinkStatistics {
        let mut both = self.sender.statistics().and(self.receiver.statistics());
        let [messages, bytes] =
            [0, 1].map(|number| self.sender.shared.served[number].load(Ordering::Relaxed));
        both.served = Carried { messages, bytes };
        both
    }

    /// The peer's process id in this pid namespace; 0 if that does not see it.
    #[must_use]
    pub fn peer_pid(&self) -> u32 {
        self.sender.shared.pid.unsigned_abs()
    }

    /// Whether the peer is there: asks the kernel, and does not wait.
    ///
    /// # Errors
    /// [`crate::Error::PeerGone`], [`crate::Error::Closed`], [`crate::Error::Forked`].
    pub fn look(&self) -> Result<()> {
        self.sender.shared.look()
    }

    /// An fd to poll: readable when the peer has done something since [`Link::arm`], or is gone. It stays the link's.
    ///
    /// # Errors
    /// [`crate::Error::System`]: no fds left. [`crate::Error::PeerGone`], [`crate::Error::Closed`], [`crate::Error::Forked`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        self.sender.shared.event_fd()
    }

    /// Has the event fd become readable at the next thing that the peer does. What is waited for has to be tried once more after
    /// this and before polling, since it may have come before.
    ///
    /// # Errors
    /// As [`Link::look`].
    pub fn arm(&self) -> Result<()> {
        self.sender.shared.known()?;
        self.sender.shared.arm();
        Ok(())
    }
}
