//! [`Session`]: an importer, and the requests that it sends.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use umf_ipc::{Handle, Mapping, inspect};

use super::state::{MAX_STUCK, State};
use crate::fabric::Buffer;
use crate::listed::ListedGrant;
use crate::protocol::{Header, MAX_PULL, Reply, Request};
use crate::route::Route;
use crate::settings::MAX_SMALL;
use crate::{RemoteSettings, Result};

/// A write whose data is being read.
#[derive(Clone, Copy)]
pub(super) struct Write {
    request: u64,
    grant: u64,
    offset: u64,
    pub length: usize,
    /// Key and address of the data in the importer.
    pub from: (u64, u64),
}

/// The most grants of a session.
const MAX_GRANTS: usize = 1024;

/// A block that an importer may write: its lease defers the free of the block.
struct Grant {
    mapping: Mapping<'static>,
    until: Instant,
    listed: ListedGrant,
}

/// A session with an importer.
pub(super) struct Session {
    peer: u64,
    name: Vec<u8>,
    grants: HashMap<u64, Grant>,
    /// When the importer last sent something.
    last_request: Instant,
    /// Operations that the importer has to take part in, and when one of them last ended or the
    /// first one began.
    pending: usize,
    last_progress: Instant,
}

impl Session {
    pub(super) fn new(peer: u64, name: &[u8]) -> Self {
        let now = Instant::now();
        let (name, grants) = (name.to_vec(), HashMap::new());
        Self { peer, name, grants, last_request: now, pending: 0, last_progress: now }
    }

    pub(super) const fn peer(&self) -> u64 {
        self.peer
    }

    /// Returns the number of answers that are sent, and of writes whose data is read.
    pub(super) const fn pending(&self) -> usize {
        self.pending
    }

    pub(super) fn grants(&self) -> usize {
        self.grants.len()
    }

    /// Returns the grants as other processes see them.
    pub(super) fn listed_grants(&self) -> impl Iterator<Item = &ListedGrant> {
        self.grants.values().map(|grant| &grant.listed)
    }

    /// Returns whether something ends at a time that is near.
    pub(super) fn is_timed(&self) -> bool {
        !self.grants.is_empty() || self.pending > 0
    }

    /// Ends grants whose time is over. Returns whether there were some.
    pub(super) fn end_grants(&mut self, now: Instant) -> bool {
        let before = self.grants.len();
        self.grants.retain(|_, grant| grant.until > now);
        self.grants.len() != before
    }

    /// Returns why the session should end.
    pub(super) fn overdue(&self, now: Instant, settings: &RemoteSettings) -> Option<&'static str> {
        if self.pending > 0 && now.duration_since(self.last_progress) > settings.timeout {
            return Some("the importer does not take what it asked for");
        }
        let is_idle = now.duration_since(self.last_request) > settings.idle;
        (is_idle && self.grants.is_empty()).then_some("the importer is idle")
    }

    /// Ends the grants. Returns the importer's address.
    pub(super) fn close(self) -> (u64, Vec<u8>) {
        (self.peer, self.name)
    }

    pub(super) fn begin_pending(&mut self) {
        if self.pending == 0 {
            self.last_progress = Instant::now();
        }
        self.pending += 1;
    }

    pub(super) fn end_pending(&mut self) {
        self.pending -= 1;
        self.last_progress = Instant::now();
    }
}

/// How a request is answered.
enum Answer {
    /// By this message.
    Message(Vec<u8>),
    /// By a message that is in this buffer.
    Buffer(Arc<Buffer>, usize),
    /// Later, or not at all.
    None,
}

impl State {
    /// Sends the first message of a session.
    pub(super) fn welcome(&mut self, number: u64, peer: u64, request: u64) {
        let milliseconds = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let welcome = Reply::Welcome {
            session: number,
            max_small: self.settings.small_read.min(MAX_SMALL) as u32,
            idle: milliseconds(self.settings.idle),
            max_grant: milliseconds(self.settings.max_grant),
        };
        self.send(peer, number, &welcome.encode(number, request));
    }

    /// Handles a request in a session.
    pub(super) fn handle_request(&mut self, header: Header, request: &Request<'_>) {
        let number = header.session;
        let Some(session) = self.sessions.get_mut(&number) else {
            return tracing::debug!(session = number, "a request is of no session");
        };
        session.last_request = Instant::now();
        let peer = session.peer;
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        match self.answer(number, header, request) {
            Ok(Answer::Message(message)) => self.send(peer, number, &message),
            Ok(Answer::Buffer(buffer, length)) => self.send_buffer(peer, number, buffer, length),
            Ok(Answer::None) => {}
            Err(error) => {
                tracing::warn!(session = number, %error, "cannot serve an importer");
                self.end(number, "it cannot be served");
            }
        }
    }

    /// Opens a block of this process. The error is the reply.
    fn open(&self, handle: &Handle) -> core::result::Result<Mapping<'static>, Failure> {
        if self.exporter.nonce() != Some(handle.nonce()) || handle.has_ticket() {
            return Err(Failure::Text("the handle is not one of this process".to_owned()));
        }
        match self.importer.open_bytes(handle.as_bytes(), umf_ipc::Access::ReadOnly) {
            Ok(mapping) => Ok(mapping),
            Err(error) => Err(Failure::of(error)),
        }
    }

    fn answer(&mut self, number: u64, header: Header, request: &Request<'_>) -> Result<Answer> {
        let encode = |reply: &Reply<'_>| Ok(Answer::Message(reply.encode(number, header.request)));
        let failed = |failure: Failure| Ok(Answer::Message(failure.reply(number, header.request)));
        match request {
            Request::Hello { .. } => encode(&Reply::Failed { text: "a session cannot begin again" }),
            Request::Ping => encode(&Reply::Done),
            Request::Bye => {
                self.end(number, "the importer ends it");
                Ok(Answer::None)
            }
            Request::Release { slot, generation } => {
                self.blocks.release((*slot, *generation), number);
                Ok(Answer::None)
            }
            Request::Locate { handle } => match self.open(handle) {
                Err(failure) => failed(failure),
                Ok(mapping) if !mapping.is_plain_memory() => match self.settings.bounce {
                    true => encode(&Reply::ByMessages),
                    false => failed(Failure::NO_BOUNCE),
                },
                // A stale read could be taken for good.
                Ok(_) if !self.domain.info().closes_registrations() => encode(&Reply::ByMessages),
                Ok(mapping) => {
                    let located = self.blocks.locate(&self.domain, handle, number, mapping);
                    let located = located.unwrap_or_else(|error| {
                        tracing::warn!(%error, "cannot register a block; it is read by messages");
                        None
                    });
                    encode(&located.unwrap_or(Reply::ByMessages))
                }
            },
            Request::Read { handle, offset, length } => {
                match self.read(number, header, handle, *offset, *length) {
                    Ok(answer) => Ok(answer),
                    Err(failure) => failed(failure),
                }
            }
            Request::Grant { handle, milliseconds } => {
                let time = Duration::from_millis(u64::from(*milliseconds)).min(self.settings.max_grant);
                if time.is_zero() {
                    let text = "it gives no grants to write (remote.max_grant_ms = 0), or the time is 0";
                    return encode(&Reply::Failed { text });
                }
                match self.grant(number, handle, time) {
                    Ok(grant) => encode(&Reply::Granted { grant, milliseconds: time.as_millis() as u32 }),
                    Err(failure) => failed(failure),
                }
            }
            Request::Write { grant, offset, data } => {
                Ok(Answer::Message(self.write(number, header.request, *grant, *offset, data)))
            }
            Request::WriteFrom { grant, offset, length, key, address } => {
                let length = *length as usize;
                if length == 0 || length > MAX_PULL {
                    return encode(&Reply::Failed { text: "a write has more bytes than a request may" });
                }
                let (grant, offset) = (*grant, *offset);
                let granted =
                    self.sessions.get(&number).is_some_and(|session| session.grants.contains_key(&grant));
                if !granted {
                    return encode(&Reply::NotGranted);
                }
                if self.stuck > MAX_STUCK {
                    let text = "too many importers that do not answer have writes in progress";
                    return encode(&Reply::Failed { text });
                }
                let write = Write { request: header.request, grant, offset, length, from: (*key, *address) };
                self.pull(number, write);
                Ok(Answer::None)
            }
            Request::EndGrant { grant } => {
                let session = self.sessions.get_mut(&number);
                let ended = session.and_then(|session| session.grants.remove(grant));
                self.grants_changed |= ended.is_some();
                encode(if ended.is_some() { &Reply::Done } else { &Reply::NotGranted })
            }
        }
    }

    /// Copies bytes of a block into a reply. The block is current before and afterwards.
    fn read(
        &mut self,
        number: u64,
        header: Header,
        handle: &Handle,
        offset: u64,
        length: u32,
    ) -> core::result::Result<Answer, Failure> {
        let mapping = self.open(handle)?;
        if !mapping.is_plain_memory() && !self.settings.bounce {
            return Err(Failure::NO_BOUNCE);
        }
        let length = length as usize;
        if length > MAX_SMALL {
            return Err(Failure::Text("a read asks for more bytes than a message has".to_owned()));
        }
        let front = Reply::Data { data: &[] }.encode(number, header.request);
        let size = front.len() + length;
        let mut buffer = self.pool.take(size).map_err(|error| Failure::Text(error.to_string()))?;
        let Some(bytes) = Arc::get_mut(&mut buffer).map(Buffer::bytes) else {
            return Err(Failure::Text("no buffer".to_owned()));
        };
        let (head, data) = bytes[..size].split_at_mut(front.len());
        head.copy_from_slice(&front);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        mapping.read_current(offset, data).map_err(Failure::of)?;
        self.shared.bytes_by_messages.fetch_add(length as u64, Ordering::Relaxed);
        Ok(Answer::Buffer(buffer, size))
    }

    fn grant(&mut self, number: u64, handle: &Handle, time: Duration) -> core::result::Result<u64, Failure> {
        if self.exporter.nonce() != Some(handle.nonce()) || handle.has_ticket() {
            return Err(Failure::Text("the handle is not one of this process".to_owned()));
        }
        // The lease keeps the memory while data is copied into it.
        if !self.importer.settings().leases {
            return Err(Failure::Static("it opens without leases, which grants need (ipc.leases)"));
        }
        let mapping = self.importer.open(handle).map_err(Failure::of)?;
        if self.sessions.get(&number).is_some_and(|session| session.grants() >= MAX_GRANTS) {
            return Err(Failure::Static("it has as many grants as an importer may"));
        }
        let grant = self.next();
        let (format, provider) = (self.domain.info().format(), self.domain.info().provider());
        if let Some(session) = self.sessions.get_mut(&number) {
            let name = session.name.clone();
            let importer =
                Route { server: self.server, format, provider: provider.to_owned(), name }.address();
            let end = inspect::now().saturating_add(time.as_nanos() as u64);
            let listed = ListedGrant::new(handle, end, importer);
            session.grants.insert(grant, Grant { mapping, until: Instant::now() + time, listed });
            self.grants_changed = true;
        }
        Ok(grant)
    }

    /// Writes data into a granted block, and returns the reply. The lease of the grant keeps the
    /// block.
    fn write(&mut self, number: u64, request: u64, grant: u64, offset: u64, data: &[u8]) -> Vec<u8> {
        let session = self.sessions.get_mut(&number);
        let grant = session
            .and_then(|session| session.grants.get(&grant))
            .filter(|grant| grant.until > Instant::now());
        let Some(grant) = grant else { return Reply::NotGranted.encode(number, request) };
        if !grant.mapping.is_current() {
            let failure =
                grant.mapping.read_current(0, &mut []).map_or_else(Failure::of, |()| Failure::Stale(0));
            return failure.reply(number, request);
        }
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        match grant.mapping.write(offset, data) {
            Ok(()) => {
                self.shared.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
                Reply::Done.encode(number, request)
            }
            Err(error) => Failure::of(error).reply(number, request),
        }
    }

    /// Writes what was read from the importer.
    pub(super) fn finish_write(&mut self, number: u64, mut buffer: Arc<Buffer>, write: Write) {
        let Some(peer) = self.sessions.get(&number).map(Session::peer) else { return };
        let Write { request, grant, offset, length, .. } = write;
        let reply = match Arc::get_mut(&mut buffer) {
            Some(unshared) => self.write(number, request, grant, offset, &unshared.bytes()[..length]),
            None => Reply::Failed { text: "a buffer is in use" }.encode(number, request),
        };
        self.pool.give_back(buffer);
        self.send(peer, number, &reply);
    }
}

/// Why a request fails.
enum Failure {
    Stale(u64),
    Text(String),
    Static(&'static str),
}

impl Failure {
    const NO_BOUNCE: Self = Self::Static(
        "the fabric cannot read memory of this kind, and the producer does not copy it (remote.bounce = false)",
    );

    fn of(error: umf_ipc::Error) -> Self {
        match error {
            umf_ipc::Error::Stale { now, .. } => Self::Stale(now),
            error => Self::Text(error.to_string()),
        }
    }

    fn reply(&self, session: u64, request: u64) -> Vec<u8> {
        match self {
            Self::Stale(now) => Reply::Stale { now: *now }.encode(session, request),
            Self::Text(text) => Reply::Failed { text }.encode(session, request),
            Self::Static(text) => Reply::Failed { text }.encode(session, request),
        }
    }
}
