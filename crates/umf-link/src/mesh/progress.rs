//! Progress of a [`Mesh`]: its links, the records of their lanes, and the ends of processes.

use std::sync::Arc;

use crate::channel::Channel;
use crate::offer::{BLOCK, IMMEDIATE, INLINE, NAME, REQUEST};
use crate::ring::{RecordHeader, unknown_kind};
use crate::{Error, LinkAddress, Result, contact, sys};

use super::acceptor::Attempt;
use super::receive::Posted;
use super::send::OFFERED;
use super::{Link, Mesh, Process, UNNAMED};

/// The most records that one call reads from a lane.
const BUDGET: usize = 32;
/// Calls between two looks at the clock.
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
/// The error of a process whose first record is not its address.
const NOT_NAMED: &str = "it does not name itself as a process of a mesh does";
/// Rounds over a lane whose process has ended. Its rings hold fewer records.
const LAST_ROUNDS: usize = 64;

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
        if self.acceptor.accepted().has_news() {
            self.take_accepted();
        }
        if !self.attempts.is_empty() {
            self.progress_attempts();
        }
        self.inbox.remove_dropped_requests();
        let mut is_any = self.progress_lanes();
        if !self.fetches.is_empty() {
            is_any |= self.progress_fetches();
        }
        if self.waiting > 0 || !self.sends.is_empty() {
            is_any |= self.progress_sends();
        }
        self.settle();
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS) {
            self.check_processes();
        }
        if is_any {
            self.idle = 0;
            self.inbox.resume_data();
        } else {
            self.idle = self.idle.saturating_add(1);
            if self.idle > if self.inbox.is_oversubscribed { BEFORE_YIELD } else { BEFORE_ANY_YIELD } {
                std::thread::yield_now();
            }
        }
        is_any
    }

    /// Makes progress with all operations, before a thread waits. Returns whether there was
    /// anything to do: then it may not be all.
    pub(super) fn progress_all(&mut self) -> bool {
        let calls = self.sends.len().div_ceil(OFFERED).max(1);
        (0..calls).any(|_| self.progress())
    }

    pub(super) fn take_accepted(&mut self) {
        for channel in self.acceptor.accepted().take() {
            self.add_link(channel, None);
        }
    }

    pub(super) fn add_link(&mut self, channel: Arc<Channel>, process: Option<usize>) -> usize {
        // Until it names itself, its messages match no process.
        let link = self.inbox.add(channel, process.unwrap_or(UNNAMED));
        self.prepare_link(link, process);
        link
    }

    /// Continues with a link that is in the inbox.
    fn prepare_link(&mut self, link: usize, process: Option<usize>) {
        if let Some(events) = &self.events
            && let Some(channel) = self.inbox.channel(link)
            && let Err(error) = events.add(link, channel)
        {
            tracing::warn!(%error, "a link does not make the descriptor of its mesh readable");
        }
        if self.links.len() <= link {
            self.links.resize_with(link + 1, Link::default);
        }
        self.links[link].process = process;
        self.count_processes();
    }

    /// Compares the number of processes with that of processors. Two links may lead to one process,
    /// and links may lead to this one.
    fn count_processes(&mut self) {
        let own = self.address();
        let others = self.links.iter().filter_map(|link| link.process);
        let mut others: Vec<_> = others.filter(|process| self.peers[*process].address != own).collect();
        others.sort_unstable();
        others.dedup();
        self.inbox.is_oversubscribed = others.len() >= self.processors;
    }

    pub(super) fn progress_lanes(&mut self) -> bool {
        let mut is_any = false;
        for link in 0..self.inbox.peers.len() {
            // Mostly there is none.
            if !self.inbox.peers[link].as_ref().is_some_and(|peer| peer.has_record()) {
                continue;
            }
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
        self.settle();
        let Some(peer) = &mut self.inbox.peers[link] else { return Ok(false) };
        let Some(record) = peer.peek()? else { return Ok(false) };
        let RecordHeader { kind, context, tag, length } = record;
        let source = peer.source;
        if source == UNNAMED && kind != NAME {
            return Err(peer.channel.misbehaved(NOT_NAMED));
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
                self.settle();
                return Ok(true);
            }
            BLOCK => return Err(unknown_kind(&peer.channel)),
            _ => {}
        }
        self.inbox.enqueue(link, record, false)?;
        self.settle();
        Ok(true)
    }

    /// Uses what calls that waited have read from the lanes. Called before anything that depends on
    /// the order of messages, since a call that copies a long message may wait for its sender.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.matched != self.inbox.queue.latest() || self.has_names() || !self.inbox.taken.is_empty() {
            self.settle_slow();
        }
    }

    #[cold]
    fn settle_slow(&mut self) {
        for link in core::mem::take(&mut self.inbox.taken) {
            self.prepare_link(link, None);
        }
        self.name_links();
        while let Some(id) = self.inbox.queue.free_after(self.matched) {
            self.matched = id;
            self.match_posted(id);
        }
        self.matched = self.inbox.queue.latest();
    }

    fn has_names(&self) -> bool {
        self.inbox.names.as_ref().is_some_and(|names| !names.is_empty())
    }

    /// Ends a link whose process has sent messages and not named itself.
    pub(super) fn end_of_unnamed(&mut self, link: usize) {
        if let Some(channel) = self.inbox.channel(link) {
            let error = channel.misbehaved(NOT_NAMED);
            self.end_of_link(link, &error);
        }
    }

    /// Uses the addresses of processes that made links.
    fn name_links(&mut self) {
        let Some(names) = &mut self.inbox.names else { return };
        for (link, name) in core::mem::take(names) {
            let Some(channel) = self.inbox.channel(link).cloned() else { continue };
            let address = LinkAddress::from_bytes(&name).ok().filter(|_| self.links[link].process.is_none());
            let Some(Ok(Process(process))) = address.map(|address| self.insert(&address)) else {
                let error = channel.misbehaved(NOT_NAMED);
                self.end_of_link(link, &error);
                continue;
            };
            self.links[link].process = Some(process);
            self.inbox.peer(link).source = process;
            self.inbox.queue.set_source(link, process);
            // It is reached by the same link, unless this process has made another one.
            let peer = &mut self.peers[process];
            peer.link.get_or_insert(link);
            peer.attempt = Attempt::default();
            self.count_processes();
        }
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
            let is_linked = self.links.iter().any(|link| link.process == Some(process));
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
    pub(super) fn end_of_link(&mut self, link: usize, error: &Error) {
        match self.links[link].process {
            Some(process) => self.end_of_process(process, error),
            None => {
                self.remove_events(link);
                self.inbox.remove(link);
            }
        }
    }

    fn remove_events(&self, link: usize) {
        if let (Some(events), Some(channel)) = (&self.events, self.inbox.channel(link)) {
            events.remove(channel);
        }
    }

    fn unlink(&mut self, link: usize) {
        if let Some(peer) = &self.inbox.peers[link] {
            self.ended = self.ended.and(&peer.statistics);
        }
        self.remove_events(link);
        self.inbox.unlink(link);
    }

    #[cold]
    fn end_of_process(&mut self, process: usize, error: &Error) {
        if self.peers[process].end.is_some() {
            return;
        }
        let links: Vec<usize> =
            (0..self.links.len()).filter(|link| self.links[*link].process == Some(process)).collect();
        // What it sent before its end is received.
        for link in &links {
            for _ in 0..LAST_ROUNDS * BUDGET {
                if !matches!(self.advance(*link), Ok(true)) {
                    break;
                }
            }
        }
        self.progress_fetches();
        let peer = &mut self.peers[process];
        peer.end = Some(error.clone());
        peer.link = None;
        peer.attempt = Attempt::default();
        self.end_sends(&links, error);
        self.end_receives(process, error);
        self.inbox.remove_dropped_requests();
        for link in links {
            self.unlink(link);
            self.links[link].process = None;
        }
        tracing::debug!(%error, "a process of a mesh has ended");
    }
}
