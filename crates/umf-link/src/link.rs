//! [`Link`]: what sends and receives, or one of both.

use core::sync::atomic::Ordering;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::engines::Engines;
use crate::key::{RemoteAccess, RemoteKey};
use crate::parts::{Destination, Source};
use crate::receiver::{Received, Receiver, Receives, RecvRequest};
use crate::sender::{SendRequest, Sender, Sends};
use crate::shared::Shared;
use crate::wait::{Limit, Pulse, wait};
use crate::{Carried, LinkStatistics, Result, TagMatch};

/// A channel between two processes of one machine: messages with tags, both ways.
///
/// One thread uses it at a time; [`Link::split`] makes two halves for two threads. Dropping both closes the link: the peer
/// receives what was sent before, and is then told [`crate::Error::Closed`]. If this process ends otherwise, the peer is told
/// [`crate::Error::PeerGone`].
///
/// A forked child does not have its parent's links ([`crate::Error::Forked`]).
///
/// What can be done with one half alone stands once: its methods are those of the half ([`Sender`], [`Receiver`]) too.
#[derive(Debug)]
pub struct Link<S = Sends, R = Receives> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) sends: S,
    pub(crate) receives: R,
    /// Of waits for both halves at once.
    pulse: Pulse,
}

/// What a link has to send with or to receive with, or nothing.
pub trait Half {
    /// What it has done.
    fn statistics(&self) -> LinkStatistics;
}

impl Half for () {
    fn statistics(&self) -> LinkStatistics {
        LinkStatistics::default()
    }
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let timeout = shared.settings.timeout;
        Self { shared, timeout, sends: Sends::new(), receives: Receives::new(), pulse: Pulse::default() }
    }

    /// Both halves, each of which may be used by another thread.
    #[must_use]
    pub fn split(self) -> (Sender, Receiver) {
        let Self { shared, timeout, sends, receives, pulse } = self;
        let other = Arc::clone(&shared);
        (
            Link { shared, timeout, sends, receives: (), pulse },
            Link { shared: other, timeout, sends: (), receives, pulse: Pulse::default() },
        )
    }

    /// Registers a range while `run` runs: the peer may reach it by the key until then, and not afterwards.
    ///
    /// # Errors
    /// As [`Link::register`]; [`crate::Error::TimedOut`] if the peer does not leave the range.
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
        let mut registration = unsafe { self.register(range, access) }?;
        let done = run(self, &registration.key());
        registration.end(self.timeout)?;
        Ok(done)
    }

    /// Does what the peer asks for of registered ranges, and does not wait. For programs that make no calls which wait: together with
    /// [`Link::event_fd`].
    ///
    /// # Errors
    /// As [`Link::look`].
    pub fn progress(&mut self) -> Result<()> {
        self.shared.known()?;
        self.shared.serve()?;
        self.is_there()
    }

    /// Waits for all of these at once: none keeps another from making progress, here or in the peer.
    ///
    /// # Errors
    /// As [`Link::send`] and [`Link::recv`]; what was not done by then stays begun.
    pub fn finish(&mut self, sends: &mut [SendRequest<'_>], receives: &mut [RecvRequest<'_>]) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut pulse = core::mem::take(&mut self.pulse);
        let mut limit = Limit::new(self.timeout);
        let finished = wait(&shared, &mut pulse, &mut limit, "finishing requests", |_| {
            let mut is_done = true;
            for request in &mut *sends {
                is_done &= self.test_send(request)?;
            }
            for request in &mut *receives {
                is_done &= self.test_recv(request)?.is_some();
            }
            Ok(is_done.then_some(()))
        });
        self.pulse = pulse;
        finished
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
        self.wait_recv(request)
    }
}

/// With a link, and with either half.
impl<S: Half, R: Half> Link<S, R> {
    /// How long calls may wait from now on; `None` is until the peer is gone.
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// How long calls may wait; `None` is until the peer is gone.
    #[must_use]
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// As [`Shared::gives_way`].
    pub(crate) fn gives_way(&self) -> bool {
        self.shared.gives_way()
    }

    /// What can carry messages to this process, and what each engine costs.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.shared.engines
    }

    /// What this side has done: of a half, what that has.
    #[must_use]
    pub fn statistics(&self) -> LinkStatistics {
        let mut both = self.sends.statistics().and(&self.receives.statistics());
        let [messages, bytes] = [0, 1].map(|number| self.shared.served[number].load(Ordering::Relaxed));
        both.served = Carried { messages, bytes };
        both
    }

    /// The peer's process id in this pid namespace; 0 if that does not see it.
    #[must_use]
    pub fn peer_pid(&self) -> u32 {
        self.shared.pid.unsigned_abs()
    }

    /// Whether the peer is there: asks the kernel, and does not wait.
    ///
    /// # Errors
    /// [`crate::Error::PeerGone`], [`crate::Error::Closed`], [`crate::Error::Forked`].
    pub fn look(&self) -> Result<()> {
        self.shared.look()
    }

    /// An fd to poll: readable when the peer has done something since [`Link::arm`], or is gone. It stays the link's, and is the same for
    /// both halves: one thread polls it.
    ///
    /// # Errors
    /// [`crate::Error::PeerGone`], [`crate::Error::Closed`], [`crate::Error::Forked`].
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        self.shared.event_fd()
    }

    /// Has the event fd become readable at the next thing that the peer does. What is waited for has to be tried once more after
    /// this and before polling, since it may have come before.
    ///
    /// # Errors
    /// As [`Link::look`].
    pub fn arm(&self) -> Result<()> {
        self.shared.known()?;
        self.shared.arm();
        Ok(())
    }
}
