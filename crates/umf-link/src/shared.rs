//! [`Shared`]: what both halves of a link have.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use umf_ipc::Importer;
use umf_sync::failpoint;

use crate::engines::Engines;
use crate::layout::{DESCRIPTORS, Side};
use crate::protocol::{self, BY_FD, BY_FUTEX};
use crate::remote::Registry;
use crate::segment::Segment;
use crate::sys::CloseOnFork;
use crate::{Error, LinkSettings, Result, sys};

/// The descriptors of a link, which a forked child closes: as long as one is open somewhere, the peer
/// does not learn of an end.
#[derive(Debug)]
pub(crate) struct Fds {
    socket: CloseOnFork,
    pidfd: Option<CloseOnFork>,
    /// That of [`Shared::event_fd`], if it was asked for.
    events: OnceLock<CloseOnFork>,
}

impl Fds {
    pub(crate) fn new(socket: OwnedFd, pidfd: Option<OwnedFd>) -> Result<Arc<Self>> {
        let close_on_fork = |fd| CloseOnFork::new(fd).map_err(Error::system("fstat of a link's descriptor"));
        let (socket, pidfd) = (close_on_fork(socket)?, pidfd.map(close_on_fork).transpose()?);
        Ok(Arc::new(Self { socket, pidfd, events: OnceLock::new() }))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Fds {
    fn drop(&mut self) {
        failpoint!("link.left");
    }
}

const HERE: u8 = 0;
const GONE: u8 = 1;
const CLOSED: u8 = 2;

/// A link, as both halves know it. Dropping it closes the link.
#[derive(Debug)]
pub(crate) struct Shared {
    pub segment: Segment,
    pub me: Side,
    pub settings: LinkSettings,
    pub engines: Engines,
    pub importer: Option<&'static Importer>,
    /// Of the peer, as this pid namespace sees it; 0 if it does not.
    pub pid: i32,
    /// Whether CMA works still, in this direction: a refusal is remembered.
    pub cma: AtomicBool,
    /// The number of the latest message in each descriptor of this side.
    pub numbers: [AtomicU32; DESCRIPTORS],
    /// Ranges that the peer may reach, and whether there ever was one.
    pub registry: Mutex<Registry>,
    pub has_ranges: AtomicBool,
    /// The peer's request that is looked for next; written with the registry's lock.
    pub next_call: AtomicU64,
    /// Requests that were carried out, and their bytes.
    pub served: [AtomicU64; 2],
    peer: AtomicU8,
    fds: Arc<Fds>,
}

impl Shared {
    pub(crate) fn new(
        segment: Segment,
        me: Side,
        fds: Arc<Fds>,
        pid: i32,
        (settings, importer): (LinkSettings, Option<&'static Importer>),
        engines: Engines,
    ) -> Self {
        let cma = AtomicBool::new(engines.cma().is_ok());
        let numbers = [const { AtomicU32::new(0) }; DESCRIPTORS];
        Self {
            segment,
            me,
            settings,
            engines,
            importer,
            pid,
            cma,
            numbers,
            registry: Mutex::new(Registry::new()),
            has_ranges: AtomicBool::new(false),
            next_call: AtomicU64::new(0),
            served: [const { AtomicU64::new(0) }; 2],
            peer: AtomicU8::new(HERE),
            fds,
        }
    }

    pub(crate) const fn other(&self) -> Side {
        self.me.other()
    }

    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.segment.word(offset)
    }

    pub(crate) const fn misbehaved(&self, what: &'static str) -> Error {
        Error::Misbehaved { pid: self.pid, what }
    }

    /// Has the peer look again at what it waits for, if it sleeps. To be called after the change.
    #[inline(always)]
    pub(crate) fn notify(&self) {
        let ways = protocol::wakes(self.word(self.other().waiting()));
        if ways != 0 {
            self.wake(ways);
        }
    }

    /// Turns bits in a word of the segment and has the peer look, if it sleeps.
    #[inline]
    pub(crate) fn turn_and_notify(&self, at: usize, bits: u64) {
        let ways = protocol::turn_and_wake(self.word(at), bits, self.word(self.other().waiting()));
        if ways != 0 {
            self.wake(ways);
        }
    }

    #[cold]
    fn wake(&self, ways: u64) {
        if ways & BY_FUTEX != 0 {
            let bell = self.segment.bell(self.other());
            bell.fetch_add(1, Ordering::Release);
            sys::wake(bell);
        }
        if ways & BY_FD != 0 {
            sys::poke(self.fds.socket());
        }
        failpoint!("link.woken");
    }

    /// Says where this side runs; whether who spins is to give its processor away, because the peer may need it.
    pub(crate) fn gives_way(&self) -> bool {
        let here = sys::processor() as u64 + 1;
        let mine = self.word(self.me.processor());
        if mine.load(Ordering::Relaxed) != here {
            mine.store(here, Ordering::Relaxed);
        }
        self.settings.is_crowded || self.word(self.other().processor()).load(Ordering::Relaxed) == here
    }

    /// Whether the link can be used: by what is known.
    #[inline(always)]
    pub(crate) fn known(&self) -> Result<()> {
        if !self.segment.is_here() {
            return Err(Error::Forked);
        }
        match self.peer.load(Ordering::Relaxed) {
            HERE => Ok(()),
            end => Err(self.end(end)),
        }
    }

    #[cold]
    fn end(&self, end: u8) -> Error {
        if end == GONE { Error::PeerGone { pid: self.pid } } else { Error::Closed { pid: self.pid } }
    }

    /// Whether the peer has said that it closed the link.
    #[inline(always)]
    pub(crate) fn has_closed(&self) -> bool {
        self.word(self.other().closed()).load(Ordering::Acquire) != 0
    }

    /// Asks the kernel whether the peer is there. An end is remembered.
    pub(crate) fn look(&self) -> Result<()> {
        self.known()?;
        let (hung_up, ended) = sys::either_is_ready(self.fds.socket(), self.fds.pidfd());
        // It says so before it hangs up.
        let end = if self.has_closed() {
            CLOSED
        } else if hung_up || ended {
            GONE
        } else {
            return Ok(());
        };
        self.peer.store(end, Ordering::Relaxed);
        tracing::debug!(pid = self.pid, closed = end == CLOSED, "the peer of a link is gone");
        Err(self.end(end))
    }

    /// An fd that is readable when the peer is gone, and when it rang after [`Shared::arm`].
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        self.known()?;
        if let Some(events) = self.fds.events.get() {
            return Ok(events.as_fd());
        }
        let made = CloseOnFork::make(|| sys::event_fd(self.fds.socket(), self.fds.pidfd()));
        let made = made.map_err(Error::system("epoll_create"))?;
        failpoint!("link.watched");
        // (Another thread may have been first; this one's is closed then.)
        Ok(self.fds.events.get_or_init(|| made).as_fd())
    }

    /// Has the peer make the event fd readable when it has something to say.
    pub(crate) fn arm(&self) {
        sys::drain(self.fds.socket());
        protocol::fall_asleep(self.word(self.me.waiting()), BY_FD);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.segment.is_here() {
            self.word(self.me.closed()).store(1, Ordering::Release);
            failpoint!("link.closed");
            self.notify();
        }
    }
}
