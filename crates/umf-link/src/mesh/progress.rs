//! Progress of a [`Mesh`]: records of the lanes, messages that are fetched or sent, and the ends of
//! processes.

use std::sync::Arc;

use umf_core::Access;

use crate::buffer::{Cursor, Destination};
use crate::channel::Channel;
use crate::inbox::peek;
use crate::offer::{BLOCK, IMMEDIATE, INLINE, NAME, REQUEST};
use crate::queue::Context;
use crate::receive::{FetchOutcome, Receiving};
use crate::ring::{RecordHeader, unknown_kind};
use crate::{Engine, Error, LinkAddress, Result, contact, sys};

use super::{Completed, Mesh, Message, Posted, Process};

/// The most records that one call reads from a lane.
const BUDGET: usize = 32;
/// The most messages that are being sent of which one call makes progress.
const SENDS: usize = 32;
/// Calls that find nothing between two looks at the clock.
const CALLS: u32 = 64;
/// Milliseconds between two looks at the other processes.
const CHECK: u64 = 20;
/// Processes without a link that are looked at together.
const UNLINKED: usize = 8;
/// Calls that find nothing before the thread yields its processor, if there are more processes than
/// processors.
const BEFORE_YIELD: u32 = 32;
/// Calls that find nothing before the thread yields its processor in any case: processes to which
/// this one has no link may need it. Among them may be those for which its peer waits.
const BEFORE_ANY_YIELD: u32 = 1024;
/// Rounds over a lane whose process has ended. Its rings hold fewer records.
const LAST_ROUNDS: usize = 64;

/// The process of a link until it has named itself. Its messages are not received.
const UNNAMED: usize = usize::MAX;

/// A message of the queue that is being received.
#[derive(Debug)]
pub(super) struct Fetch {
    pub token: u64,
    /// Its number in the queue.
    pub id: u64,
    pub message: Message,
    /// The memory of the receive.
    pub into: Destination<'static>,
    pub address: usize,
    pub is_last: bool,
    // Before `scratch`, to which it may refer.
    pub receiving: Receiving<'static>,
    /// The whole message, if it is longer than the memory of the receive.
    pub scratch: Option<Box<[u8]>>,
}

impl Mesh {
    /// Reads the lanes, answers requests of other processes, and continues all operations. Does not
    /// block. Returns whether there was anything to do.
    ///
    /// A call that finds nothing may yield the processor: soon if there are more processes than
    /// processors, and later in any case.
    pub fn progress(&mut self) -> bool {
        if !self.acceptor.is_own_process() {
            return false;
        }
        self.take_accepted();
        self.inbox.remove_dropped_requests();
        let mut is_any = self.progress_lanes();
        if !self.fetches.is_empty() {
            is_any |= self.progress_fetches();
        }
        // Copying a long message waits for its sender, and reads lanes meanwhile.
        self.settle();
        if !self.sends.is_empty() {
            is_any |= self.progress_sends();
        }
        if is_any {
            self.idle = 0;
            self.inbox.resume_data();
        } else {
            self.idle = self.idle.wrapping_add(1);
            if self.idle.is_multiple_of(CALLS) {
                self.check_processes();
            }
            let is_crowded = self.inbox.peers.len() >= self.processors;
            if self.idle > if is_crowded { BEFORE_YIELD } else { BEFORE_ANY_YIELD } {
                std::thread::yield_now();
            }
        }
        is_any
    }

    pub(super) fn take_accepted(&mut self) {
        for channel in self.acceptor.take() {
            self.add_link(channel, None);
        }
    }

    pub(super) fn add_link(&mut self, channel: Arc<Channel>, process: Option<usize>) -> usize {
        // Until it names itself, its messages match no process.
        let link = self.inbox.add(channel, process.unwrap_or(UNNAMED));
        if self.links.len() <= link {
            self.links.resize(link + 1, None);
        }
        self.links[link] = process;
        link
    }

    pub(super) fn progress_lanes(&mut self) -> bool {
        let mut is_any = false;
        for link in 0..self.inbox.peers.len() {
            for _ in 0..BUDGET {
                match self.advance(link) {
                    Ok(true) => is_any = true,
                    Ok(false) => break,
                    Err(error) => {
                        tracing::debug!(%error, "a lane cannot be read");
                        self.end_of_link(link, &error);
                        break;
                    }
                }
            }
        }
        is_any
    }

    /// Reads the next record of a lane. Returns whether there was one.
    #[inline]
    fn advance(&mut self, link: usize) -> Result<bool> {
        let Some(peer) = &mut self.inbox.peers[link] else { return Ok(false) };
        if !peer.outgoing.backlog.is_empty() {
            self.inbox.flush(link)?;
        }
        let Some(peer) = &mut self.inbox.peers[link] else { return Ok(false) };
        let Some(record) = peek(peer)? else { return Ok(false) };
        let RecordHeader { kind, context, tag, length } = record;
        let source = peer.source;
        if source == UNNAMED && kind != NAME {
            return Err(peer.channel.misbehaved("it does not name itself first"));
        }
        match kind {
            INLINE | IMMEDIATE => {
                let takes = |posted: &Posted| posted.matching.takes(source, tag, context);
                if let Some(position) = self.posted.iter().position(takes) {
                    self.receive_inline(link, record, position)?;
                    return Ok(true);
                }
            }
            REQUEST => {
                self.inbox.serve_request(link, length)?;
                return Ok(true);
            }
            NAME => {
                self.inbox.read_name(link, length);
                self.name_links();
                return Ok(true);
            }
            BLOCK => return Err(unknown_kind(&peer.channel)),
            _ => {}
        }
        let id = self.inbox.enqueue(link, record, false)?;
        self.matched = id;
        self.match_posted(id);
        Ok(true)
    }

    /// Uses what a call that waited has read from the lanes.
    pub(super) fn settle(&mut self) {
        self.name_links();
        while self.matched < self.inbox.queue.latest()
            && let Some(id) = self.inbox.queue.free_after(self.matched)
        {
            self.matched = id;
            self.match_posted(id);
        }
        self.matched = self.inbox.queue.latest();
    }

    /// Assigns a message of the queue to the first receive that takes it.
    fn match_posted(&mut self, id: u64) {
        let Some(message) = self.inbox.queue.get(id) else { return };
        let (envelope, link) = (message.envelope, message.peer);
        if envelope.source == UNNAMED {
            if let Some(channel) = self.inbox.channel(link) {
                let error = channel.misbehaved("it does not name itself first");
                self.end_of_link(link, &error);
            }
            return;
        }
        if envelope.context == Context::Transfers {
            return self.report_transfer(id);
        }
        let takes = |posted: &Posted| posted.matching.takes(envelope.source, envelope.tag, envelope.context);
        if let Some(position) = self.posted.iter().position(takes)
            && let Some(mut posted) = self.posted.remove(position)
            && !self.assign(id, &mut posted)
        {
            self.posted.insert(position, posted);
        }
    }

    /// Copies a short message out of the lane into the memory of a receive.
    #[inline]
    fn receive_inline(&mut self, link: usize, record: RecordHeader, position: usize) -> Result<()> {
        let peer = self.inbox.peer(link);
        let mut skipped = if record.kind == IMMEDIATE { size_of::<u64>() } else { 0 };
        let Some(length) = record.length.checked_sub(skipped) else {
            return Err(peer.channel.misbehaved("a message has no immediate data"));
        };
        let source = peer.source;
        let posted = &mut self.posted[position];
        let (into, is_last) = posted.next(length);
        let (token, capacity) = (posted.token, into.0.len());
        if is_last {
            self.posted.remove(position);
        }
        let peer = self.inbox.peer(link);
        let guard = into.0.begin_access(Access::ReadWrite)?;
        let (mut cursor, mut left, mut immediate) = (into.0.cursor(), capacity, 0);
        // SAFETY: `into` has `capacity` bytes of the caller's memory; `read` passes `count` bytes
        // of the lane, of which the first piece has the immediate data.
        peer.reader.read(&peer.channel, record.length, |from, count| unsafe {
            if skipped > 0 {
                immediate = from.cast::<u64>().read_unaligned();
            }
            let count = count - skipped;
            let copied = count.min(left);
            cursor.copy_in(from.add(skipped), copied);
            left -= copied;
            skipped = 0;
        });
        drop(guard);
        peer.statistics.add_received(Engine::Inline, length);
        let immediate = (record.kind == IMMEDIATE).then_some(immediate);
        let message = Message { from: Process(source), tag: record.tag, length, immediate };
        self.received(token, message, (into.0.segments()[0].base.addr(), capacity), is_last);
        Ok(())
    }

    fn received(&mut self, token: u64, message: Message, (address, capacity): (usize, usize), is_last: bool) {
        let length = message.length;
        if length > capacity {
            self.complete(token, Err(Error::Truncated { length, capacity }), Some(message));
        } else {
            self.complete(token, Ok(Completed::Received { message, address, is_last }), None);
        }
    }

    /// Uses the addresses of processes that made links.
    fn name_links(&mut self) {
        let Some(names) = self.inbox.names.as_mut().filter(|names| !names.is_empty()) else { return };
        for (link, name) in core::mem::take(names) {
            let Some(channel) = self.inbox.channel(link).cloned() else { continue };
            let address = LinkAddress::from_bytes(&name).ok().filter(|_| self.links[link].is_none());
            let Some(Ok(Process(process))) = address.map(|address| self.insert(&address)) else {
                let what = "it does not name itself as a process of a mesh does";
                let error = channel.misbehaved(what);
                self.end_of_link(link, &error);
                continue;
            };
            self.links[link] = Some(process);
            self.inbox.peer(link).source = process;
            self.inbox.queue.set_source(link, process);
            // It is reached by the same link, unless this process has made another one.
            self.peers[process].link.get_or_insert(link);
        }
    }

    fn progress_fetches(&mut self) -> bool {
        let mut is_any = false;
        for mut fetch in core::mem::take(&mut self.fetches) {
            if self.fetch(&mut fetch) {
                is_any = true;
            } else {
                self.fetches.push(fetch);
            }
        }
        is_any
    }

    /// Continues to receive a message. Returns whether the receive has ended.
    pub(super) fn fetch(&mut self, fetch: &mut Fetch) -> bool {
        let outcome = loop {
            let outcome = if fetch.receiving.bouncing.is_some() {
                self.inbox.bounce(&mut fetch.receiving)
            } else {
                self.inbox.take(fetch.id, &mut fetch.receiving)
            };
            match outcome {
                Ok(None) => return false,
                Ok(Some(FetchOutcome::Bounce)) => {}
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(Some(FetchOutcome::Received(_))) => {
                let capacity = fetch.into.0.len();
                if let Some(scratch) = &fetch.scratch {
                    // SAFETY: `into` is the caller's memory, and shorter than the message.
                    unsafe { Cursor::new(fetch.into.0.segments()).copy_in(scratch.as_ptr(), capacity) };
                }
                self.received(fetch.token, fetch.message, (fetch.address, capacity), fetch.is_last);
            }
            Ok(_) => {
                // Only a process that has ended withdraws a message.
                let pid = self.peers.get(fetch.message.from.0).map_or(0, |peer| peer.address.pid());
                let error = Error::PeerGone { pid: pid.cast_signed() };
                self.complete(fetch.token, Err(error), Some(fetch.message));
            }
            Err(error) => {
                self.inbox.discard(fetch.id, error.clone());
                self.complete(fetch.token, Err(error), Some(fetch.message));
            }
        }
        true
    }

    fn progress_sends(&mut self) -> bool {
        let mut is_any = false;
        for _ in 0..self.sends.len().min(SENDS) {
            let Some(mut send) = self.sends.pop_front() else { break };
            match self.inbox.poll_send(send.request.peer, &mut send.request.sending) {
                Ok(None) => self.sends.push_back(send),
                Ok(Some(())) => {
                    is_any = true;
                    self.complete(send.token, Ok(Completed::Sent), None);
                }
                Err(error) => {
                    is_any = true;
                    self.complete(send.token, Err(error), None);
                }
            }
        }
        is_any
    }

    /// Looks for processes that have ended.
    #[cold]
    fn check_processes(&mut self) {
        let now = sys::coarse_milliseconds();
        if now.wrapping_sub(self.checked) < CHECK {
            return;
        }
        self.checked = now;
        for link in 0..self.inbox.peers.len() {
            if let Some(peer) = &mut self.inbox.peers[link]
                && let Err(error) = peer.check()
            {
                self.end_of_link(link, &error);
            }
        }
        let directory = self.inbox.shared.settings.place();
        for _ in 0..self.peers.len().min(UNLINKED) {
            self.next_check = (self.next_check + 1) % self.peers.len();
            let process = self.next_check;
            let peer = &self.peers[process];
            let is_linked = self.links.contains(&Some(process));
            if !is_linked
                && peer.end.is_none()
                && contact::is_gone(directory.as_ref(), &peer.address.to_bytes())
            {
                let pid = peer.address.pid().cast_signed();
                self.end_of_process(process, &Error::PeerGone { pid });
            }
        }
    }

    /// Ends a link, and all operations with its process.
    fn end_of_link(&mut self, link: usize, error: &Error) {
        match self.links[link] {
            Some(process) => self.end_of_process(process, error),
            None => drop(self.inbox.remove(link)),
        }
    }

    fn unlink(&mut self, link: usize) {
        if let Some(peer) = &self.inbox.peers[link] {
            self.ended = self.ended.and(&peer.statistics);
        }
        self.inbox.unlink(link);
    }

    #[cold]
    fn end_of_process(&mut self, process: usize, error: &Error) {
        if self.peers[process].end.is_some() {
            return;
        }
        let links: Vec<usize> =
            (0..self.links.len()).filter(|link| self.links[*link] == Some(process)).collect();
        // What it sent before its end is received.
        for link in &links {
            for _ in 0..LAST_ROUNDS * BUDGET {
                if !matches!(self.advance(*link), Ok(true)) {
                    break;
                }
            }
        }
        self.progress_fetches();
        self.peers[process].end = Some(error.clone());
        self.peers[process].link = None;
        for send in core::mem::take(&mut self.sends) {
            if links.contains(&send.request.peer) {
                self.complete(send.token, Err(error.clone()), None);
            } else {
                self.sends.push_back(send);
            }
        }
        for fetch in core::mem::take(&mut self.fetches) {
            if fetch.message.from.0 == process {
                self.complete(fetch.token, Err(error.clone()), Some(fetch.message));
            } else {
                self.fetches.push(fetch);
            }
        }
        // A receive from any process might wait for this one forever. One that has closed its mesh
        // in order will send nothing, which its partners know.
        let is_killed = !matches!(error, Error::Closed { .. });
        for posted in core::mem::take(&mut self.posted) {
            let is_lost = posted.matching.peer.map_or(is_killed, |from| from == process);
            if is_lost {
                self.complete(posted.token, Err(error.clone()), None);
            } else {
                self.posted.push_back(posted);
            }
        }
        self.inbox.remove_dropped_requests();
        for link in links {
            self.unlink(link);
            self.links[link] = None;
        }
        tracing::debug!(%error, "a process of a mesh has ended");
    }
}
