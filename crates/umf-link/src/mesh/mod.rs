//! [`Mesh`]: messages between one process and any number of others, each linked at its first
//! message.
//!
//! Messages begin in one call, and [`Mesh::progress`] finishes them and leaves a [`Completion`] for
//! each. Calls block only while another process has to carry out a transfer, and for a moment while
//! a link is made: then they fail with [`Error::NotAccepted`], and are made again. Providers of
//! other interfaces are built on a mesh (libfabric, MPI). Memory is given by address, so that
//! starting an operation is `unsafe`.
//!
//! Two processes that send to each other at the same time may make two links. Each sends by one of
//! them for good, so that its messages keep their order. Receives therefore match processes and not
//! links.

mod acceptor;
mod events;
mod progress;
mod receive;
mod send;
mod transfer;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::channel::InboxShared;
use crate::engines::LinkStatistics;
use crate::inbox::Inbox;
use crate::layout::MAX_INLINE;
use crate::offer::NAME;
use crate::queue::Context;
use crate::wait::SLICE;
use crate::{ADDRESS_SIZE, Error, LinkAddress, LinkBuilder, Result, TagMatch, protocol, sys};

pub(crate) use acceptor::Accepted;
use acceptor::{Acceptor, Attempt};
use events::Events;
use receive::{Fetch, Posted};
use send::PendingSend;
pub use transfer::{RegionKey, Registrar, Transferring};

/// The longest message in a ring is this many times [`eager_max`] long. An offer is answered by the
/// next call of [`Mesh::progress`], and its end is seen by a later one, which takes longer than to
/// copy twice.
///
/// [`eager_max`]: crate::LinkSettings::eager_max
const EAGER: usize = 4;
/// The token of operations without a completion.
const NO_COMPLETION: u64 = u64::MAX;
/// The process of a link until it has named itself. Its messages are not received.
pub(crate) const UNNAMED: usize = usize::MAX;

/// The number of a process in a [`Mesh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process(usize);

impl Process {
    /// Returns the number: processes are numbered from 0 in the order of their insertion.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// Waits until another process may have sent something to a [`Mesh`].
#[derive(Debug)]
pub struct Sleeper {
    shared: Arc<InboxShared>,
    /// The bell when the lanes were read.
    seen: u32,
}

impl Sleeper {
    /// Waits for at most `most`, and not more than 25 ms. A signal may end it early.
    pub fn sleep(self, most: Duration) {
        sys::sleep(self.shared.bell.word(), self.seen, most.min(SLICE));
    }
}

/// Ends waits of a [`Mesh`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<InboxShared>);

impl Waker {
    /// Ends a wait that has begun, or the next one if none has.
    pub fn wake(&self) {
        self.0.bell.ring();
    }
}

/// What a message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The tag; `None` for a message without one. Receives of one kind take no message of the
    /// other.
    pub tag: Option<u64>,
    /// Data that the completion of the receive reports, beside the message.
    pub immediate: Option<u64>,
}

/// The messages that a receive takes.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The sender; `None` for any process.
    pub from: Option<Process>,
    /// The tags; `None` for messages without one.
    pub tag: Option<TagMatch>,
}

/// A message that has arrived, or of which the sender keeps the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its sender.
    pub from: Process,
    /// Its tag; 0 for a message without one.
    pub tag: u64,
    /// Its length in bytes.
    pub length: usize,
    /// Its immediate data.
    pub immediate: Option<u64>,
}

/// The operation of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// A message was received, or its data was copied into the ring.
    Sent,
    /// A message was received.
    Received {
        /// The message.
        message: Message,
        /// The address at which it was received.
        address: usize,
        /// Whether the memory of a receive of many messages takes no further one.
        is_last: bool,
    },
    /// A receive was cancelled.
    Cancelled,
    /// Another process has written memory of this one, and says so.
    Written {
        /// The process.
        by: Process,
        /// Its immediate data.
        immediate: u64,
        /// The number of bytes that it wrote.
        length: u64,
    },
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The number that the operation was given.
    pub token: u64,
    /// Its result. [`Error::Truncated`] for a message longer than the memory of its receive, which
    /// has the beginning of a short one.
    pub result: Result<Completed>,
    /// The message of a receive that failed.
    pub message: Option<Message>,
}

#[derive(Debug)]
struct Peer {
    address: LinkAddress,
    /// The link by which this process sends to it.
    link: Option<usize>,
    /// The link that is being made.
    attempt: Attempt,
    /// Why no operation with it is possible any more.
    end: Option<Error>,
}

/// A link with a process. Its index is that of the peer in the inbox.
#[derive(Debug, Default)]
struct Link {
    /// `None` until the process has named itself.
    process: Option<usize>,
    /// Messages for which its lane has no space.
    waiting: VecDeque<PendingSend>,
}

/// Messages between this process and any number of others. The module page has the rules.
///
/// One thread uses it at a time. A forked child cannot use it.
#[derive(Debug)]
pub struct Mesh {
    // Dropped first: no process connects any more.
    acceptor: Acceptor,
    /// Its descriptor for `poll(2)`, once it was asked for.
    events: Option<Arc<Events>>,
    links: Vec<Link>,
    /// The number of messages that wait for space in lanes.
    waiting: usize,
    /// Messages that are offered.
    sends: VecDeque<PendingSend>,
    fetches: Vec<Fetch>,
    // After what refers to its lanes.
    inbox: Inbox,
    peers: Vec<Peer>,
    /// The processes to which links are being made.
    attempts: Vec<usize>,
    by_address: HashMap<[u8; ADDRESS_SIZE], usize>,
    posted: VecDeque<Posted>,
    /// Messages that were claimed: token and number in the queue.
    claimed: HashMap<u64, u64>,
    completions: VecDeque<Completion>,
    /// The latest message that was compared with the receives.
    matched: u64,
    /// Counters of links that have ended.
    ended: LinkStatistics,
    /// Calls of [`Mesh::progress`], and those in a row that found nothing.
    calls: u32,
    idle: u32,
    /// The time of the last look at the processes, in milliseconds.
    checked: u64,
    /// The next process without a link to look at.
    next_check: usize,
    processors: usize,
}

// SAFETY: the addresses in it are those of memory that the caller keeps until the completions,
// whichever thread makes the calls. `&mut self` keeps out other threads.
unsafe impl Send for Mesh {}

impl Mesh {
    /// Makes a mesh with the settings and the importer of a builder.
    ///
    /// # Errors
    /// [`Error::System`]: no descriptors, memory or threads are left; [`Error::Directory`].
    pub fn new(builder: &LinkBuilder) -> Result<Self> {
        Self::at(builder, builder.unique_address()?)
    }

    /// Makes a mesh as [`Mesh::new`] at an address of [`LinkBuilder::unique_address`] or of
    /// [`LinkBuilder::address_of`].
    ///
    /// # Errors
    /// As [`Mesh::new`]; [`Error::NameTaken`].
    pub fn at(builder: &LinkBuilder, address: LinkAddress) -> Result<Self> {
        let (acceptor, shared) = Acceptor::start(builder, address)?;
        let mut inbox = Inbox::new(shared, 0);
        inbox.names = Some(Vec::new());
        inbox.accepted = Some(Arc::clone(acceptor.accepted()));
        // A message in a ring may have immediate data, too.
        inbox.inline_max = (EAGER * inbox.inline_max).min(MAX_INLINE - size_of::<u64>());
        Ok(Self {
            acceptor,
            events: None,
            links: Vec::new(),
            waiting: 0,
            sends: VecDeque::new(),
            fetches: Vec::new(),
            inbox,
            peers: Vec::new(),
            attempts: Vec::new(),
            by_address: HashMap::new(),
            posted: VecDeque::new(),
            claimed: HashMap::new(),
            completions: VecDeque::new(),
            matched: 0,
            ended: LinkStatistics::default(),
            calls: 0,
            idle: 0,
            checked: sys::coarse_milliseconds(),
            next_check: 0,
            processors: sys::processors(),
        })
    }

    /// Returns the address by which other meshes insert this one: 64 plain bytes.
    #[must_use]
    pub fn address(&self) -> LinkAddress {
        self.acceptor.address()
    }

    /// Returns the number of the process that has an address. It may be this process. Does not
    /// connect.
    ///
    /// # Errors
    /// [`Error::OtherMachine`].
    pub fn insert(&mut self, address: &LinkAddress) -> Result<Process> {
        if !address.is_of_this_boot() {
            return Err(Error::OtherMachine);
        }
        let number = *self.by_address.entry(address.to_bytes()).or_insert_with(|| {
            self.peers.push(Peer { address: *address, link: None, attempt: Attempt::default(), end: None });
            self.peers.len() - 1
        });
        Ok(Process(number))
    }

    /// Returns the address of a process.
    #[must_use]
    pub fn address_of(&self, process: Process) -> Option<LinkAddress> {
        self.peers.get(process.0).map(|peer| peer.address)
    }

    /// Returns the counters of what was transferred with all processes.
    #[must_use]
    pub fn statistics(&self) -> LinkStatistics {
        self.inbox.peers.iter().flatten().fold(self.ended, |sum, peer| sum.and(&peer.statistics))
    }

    #[cfg(fuzzing)]
    pub(crate) const fn shared(&self) -> &Arc<InboxShared> {
        &self.inbox.shared
    }

    /// Adds a link as the thread of the endpoint does.
    #[cfg(fuzzing)]
    pub(crate) fn adopt(&mut self, channel: Arc<crate::channel::Channel>, process: Option<Process>) {
        let link = self.add_link(channel, process.map(|process| process.0));
        if let Some(Process(process)) = process {
            self.peers[process].link = Some(link);
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.acceptor.is_own_process() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Makes the link by which this process sends to another, unless it has been made. All calls
    /// that need the link make it.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    #[inline]
    pub fn connect(&mut self, process: Process) -> Result<()> {
        self.link_to(process).map(drop)
    }

    /// Returns the link by which this process sends to another, which is made at first use.
    #[inline]
    fn link_to(&mut self, process: Process) -> Result<usize> {
        match self.peers.get(process.0) {
            Some(Peer { link: Some(link), .. }) => Ok(*link),
            Some(_) => self.make_link(process.0),
            None => Err(Error::WrongLink),
        }
    }

    #[cold]
    fn make_link(&mut self, process: usize) -> Result<usize> {
        self.check_process()?;
        if let Some(end) = &self.peers[process].end {
            return Err(end.clone());
        }
        // The process may have connected meanwhile.
        self.take_accepted();
        self.progress_lanes();
        let peer = &mut self.peers[process];
        if let Some(link) = peer.link {
            return Ok(link);
        }
        match peer.attempt.failure.take() {
            Some(failure) => Err(failure),
            None => self.advance_attempt(process),
        }
    }

    /// Makes the link with a process, as far as that goes at once.
    fn advance_attempt(&mut self, process: usize) -> Result<usize> {
        let Peer { address, attempt, .. } = &mut self.peers[process];
        let connected = self.acceptor.connect(address, attempt).map_err(|error| match error {
            Error::NotListening { pid, .. } => Error::PeerGone { pid: pid.cast_signed() },
            error => error,
        });
        self.attempts.retain(|other| *other != process);
        if matches!(connected, Err(Error::NotAccepted { .. })) {
            self.attempts.push(process);
        }
        let channel = connected?;
        let link = self.add_link(channel, Some(process));
        self.peers[process].link = Some(link);
        let own = self.address().to_bytes();
        let words: [u64; ADDRESS_SIZE / 8] = core::array::from_fn(|word| {
            u64::from_ne_bytes(core::array::from_fn(|byte| own[8 * word + byte]))
        });
        let peer = self.inbox.peer(link);
        peer.writer.write_words(&peer.channel, (NAME, Context::Messages), 0, &words);
        Ok(link)
    }

    /// Continues with the links that are being made: the other process waits for an answer, too.
    #[cold]
    fn progress_attempts(&mut self) {
        let peers = &self.peers;
        self.attempts.retain(|process| peers[*process].link.is_none() && peers[*process].end.is_none());
        for process in self.attempts.clone() {
            match self.advance_attempt(process) {
                Ok(_) | Err(Error::NotAccepted { .. }) => {}
                Err(error) => self.peers[process].attempt.failure = Some(error),
            }
        }
    }

    /// Makes progress. If there was nothing to do and there is no completion, returns what waits
    /// until another process may have sent something. It needs no access to the mesh, so that other
    /// threads can use the mesh meanwhile.
    pub fn sleeper(&mut self) -> Option<Sleeper> {
        let shared = Arc::clone(&self.inbox.shared);
        let seen = protocol::fall_asleep(shared.bell.word());
        (!self.progress_all() && self.completions.is_empty()).then_some(Sleeper { shared, seen })
    }

    /// Returns what ends waits of other threads ([`Sleeper`]).
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.inbox.shared))
    }

    /// Returns the next completion.
    #[inline]
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn complete(&mut self, token: u64, result: Result<Completed>, message: Option<Message>) {
        if token != NO_COMPLETION {
            self.completions.push_back(Completion { token, result, message });
        }
    }
}

#[cfg(test)]
mod tests;
