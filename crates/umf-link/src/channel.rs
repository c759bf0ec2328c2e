//! [`InboxShared`], the part of an inbox that all peers see, and [`Channel`], the connection with
//! one peer.
//!
//! Both are reference counted, since guards ([`crate::View`], [`crate::Loan`],
//! [`crate::Registration`]) outlive calls and can be dropped by other threads. All functions here
//! are thread safe.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use umf_ipc::Importer;
use umf_os::process::random;
use umf_os::socket::so_peerpidfd;
use umf_sync::failpoint;

use crate::engines::Engines;
use crate::layout::{self, Extent, MAX_LOANS};
use crate::protocol::{self, ARMED, ASLEEP, Futex, Load, Offered, Word};
use crate::registry::Registry;
use crate::shared_files::{Bell, OwnCatalog, OwnLane, PeerCatalog, PeerLane};
use crate::sys::CloseOnFork;
use crate::wait::{Limit, SLICE};
use crate::{Error, LinkSettings, Result, sys};

/// The catalog and the bell of an inbox, which all its peers map, and the state that its channels
/// share.
#[derive(Debug)]
pub(crate) struct InboxShared {
    pub catalog: OwnCatalog,
    pub bell: Bell,
    pub settings: LinkSettings,
    pub importer: Option<&'static Importer>,
    /// The rank of this process; 0 without a job.
    rank: usize,
    /// Whether there are more ranks than processors. Then peers mark their lanes.
    pub is_oversubscribed: bool,
    registry: Mutex<Registry>,
    accessors: Mutex<Vec<Accessor>>,
}

/// A peer that may copy in registered ranges of this process. It is kept beyond the end of its
/// channel while the peer copies.
#[derive(Clone, Debug)]
pub(crate) struct Accessor {
    lane: Arc<PeerLane>,
    peer: Arc<PeerProcess>,
    channel: Weak<Channel>,
}

/// The process at the other end of a link's socket.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    /// Its pid in this pid namespace; 0 if the namespace does not show it.
    pub pid: i32,
    /// The kernel closes it when this process ends, which the peer sees. A forked child therefore
    /// closes its copy.
    socket: CloseOnFork,
    /// Only for a process without a pid here, and from Linux 6.5.
    pidfd: Option<CloseOnFork>,
}

impl PeerProcess {
    pub(crate) fn new(socket: OwnedFd, pid: i32) -> Result<Self> {
        let pidfd = if pid > 0 { None } else { so_peerpidfd(socket.as_fd()).ok() };
        Self::with(socket, pid, pidfd)
    }

    fn with(socket: OwnedFd, pid: i32, pidfd: Option<OwnedFd>) -> Result<Self> {
        let failed = Error::system("fstat of the socket of a link");
        let socket = CloseOnFork::new(socket).map_err(&failed)?;
        let pidfd = pidfd.map(CloseOnFork::new).transpose().map_err(failed)?;
        Ok(Self { pid, socket, pidfd })
    }

    /// Returns whether the process has ended, as far as the kernel knows, or has closed its end. A
    /// child that it made by a raw clone may keep its socket open. Then only the pid or the pidfd
    /// shows its end.
    fn has_ended(&self) -> bool {
        let is_reaped = || self.pidfd.as_ref().is_some_and(|pidfd| umf_os::process::has_ended(pidfd.as_fd()));
        sys::has_hung_up(self.socket.as_fd()) || sys::has_ended(self.pid) || is_reaped()
    }
}

impl Accessor {
    /// Returns whether the peer is copying in the range of a slot.
    pub(crate) fn is_inside(&self, slot: usize) -> bool {
        protocol::is_inside(&self.lane.word(layout::INSIDE), slot)
    }

    /// Returns whether the peer may still be copying, as far as the kernel knows.
    pub(crate) fn is_alive(&self) -> bool {
        match self.channel.upgrade() {
            // A peer that has closed the link makes no call on it.
            Some(channel) => channel.check_alive().is_ok(),
            None => !self.peer.has_ended(),
        }
    }

    fn is_needed(&self) -> bool {
        let is_inside = || self.lane.word(layout::INSIDE).load(Ordering::Relaxed) != 0;
        // A killed process never clears the word.
        self.channel.strong_count() > 0 || is_inside() && !self.peer.has_ended()
    }
}

/// The descriptors of a [`InboxShared`], for peers that connect.
#[derive(Debug)]
pub(crate) struct InboxFds {
    pub catalog: CloseOnFork,
    pub bell: CloseOnFork,
}

impl InboxShared {
    /// Creates catalog and bell. `job` has the rank of this process and the number of ranks.
    pub(crate) fn create(
        settings: LinkSettings,
        importer: Option<&'static Importer>,
        job: Option<(usize, usize)>,
    ) -> Result<(Arc<Self>, InboxFds)> {
        let (rank, size) = job.unwrap_or((0, 0));
        let is_oversubscribed = size > sys::processors();
        let nonce = u128::from_le_bytes(random().map_err(Error::system("getrandom"))?);
        let failed = Error::system("creating the shared memory of a link");
        let (catalog, catalog_fd) = OwnCatalog::create(nonce).map_err(&failed)?;
        let (bell, bell_fd) = Bell::create(is_oversubscribed).map_err(&failed)?;
        let catalog_fd = CloseOnFork::new(catalog_fd).map_err(&failed)?;
        let fds = InboxFds { catalog: catalog_fd, bell: CloseOnFork::new(bell_fd).map_err(failed)? };
        let (registry, accessors) = (Mutex::new(Registry::new()), Mutex::default());
        let shared = Self { catalog, bell, settings, importer, rank, is_oversubscribed, registry, accessors };
        Ok((Arc::new(shared), fds))
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the peers that may copy in registered ranges.
    pub(crate) fn accessors(&self) -> Vec<Accessor> {
        let mut accessors = self.accessors.lock().unwrap_or_else(PoisonError::into_inner);
        accessors.retain(Accessor::is_needed);
        accessors.clone()
    }

    fn add(&self, channel: &Arc<Channel>) {
        let mut accessors = self.accessors.lock().unwrap_or_else(PoisonError::into_inner);
        accessors.retain(Accessor::is_needed);
        let (lane, peer) = (Arc::clone(&channel.peer_lane), Arc::clone(&channel.peer));
        accessors.push(Accessor { lane, peer, channel: Arc::downgrade(channel) });
    }

    pub(crate) fn is_own_process(&self) -> bool {
        self.catalog.is_own_process()
    }

    /// Populates an extent of the catalog.
    pub(crate) fn populate(&self, extent: Extent) -> Result<()> {
        self.catalog.populate(extent).map_err(populating())
    }
}

fn populating() -> impl Fn(Errno) -> Error {
    Error::system("populating the shared memory of a link")
}

/// The files that a peer sent in the handshake.
#[derive(Debug)]
pub(crate) struct PeerFiles {
    pub lane: PeerLane,
    pub catalog: PeerCatalog,
    pub bell: Bell,
    /// Nonce of its catalog, which its keys name.
    pub nonce: u128,
}

const ALIVE: u8 = 0;
const GONE: u8 = 1;
const CLOSED: u8 = 2;

/// The connection with one peer. The link is closed when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct Channel {
    pub shared: Arc<InboxShared>,
    pub own_lane: OwnLane,
    pub peer_lane: Arc<PeerLane>,
    pub peer_catalog: PeerCatalog,
    pub peer_nonce: u128,
    pub engines: Engines,
    /// The peer's pid in this pid namespace; 0 if the namespace does not show it.
    pub pid: i32,
    /// Whether kernel copies work with this peer. Cleared by the first permanent error.
    pub kernel_copies: AtomicBool,
    /// The number of the latest block in each slot for blocks that are handed over.
    pub loans: [AtomicU32; MAX_LOANS],
    peer_bell: Bell,
    /// Whether the peer reads marked lanes only.
    has_marks: bool,
    /// The latest of the peer's requests to be woken by the socket that was served.
    answered_arms: AtomicU64,
    state: AtomicU8,
    /// Shared with [`Accessor`]: the socket stays open while the peer copies in a range.
    peer: Arc<PeerProcess>,
}

impl Channel {
    pub(crate) fn new(
        shared: &Arc<InboxShared>,
        own_lane: OwnLane,
        files: PeerFiles,
        (peer, base): (PeerProcess, u64),
    ) -> Result<Arc<Self>> {
        let pid = peer.pid;
        let engines = Engines::probe(&own_lane, (pid, base), &shared.settings, shared.importer.is_some());
        tracing::debug!(pid, %engines, "link established");
        let channel = Arc::new(Self {
            shared: Arc::clone(shared),
            own_lane,
            peer_lane: Arc::new(files.lane),
            peer_catalog: files.catalog,
            peer_nonce: files.nonce,
            kernel_copies: AtomicBool::new(engines.cma().is_ok()),
            engines,
            pid,
            loans: [const { AtomicU32::new(0) }; MAX_LOANS],
            has_marks: files.bell.has_marks(),
            peer_bell: files.bell,
            answered_arms: AtomicU64::new(0),
            state: AtomicU8::new(ALIVE),
            peer: Arc::new(peer),
        });
        shared.add(&channel);
        failpoint!("link.made");
        Ok(channel)
    }

    pub(crate) fn settings(&self) -> &LinkSettings {
        &self.shared.settings
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.peer.socket.as_fd()
    }

    pub(crate) const fn misbehaved(&self, what: &'static str) -> Error {
        Error::Misbehaved { pid: self.pid, what }
    }

    /// Populates an extent of the own lane.
    #[inline]
    pub(crate) fn populate(&self, extent: Extent) -> Result<()> {
        self.own_lane.populate(extent).map_err(populating())
    }

    /// Populates an extent of the peer's lane for reading.
    #[inline]
    pub(crate) fn populate_peer(&self, extent: Extent) -> Result<()> {
        self.peer_lane.populate(extent).map_err(populating())
    }

    /// Populates an extent of the peer's catalog for reading.
    #[inline]
    pub(crate) fn populate_catalog(&self, extent: Extent) -> Result<()> {
        self.peer_catalog.populate(extent).map_err(populating())
    }

    /// Wakes the peer if its threads sleep. Called after each change for which they may wait.
    #[inline(always)]
    pub(crate) fn notify(&self) {
        if self.has_marks {
            self.peer_bell.mark(self.shared.rank);
        }
        let bits = protocol::take_requests(self.peer_bell.word());
        if bits != 0 {
            self.wake(bits);
        }
    }

    #[cold]
    fn wake(&self, bits: u32) {
        if bits & ASLEEP != 0 {
            sys::wake(self.peer_bell.word());
        }
        if bits & ARMED != 0 {
            let armed = self.peer_lane.word(layout::ARMED).load(Ordering::Relaxed);
            if self.answered_arms.swap(armed, Ordering::Relaxed) != armed {
                sys::poke(self.socket());
            }
        }
        failpoint!("link.woken");
    }

    /// Returns the block that the peer handed over in slot `index`.
    #[inline]
    pub(crate) fn return_block(&self, index: usize) {
        Word::turn(self.own_lane.word(layout::RETURNED), 1 << index);
        if self.has_marks {
            return self.notify();
        }
        let bits = protocol::take_requests_unfenced(self.peer_bell.word());
        if bits != 0 {
            self.wake(bits);
        }
    }

    /// Takes an offer of the peer. Returns `false` if the peer withdrew it first.
    pub(crate) fn take(&self, index: usize, number: u32) -> bool {
        let verdict = self.own_lane.word(layout::taken(index));
        let is_taken = protocol::take(verdict, &self.peer_lane.word(layout::offered(index)), number);
        failpoint!("link.taken");
        self.notify();
        is_taken
    }

    /// Returns whether the peer has withdrawn an offer.
    pub(crate) fn is_withdrawn(&self, index: usize, number: u32) -> bool {
        let offered = self.peer_lane.word(layout::offered(index)).load(Ordering::Acquire);
        offered != protocol::offered(number, Offered::Open)
    }

    /// Withdraws an offer. Returns `false` if the peer took it first. While the peer is deciding,
    /// the call waits, at most for the handshake timeout.
    pub(crate) fn withdraw(&self, index: usize, number: u32) -> bool {
        if !protocol::withdraw(self.own_lane.word(layout::offered(index)), number) {
            // The slot was reused, which happens only after its message was taken.
            return false;
        }
        failpoint!("link.withdrawn");
        self.notify();
        let mut limit = Limit::new(Some(self.settings().handshake));
        loop {
            if let Some(is_withdrawn) =
                protocol::is_withdrawn(&self.peer_lane.word(layout::taken(index)), number)
            {
                return is_withdrawn;
            }
            if self.check_alive().is_err() {
                return true;
            }
            if limit.is_over(Instant::now()) {
                tracing::warn!(
                    pid = self.pid,
                    "a withdrawn message may have been received: its receiver is stopped"
                );
                return true;
            }
            std::thread::yield_now();
        }
    }

    /// Publishes that this process has ended its collectives, and the pid of the process whose end
    /// was the reason, if any.
    pub(crate) fn end_collectives(&self, gone: Option<i32>) {
        let pid = u64::from(gone.unwrap_or(0).cast_unsigned());
        self.own_lane.word(layout::ENDED_COLLECTIVES).store(1 << 32 | pid, Ordering::Release);
        self.notify();
    }

    /// Returns the pid (or 0) that the peer has published by [`Channel::end_collectives`].
    pub(crate) fn ended_collectives(&self) -> Option<i32> {
        let word = self.peer_lane.word(layout::ENDED_COLLECTIVES).load(Ordering::Acquire);
        (word != 0).then_some(word as i32)
    }

    /// Publishes the processor on which this thread spins. Returns whether the peer last spun on
    /// the same one, so that this thread should yield.
    pub(crate) fn should_yield(&self) -> bool {
        let here = sys::processor() as u64 + 1;
        let own = self.own_lane.word(layout::PROCESSOR);
        if own.load(Ordering::Relaxed) != here {
            own.store(here, Ordering::Relaxed);
        }
        self.peer_lane.word(layout::PROCESSOR).load(Ordering::Relaxed) == here
    }

    /// Fails if this is a forked child, or if an earlier check found the end of the link.
    #[inline(always)]
    pub(crate) fn check_known(&self) -> Result<()> {
        if !self.own_lane.is_own_process() {
            return Err(Error::Forked);
        }
        match self.state.load(Ordering::Relaxed) {
            ALIVE => Ok(()),
            end => Err(self.end(end)),
        }
    }

    /// Whether [`Channel::check_known`] succeeds.
    #[inline(always)]
    pub(crate) fn is_known_alive(&self) -> bool {
        self.own_lane.is_own_process() && self.state.load(Ordering::Relaxed) == ALIVE
    }

    #[cold]
    fn end(&self, end: u8) -> Error {
        if end == GONE { Error::PeerGone { pid: self.pid } } else { Error::Closed { pid: self.pid } }
    }

    /// Whether the peer has closed the link.
    #[inline(always)]
    pub(crate) fn has_closed(&self) -> bool {
        self.peer_lane.word(layout::CLOSED).load(Ordering::Acquire) != 0
    }

    /// Asks the kernel whether the peer is alive. Stores an end for [`Channel::check_known`].
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.check_known()?;
        // The peer sets the word before it closes the socket.
        let end = if self.has_closed() {
            CLOSED
        } else if self.peer.has_ended() {
            GONE
        } else {
            return Ok(());
        };
        self.state.store(end, Ordering::Relaxed);
        tracing::debug!(pid = self.pid, closed = end == CLOSED, "the peer of a link is gone");
        Err(self.end(end))
    }

    /// Asks the peer to make the socket readable at its next change, after earlier changes are read
    /// from it.
    pub(crate) fn arm(&self) {
        sys::drain(self.socket());
        self.request_event();
    }

    /// Asks the peer to make the socket readable at its next change.
    pub(crate) fn request_event(&self) {
        self.own_lane.word(layout::ARMED).fetch_add(1, Ordering::Relaxed);
        Futex::set(self.shared.bell.word(), ARMED);
        <AtomicU32 as Futex>::fence();
    }

    /// Waits without an inbox until `is_done`, the peer is gone or the limit is reached.
    pub(crate) fn wait_until(
        &self,
        timeout: Option<Duration>,
        what: &'static str,
        is_done: impl Fn() -> bool,
    ) -> Result<()> {
        let (mut limit, bell) = (Limit::of_call(timeout, self.settings()), self.shared.bell.word());
        for _ in 0..2000 {
            if is_done() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        loop {
            let seen = protocol::fall_asleep(bell);
            if is_done() {
                return Ok(());
            }
            self.check_alive().or_else(|end| if is_done() { Ok(()) } else { Err(end) })?;
            if limit.is_over(Instant::now()) {
                return if is_done() { Ok(()) } else { Err(limit.error(what)) };
            }
            limit.check_interrupt()?;
            sys::sleep(bell, seen, limit.at_most(SLICE));
        }
    }

    /// Returns the error for memory of the peer that cannot be opened. If the peer has ended, its
    /// end is the error.
    pub(crate) fn not_opened(&self, error: umf_ipc::Error) -> Error {
        use umf_ipc::Error as Ipc;
        match (self.check_alive(), error) {
            (Err(end), _) => end,
            // The handle may name memory of another process than the peer.
            (Ok(()), Ipc::ProducerGone { pid } | Ipc::ProducerReplaced { pid, .. })
                if i64::from(pid) == i64::from(self.pid) =>
            {
                Error::PeerGone { pid: self.pid }
            }
            (Ok(()), error) => Error::Open { pid: self.pid, error },
        }
    }

    /// Returns the error for a failed kernel copy. After a permanent error, no further kernel copy
    /// is tried.
    pub(crate) fn refused(&self, errno: Errno, call: &'static str) -> Error {
        if let Err(end) = self.check_alive() {
            return end;
        }
        // The kernel frees the memory of an exiting process before it closes the socket.
        if errno == Errno::SRCH {
            return Error::PeerGone { pid: self.pid };
        }
        if matches!(errno, Errno::PERM | Errno::NOSYS) {
            self.kernel_copies.store(false, Ordering::Relaxed);
        }
        Error::system(call)(errno)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.own_lane.is_own_process() {
            self.own_lane.word(layout::CLOSED).store(1, Ordering::Release);
            failpoint!("link.closed");
            self.notify();
            failpoint!("link.left");
            self.shared.accessors.lock().unwrap_or_else(PoisonError::into_inner).retain(Accessor::is_needed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_files::OwnLane;

    fn socket_pair() -> (OwnedFd, OwnedFd) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType};
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap()
    }

    #[test]
    fn lane_of_peer_killed_in_range_is_released() {
        let (own, fd) = OwnLane::create(1).unwrap();
        own.word(layout::INSIDE).store(5, Ordering::Relaxed);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id().cast_signed();
        child.wait().unwrap();
        // A peer without a pid here is known by its socket.
        for (pid, is_open, is_needed) in [
            (std::process::id().cast_signed(), true, true),
            (dead, true, false),
            (0, true, true),
            (0, false, false),
        ] {
            let lane = Arc::new(PeerLane::adopt(&fd, 1).unwrap().unwrap());
            let (socket, other) = socket_pair();
            let other = is_open.then_some(other);
            let peer = Arc::new(PeerProcess::with(socket, pid, None).unwrap());
            let accessor = Accessor { lane, peer, channel: Weak::new() };
            assert!(accessor.is_inside(4));
            assert_eq!(accessor.is_needed(), is_needed, "{pid} {is_open}");
            drop(other);
        }
    }

    /// The end of a process without a pid here is seen by the pidfd of the socket, also if a child
    /// keeps the socket open, and without a pidfd by the end of the connection.
    #[test]
    fn end_of_peer_without_pid_is_seen_with_and_without_pidfd() {
        let (socket, other) = socket_pair();
        let (mut pids, sent) =
            rustix::pipe::pipe().map(|(read, write)| (std::fs::File::from(read), write)).unwrap();
        // SAFETY: both processes make only system calls, and are killed.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: a raw clone, which runs no fork handlers, so that the grandchild keeps the
            // socket.
            let grandchild = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if grandchild > 0 {
                let _ = rustix::io::write(&sent, &(grandchild as i32).to_ne_bytes());
            }
            loop {
                // SAFETY: waits to be killed.
                unsafe { libc::pause() };
            }
        }
        drop((other, sent));
        let mut grandchild = [0; 4];
        std::io::Read::read_exact(&mut pids, &mut grandchild).unwrap();
        let grandchild = i32::from_ne_bytes(grandchild);
        let pid = rustix::process::Pid::from_raw(child).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let with = PeerProcess::with(socket.try_clone().unwrap(), 0, Some(pidfd)).unwrap();
        let without = PeerProcess::with(socket, 0, None).unwrap();
        assert!(!with.has_ended() && !without.has_ended());
        // SAFETY: a child of this test, which was not reaped.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: as above; no status is written.
        assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child);
        assert!(with.has_ended() && !without.has_ended());
        // SAFETY: a process of this test, which no process reaps before its end.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
        while !without.has_ended() {
            std::thread::yield_now();
        }
    }
}
