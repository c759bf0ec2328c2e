//! [`Mesh`]: messages between one process and any number of others, each linked at its first
//! message.
//!
//! A mesh never blocks in a transfer: operations begin in one call, and [`Mesh::progress`] finishes
//! them and leaves a [`Completion`] for each. It is what providers of other interfaces are built
//! on (libfabric, MPI). Memory is given by address, so that starting an operation is `unsafe`.
//!
//! Two processes that send to each other at the same time may make two links. Each sends by one of
//! them for good, so that its messages keep their order. Receives therefore match processes and not
//! links.

mod acceptor;
mod progress;
mod transfer;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Destination, Source};
use crate::channel::InboxShared;
use crate::engines::LinkStatistics;
use crate::inbox::Inbox;
use crate::layout::MAX_INLINE;
use crate::offer::NAME;
use crate::queue::{Body, Context, Matching};
use crate::receive::Receiving;
use crate::send::{SendRequest, Sending};
use crate::wait::SLICE;
use crate::{ADDRESS_SIZE, Error, LinkAddress, LinkBuilder, Result, TagMatch, protocol, sys};

use acceptor::Acceptor;
use progress::Fetch;
pub use transfer::{RegionKey, Registrar, Transferring};

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

impl Wanted {
    fn matching(&self) -> Matching {
        let (wanted, context) = match self.tag {
            Some(tag) => (tag, Context::Messages),
            None => (TagMatch::ANY, Context::Untagged),
        };
        Matching::new(self.from.map(|process| process.0), wanted, context)
    }
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
    /// has the beginning of it.
    pub result: Result<Completed>,
    /// The message of a receive that failed.
    pub message: Option<Message>,
}

#[derive(Debug)]
struct Peer {
    address: LinkAddress,
    /// The link by which this process sends to it.
    link: Option<usize>,
    /// Why no operation with it is possible any more.
    end: Option<Error>,
}

/// A receive without a message.
#[derive(Debug)]
struct Posted {
    token: u64,
    matching: Matching,
    into: Destination<'static>,
    /// For a receive of many messages: the bytes that are used, and the least bytes that have to be
    /// left for another message.
    many: Option<(usize, usize)>,
}

/// A message that is being sent.
#[derive(Debug)]
struct Send {
    token: u64,
    // Before `_copy`, to which it may refer.
    request: SendRequest<'static>,
    /// The data, if the caller may reuse its memory.
    _copy: Option<Box<[u8]>>,
}

/// Messages between this process and any number of others. The module page has the rules.
///
/// One thread uses it at a time. A forked child cannot use it.
#[derive(Debug)]
pub struct Mesh {
    // Dropped first: no process connects any more.
    acceptor: Acceptor,
    // Before the inbox, to whose lanes it refers.
    sends: VecDeque<Send>,
    fetches: Vec<Fetch>,
    inbox: Inbox,
    peers: Vec<Peer>,
    by_address: HashMap<[u8; ADDRESS_SIZE], usize>,
    /// The process of each link; `None` until it has named itself.
    links: Vec<Option<usize>>,
    posted: VecDeque<Posted>,
    /// Messages that were claimed: token and number in the queue.
    claimed: HashMap<u64, u64>,
    completions: VecDeque<Completion>,
    /// The latest message that was compared with the receives.
    matched: u64,
    /// Counters of links that have ended.
    ended: LinkStatistics,
    /// Calls of [`Mesh::progress`] in a row that found nothing.
    idle: u32,
    /// The time of the last look at the processes, in milliseconds.
    checked: u64,
    /// The next process without a link to look at.
    next_check: usize,
    processors: usize,
}

// SAFETY: the addresses in it are those of memory that the caller keeps until the completions,
// whichever thread makes the calls. `&mut self` keeps out other threads.
unsafe impl core::marker::Send for Mesh {}

impl Mesh {
    /// Makes a mesh with the settings and the importer of a builder.
    ///
    /// # Errors
    /// [`Error::System`]: no descriptors, memory or threads are left; [`Error::Directory`].
    pub fn new(builder: &LinkBuilder) -> Result<Self> {
        let (acceptor, shared) = Acceptor::start(builder)?;
        let mut inbox = Inbox::new(shared, 0);
        inbox.names = Some(Vec::new());
        // A message in a ring may have immediate data, too.
        inbox.inline_max = inbox.inline_max.min(MAX_INLINE - size_of::<u64>());
        Ok(Self {
            acceptor,
            sends: VecDeque::new(),
            fetches: Vec::new(),
            inbox,
            peers: Vec::new(),
            by_address: HashMap::new(),
            links: Vec::new(),
            posted: VecDeque::new(),
            claimed: HashMap::new(),
            completions: VecDeque::new(),
            matched: 0,
            ended: LinkStatistics::default(),
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
            self.peers.push(Peer { address: *address, link: None, end: None });
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
        if let Some(link) = self.peers[process].link {
            return Ok(link);
        }
        let address = self.peers[process].address;
        let channel = self.acceptor.connect(&address).map_err(|error| match error {
            Error::NotListening { pid, .. } => Error::PeerGone { pid: pid.cast_signed() },
            error => error,
        })?;
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

    /// Begins to send a message. Returns whether it was sent: then there is no completion. If
    /// `is_acknowledged`, a message is sent when it has been received.
    ///
    /// # Errors
    /// As [`LinkBuilder::connect`] at the first message, [`Error::PeerGone`], [`Error::Closed`],
    /// [`Error::Forked`], [`Error::System`].
    ///
    /// # Safety
    /// Until the completion, the memory of `source` can be read and is not written by this process.
    pub unsafe fn send(
        &mut self,
        to: Process,
        label: Label,
        source: Source<'static>,
        is_acknowledged: bool,
        token: u64,
    ) -> Result<bool> {
        let link = self.link_to(to)?;
        let (tag, context) = label.parts();
        let is_short = !is_acknowledged && source.len() <= self.inbox.inline_max;
        let peer = self.inbox.peer(link);
        if is_short && peer.is_fresh() && peer.send_fast((tag, context), label.immediate, &source.0) {
            return Ok(true);
        }
        self.send_slow(link, (label, is_acknowledged), source, token, None)
    }

    /// Sends a message whose memory may be reused at once. There is no completion.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    pub fn inject(&mut self, to: Process, label: Label, bytes: &[u8]) -> Result<()> {
        let link = self.link_to(to)?;
        let (tag, context) = label.parts();
        let source = Source::from(bytes);
        let is_short = bytes.len() <= self.inbox.inline_max;
        let peer = self.inbox.peer(link);
        if is_short && peer.is_fresh() && peer.send_fast((tag, context), label.immediate, &source.0) {
            return Ok(());
        }
        let copy: Box<[u8]> = Box::from(bytes);
        // SAFETY: the copy is dropped after the request, and not written.
        let source = unsafe { Source::from_raw(&[(copy.as_ptr().cast_mut(), copy.len())]) };
        self.send_slow(link, (label, false), source, NO_COMPLETION, Some(copy)).map(drop)
    }

    #[cold]
    fn send_slow(
        &mut self,
        link: usize,
        (label, is_acknowledged): (Label, bool),
        source: Source<'static>,
        token: u64,
        copy: Option<Box<[u8]>>,
    ) -> Result<bool> {
        self.check_process()?;
        self.inbox.peer(link).check_open()?;
        self.inbox.flush(link)?;
        let (tag, context) = label.parts();
        let sending = Sending::new(tag, context, source, false).of_mesh(label.immediate, is_acknowledged);
        let request = self.inbox.start_sending(link, sending)?;
        let is_done = request.is_done();
        if !is_done {
            self.sends.push_back(Send { token, request, _copy: copy });
        }
        Ok(is_done)
    }

    /// Begins to receive a message. Its completion is always left by [`Mesh::progress`] or this
    /// call. `many` is, for memory that receives one message after the other, the least bytes that
    /// have to be left for another one.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::NotContiguous`] for a list that is to receive many messages; the
    /// end of the process, if messages of one are wanted.
    ///
    /// # Safety
    /// Until the completion, the memory of `into` can be written and is not used by this process.
    pub unsafe fn receive(
        &mut self,
        wanted: Wanted,
        into: Destination<'static>,
        many: Option<usize>,
        token: u64,
    ) -> Result<()> {
        self.check_process()?;
        if many.is_some() && into.0.segments().len() != 1 {
            return Err(Error::NotContiguous { pieces: into.0.segments().len() });
        }
        let matching = wanted.matching();
        let mut posted = Posted { token, matching, into, many: many.map(|least| (0, least)) };
        while let Some(id) = self.inbox.queue.find(&matching) {
            let is_used_up = self.assign(id, &mut posted);
            if is_used_up {
                return Ok(());
            }
        }
        // Messages that arrived before the end of the process were looked at above.
        if let Some(end) =
            wanted.from.and_then(|from| self.peers.get(from.0)).and_then(|peer| peer.end.clone())
        {
            return Err(end);
        }
        self.posted.push_back(posted);
        Ok(())
    }

    /// Cancels a receive that has no message yet. Returns whether there was one; its completion is
    /// [`Completed::Cancelled`].
    pub fn cancel(&mut self, token: u64) -> bool {
        let Some(position) = self.posted.iter().position(|posted| posted.token == token) else {
            return false;
        };
        self.posted.remove(position);
        self.complete(token, Ok(Completed::Cancelled), None);
        true
    }

    /// Returns the first message that a receive would take. If `claim` has a number, the message is
    /// kept for [`Mesh::receive_claimed`] or [`Mesh::discard_claimed`] with that number.
    ///
    /// Looks at what earlier calls of [`Mesh::progress`] have found. (MPICH relies on that: of a
    /// message to itself and one of another process, it probes the latter and receives the former.)
    pub fn peek(&mut self, wanted: &Wanted, claim: Option<u64>) -> Option<Message> {
        let id = self.inbox.queue.find(&wanted.matching())?;
        let message = self.message(id)?;
        if let Some(token) = claim {
            self.inbox.queue.set_busy(id);
            self.claimed.insert(token, id);
        }
        Some(message)
    }

    /// Receives a message that was claimed. Returns `false` if there is none.
    ///
    /// # Safety
    /// As [`Mesh::receive`].
    pub unsafe fn receive_claimed(&mut self, claim: u64, into: Destination<'static>, token: u64) -> bool {
        let Some(id) = self.claimed.remove(&claim) else { return false };
        let matching = Matching::new(None, TagMatch::ANY, Context::Messages);
        self.assign(id, &mut Posted { token, matching, into, many: None });
        true
    }

    /// Discards a message that was claimed. Returns `false` if there is none.
    pub fn discard_claimed(&mut self, claim: u64) -> bool {
        let Some(id) = self.claimed.remove(&claim) else { return false };
        if let Some(message) = self.inbox.queue.remove(id)
            && let Body::Offered(offer) = &message.body
            && let Some(channel) = self.inbox.channel(message.peer)
        {
            channel.take(offer.index, offer.number);
        }
        self.inbox.resume_data();
        true
    }

    /// Makes progress. If there was nothing to do and there is no completion, returns what waits
    /// until another process may have sent something. It needs no access to the mesh, so that other
    /// threads can use the mesh meanwhile.
    pub fn sleeper(&mut self) -> Option<Sleeper> {
        let shared = Arc::clone(&self.inbox.shared);
        let seen = protocol::fall_asleep(shared.bell.word());
        (!self.progress() && self.completions.is_empty()).then_some(Sleeper { shared, seen })
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

    fn message(&self, id: u64) -> Option<Message> {
        let message = self.inbox.queue.get(id)?;
        let envelope = &message.envelope;
        Some(Message {
            from: Process(envelope.source),
            tag: envelope.tag,
            length: message.body.len(),
            immediate: envelope.immediate,
        })
    }

    fn complete(&mut self, token: u64, result: Result<Completed>, message: Option<Message>) {
        if token != NO_COMPLETION {
            self.completions.push_back(Completion { token, result, message });
        }
    }

    /// Begins to fetch a message of the queue for a receive. Returns whether the receive takes no
    /// further message.
    fn assign(&mut self, id: u64, posted: &mut Posted) -> bool {
        let Some(message) = self.message(id) else { return false };
        let (into, is_last) = posted.next(message.length);
        self.inbox.queue.set_busy(id);
        let mut fetch = Fetch::new(posted.token, id, message, into, is_last);
        if !self.fetch(&mut fetch) {
            self.fetches.push(fetch);
        }
        is_last
    }
}

/// The token of operations without a completion.
const NO_COMPLETION: u64 = u64::MAX;

impl Label {
    #[inline]
    fn parts(self) -> (u64, Context) {
        match self.tag {
            Some(tag) => (tag, Context::Messages),
            None => (0, Context::Untagged),
        }
    }
}

impl Posted {
    /// Returns the memory for the next message, and whether the receive takes no further one.
    fn next(&mut self, length: usize) -> (Destination<'static>, bool) {
        let capacity = self.into.0.len();
        match &mut self.many {
            None => (Destination(self.into.0.clone()), true),
            Some((used, least)) => {
                let start = *used;
                let part = length.min(capacity - start);
                *used += part;
                let is_last = capacity - *used < *least || part < length;
                let into = self.into.0.subrange(start, part).unwrap_or_else(|| self.into.0.clone());
                (Destination(into), is_last)
            }
        }
    }
}

impl Fetch {
    fn new(token: u64, id: u64, message: Message, into: Destination<'static>, is_last: bool) -> Self {
        let address = into.0.segments()[0].base.addr();
        let capacity = into.0.len();
        let scratch = (message.length > capacity).then(|| vec![0_u8; message.length].into_boxed_slice());
        let target = match &scratch {
            // SAFETY: `receiving` is dropped before `scratch`, which is not used meanwhile.
            Some(scratch) => unsafe {
                Destination::from_raw(&[(scratch.as_ptr().cast_mut(), scratch.len())])
            },
            None => Destination(into.0.clone()),
        };
        let matching = Matching::new(Some(message.from.0), TagMatch::ANY, Context::Messages);
        // The memory stays valid until the completion, so the sender may write into it.
        let limit = Some(crate::wait::Limit::new(None));
        let receiving = Receiving::new(matching, target, limit);
        Self { token, id, message, into, address, is_last, receiving, scratch }
    }
}

#[cfg(test)]
mod tests;
