//! [`Shared`]: what both halves of a link have.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use umf_ipc::Importer;
use umf_ipc::fd_socket::Deadline;
use umf_sync::failpoint;

use crate::engines::Engines;
use crate::key::Side;
use crate::lane::{Bell, OwnLane, PeerLane};
use crate::layout::{self, DESCRIPTORS};
use crate::protocol::{self, ARMED, ASLEEP, Futex, Load, Offered};
use crate::remote::Registry;
use crate::sys::CloseOnFork;
use crate::wait::Limit;
use crate::{Error, LinkSettings, Result, sys};

/// The socket of a link, which a forked child closes: as long as it is open somewhere, the peer does not learn of an end by it.
#[derive(Debug)]
pub(crate) struct Fds {
    socket: CloseOnFork,
}

impl Fds {
    pub(crate) fn new(socket: OwnedFd) -> Result<Arc<Self>> {
        let socket = CloseOnFork::new(socket).map_err(Error::system("fstat of a link's descriptor"))?;
        Ok(Arc::new(Self { socket }))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

/// What two processes send through: what this one writes, what the other one writes, and what each sleeps on.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub mine: OwnLane,
    pub theirs: PeerLane,
    pub my_bell: Arc<Bell>,
    pub their_bell: Bell,
}

/// A link, as both halves know it. Dropping it closes the link.
#[derive(Debug)]
pub(crate) struct Shared {
    pub mine: OwnLane,
    pub theirs: PeerLane,
    my_bell: Arc<Bell>,
    their_bell: Bell,
    /// The last time that the peer asked to be told by its socket, and was.
    told_by_socket: AtomicU64,
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
    /// Held by the thread that takes a message, as views may be dropped in any thread.
    taking: Mutex<()>,
    peer: AtomicU8,
    fds: Arc<Fds>,
}

impl Shared {
    pub(crate) fn new(
        lanes: Lanes,
        me: Side,
        fds: Arc<Fds>,
        pid: i32,
        (settings, importer): (LinkSettings, Option<&'static Importer>),
        engines: Engines,
    ) -> Self {
        let cma = AtomicBool::new(engines.cma().is_ok());
        let numbers = [const { AtomicU32::new(0) }; DESCRIPTORS];
        let Lanes { mine, theirs, my_bell, their_bell } = lanes;
        Self {
            mine,
            theirs,
            my_bell,
            their_bell,
            told_by_socket: AtomicU64::new(0),
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
            taking: Mutex::new(()),
            peer: AtomicU8::new(HERE),
            fds,
        }
    }

    pub(crate) const fn misbehaved(&self, what: &'static str) -> Error {
        Error::Misbehaved { pid: self.pid, what }
    }

    /// Gives a part of this side's lane its memory, unless it has it.
    #[inline]
    pub(crate) fn populate(&self, part: layout::Part) -> Result<()> {
        self.mine.populate(part).map_err(Error::system("giving a link its memory"))
    }

    /// The same of the peer's lane, for reading.
    #[inline]
    pub(crate) fn populate_theirs(&self, part: layout::Part) -> Result<()> {
        self.theirs.populate(part).map_err(Error::system("giving a link its memory"))
    }

    /// Tells the peer that this side takes no part in collectives any more, and because of whose end.
    pub(crate) fn give_up(&self, gone: Option<i32>) {
        let pid = u64::from(gone.unwrap_or(0).cast_unsigned());
        self.mine.word(layout::GIVEN_UP).store(1 << 32 | pid, Ordering::Release);
        self.notify();
    }

    /// What the peer has told in that way: a pid, or 0.
    pub(crate) fn has_given_up(&self) -> Option<i32> {
        let told = self.theirs.word(layout::GIVEN_UP).load(Ordering::Acquire);
        (told != 0).then_some(told as i32)
    }

    /// Has the peer look again at what it waits for, if it sleeps. To be called after the change.
    #[inline(always)]
    pub(crate) fn notify(&self) {
        let asks = protocol::rings(self.their_bell.word());
        if asks != 0 {
            self.wake(asks);
        }
    }

    /// Tells the sender that what was lent in this descriptor is not used any more, and wakes it.
    #[inline]
    pub(crate) fn give_back(&self, index: usize) {
        protocol::Word::turn(self.mine.word(layout::GIVEN_BACK), 1 << index);
        let asks = protocol::rings_unfenced(self.their_bell.word());
        if asks != 0 {
            self.wake(asks);
        }
    }

    #[cold]
    fn wake(&self, asks: u32) {
        if asks & ASLEEP != 0 {
            sys::wake(self.their_bell.word());
        }
        if asks & ARMED != 0 {
            let armed = self.theirs.word(layout::ARMED).load(Ordering::Relaxed);
            if self.told_by_socket.swap(armed, Ordering::Relaxed) != armed {
                sys::poke(self.fds.socket());
            }
        }
        failpoint!("link.woken");
    }

    /// What threads of this process sleep on that wait for the peer.
    pub(crate) fn bell(&self) -> &Bell {
        &self.my_bell
    }

    /// Takes a message of the peer, unless that was first to withdraw it.
    pub(crate) fn take(&self, index: usize, number: u32) -> bool {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = self.mine.word(layout::taken(index));
        let is_mine = protocol::take(mine, &self.theirs.word(layout::offered(index)), number);
        failpoint!("link.taken");
        self.notify();
        is_mine
    }

    /// Whether the peer has taken a message of its back.
    pub(crate) fn is_withdrawn(&self, index: usize, number: u32) -> bool {
        let now = self.theirs.word(layout::offered(index)).load(Ordering::Acquire);
        now != protocol::offered(number, Offered::Open)
    }

    /// Takes a message of this side back; whether that was done before the peer took it. A peer that decides just now is waited for.
    pub(crate) fn withdraw(&self, index: usize, number: u32) -> bool {
        protocol::withdraw(self.mine.word(layout::offered(index)), number);
        failpoint!("link.withdrawn");
        self.notify();
        let mut limit = Limit::new(Some(self.settings.handshake));
        loop {
            if let Some(is_withdrawn) =
                protocol::is_withdrawn(&self.theirs.word(layout::taken(index)), number)
            {
                return is_withdrawn;
            }
            if self.look().is_err() {
                return true;
            }
            if limit.is_over(Instant::now()) {
                tracing::warn!(
                    pid = self.pid,
                    "a message was withdrawn that its receiver, which is stopped, may have"
                );
                return true;
            }
            std::thread::yield_now();
        }
    }

    /// Says where this side runs; whether who spins is to give its processor away, because the peer may need it.
    pub(crate) fn gives_way(&self) -> bool {
        let here = sys::processor() as u64 + 1;
        let mine = self.mine.word(layout::PROCESSOR);
        if mine.load(Ordering::Relaxed) != here {
            mine.store(here, Ordering::Relaxed);
        }
        self.settings.is_crowded || self.theirs.word(layout::PROCESSOR).load(Ordering::Relaxed) == here
    }

    /// Whether the link can be used: by what is known.
    #[inline(always)]
    pub(crate) fn known(&self) -> Result<()> {
        if !self.mine.is_here() {
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
        self.theirs.word(layout::CLOSED).load(Ordering::Acquire) != 0
    }

    /// Asks the kernel whether the peer is there. An end is remembered.
    pub(crate) fn look(&self) -> Result<()> {
        self.known()?;
        // (A child that it made without telling the C library may have its socket still.)
        let is_gone = || sys::has_hung_up(self.fds.socket()) || sys::has_ended(self.pid);
        // It says so before it hangs up.
        let end = if self.has_closed() {
            CLOSED
        } else if is_gone() {
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
        Ok(self.fds.socket())
    }

    /// Says something over the socket, before the link is used.
    pub(crate) fn say(&self, bytes: &[u8]) -> sys::Result<()> {
        sys::send(self.fds.socket(), bytes, &[])
    }

    /// Hears something over the socket, before the link is used: its length.
    pub(crate) fn hear(&self, bytes: &mut [u8], deadline: Deadline) -> sys::Result<usize> {
        sys::receive(self.fds.socket(), bytes, deadline).map(|(length, _)| length)
    }

    /// Has the peer make the event fd readable when it has something to say.
    pub(crate) fn arm(&self) {
        sys::drain(self.fds.socket());
        let armed = self.mine.word(layout::ARMED);
        armed.fetch_add(1, Ordering::Relaxed);
        self.my_bell.word().set(ARMED);
        <AtomicU32 as Futex>::fence();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.mine.is_here() {
            self.mine.word(layout::CLOSED).store(1, Ordering::Release);
            failpoint!("link.closed");
            self.notify();
        }
    }
}
