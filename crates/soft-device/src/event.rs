//! Events in shared memory, so that processes signal each other.
//!
//! Another process may write anything there: every word is read once and means something whatever it is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use crate::{Charge, Error, Mapping, Result, Timeout, sys};

/// How long a wait sleeps before it looks whether the device is still there.
const SLICE: Duration = Duration::from_millis(10);

/// Nanoseconds of the clock that devices and hosts share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// When what an event stands for began and ended, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

/// An event, where it lies in the file. As large as a cache line.
#[repr(C, align(64))]
struct Slot {
    /// 1 is signalled, anything else is not.
    state: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
}

const SIGNALLED: u32 = 1;

/// A file of events.
#[derive(Debug)]
pub struct EventSlots {
    file: Option<OwnedFd>,
    memory: Mapping,
    count: usize,
    _charge: Option<Charge>,
}

impl EventSlots {
    /// A new file of so many events.
    pub fn new(count: usize, charge: Charge) -> Result<Arc<Self>> {
        let size =
            count.checked_mul(size_of::<Slot>()).ok_or(Error::OutOfBounds { address: 0, size: count })?;
        let file = sys::sealed_memfd("soft-events", size as u64).map_err(Error::of("memfd_create"))?;
        let memory = Mapping::of(file.as_fd(), size)?;
        Ok(Arc::new(Self { file: Some(file), memory, count, _charge: Some(charge) }))
    }

    /// The events of another process.
    pub fn opened(file: BorrowedFd<'_>, number: i32) -> Result<Arc<Self>> {
        let (kind, size) = sys::kind_and_size(file).map_err(Error::of("fstatfs"))?;
        let count = usize::try_from(size).unwrap_or(0) / size_of::<Slot>();
        match kind {
            sys::Kind::Sealed if count > 0 => {}
            _ => return Err(Error::NotMemory { fd: number, why: "it is no file of events" }),
        }
        let memory = Mapping::of(file, count * size_of::<Slot>())?;
        Ok(Arc::new(Self { file: None, memory, count, _charge: None }))
    }

    /// A new fd of the file, for another process.
    pub fn export(&self) -> Result<OwnedFd> {
        let file = self
            .file
            .as_ref()
            .ok_or(Error::NotMemory { fd: -1, why: "what was opened is not exported again" })?;
        sys::duplicate(file.as_fd()).map_err(Error::of("fcntl"))
    }

    /// The event at a place; nothing past the last.
    pub fn event(self: &Arc<Self>, index: usize) -> Option<Event> {
        (index < self.count).then(|| Event { slots: Arc::clone(self), index })
    }
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    slots: Arc<EventSlots>,
    index: usize,
}

impl Event {
    fn slot(&self) -> &Slot {
        // SAFETY: the mapping has `count` slots, of which the index is one, as long as the slots are kept; atomics may be
        // written by whoever has the file.
        unsafe { &*self.slots.memory.start().cast::<Slot>().add(self.index) }
    }

    /// Whether it is signalled.
    pub fn is_signalled(&self) -> bool {
        self.slot().state.load(Ordering::Acquire) == SIGNALLED
    }

    /// The work that it stands for begins.
    pub fn begin(&self) {
        self.slot().start.store(now(), Ordering::Relaxed);
    }

    /// The work that it stands for is done.
    pub fn finish(&self) {
        self.slot().end.store(now(), Ordering::Relaxed);
        self.slot().state.store(SIGNALLED, Ordering::Release);
        let _ = futex::wake(&self.slot().state, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Signalled by itself.
    pub fn signal(&self) {
        self.begin();
        self.finish();
    }

    /// Not signalled any more.
    pub fn reset(&self) {
        self.slot().state.store(0, Ordering::Release);
    }

    /// When the work that it stands for began and ended.
    pub fn times(&self) -> Times {
        let slot = self.slot();
        Times { start: slot.start.load(Ordering::Relaxed), end: slot.end.load(Ordering::Relaxed) }
    }

    /// Waits until it is signalled. `check` is asked now and then whether to go on.
    pub fn wait(&self, timeout: Timeout, check: impl Fn() -> Result<()>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let state = self.slot().state.load(Ordering::Acquire);
            if state == SIGNALLED {
                return Ok(());
            }
            check()?;
            let slice = timeout.left(begun).ok_or(Error::NotReady)?.min(SLICE);
            let slice = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(slice.subsec_nanos()) };
            // Another value, a signal, the end of the slice: all are seen above.
            let _ = futex::wait(&self.slot().state, futex::Flags::empty(), state, Some(&slice));
        }
    }
}
