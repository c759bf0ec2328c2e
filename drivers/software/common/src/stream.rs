//! Streams: what is submitted to one is executed in order, by a thread of its own. Commands wait
//! for events, work on spans of memory, and signal events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Error, Result, Span, lock};

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_millis(50);
/// How long a wait sleeps before it looks whether the device is still there.
const SLICE: Duration = Duration::from_millis(10);

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub enum Timeout {
    /// So long.
    After(Duration),
    /// For ever.
    Never,
}

impl Timeout {
    /// Returns how long the next wait may sleep.
    ///
    /// # Errors
    /// [`Error::NotReady`] once the time is over.
    fn slice(self, begun: Instant) -> Result<Duration> {
        match self {
            Self::Never => Ok(SLICE),
            Self::After(time) => match time.saturating_sub(begun.elapsed()) {
                Duration::ZERO => Err(Error::NotReady),
                left => Ok(left.min(SLICE)),
            },
        }
    }
}

/// Whether a device is there.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// Loses the device, for good.
    pub fn lose(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether the device is there.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) { Err(Error::Lost) } else { Ok(()) }
    }
}

/// Returns the nanoseconds of the clock that devices and hosts share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// When the command that signalled an event began and ended, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

/// An event, which a command signals, and for which commands and threads wait.
#[derive(Debug, Default)]
pub struct Event {
    /// When it was signalled, while it is.
    signalled: Mutex<Option<Times>>,
    changed: Condvar,
}

impl Event {
    /// Returns when the command that signalled it began and ended; `None` while it is not
    /// signalled.
    pub fn signalled(&self) -> Option<Times> {
        *lock(&self.signalled)
    }

    /// Signals it, for a command that began at `start` and ends now.
    pub fn signal(&self, start: u64) {
        *lock(&self.signalled) = Some(Times { start, end: now() });
        self.changed.notify_all();
    }

    /// Makes it not signalled.
    pub fn reset(&self) {
        *lock(&self.signalled) = None;
    }

    /// Waits until it is signalled. Asks `check` now and then whether to go on.
    ///
    /// # Errors
    /// [`Error::NotReady`] after the time, and what `check` returns.
    pub fn wait(&self, timeout: Timeout, check: impl Fn() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        let mut signalled = lock(&self.signalled);
        while signalled.is_none() {
            check()?;
            let slice = timeout.slice(begun)?;
            signalled = self.changed.wait_timeout(signalled, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// What a command does.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Work {
    /// Only waits and signals, and takes no time.
    Nothing,
    Copy {
        to: Span,
        from: Span,
    },
    Fill {
        to: Span,
        pattern: Vec<u8>,
    },
}

/// Something to do, once these events are signalled, and the event to signal then.
#[derive(Clone, Debug)]
pub struct Command {
    /// What it waits for.
    pub wait: Vec<Arc<Event>>,
    /// What it does then.
    pub work: Work,
    /// What it signals in the end.
    pub signal: Option<Arc<Event>>,
}

impl Command {
    /// A command that only waits and signals.
    pub fn nothing(wait: Vec<Arc<Event>>, signal: Option<Arc<Event>>) -> Self {
        Self { wait, work: Work::Nothing, signal }
    }
}

#[derive(Default)]
struct State {
    commands: VecDeque<Command>,
    submitted: u64,
    done: u64,
    /// The first thing that went wrong; nothing is executed after it.
    failed: Option<Error>,
    thread: Option<JoinHandle<()>>,
    has_thread: bool,
    /// Nothing is submitted any more, and what waits is dropped.
    is_closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    health: Arc<Health>,
    /// How long the work of each command lasts at least.
    delay: Duration,
}

/// Commands in order.
pub struct Stream(Arc<Shared>);

impl Stream {
    /// A stream of a device, where the work of each command lasts at least `delay`.
    pub fn new(health: Arc<Health>, delay: Duration) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), health, delay }))
    }

    /// Executes commands after all that were submitted before.
    ///
    /// # Errors
    /// [`Error::Lost`], what failed before, or that no thread can be started.
    pub fn submit(&self, commands: Vec<Command>) -> Result<()> {
        self.0.health.check()?;
        let mut state = lock(&self.0.state);
        if let Some(error) = state.failed {
            return Err(error);
        }
        if !state.has_thread {
            if let Some(thread) = state.thread.take() {
                // It left its loop under this lock.
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

    /// Waits until everything that was submitted is done.
    ///
    /// # Errors
    /// [`Error::NotReady`] after the time, [`Error::Lost`], or what failed.
    pub fn wait(&self, timeout: Timeout) -> Result<()> {
        let begun = Instant::now();
        let mut state = lock(&self.0.state);
        let wanted = state.submitted;
        while state.done < wanted {
            if let Some(error) = state.failed {
                return Err(error);
            }
            self.0.health.check()?;
            let slice = timeout.slice(begun)?;
            state = self.0.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Stream {
    /// What has not begun is dropped; what has begun ends first.
    fn drop(&mut self) {
        let thread = {
            let mut state = lock(&self.0.state);
            state.is_closed = true;
            state.commands.clear();
            state.thread.take()
        };
        self.0.changed.notify_all();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(command) = self.next() {
            let outcome = self.execute(&command);
            // Before it counts as done: a caller that waited may look at what the command kept.
            drop(command);
            let mut state = lock(&self.state);
            match outcome {
                Ok(()) => state.done += 1,
                Err(error) => {
                    state.failed.get_or_insert(error);
                    state.commands.clear();
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Returns the next command; `None` once there was none for a while, or there will be none.
    fn next(&self) -> Option<Command> {
        let mut state = lock(&self.state);
        let begun = Instant::now();
        loop {
            if let Some(command) = state.commands.pop_front() {
                return Some(command);
            }
            let left = IDLE.saturating_sub(begun.elapsed());
            if state.is_closed || left.is_zero() {
                // Under the lock: the next submission starts another thread.
                state.has_thread = false;
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits, works, signals.
    fn execute(&self, command: &Command) -> Result<()> {
        for event in &command.wait {
            event.wait(Timeout::Never, || self.check())?;
        }
        self.check()?;
        let start = now();
        match &command.work {
            Work::Nothing => {}
            Work::Copy { to, from } => to.copy(from),
            Work::Fill { to, pattern } => to.fill(pattern),
        }
        if !matches!(command.work, Work::Nothing) {
            self.pace()?;
        }
        if let Some(event) = &command.signal {
            event.signal(start);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.health.check()?;
        if lock(&self.state).is_closed { Err(Error::NotReady) } else { Ok(()) }
    }

    fn pace(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < self.delay {
            self.check()?;
            std::thread::sleep((self.delay - begun.elapsed().min(self.delay)).min(SLICE));
        }
        Ok(())
    }
}
