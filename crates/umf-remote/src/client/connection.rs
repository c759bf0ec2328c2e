//! [`Connection`]: makes sessions with one server, and waits for reads and calls.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umf_ipc::Handle;
use umf_sync::fork;

use super::reads::BlockKey;
use super::session::{CallReply, Failure, Session};
use crate::fabric::{Buffer, BufferPool, Queue};
use crate::protocol::Request;
use crate::route::Route;
use crate::{Error, RemoteSettings, Result};

/// The least spinning, in nanoseconds, unless the settings have less.
const SHORTEST_SPIN: u64 = 20_000;
/// The longest sleep: another thread may have taken the entry that ends this one's work.
const SLEEP: Duration = Duration::from_millis(10);

/// How long the end of a connection waits for reads that were given up.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// A connection to a server. Its session is made when it is needed, and again after it broke.
#[derive(Debug)]
pub(crate) struct Connection {
    route: Route,
    pub settings: RemoteSettings,
    state: Mutex<State>,
    /// Notified when a thread has made a session, or failed to.
    connected: Condvar,
    /// The longest grant of the producer, in nanoseconds.
    max_grant: AtomicU64,
    /// Threads that sleep.
    sleepers: AtomicUsize,
    /// How long a wait spins, in nanoseconds. It grows as spinning succeeds, and shrinks otherwise:
    /// on a machine with more waiting threads than processors it takes time from the others.
    spin: AtomicU64,
    generation: u32,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Session>,
    /// The number of the session.
    epoch: u64,
    /// Whether a thread makes a session.
    is_connecting: bool,
    /// Why the last session ended.
    last: Option<Failure>,
    /// Sessions that are not used any more, and whose endpoint cannot be closed yet.
    retired: Vec<Session>,
}

impl State {
    /// Ends the session. Closing its endpoint ends its operations, so that nothing is written into
    /// its buffers any more. Until it can be closed, they are kept.
    fn retire(&mut self, reason: Failure) -> bool {
        let Some(session) = self.session.take() else { return false };
        self.last = Some(reason);
        self.retired.push(session);
        self.close_retired();
        true
    }

    fn close_retired(&mut self) {
        self.retired.iter_mut().filter(|session| !session.can_close()).for_each(Session::drain);
        self.retired.retain(|session| !session.can_close());
    }
}

/// Work in a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    epoch: u64,
    number: u64,
}

/// What has become of some work.
enum Outcome<T> {
    /// With the time of its last progress.
    Pending(Arc<Queue>, Option<Instant>),
    Ended(Result<T, Failure>),
}

/// A read in progress, which survives the loss of one session.
#[derive(Debug)]
pub(crate) struct ReadState {
    pub handle: Handle,
    pub offset: usize,
    pub length: usize,
    pub deadline: Instant,
    ticket: Option<Ticket>,
    /// Sessions in which it was lost.
    losses: u32,
    /// When the program last asked for it, and whether it has had more time since.
    last_call: Instant,
    is_extended: bool,
}

impl ReadState {
    pub(crate) fn new(handle: Handle, offset: usize, length: usize, timeout: Duration) -> Self {
        let now = Instant::now();
        let (deadline, ticket) = (now + timeout, None);
        Self { handle, offset, length, deadline, ticket, losses: 0, last_call: now, is_extended: false }
    }

    /// Gives the read more time, once, if the program comes late. There is no progress meanwhile.
    fn note_call(&mut self, timeout: Duration) {
        let now = Instant::now();
        if !self.is_extended && now.duration_since(self.last_call) > timeout / 4 {
            self.is_extended = true;
            self.deadline = self.deadline.max(now + timeout);
        }
        self.last_call = now;
    }
}

/// The data of a read, and where its buffer goes afterwards.
pub(crate) type Landed = (Arc<Buffer>, Arc<BufferPool>);

impl Connection {
    pub(crate) fn new(route: Route, settings: RemoteSettings) -> Self {
        let settings = settings.bounded();
        let generation = fork::generation();
        let (state, sleepers) = (Mutex::default(), AtomicUsize::new(0));
        let spin = AtomicU64::new(nanoseconds(settings.spin));
        let (connected, max_grant) = (Condvar::new(), AtomicU64::new(0));
        Self { route, settings, state, connected, max_grant, sleepers, spin, generation }
    }

    /// Learns from a wait that ended while it spun, or did not.
    fn learn(&self, succeeded: bool) {
        let spin = self.spin.load(Ordering::Relaxed);
        let max = nanoseconds(self.settings.spin);
        let next =
            if succeeded { spin.saturating_mul(2).min(max) } else { (spin / 2).max(SHORTEST_SPIN).min(max) };
        if next != spin {
            self.spin.store(next, Ordering::Relaxed);
        }
    }

    pub(crate) fn address(&self) -> String {
        self.route.address()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn max_grant(&self) -> Duration {
        Duration::from_nanos(self.max_grant.load(Ordering::Relaxed))
    }

    fn check_process(&self) -> Result<()> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Runs `begin` in a session, which is made if there is none.
    fn begin(&self, deadline: Instant, begin: impl FnOnce(&mut Session) -> Result<u64>) -> Result<Ticket> {
        self.check_process()?;
        let mut state = self.lock();
        loop {
            state.close_retired();
            if state.session.as_ref().is_some_and(Session::may_have_expired) {
                state.retire(Failure::Lost("the connection was idle for too long".to_owned()));
            }
            if state.session.is_some() {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut { address: self.address(), timeout: self.settings.timeout });
            }
            if state.is_connecting {
                let waited = self.connected.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.is_connecting = true;
            // Without the lock, for which other threads could not wait with their own bounds.
            drop(state);
            let connected = Session::connect(&self.route, &self.settings, deadline);
            state = self.lock();
            state.is_connecting = false;
            self.connected.notify_all();
            let session = connected?;
            self.max_grant.store(nanoseconds(session.max_grant), Ordering::Relaxed);
            state.session = Some(session);
            state.epoch += 1;
        }
        let epoch = state.epoch;
        let Some(session) = state.session.as_mut() else { unreachable!("set above") };
        Ok(Ticket { epoch, number: begin(session)? })
    }

    /// Ends a session that broke.
    fn end_if_broken(&self, state: &mut State) {
        if let Some(failure) = state.session.as_mut().and_then(|session| session.broken.take()) {
            tracing::debug!(address = %self.address(), ?failure, "a connection broke");
            self.wake(state);
            state.retire(failure);
        }
    }

    fn wake(&self, state: &State) {
        if self.sleepers.load(Ordering::Acquire) > 0
            && let Some(session) = &state.session
        {
            session.queue.wake();
        }
    }

    /// Makes progress, and returns what has become of some work.
    fn poll<T>(
        &self,
        ticket: Ticket,
        take: impl FnOnce(&mut Session, u64) -> Option<Result<T, Failure>>,
    ) -> Outcome<T> {
        let mut state = self.lock();
        if state.epoch == ticket.epoch
            && let Some(session) = state.session.as_mut()
        {
            session.progress();
            if let Some(result) = take(session, ticket.number) {
                self.end_if_broken(&mut state);
                return Outcome::Ended(result);
            }
            self.end_if_broken(&mut state);
            if let Some(session) = &state.session {
                return Outcome::Pending(Arc::clone(&session.queue), session.last_progress(ticket.number));
            }
        }
        let failure = state.last.clone();
        Outcome::Ended(Err(failure.unwrap_or_else(|| Failure::Lost("the connection was closed".to_owned()))))
    }

    /// Sleeps until something ends.
    fn sleep(&self, ticket: Ticket, queue: &Arc<Queue>, timeout: Duration) {
        let mut done = Vec::new();
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        let result = queue.wait(timeout.min(SLEEP), &mut done);
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
        if done.is_empty() && result.is_ok() {
            return;
        }
        let mut state = self.lock();
        let retired = state.retired.iter_mut().find(|session| Arc::ptr_eq(&session.queue, queue));
        if let Some(session) = retired {
            session.end_operations(done);
        } else if state.epoch == ticket.epoch
            && let Some(session) = state.session.as_mut()
        {
            session.handle(done);
            if let Err(error) = result {
                session.broken = Some(Failure::Own(error));
            }
            // They may be of other threads that sleep.
            self.wake(&state);
        }
    }

    /// Waits for some work.
    fn wait<T>(
        &self,
        ticket: Ticket,
        deadline: Instant,
        mut take: impl FnMut(&mut Session, u64) -> Option<Result<T, Failure>>,
    ) -> Result<Result<T, Failure>> {
        loop {
            if let Some(result) = self.wait_until(None, ticket, deadline, &mut take)? {
                return Ok(result);
            }
        }
    }

    /// Waits for some work, and not longer than `pause`: then returns `None`.
    fn wait_until<T>(
        &self,
        pause: Option<Instant>,
        ticket: Ticket,
        deadline: Instant,
        mut take: impl FnMut(&mut Session, u64) -> Option<Result<T, Failure>>,
    ) -> Result<Option<Result<T, Failure>>> {
        let began = Instant::now();
        let spin = Duration::from_nanos(self.spin.load(Ordering::Relaxed));
        let mut has_slept = false;
        loop {
            match self.poll(ticket, &mut take) {
                Outcome::Ended(result) => {
                    if !has_slept {
                        self.learn(true);
                    }
                    return Ok(Some(result));
                }
                Outcome::Pending(queue, progress) => {
                    let now = Instant::now();
                    // A long read may go on as long as data arrives.
                    let deadline =
                        progress.map_or(deadline, |last| deadline.max(last + self.settings.timeout));
                    if now >= deadline {
                        return Err(self.time_out(ticket));
                    }
                    if pause.is_some_and(|pause| now >= pause) {
                        return Ok(None);
                    }
                    if now.duration_since(began) < spin {
                        std::thread::yield_now();
                    } else {
                        if !has_slept {
                            self.learn(false);
                        }
                        has_slept = true;
                        let until = pause.map_or(deadline, |pause| pause.min(deadline));
                        self.sleep(ticket, &queue, until.saturating_duration_since(now));
                    }
                }
            }
        }
    }

    /// Ends the session of work that lasts too long: nothing is written into its buffers any more.
    fn time_out(&self, ticket: Ticket) -> Error {
        let mut state = self.lock();
        if state.epoch == ticket.epoch {
            state.retire(Failure::Lost("the producer did not answer in time".to_owned()));
        }
        Error::TimedOut { address: self.address(), timeout: self.settings.timeout }
    }

    /// Returns the error for a failure that is not tried again.
    fn error(&self, failure: Failure, handle: &Handle) -> Error {
        let address = self.address();
        match failure {
            Failure::Lost(reason) => Error::ProducerLost { address, reason },
            Failure::ReadFailed(reason) => Error::KeyRefused { address, reason },
            Failure::Stale(now) => {
                Error::Stale { pid: handle.pid(), slot: handle.slot(), generation: handle.generation(), now }
            }
            Failure::NotGranted => Error::NotGranted { address, max: self.max_grant() },
            Failure::Refused(reason) => Error::Refused { address, reason },
            Failure::Misbehaved(what) => Error::Misbehaved { address, what },
            Failure::Own(error) => error,
        }
    }

    /// Begins a read.
    pub(crate) fn start(&self, read: &mut ReadState) -> Result<()> {
        let (handle, offset, length) = (read.handle, read.offset, read.length);
        let ticket = self.begin(read.deadline, |session| session.begin_read(&handle, offset, length))?;
        read.ticket = Some(ticket);
        Ok(())
    }

    /// Takes the outcome of a read. `None`: it began again in another session.
    fn settle(&self, read: &mut ReadState, result: Result<Landed, Failure>) -> Result<Option<Landed>> {
        match result {
            Ok(landed) => Ok(Some(landed)),
            Err(Failure::Lost(_) | Failure::ReadFailed(_)) if read.losses == 0 => {
                read.losses += 1;
                self.start(read)?;
                Ok(None)
            }
            Err(failure) => Err(self.error(failure, &read.handle)),
        }
    }

    fn take_landed(session: &mut Session, number: u64) -> Option<Result<Landed, Failure>> {
        let result = session.take_read(number)?;
        Some(result.map(|buffer| (buffer, Arc::clone(&session.pool))))
    }

    /// Returns the data of a read, if it has ended.
    pub(crate) fn poll_read(&self, read: &mut ReadState) -> Result<Option<Landed>> {
        self.check_process()?;
        read.note_call(self.settings.timeout);
        let Some(ticket) = read.ticket else { return Ok(None) };
        match self.poll(ticket, Self::take_landed) {
            Outcome::Ended(result) => self.settle(read, result),
            Outcome::Pending(_, progress) => {
                let late = progress.map(|last| last + self.settings.timeout);
                let is_late = Instant::now() >= late.map_or(read.deadline, |late| late.max(read.deadline));
                if is_late { Err(self.time_out(ticket)) } else { Ok(None) }
            }
        }
    }

    /// Waits for the data of a read, and not longer than `pause`: then returns `None`.
    pub(crate) fn wait_read(&self, read: &mut ReadState, pause: Option<Instant>) -> Result<Option<Landed>> {
        self.check_process()?;
        read.note_call(self.settings.timeout);
        loop {
            let Some(ticket) = read.ticket else {
                self.start(read)?;
                continue;
            };
            let Some(result) = self.wait_until(pause, ticket, read.deadline, Self::take_landed)? else {
                return Ok(None);
            };
            if let Some(landed) = self.settle(read, result)? {
                return Ok(Some(landed));
            }
        }
    }

    /// Gives up a read.
    pub(crate) fn forget(&self, read: &ReadState) {
        if let Some(ticket) = read.ticket
            && self.check_process().is_ok()
        {
            let mut state = self.lock();
            if state.epoch == ticket.epoch
                && let Some(session) = state.session.as_mut()
            {
                session.forget(ticket.number);
            }
        }
    }

    /// Notes a use of a block in the current session. Returns the session's number if the block is
    /// known in it.
    pub(crate) fn use_block(&self, handle: &Handle) -> Option<u64> {
        let mut state = self.lock();
        let epoch = state.epoch;
        let session = state.session.as_mut()?;
        session.use_block(BlockKey::of(handle)).then_some(epoch)
    }

    /// Ends a use in a session.
    pub(crate) fn release_block(&self, epoch: u64, handle: &Handle) {
        if self.check_process().is_err() {
            return;
        }
        let mut state = self.lock();
        if state.epoch == epoch
            && let Some(session) = state.session.as_mut()
        {
            session.release_block(BlockKey::of(handle));
        }
    }

    /// Returns whether a session of this number exists.
    pub(crate) fn has_session(&self, epoch: u64) -> bool {
        let state = self.lock();
        state.epoch == epoch && state.session.is_some()
    }

    /// Asks for a grant. Returns it, the session in which it holds, and its time.
    pub(crate) fn grant(&self, handle: &Handle, time: Duration) -> Result<(u64, u64, Duration)> {
        let milliseconds = u32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u32::MAX);
        let request = Request::Grant { handle: *handle, milliseconds };
        let deadline = Instant::now() + self.settings.timeout;
        let mut losses = 0;
        loop {
            let asked = Instant::now();
            let ticket = self.begin(deadline, |session| session.begin_call(&request))?;
            match self.wait(ticket, deadline, Session::take_call)? {
                Ok(CallReply::Granted { grant, milliseconds }) => {
                    let time = Duration::from_millis(u64::from(milliseconds));
                    let mut state = self.lock();
                    if state.epoch == ticket.epoch
                        && let Some(session) = state.session.as_mut()
                    {
                        session.note_grant(grant, asked + time);
                    }
                    return Ok((grant, ticket.epoch, time));
                }
                Ok(CallReply::Done) => {
                    let what = "it answers a request for a grant with something else";
                    return Err(Error::Misbehaved { address: self.address(), what });
                }
                Err(Failure::Lost(_) | Failure::ReadFailed(_)) if losses == 0 => losses += 1,
                Err(failure) => return Err(self.error(failure, handle)),
            }
        }
    }

    /// Begins to write a part within a grant.
    pub(crate) fn start_write(&self, epoch: u64, grant: u64, offset: usize, data: &[u8]) -> Result<Ticket> {
        self.check_process()?;
        let mut state = self.lock();
        let is_current = state.epoch == epoch;
        match state.session.as_mut().filter(|_| is_current) {
            Some(session) => Ok(Ticket { epoch, number: session.begin_write(grant, offset, data)? }),
            None => Err(Error::NotGranted { address: self.address(), max: self.max_grant() }),
        }
    }

    /// Waits for a part of a write.
    pub(crate) fn wait_write(&self, ticket: Ticket, handle: &Handle) -> Result<()> {
        let deadline = Instant::now() + self.settings.timeout;
        match self.wait(ticket, deadline, Session::take_call)? {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.error(failure, handle)),
        }
    }

    /// Ends a grant.
    pub(crate) fn end_grant(&self, epoch: u64, grant: u64, handle: &Handle) -> Result<()> {
        self.check_process()?;
        let ticket = {
            let mut state = self.lock();
            let is_current = state.epoch == epoch;
            match state.session.as_mut().filter(|_| is_current) {
                Some(session) => Ticket { epoch, number: session.end_grant(grant)? },
                // It has ended with its session.
                None => return Ok(()),
            }
        };
        self.wait_write(ticket, handle)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let session = state.session.take();
        if self.generation != fork::generation() {
            // The parent goes on with it.
            core::mem::forget((session, core::mem::take(&mut state.retired)));
            return;
        }
        if let Some(session) = session {
            state.retired.extend(session.end());
        }
        let until = Instant::now() + LAST_WAIT;
        state.close_retired();
        while !state.retired.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            state.close_retired();
        }
        if !state.retired.is_empty() {
            tracing::warn!(
                address = %self.route.address(),
                "a connection stays open: this libfabric cannot close it while the producer does not answer"
            );
            core::mem::forget(core::mem::take(&mut state.retired));
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
