//! [`State`]: what the server's thread owns; its operations, and the beginning and end of sessions.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use umf_ipc::{Exporter, Importer};

use super::Shared;
use super::registered::RegisteredBlocks;
use super::session::{Session, Write};
use crate::fabric::{Addresses, Buffer, BufferPool, Domain, Done, Endpoint, Queue};
use crate::listed::GrantList;
use crate::protocol::{MAX_REQUEST, Reply, Request, WINDOW};
use crate::{RemoteSettings, Result};

/// Receives that are posted for new importers, and for each session.
const RECEIVES: usize = 32;
const RECEIVES_OF_SESSION: usize = WINDOW + 4;
/// The most receives that are posted. With more sessions, messages wait in the fabric.
const MAX_RECEIVES: usize = 2048;

/// How long the end of the server waits for reads of importers' memory.
const LAST_WAIT: Duration = Duration::from_millis(200);
/// The most bytes that are read from importers at a time.
const MAX_PULLED: usize = 64 << 20;
/// The most bytes of such reads that may be left of sessions that have ended. With more, nothing is
/// read: on tcp, a read of an importer that vanished ends when the kernel gives the connection up.
pub(super) const MAX_STUCK: usize = 256 << 20;
/// The most answers of a session that its importer has not taken. One that asks for more than the
/// window permits is ended.
const MAX_ANSWERS: usize = 2 * WINDOW;

/// An operation of the fabric.
enum Operation {
    Receive(Arc<Buffer>),
    /// A message to this peer, of a session or not.
    Send(Arc<Buffer>, u64, u64),
    /// Data of this peer, in a session, that is to be written.
    Pull(Arc<Buffer>, u64, u64, Write),
}

/// An operation for which the endpoint had no room.
enum Unposted {
    /// With its length, the peer, the session, and the time until which it is tried.
    Send(Arc<Buffer>, usize, u64, u64, Instant),
    Pull(u64, Write),
}

/// The state of the server, which its thread owns.
pub(super) struct State {
    pub(super) exporter: &'static Exporter,
    pub(super) importer: &'static Importer,
    pub(super) settings: RemoteSettings,
    pub(super) shared: Arc<Shared>,
    pub(super) server: [u8; 16],
    pub(super) grant_list: GrantList,
    /// Whether a grant began or ended since the list was written.
    pub(super) grants_changed: bool,
    pub(super) sessions: HashMap<u64, Session>,
    pub(super) by_name: HashMap<Vec<u8>, u64>,
    /// The users of each address: sessions, and messages to it. Without one it is removed.
    pub(super) peers: HashMap<u64, usize>,
    /// Receives that are posted.
    pub(super) receives: usize,
    /// Bytes that are being read from importers, in sessions and in those that have ended.
    pub(super) pulled: usize,
    pub(super) stuck: usize,
    pub(super) blocks: RegisteredBlocks,
    operations: HashMap<u64, Operation>,
    unposted: VecDeque<Unposted>,
    /// The last number of an operation or a grant.
    pub(super) next: u64,
    pub(super) pool: Arc<BufferPool>,
    // In the order in which they are closed.
    pub(super) endpoint: Endpoint,
    pub(super) addresses: Arc<Addresses>,
    pub(super) queue: Arc<Queue>,
    pub(super) domain: Arc<Domain>,
}

impl State {
    /// `exporter` has exported what is served, and `importer` opens it.
    pub(super) fn new(
        domain: Arc<Domain>,
        endpoint: Endpoint,
        addresses: Arc<Addresses>,
        (exporter, importer): (&'static Exporter, &'static Importer),
        settings: &RemoteSettings,
        server: [u8; 16],
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            exporter,
            importer,
            settings: settings.clone().bounded(),
            shared: Arc::clone(shared),
            server,
            pool: BufferPool::new(&domain),
            blocks: RegisteredBlocks::new(settings.max_registered, settings.max_registered_bytes),
            grant_list: GrantList::default(),
            grants_changed: false,
            sessions: HashMap::new(),
            by_name: HashMap::new(),
            peers: HashMap::new(),
            receives: 0,
            pulled: 0,
            stuck: 0,
            operations: HashMap::new(),
            unposted: VecDeque::new(),
            next: 0,
            queue: Arc::clone(endpoint.queue()),
            endpoint,
            addresses,
            domain,
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn run(mut self) {
        let mut done = Vec::new();
        let mut next_tick = Instant::now();
        while !self.shared.stops.load(Ordering::Acquire) {
            let now = Instant::now();
            if now >= next_tick {
                next_tick = now + self.tick(now);
                self.publish();
            }
            let mut timeout = next_tick.saturating_duration_since(Instant::now());
            if !self.unposted.is_empty() {
                timeout = timeout.min(Duration::from_millis(1));
            }
            if let Err(error) = self.queue.wait(timeout, &mut done) {
                tracing::error!(%error, "the server of remote memory waits for its next try");
                std::thread::sleep(Duration::from_millis(100));
            }
            let is_busy = !done.is_empty();
            for done in done.drain(..) {
                self.complete(done);
            }
            self.post_again();
            if is_busy {
                self.publish();
            }
        }
        let sessions: Vec<u64> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end(session, "the server ends");
        }
        self.publish();
        self.close();
    }

    /// Closes the endpoint, if the provider survives that.
    fn close(mut self) {
        let until = Instant::now() + LAST_WAIT;
        let mut done = Vec::new();
        while !self.domain.closes_during_reads() && self.pulled + self.stuck > 0 {
            if Instant::now() >= until || self.queue.wait(Duration::from_millis(10), &mut done).is_err() {
                tracing::warn!("the endpoint stays open: this libfabric cannot close it during a read");
                core::mem::forget(self);
                return;
            }
            for done in done.drain(..) {
                self.complete(done);
            }
        }
    }

    fn publish(&mut self) {
        if core::mem::take(&mut self.grants_changed) {
            let listed = self.sessions.values().flat_map(Session::listed_grants).cloned();
            self.grant_list.write(&listed.collect::<Vec<_>>());
        }
        let Shared { importers, registered, grants, .. } = &*self.shared;
        importers.store(self.sessions.len() as u64, Ordering::Relaxed);
        registered.store(self.blocks.len() as u64, Ordering::Relaxed);
        let count: usize = self.sessions.values().map(Session::grants).sum();
        grants.store(count as u64, Ordering::Relaxed);
    }

    /// Ends what has lasted too long. Returns the time until this is due again.
    fn tick(&mut self, now: Instant) -> Duration {
        self.blocks.sweep(now);
        let mut ended = Vec::new();
        let mut is_timed = false;
        for (&number, session) in &mut self.sessions {
            self.grants_changed |= session.end_grants(now);
            is_timed |= session.is_timed();
            if let Some(why) = session.overdue(now, &self.settings) {
                ended.push((number, why));
            }
        }
        for (session, why) in ended {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            self.end(session, why);
        }
        let shortest = self.settings.idle.min(self.settings.timeout) / 4;
        let interval = if is_timed {
            20
        } else if self.sessions.is_empty() {
            1000
        } else {
            100
        };
        Duration::from_millis(interval).min(shortest).max(Duration::from_millis(5))
    }

    /// Posts as many receives as there should be.
    pub(super) fn post_receives(&mut self) -> Result<()> {
        let wanted = (RECEIVES + self.sessions.len() * RECEIVES_OF_SESSION).min(MAX_RECEIVES);
        while self.receives < wanted {
            let buffer = self.pool.take(MAX_REQUEST)?;
            let token = self.next();
            if !self.endpoint.receive(&buffer, token)? {
                return Ok(());
            }
            self.operations.insert(token, Operation::Receive(buffer));
            self.receives += 1;
        }
        Ok(())
    }

    fn post_again(&mut self) {
        if let Err(error) = self.post_receives() {
            tracing::error!(%error, "the server of remote memory receives fewer messages");
        }
        for _ in 0..self.unposted.len() {
            let Some(unposted) = self.unposted.pop_front() else { return };
            self.post(unposted);
        }
    }

    /// Posts an operation, now or later.
    fn post(&mut self, unposted: Unposted) {
        let token = self.next();
        let (session, result, operation) = match unposted {
            Unposted::Send(buffer, length, peer, session, until) => {
                let result = self.endpoint.send(peer, &buffer, length, token);
                if matches!(result, Ok(false)) {
                    // Providers have no room for ever for a peer that has ended.
                    if Instant::now() < until {
                        self.unposted.push_back(Unposted::Send(buffer, length, peer, session, until));
                    } else {
                        self.leave(peer);
                        self.end(session, "the importer does not take what it asked for");
                    }
                    return;
                }
                (session, result, Operation::Send(buffer, peer, session))
            }
            Unposted::Pull(session, write) => {
                let Some(peer) = self.sessions.get(&session).map(Session::peer) else { return };
                if self.pulled + write.length > MAX_PULLED {
                    self.unposted.push_back(Unposted::Pull(session, write));
                    return;
                }
                let buffer = match self.pool.take(write.length) {
                    Ok(buffer) => buffer,
                    Err(error) => {
                        tracing::warn!(%error, "cannot take the data of a write");
                        return self.end(session, "there is no memory for its data");
                    }
                };
                let result = self.endpoint.read(peer, write.from, &buffer, (0, write.length), token);
                if matches!(result, Ok(false)) {
                    self.pool.give_back(buffer);
                    self.unposted.push_back(Unposted::Pull(session, write));
                    return;
                }
                if result.is_ok() {
                    *self.peers.entry(peer).or_default() += 1;
                    self.pulled += write.length;
                }
                (session, result, Operation::Pull(buffer, peer, session, write))
            }
        };
        match result {
            Ok(_) => {
                self.operations.insert(token, operation);
            }
            Err(error) => {
                tracing::debug!(%error, "cannot post an operation");
                if let Operation::Send(_, peer, _) = operation {
                    self.leave(peer);
                }
                self.end(session, "an operation cannot be posted");
            }
        }
    }

    /// Sends a message to a peer, in a session or not (0).
    pub(super) fn send(&mut self, peer: u64, session: u64, message: &[u8]) {
        let buffer = self.pool.take(message.len());
        match buffer {
            Ok(buffer) => {
                buffer.copy_in(0, message);
                self.send_buffer(peer, session, buffer, message.len());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot answer an importer");
                self.end(session, "it cannot be answered");
            }
        }
    }

    pub(super) fn send_buffer(&mut self, peer: u64, session: u64, buffer: Arc<Buffer>, length: usize) {
        if self.sessions.get(&session).is_some_and(|session| session.pending() > MAX_ANSWERS) {
            return self.end(session, "the importer does not take what it asks for");
        }
        *self.peers.entry(peer).or_default() += 1;
        if let Some(session) = self.sessions.get_mut(&session) {
            session.begin_pending();
        }
        let until = Instant::now() + self.settings.timeout;
        self.post(Unposted::Send(buffer, length, peer, session, until));
    }

    /// Begins to read the data of a write.
    pub(super) fn pull(&mut self, session: u64, write: Write) {
        if self.sessions.get(&session).is_some_and(|session| session.pending() > MAX_ANSWERS) {
            return self.end(session, "the importer does not take what it asks for");
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.begin_pending();
        }
        self.post(Unposted::Pull(session, write));
    }

    /// Ends one use of an address.
    fn leave(&mut self, peer: u64) {
        if let Some(users) = self.peers.get_mut(&peer) {
            *users -= 1;
            if *users == 0 {
                self.peers.remove(&peer);
                self.addresses.remove(peer);
            }
        }
    }

    /// Handles the end of an operation.
    fn complete(&mut self, done: Done) {
        let Some(operation) = self.operations.remove(&done.token) else { return };
        self.endpoint.release(done.token);
        let (peer, session) = match &operation {
            Operation::Receive(_) => (None, 0),
            Operation::Send(_, peer, session) | Operation::Pull(_, peer, session, _) => {
                (Some(*peer), *session)
            }
        };
        if let Operation::Pull(_, _, session, write) = &operation {
            let is_live = self.sessions.contains_key(session);
            let bytes = if is_live { &mut self.pulled } else { &mut self.stuck };
            *bytes = bytes.saturating_sub(write.length);
        }
        if let Some(session) = self.sessions.get_mut(&session)
            && peer.is_some()
        {
            session.end_pending();
        }
        if let Some(fault) = &done.fault
            && peer.is_some()
        {
            tracing::debug!(session, reason = fault.reason, "an operation with an importer failed");
            self.end(session, "an operation failed");
        }
        match operation {
            Operation::Send(buffer, ..) => self.pool.give_back(buffer),
            Operation::Pull(buffer, _, session, write) if done.fault.is_none() => {
                self.finish_write(session, buffer, write);
            }
            Operation::Pull(..) => {}
            Operation::Receive(mut buffer) => {
                self.receives -= 1;
                if done.fault.is_none()
                    && let Some(unshared) = Arc::get_mut(&mut buffer)
                {
                    let message = unshared.bytes().get(..done.length).unwrap_or_default();
                    self.handle(message);
                }
                self.pool.give_back(buffer);
            }
        }
        if let Some(peer) = peer {
            self.leave(peer);
        }
    }

    /// Handles a message of an importer.
    fn handle(&mut self, message: &[u8]) {
        match Request::decode(message) {
            Ok((header, Request::Hello { server, name })) => self.hello(header.request, server, name),
            Ok((header, request)) => self.handle_request(header, &request),
            Err(malformed) => {
                tracing::debug!(why = malformed.0, "a message for the server of remote memory is malformed");
            }
        }
    }

    /// Begins a session, or refuses it.
    fn hello(&mut self, request: u64, server: [u8; 16], name: &[u8]) {
        if server == self.server
            && let Some(before) = self.by_name.get(name).copied()
        {
            self.end(before, "the importer connects again");
        }
        let peer = match self.addresses.insert(name) {
            Ok(peer) => peer,
            Err(error) => return tracing::debug!(%error, "an importer has an address that is none"),
        };
        *self.peers.entry(peer).or_default() += 1;
        let refusal = if server != self.server {
            Some(Reply::OtherServer)
        } else if self.sessions.len() >= self.settings.max_importers as usize {
            Some(Reply::Failed { text: "it has as many importers as it may (remote.max_importers)" })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.send(peer, 0, &refusal.encode(0, request));
            return self.leave(peer);
        }
        // Random, so that no other importer uses it by mistake.
        let Ok(number) = umf_os::process::random().map(|bytes| u128::from_ne_bytes(bytes) as u64) else {
            return self.leave(peer);
        };
        self.sessions.insert(number, Session::new(peer, name));
        self.by_name.insert(name.to_vec(), number);
        self.welcome(number, peer, request);
    }

    /// Ends a session, and drops all that it had.
    pub(super) fn end(&mut self, number: u64, why: &'static str) {
        let Some(session) = self.sessions.remove(&number) else { return };
        tracing::debug!(session = number, why, "a session with an importer ends");
        self.blocks.release_all(number);
        self.grants_changed |= session.grants() > 0;
        let (peer, name) = session.close();
        for operation in self.operations.values() {
            if let Operation::Pull(_, _, of, write) = operation
                && *of == number
            {
                self.pulled -= write.length;
                self.stuck += write.length;
            }
        }
        // What is posted is kept until it has ended.
        let is_of_session = |unposted: &Unposted| match unposted {
            Unposted::Send(_, _, _, session, _) | Unposted::Pull(session, _) => *session == number,
        };
        let dropped = self.unposted.iter().filter(|unposted| is_of_session(unposted));
        let unsent = dropped.filter(|unposted| matches!(unposted, Unposted::Send(..))).count();
        self.unposted.retain(|unposted| !is_of_session(unposted));
        for _ in 0..=unsent {
            self.leave(peer);
        }
        if self.by_name.get(&name) == Some(&number) {
            self.by_name.remove(&name);
        }
    }
}
