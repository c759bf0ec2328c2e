//! Streams: what is submitted to one is executed in order, by a thread of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Command, Error, Result, lock};

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
    /// What is left of it; nothing once it is over.
    pub fn left(self, begun: Instant) -> Option<Duration> {
        match self {
            Self::Never => Some(Duration::MAX),
            Self::After(time) => time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()),
        }
    }
}

/// Whether a device is there.
#[derive(Debug, Default)]
pub struct Health(AtomicBool);

impl Health {
    /// The device is gone, for good.
    pub fn lose(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) { Err(Error::Lost) } else { Ok(()) }
    }
}

/// Tells that what was submitted before is done.
#[derive(Debug, Default)]
pub struct Fence {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Fence {
    /// A fence that is signalled, or not.
    pub fn new(is_done: bool) -> Self {
        Self { done: Mutex::new(is_done), changed: Condvar::new() }
    }

    /// Whether it is signalled.
    pub fn is_done(&self) -> bool {
        *lock(&self.done)
    }

    /// Not signalled any more.
    pub fn reset(&self) {
        *lock(&self.done) = false;
    }

    fn finish(&self) {
        *lock(&self.done) = true;
        self.changed.notify_all();
    }

    /// Waits until it is signalled.
    ///
    /// # Errors
    /// [`Error::NotReady`] after the time, [`Error::Lost`].
    pub fn wait(&self, timeout: Timeout, health: &Health) -> Result<()> {
        let begun = Instant::now();
        let mut done = lock(&self.done);
        while !*done {
            health.check()?;
            let slice = timeout.left(begun).ok_or(Error::NotReady)?.min(SLICE);
            done = self.changed.wait_timeout(done, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// What is submitted at once.
struct Job {
    commands: Arc<Vec<Command>>,
    fence: Option<Arc<Fence>>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    submitted: u64,
    done: u64,
    /// The first thing that went wrong; nothing is executed after it.
    failed: Option<Error>,
    thread: Option<JoinHandle<()>>,
    has_thread: bool,
    /// Nobody submits any more, and what waits is dropped.
    is_closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    health: Arc<Health>,
    /// How long each command lasts at least.
    delay: Duration,
}

/// Commands in order.
pub struct Stream(Arc<Shared>);

impl Stream {
    /// A stream of a device, each of whose commands lasts at least `delay`.
    pub fn new(health: Arc<Health>, delay: Duration) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), health, delay }))
    }

    /// Executes commands after all that were submitted before, and then signals the fence.
    pub fn submit(&self, commands: Arc<Vec<Command>>, fence: Option<Arc<Fence>>) -> Result<()> {
        self.0.health.check()?;
        let mut state = lock(&self.0.state);
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.jobs.push_back(Job { commands, fence });
        state.submitted += 1;
        if state.has_thread {
            self.0.changed.notify_all();
            return Ok(());
        }
        if let Some(thread) = state.thread.take() {
            // It left its loop under this lock.
            let _ = thread.join();
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("soft-device".into()).spawn(move || shared.run());
        match thread {
            Ok(thread) => {
                state.thread = Some(thread);
                state.has_thread = true;
                Ok(())
            }
            Err(error) => {
                state.jobs.pop_back();
                state.submitted -= 1;
                let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
                Err(Error::System { call: "pthread_create", errno })
            }
        }
    }

    /// Waits until everything that was submitted is done.
    pub fn wait(&self, timeout: Timeout) -> Result<()> {
        let begun = Instant::now();
        let mut state = lock(&self.0.state);
        let wanted = state.submitted;
        while state.done < wanted {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            self.0.health.check()?;
            let slice = timeout.left(begun).ok_or(Error::NotReady)?.min(SLICE);
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
            state.jobs.clear();
            state.thread.take()
        };
        self.0.changed.notify_all();
        // A function of the application that a command calls must not do this, but it could.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(job) = self.next() {
            let outcome =
                job.commands.iter().try_for_each(|command| command.execute(|| self.check(), || self.pace()));
            if outcome.is_ok()
                && let Some(fence) = &job.fence
            {
                fence.finish();
            }
            // Before it counts as done: whoever waits for that may look at what the job kept.
            drop(job);
            let mut state = lock(&self.state);
            match outcome {
                Ok(()) => state.done += 1,
                Err(error) => {
                    state.failed.get_or_insert(error);
                    state.jobs.clear();
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next job; nothing once there was none for a while, or there will be none.
    fn next(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        let begun = Instant::now();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            let left = IDLE.saturating_sub(begun.elapsed());
            if state.is_closed || left.is_zero() {
                // Under the lock: whoever submits next starts another thread.
                state.has_thread = false;
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
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
