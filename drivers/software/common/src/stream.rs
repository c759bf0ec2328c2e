//! [`Stream`]: executes commands in order in a thread of its own. A command waits for events,
//! copies or fills spans of memory, and signals an event.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Error, Result, Span, lock};

/// How long a thread without work waits before it exits.
const IDLE_TIMEOUT: Duration = Duration::from_millis(50);
/// How often a wait checks whether the device is lost.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The timeout of a wait.
#[derive(Clone, Copy, Debug)]
pub enum Timeout {
    /// After this duration.
    After(Duration),
    /// No timeout.
    Never,
}

impl Timeout {
    /// Returns how long to sleep before the next check.
    ///
    /// # Errors
    /// [`Error::NotReady`] after the timeout.
    fn slice(self, start_time: Instant) -> Result<Duration> {
        match self {
            Self::Never => Ok(POLL_INTERVAL),
            Self::After(time) => match time.saturating_sub(start_time.elapsed()) {
                Duration::ZERO => Err(Error::NotReady),
                left => Ok(left.min(POLL_INTERVAL)),
            },
        }
    }
}

/// Whether a device is lost.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// Marks the device as lost, permanently.
    pub fn lose(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Checks that the device is not lost.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) { Err(Error::Lost) } else { Ok(()) }
    }
}

/// Returns the time of the clock that devices and host share, in nanoseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// The start and end times of the command that signalled an event, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// An event, signalled by a command. Commands and threads wait for it.
#[derive(Debug, Default)]
pub struct Event {
    /// The times of the signalling command, or why it does not execute. `None` while unsignalled.
    outcome: Mutex<Option<Result<Times>>>,
    changed: Condvar,
}

impl Event {
    /// Returns the times of the signalling command, `None` while unsignalled.
    ///
    /// # Errors
    /// The command was discarded: [`Error::Discarded`], or the error of the stream.
    pub fn signalled(&self) -> Result<Option<Times>> {
        (*lock(&self.outcome)).transpose()
    }

    /// Returns whether it is signalled, or its command was discarded. Neither the command nor those
    /// before it use memory any more.
    pub fn is_over(&self) -> bool {
        lock(&self.outcome).is_some()
    }

    /// Signals it for a command that started at `start` and ends now.
    pub fn signal(&self, start: u64) {
        *lock(&self.outcome) = Some(Ok(Times { start, end: now() }));
        self.changed.notify_all();
    }

    /// Marks its command as discarded, unless an earlier one has signalled it.
    fn discard(&self, why: Error) {
        lock(&self.outcome).get_or_insert(Err(why));
        self.changed.notify_all();
    }

    /// Resets it to unsignalled.
    pub fn reset(&self) {
        *lock(&self.outcome) = None;
    }

    /// Waits until it is signalled, and calls `check` periodically.
    ///
    /// # Errors
    /// [`Error::NotReady`] after the timeout; errors of `check`; the command was discarded:
    /// [`Error::Discarded`], or the error of the stream.
    pub fn wait(&self, timeout: Timeout, check: impl Fn() -> Result<()>) -> Result<()> {
        self.wait_until_over(timeout, check)?.map(drop)
    }

    /// Waits until it is signalled, or its command is discarded. Returns which.
    fn wait_until_over(&self, timeout: Timeout, check: impl Fn() -> Result<()>) -> Result<Result<Times>> {
        let start_time = Instant::now();
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = *outcome {
                return Ok(outcome);
            }
            check()?;
            let slice = timeout.slice(start_time)?;
            outcome = self.changed.wait_timeout(outcome, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A function that a stream's thread calls. Its argument returns an error once it has to stop
/// waiting: the device is lost, or the stream is dropped.
#[derive(Clone)]
pub struct Call(Arc<CallFunction>);

type CallFunction = dyn Fn(&dyn Fn() -> Result<()>) -> Result<()> + Send + Sync;

impl Call {
    /// Returns a call of `function`.
    pub fn new(function: impl Fn(&dyn Fn() -> Result<()>) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Call")
    }
}

/// The operation of a command.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names are sufficient")]
pub enum Work {
    /// No operation and no delay: the command only waits and signals.
    #[default]
    Nothing,
    Copy {
        to: Span,
        from: Span,
    },
    Fill {
        to: Span,
        pattern: Vec<u8>,
    },
    /// A call of the interface's layer: a callback of the application, or a wait.
    Call(Call),
}

/// An operation with the events that it waits for and signals.
#[derive(Clone, Debug, Default)]
pub struct Command {
    /// The events to wait for before the operation. If the command of one was discarded, this one
    /// fails, and its stream with it.
    pub wait: Vec<Arc<Event>>,
    /// The events of commands that only have to be over before the operation. It executes also if
    /// they were discarded.
    pub after: Vec<Arc<Event>>,
    /// The operation.
    pub work: Work,
    /// The event to signal after the operation.
    pub signal: Option<Arc<Event>>,
}

impl Command {
    /// Returns a command that only waits and signals.
    pub fn marker(wait: Vec<Arc<Event>>, signal: Option<Arc<Event>>) -> Self {
        Self { wait, signal, ..Self::default() }
    }
}

impl From<Work> for Command {
    /// Returns a command that waits for no event and signals none.
    fn from(work: Work) -> Self {
        Self { work, ..Self::default() }
    }
}

#[derive(Default)]
struct StreamState {
    commands: VecDeque<Command>,
    submitted: u64,
    done: u64,
    /// The first error; no command executes after it.
    failed: Option<Error>,
    thread: Option<JoinHandle<()>>,
    has_thread: bool,
    /// The stream is dropped: pending commands are discarded.
    is_closed: bool,
}

struct SharedStream {
    state: Mutex<StreamState>,
    changed: Condvar,
    health: Arc<Health>,
    /// Minimum duration of each command.
    delay: Duration,
}

/// A queue of commands that execute in order.
pub struct Stream(Arc<SharedStream>);

impl Stream {
    /// Returns a stream of a device. Each command takes at least `delay`.
    pub fn new(health: Arc<Health>, delay: Duration) -> Self {
        Self(Arc::new(SharedStream { state: Mutex::default(), changed: Condvar::new(), health, delay }))
    }

    /// Submits commands, which execute after all commands submitted before.
    ///
    /// # Errors
    /// [`Error::Lost`]; the error of an earlier command; [`Error::System`] if no thread can be
    /// started.
    pub fn submit(&self, commands: Vec<Command>) -> Result<()> {
        self.0.health.check()?;
        let mut state = lock(&self.0.state);
        if let Some(error) = state.failed {
            return Err(error);
        }
        if !state.has_thread {
            if let Some(thread) = state.thread.take() {
                // The thread has left its loop under this lock, and exits.
                let _ = thread.join();
            }
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("soft-device".into()).spawn(move || shared.run());
            let failed = |error| Error::System(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
            state.thread = Some(thread.map_err(failed)?);
            state.has_thread = true;
        }
        state.submitted += commands.len() as u64;
        state.commands.extend(commands);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Returns whether all submitted commands have executed.
    ///
    /// # Errors
    /// [`Error::Lost`]; the error of a command.
    pub fn is_idle(&self) -> Result<bool> {
        self.0.health.check()?;
        let state = lock(&self.0.state);
        state.failed.map_or(Ok(state.done == state.submitted), Err)
    }

    /// Waits until all commands submitted so far have executed.
    ///
    /// # Errors
    /// [`Error::NotReady`] after the timeout; [`Error::Lost`]; the error of a command;
    /// [`Error::OwnStream`] in a call of this stream.
    pub fn wait(&self, timeout: Timeout) -> Result<()> {
        let start_time = Instant::now();
        let mut state = lock(&self.0.state);
        if state.thread.as_ref().is_some_and(is_current) {
            return Err(Error::OwnStream);
        }
        let wanted = state.submitted;
        while state.done < wanted {
            if let Some(error) = state.failed {
                return Err(error);
            }
            self.0.health.check()?;
            let slice = timeout.slice(start_time)?;
            state = self.0.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Stream {
    /// Discards pending commands, and waits for the executing one.
    fn drop(&mut self) {
        let (thread, commands) = {
            let mut state = lock(&self.0.state);
            state.is_closed = true;
            (state.thread.take(), std::mem::take(&mut state.commands))
        };
        self.0.changed.notify_all();
        // A call of the stream may drop it: then the thread ends by itself.
        if let Some(thread) = thread.filter(|thread| !is_current(thread)) {
            let _ = thread.join();
        }
        discard(commands, Error::Discarded);
    }
}

/// Returns whether a thread is the current one.
fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

/// Drops commands that do not execute. Waits for their events end with the error.
fn discard(commands: VecDeque<Command>, why: Error) {
    for event in commands.into_iter().filter_map(|command| command.signal) {
        event.discard(why);
    }
}

impl SharedStream {
    fn run(&self) {
        while let Some(command) = self.next() {
            let outcome = self.execute(&command);
            // Dropped before it counts as done: a caller that waited may check that its memory is
            // released.
            let signal = command.signal.clone();
            drop(command);
            let mut state = lock(&self.state);
            let Err(error) = outcome else {
                state.done += 1;
                drop(state);
                self.changed.notify_all();
                continue;
            };
            state.failed.get_or_insert(error);
            let commands = std::mem::take(&mut state.commands);
            drop(state);
            self.changed.notify_all();
            if let Some(event) = signal {
                event.discard(error);
            }
            discard(commands, error);
        }
    }

    /// Returns the next command. `None` after [`IDLE_TIMEOUT`], or if the stream is closed.
    fn next(&self) -> Option<Command> {
        let mut state = lock(&self.state);
        let start_time = Instant::now();
        loop {
            if let Some(command) = state.commands.pop_front() {
                return Some(command);
            }
            let left = IDLE_TIMEOUT.saturating_sub(start_time.elapsed());
            if state.is_closed || left.is_zero() {
                // Set under the lock: the next submission starts another thread.
                state.has_thread = false;
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the events, runs the operation, and signals.
    fn execute(&self, command: &Command) -> Result<()> {
        for event in &command.after {
            let _ = event.wait_until_over(Timeout::Never, || self.check())?;
        }
        for event in &command.wait {
            event.wait(Timeout::Never, || self.check())?;
        }
        self.check()?;
        let start = now();
        match &command.work {
            Work::Nothing => {}
            Work::Copy { to, from } => to.copy(from),
            Work::Fill { to, pattern } => to.fill(pattern),
            Work::Call(call) => (call.0)(&|| self.check())?,
        }
        if matches!(command.work, Work::Copy { .. } | Work::Fill { .. }) {
            self.wait_for_delay()?;
        }
        if let Some(event) = &command.signal {
            event.signal(start);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.health.check()?;
        if lock(&self.state).is_closed { Err(Error::Discarded) } else { Ok(()) }
    }

    fn wait_for_delay(&self) -> Result<()> {
        let start_time = Instant::now();
        while start_time.elapsed() < self.delay {
            self.check()?;
            std::thread::sleep((self.delay - start_time.elapsed().min(self.delay)).min(POLL_INTERVAL));
        }
        Ok(())
    }
}
