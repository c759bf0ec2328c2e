//! [`Session`]: a connection to a server, and the reads and calls that are in progress. Nothing
//! here waits, except [`Session::connect`].

use core::mem;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::reads::{BlockKey, KnownBlock, Read};
use crate::fabric::{Addresses, Buffer, BufferPool, Domain, Done, Endpoint, Info, Query, Queue, library};
use crate::protocol::{Header, MAX_INLINE, MAX_PULL, Reply, Request, WINDOW};
use crate::route::Route;
use crate::settings::{MAX_REPLY, MAX_SMALL};
use crate::{Error, RemoteSettings, Result};

/// Bytes of one one-sided read. Longer reads are several, in flight together.
const PIECE: usize = 1 << 20;

/// The longest time between two looks at the queue by a program that waits.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// Why a read or a call failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The connection: what libfabric says. Trying again may help.
    Lost(String),
    /// As above, and it was a one-sided read that failed.
    ReadFailed(String),
    Stale(u64),
    NotGranted,
    Refused(String),
    /// The peer sends what no umf sends.
    Misbehaved(&'static str),
    /// This process has no memory, or another error of its own.
    Own(Error),
}

impl Failure {
    /// Returns the failure of an operation that could not be posted. Some providers say so at once
    /// if the peer cannot be reached.
    pub(super) fn of(error: Error) -> Self {
        match error {
            Error::Fabric { call: "fi_send" | "fi_read", reason, .. } => Self::Lost(reason),
            error => Self::Own(error),
        }
    }
}

/// A request whose reply is waited for.
#[derive(Debug)]
pub(super) struct Call {
    /// The source of a write.
    source: Option<Arc<Buffer>>,
    reply: Option<Result<CallReply, Failure>>,
}

/// The reply to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallReply {
    Done,
    Granted { grant: u64, milliseconds: u32 },
}

#[derive(Debug)]
pub(super) enum Work {
    Read(Box<Read>),
    Call(Call),
}

/// What the reply to a request is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Locate(u64, BlockKey),
    /// The part of a read that begins at this offset in it.
    Part(u64, usize, usize),
    Call(u64),
    Ping,
}

/// An operation of the endpoint.
#[derive(Debug)]
pub(super) enum Operation {
    Receive(Arc<Buffer>),
    Send(Arc<Buffer>),
    Piece(u64),
    Slot(u64),
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Session {
    pub queue: Arc<Queue>,
    pub pool: Arc<BufferPool>,
    // Closed before the others.
    pub(super) endpoint: Endpoint,
    pub(super) peer: u64,
    pub(super) number: u64,
    pub(super) next: u64,
    pub(super) operations: HashMap<u64, Operation>,
    pub(super) requests: HashMap<u64, Purpose>,
    /// Messages that wait for a place in the window, or in the endpoint; and whether they have a
    /// reply.
    pub(super) queued: VecDeque<(Vec<u8>, bool)>,
    /// Requests that were sent and not answered yet: [`WINDOW`] at most.
    pub(super) unanswered: usize,
    /// When [`Session::progress`] was called last, and how long it has found nothing while a request
    /// was unanswered. Times without a call do not count.
    last_look: Instant,
    silence: Duration,
    /// Receives that the endpoint had no room for.
    pub(super) unposted_receives: usize,
    pub(super) work: HashMap<u64, Work>,
    /// Reads with pieces to be posted.
    pub(super) unposted: VecDeque<u64>,
    pub(super) blocks: HashMap<BlockKey, KnownBlock>,
    pub(super) idle: BTreeMap<u64, BlockKey>,
    pub(super) max_blocks: u64,
    pub(super) small: usize,
    pub(super) piece: usize,
    pub max_grant: Duration,
    pub(super) idle_limit: Duration,
    pub(super) last_request: Instant,
    pub(super) closes_during_reads: bool,
    /// Grants, and the times until which they last.
    grants: HashMap<u64, Instant>,
    /// Why the session cannot be used any more.
    pub broken: Option<Failure>,
}

impl Session {
    /// Connects to a server.
    pub(crate) fn connect(route: &Route, settings: &RemoteSettings, deadline: Instant) -> Result<Self> {
        let query = Query::Connect { provider: &route.provider, format: route.format, name: &route.name };
        let domain = Domain::open(Info::find(library(&settings.library)?, query)?)?;
        let queue = Queue::open(&domain)?;
        let addresses = Addresses::open(&domain)?;
        let endpoint = Endpoint::open(&queue, &addresses)?;
        let peer = addresses.insert(&route.name)?;
        let pool = BufferPool::new(&domain);
        let piece = domain.info().max_message().min(PIECE);
        let name = endpoint.name()?;
        let mut session = Self {
            queue,
            pool,
            endpoint,
            peer,
            number: 0,
            next: 0,
            operations: HashMap::new(),
            requests: HashMap::new(),
            queued: VecDeque::new(),
            unanswered: 0,
            last_look: Instant::now(),
            silence: Duration::ZERO,
            unposted_receives: 0,
            work: HashMap::new(),
            unposted: VecDeque::new(),
            blocks: HashMap::new(),
            idle: BTreeMap::new(),
            max_blocks: settings.max_registered,
            small: 0,
            piece,
            max_grant: Duration::ZERO,
            idle_limit: settings.idle,
            last_request: Instant::now(),
            closes_during_reads: domain.closes_during_reads(),
            grants: HashMap::new(),
            broken: None,
        };
        for _ in 0..WINDOW {
            session.receive()?;
        }
        let hello = Request::Hello { server: route.server, name: &name }.encode(0, 0);
        session.say_hello(route, settings, hello, deadline)?;
        Ok(session)
    }

    /// Sends the hello, and waits for the welcome.
    fn say_hello(
        &mut self,
        route: &Route,
        settings: &RemoteSettings,
        hello: Vec<u8>,
        deadline: Instant,
    ) -> Result<()> {
        let address = || route.address();
        let lost = |reason: String| Error::ProducerLost { address: address(), reason };
        let unsent = |error| match Failure::of(error) {
            Failure::Own(error) => error,
            Failure::Lost(reason) => lost(reason),
            failure => lost(format!("{failure:?}")),
        };
        let mut hello = Some(hello);
        let mut done = Vec::new();
        loop {
            if let Some(message) = hello.take()
                && !self.send(&message).map_err(unsent)?
            {
                hello = Some(message);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Error::TimedOut { address: address(), timeout: settings.timeout });
            }
            self.queue.wait((deadline - now).min(Duration::from_millis(20)), &mut done)?;
            for done in mem::take(&mut done) {
                let operation = self.operations.remove(&done.token);
                self.endpoint.release(done.token);
                if let Some(fault) = done.fault {
                    return Err(lost(fault.reason));
                }
                let Some(Operation::Receive(mut buffer)) = operation else { continue };
                let misbehaved = |what| Error::Misbehaved { address: address(), what };
                let bytes = Arc::get_mut(&mut buffer).map(Buffer::bytes);
                let bytes = bytes.and_then(|bytes| bytes.get(..done.length)).unwrap_or_default();
                let (_, reply) = Reply::decode(bytes).map_err(|malformed| misbehaved(malformed.0))?;
                match reply {
                    Reply::Welcome { session, max_small, idle, max_grant } => {
                        self.number = session;
                        self.small = (max_small as usize).min(MAX_SMALL).min(settings.small_read);
                        self.idle_limit = Duration::from_millis(u64::from(idle));
                        self.max_grant = Duration::from_millis(u64::from(max_grant));
                        self.pool.give_back(buffer);
                        self.receive()?;
                        return Ok(());
                    }
                    Reply::OtherServer => return Err(Error::ProducerReplaced { address: address() }),
                    Reply::Failed { text } => {
                        return Err(Error::Refused { address: address(), reason: text.to_owned() });
                    }
                    _ => return Err(misbehaved("it does not answer a greeting with a welcome")),
                }
            }
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn receive(&mut self) -> Result<()> {
        let buffer = self.pool.take(MAX_REPLY)?;
        let token = self.next();
        if self.endpoint.receive(&buffer, token)? {
            self.operations.insert(token, Operation::Receive(buffer));
        } else {
            self.unposted_receives += 1;
        }
        Ok(())
    }

    /// Sends a message. Returns `false` if the endpoint has no room.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<bool> {
        let buffer = self.pool.take(message.len())?;
        buffer.copy_in(0, message);
        let token = self.next();
        let is_sent = self.endpoint.send(self.peer, &buffer, message.len(), token)?;
        if is_sent {
            self.operations.insert(token, Operation::Send(buffer));
        }
        Ok(is_sent)
    }

    /// Returns whether the endpoint may be closed now.
    pub(crate) fn can_close(&self) -> bool {
        let is_read = |operation: &Operation| matches!(operation, Operation::Piece(_) | Operation::Slot(_));
        self.closes_during_reads || !self.operations.values().any(is_read)
    }

    /// Lets operations of a session that is not used any more end.
    pub(crate) fn drain(&mut self) {
        let mut done = Vec::new();
        if self.queue.read(&mut done).is_ok() {
            self.end_operations(done);
        }
    }

    /// As [`Self::drain`], for operations that have ended.
    pub(crate) fn end_operations(&mut self, done: Vec<Done>) {
        for done in done {
            self.operations.remove(&done.token);
            self.endpoint.release(done.token);
        }
    }

    /// Returns whether the server may have ended the session, since it was not used for long.
    pub(crate) fn may_have_expired(&self) -> bool {
        let now = Instant::now();
        now.duration_since(self.last_request) > self.idle_limit.mul_f32(0.8)
            && !self.grants.values().any(|until| *until > now)
    }

    /// Notes a grant: as long as it lasts, the server keeps the session.
    pub(crate) fn note_grant(&mut self, grant: u64, until: Instant) {
        let now = Instant::now();
        self.grants.retain(|_, until| *until > now);
        self.grants.insert(grant, until);
    }

    /// Begins to end a grant.
    pub(crate) fn end_grant(&mut self, grant: u64) -> Result<u64> {
        self.grants.remove(&grant);
        self.begin_call(&Request::EndGrant { grant })
    }

    /// Ends the session in order, so that the server need not wait. Waits for a moment. Returns the
    /// session if it cannot be closed yet.
    pub(crate) fn end(mut self) -> Option<Self> {
        if self.broken.is_none() && matches!(self.send(&Request::Bye.encode(self.number, 0)), Ok(true)) {
            let until = Instant::now() + Duration::from_millis(20);
            let is_send = |operation: &Operation| matches!(operation, Operation::Send(_));
            while self.operations.values().any(is_send) && Instant::now() < until {
                self.drain();
                std::thread::yield_now();
            }
        }
        (!self.can_close()).then_some(self)
    }

    /// Makes progress: handles what has ended, and posts what waits.
    pub(crate) fn progress(&mut self) {
        let mut done = Vec::new();
        if let Err(error) = self.queue.read(&mut done) {
            self.broken = Some(Failure::of(error));
        }
        let now = Instant::now();
        let since = now.duration_since(mem::replace(&mut self.last_look, now));
        if self.unanswered == 0 || !done.is_empty() {
            self.silence = Duration::ZERO;
        } else if since < LONGEST_LOOK {
            self.silence += since;
            // The server does not answer in a session that it has ended, such as while the request
            // was on its way.
            if self.silence > self.idle_limit && self.broken.is_none() {
                let why = "the producer does not answer in this session".to_owned();
                self.broken = Some(Failure::Lost(why));
            }
        }
        self.handle(done);
    }

    /// As [`Self::progress`], for operations that have ended.
    pub(crate) fn handle(&mut self, done: Vec<Done>) {
        for done in done {
            self.complete(done);
        }
        self.post_or_break();
    }

    /// Posts what waits. If that fails, the session is broken, and its work ends with the failure.
    pub(super) fn post_or_break(&mut self) {
        if self.broken.is_none()
            && let Err(error) = self.post_waiting()
        {
            self.broken = Some(Failure::of(error));
        }
    }

    fn post_waiting(&mut self) -> Result<()> {
        for _ in 0..mem::take(&mut self.unposted_receives) {
            self.receive()?;
        }
        for _ in 0..self.unposted.len() {
            let Some(read) = self.unposted.pop_front() else { break };
            self.pump(read)?;
        }
        // A process that was stopped for long finds out here: a ping would come too late.
        if !self.work.is_empty() && self.may_have_expired() {
            self.broken = Some(Failure::Lost("the session was idle for too long".to_owned()));
            return Ok(());
        }
        // One-sided reads are not seen by the server.
        if !self.work.is_empty() && self.last_request.elapsed() > self.idle_limit / 3 {
            self.request(Purpose::Ping, &Request::Ping);
        }
        while self.unanswered < WINDOW
            && let Some((message, has_reply)) = self.queued.pop_front()
        {
            if !self.send(&message)? {
                self.queued.push_front((message, has_reply));
                break;
            }
            self.unanswered += usize::from(has_reply);
        }
        Ok(())
    }

    /// Sends a request, now or later.
    pub(super) fn request(&mut self, purpose: Purpose, request: &Request<'_>) {
        let number = self.next();
        self.requests.insert(number, purpose);
        self.last_request = Instant::now();
        self.queued.push_back((request.encode(self.number, number), true));
    }

    /// Begins a call. [`Self::take_call`] returns its reply.
    pub(crate) fn begin_call(&mut self, request: &Request<'_>) -> Result<u64> {
        self.call_with(request, None)
    }

    pub(super) fn call_with(&mut self, request: &Request<'_>, source: Option<Arc<Buffer>>) -> Result<u64> {
        let number = self.next();
        self.work.insert(number, Work::Call(Call { source, reply: None }));
        self.request(Purpose::Call(number), request);
        self.post_or_break();
        Ok(number)
    }

    /// Begins to write at most [`MAX_PULL`] bytes.
    pub(crate) fn begin_write(&mut self, grant: u64, offset: usize, data: &[u8]) -> Result<u64> {
        let offset = offset as u64;
        if data.len() <= MAX_INLINE {
            return self.begin_call(&Request::Write { grant, offset, data });
        }
        debug_assert!(data.len() <= MAX_PULL);
        let source = self.pool.take_source(data.len())?;
        source.copy_in(0, data);
        let Some(registration) = source.registration() else {
            return Err(Error::System { call: "fi_mr_reg", errno: rustix::io::Errno::INVAL });
        };
        let (key, address) = (registration.key(), registration.base());
        let request = Request::WriteFrom { grant, offset, length: data.len() as u32, key, address };
        self.call_with(&request, Some(source))
    }

    fn complete(&mut self, done: Done) {
        let Some(operation) = self.operations.remove(&done.token) else { return };
        self.endpoint.release(done.token);
        if let Some(fault) = done.fault {
            let is_read = matches!(operation, Operation::Piece(_) | Operation::Slot(_));
            // The first fault is the cause of the others.
            if self.broken.is_none() {
                self.broken = Some(if is_read {
                    Failure::ReadFailed(fault.reason)
                } else {
                    Failure::Lost(fault.reason)
                });
            }
            return;
        }
        match operation {
            Operation::Send(buffer) => self.pool.give_back(buffer),
            Operation::Receive(mut buffer) => {
                let bytes = Arc::get_mut(&mut buffer).map(Buffer::bytes);
                let bytes = bytes.and_then(|bytes| bytes.get(..done.length)).unwrap_or_default();
                match Reply::decode(bytes) {
                    Ok((header, reply)) => self.reply(header, &reply),
                    Err(malformed) => self.broken = Some(Failure::Misbehaved(malformed.0)),
                }
                self.pool.give_back(buffer);
                if let Err(error) = self.receive() {
                    self.broken = Some(Failure::of(error));
                }
            }
            Operation::Piece(number) => self.piece_arrived(number),
            Operation::Slot(number) => self.slot_arrived(number),
        }
    }

    fn reply(&mut self, header: Header, reply: &Reply<'_>) {
        // A former session may have had an endpoint with this address.
        if header.session != self.number {
            return;
        }
        let Some(purpose) = self.requests.remove(&header.request) else { return };
        self.unanswered = self.unanswered.saturating_sub(1);
        self.silence = Duration::ZERO;
        let failure = match reply {
            Reply::Stale { now } => Some(Failure::Stale(*now)),
            Reply::NotGranted => Some(Failure::NotGranted),
            Reply::Failed { text } => Some(Failure::Refused((*text).to_owned())),
            _ => None,
        };
        match purpose {
            Purpose::Ping => {}
            Purpose::Call(number) => {
                let Some(Work::Call(call)) = self.work.get_mut(&number) else { return };
                call.reply = Some(match (failure, reply) {
                    (Some(failure), _) => Err(failure),
                    (None, Reply::Done) => Ok(CallReply::Done),
                    (None, Reply::Granted { grant, milliseconds }) => {
                        Ok(CallReply::Granted { grant: *grant, milliseconds: *milliseconds })
                    }
                    _ => Err(unexpected()),
                });
                if let Some(source) = call.source.take() {
                    self.pool.give_back(source);
                }
            }
            Purpose::Locate(number, block) => self.located(number, block, failure, reply),
            Purpose::Part(number, at, length) => self.part_arrived(number, (at, length), failure, reply),
        }
    }

    /// Returns the reply to a call, if it has come.
    pub(crate) fn take_call(&mut self, number: u64) -> Option<Result<CallReply, Failure>> {
        match self.work.get(&number) {
            Some(Work::Call(call)) if call.reply.is_none() => return None,
            _ => {}
        }
        match self.work.remove(&number) {
            Some(Work::Call(call)) => call.reply,
            _ => Some(Err(Failure::Lost("the call is not known".to_owned()))),
        }
    }
}

pub(super) fn unexpected() -> Failure {
    Failure::Misbehaved("its reply does not fit the request")
}
