//! Events: [`EventObject`], and [`SharedEvent`] for events that several processes use.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_sys::*;
use soft_device::{Backing, Call, Charge, Command, Error, Event, Timeout, Work, lock, write_result};

use crate::state::{CudaResult, DriverState, entry};

/// The prefix of the names of memfds of shared events.
pub(crate) const SHARED_EVENT_NAME: &str = "soft-event";

/// How often a wait for a shared event looks at it.
const SHARED_EVENT_POLL: Duration = Duration::from_millis(1);

/// An event in a memfd: the numbers of its recordings that began, that completed and that were
/// discarded, and the pid of the process that recorded it last.
pub(crate) struct SharedEvent(pub(crate) Backing);

/// The places of the numbers in the memfd.
const RECORDED: usize = 0;
const COMPLETED: usize = 1;
const RECORDER: usize = 2;
const DISCARDED: usize = 3;

impl SharedEvent {
    pub(crate) fn new(charge: Charge) -> CudaResult<Self> {
        Ok(Self(Backing::with_name(SHARED_EVENT_NAME, 4096, vec![charge])?))
    }

    fn load(&self, place: usize) -> u64 {
        self.0.counter(place).map_or(0, |counter| counter.load(Ordering::Acquire))
    }

    fn record(self: &Arc<Self>) -> soft_device::Result<Recording> {
        self.0.counter(RECORDER)?.store(u64::from(std::process::id()), Ordering::Release);
        let number = self.0.counter(RECORDED)?.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        Ok(Recording { event: Arc::clone(self), number, has_executed: AtomicBool::new(false) })
    }

    fn is_complete(&self, number: u64) -> bool {
        self.load(COMPLETED) >= number
    }

    /// Returns whether the process that recorded it last has ended. Its recording never completes.
    fn has_lost_recorder(&self) -> bool {
        let link = std::fs::read_link(format!("/proc/{}/exe", self.load(RECORDER)));
        link.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// Returns whether a recording is complete.
    ///
    /// # Errors
    /// [`Error::Discarded`] if it never completes, because its process has ended or its stream does
    /// not execute it.
    fn query(&self, number: u64) -> soft_device::Result<bool> {
        let is_lost = !self.is_complete(number) && self.has_lost_recorder() && !self.is_complete(number);
        if is_lost || self.load(DISCARDED) >= number {
            return Err(Error::Discarded);
        }
        Ok(self.is_complete(number))
    }

    /// Waits for a recording.
    fn wait(&self, number: u64, check: &dyn Fn() -> soft_device::Result<()>) -> soft_device::Result<()> {
        while !self.query(number)? {
            check()?;
            std::thread::sleep(SHARED_EVENT_POLL);
        }
        Ok(())
    }
}

/// A recording of a shared event. It completes on drop if its command has executed, and is
/// discarded otherwise.
struct Recording {
    event: Arc<SharedEvent>,
    number: u64,
    has_executed: AtomicBool,
}

impl Drop for Recording {
    fn drop(&mut self) {
        let place = if self.has_executed.load(Ordering::Acquire) { COMPLETED } else { DISCARDED };
        if let Ok(counter) = self.event.0.counter(place) {
            counter.fetch_max(self.number, Ordering::AcqRel);
        }
    }
}

/// The point in a stream at which an event was recorded.
pub(crate) enum Point {
    Local(Arc<Event>),
    Shared(Arc<SharedEvent>, u64),
}

impl Point {
    fn is_complete(&self) -> CudaResult<bool> {
        match self {
            Self::Local(event) => Ok(event.signalled()?.is_some()),
            Self::Shared(event, number) => Ok(event.query(*number)?),
        }
    }

    fn wait(&self, check: &dyn Fn() -> soft_device::Result<()>) -> CudaResult {
        match self {
            Self::Local(event) => Ok(event.wait(Timeout::Never, check)?),
            Self::Shared(event, number) => Ok(event.wait(*number, check)?),
        }
    }

    /// Returns a command that waits for it.
    pub(crate) fn into_wait(self) -> Command {
        match self {
            Self::Local(event) => Command::marker(vec![event], None),
            Self::Shared(event, number) => {
                let work = Work::Call(Call::new(move |check| event.wait(number, check)));
                work.into()
            }
        }
    }
}

/// An event: the point in a stream at which it was last recorded.
pub(crate) enum EventObject {
    Local(Mutex<Option<Arc<Event>>>),
    Shared(Arc<SharedEvent>),
}

impl EventObject {
    /// Returns the last recording. `None` before the first one.
    pub(crate) fn point(&self) -> Option<Point> {
        match self {
            Self::Local(recorded) => lock(recorded).clone().map(Point::Local),
            Self::Shared(event) => match event.load(RECORDED) {
                0 => None,
                number => Some(Point::Shared(Arc::clone(event), number)),
            },
        }
    }
}

impl DriverState {
    pub(crate) fn event(&self, event: CUevent) -> CudaResult<Arc<EventObject>> {
        Ok(self.events.get(event.0.addr())?)
    }

    /// Adds an event, and returns its handle.
    pub(crate) fn add_event(&self, event: EventObject) -> CUevent {
        CUevent(std::ptr::without_provenance_mut(self.events.insert(event)))
    }
}

/// Creates an event.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    entry("cuEventCreate", |state| {
        // SAFETY: the application passes a valid or null pointer, as the interface requires. It is
        // written to before anything is made.
        unsafe { write_result(event, CUevent::NULL) }?;
        state.current()?;
        let is_shared = flags & CU_EVENT_INTERPROCESS != 0;
        // 1: the waiting thread blocks. A shared event has no times.
        if flags > 7 || (is_shared && flags & CU_EVENT_DISABLE_TIMING == 0) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let made = match is_shared {
            true => EventObject::Shared(Arc::new(SharedEvent::new(state.core.charge_fd()?)?)),
            false => EventObject::Local(Mutex::default()),
        };
        // SAFETY: as above.
        Ok(unsafe { write_result(event, state.add_event(made)) }?)
    })
}

/// Destroys an event.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    entry("cuEventDestroy", |state| Ok(state.events.remove(event.0.addr()).map(drop)?))
}

/// Records an event: it completes after the commands submitted so far.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    entry("cuEventRecord", |state| {
        let object = state.stream(stream)?;
        match &*state.event(event)? {
            EventObject::Local(recorded) => *lock(recorded) = Some(state.mark(&object)?),
            EventObject::Shared(event) => {
                let recording = event.record()?;
                let work = Work::Call(Call::new(move |_| {
                    recording.has_executed.store(true, Ordering::Release);
                    Ok(())
                }));
                state.submit_to(&object, work.into())?;
            }
        }
        Ok(())
    })
}

/// Returns success if an event is complete.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    entry("cuEventQuery", |state| match state.event(event)?.point() {
        Some(point) if !point.is_complete()? => Err(CUDA_ERROR_NOT_READY.into()),
        _ => Ok(()),
    })
}

/// Waits until an event is complete.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    entry("cuEventSynchronize", |state| {
        if let Some(point) = state.event(event)?.point() {
            point.wait(&|| state.core.health.check())?;
        }
        state.trim_pools();
        Ok(())
    })
}

/// Returns the time between two complete events in milliseconds.
///
/// # Safety
/// As the CUDA driver interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: CUevent,
    end: CUevent,
) -> CUresult {
    entry("cuEventElapsedTime", |state| {
        let (start, end) = (state.event(start)?.point(), state.event(end)?.point());
        let (Some(Point::Local(start)), Some(Point::Local(end))) = (start, end) else {
            return Err(CUDA_ERROR_INVALID_HANDLE.into());
        };
        let (Some(start), Some(end)) = (start.signalled()?, end.signalled()?) else {
            return Err(CUDA_ERROR_NOT_READY.into());
        };
        // SAFETY: the application passes a valid or null pointer, as the interface requires.
        Ok(unsafe { write_result(milliseconds, end.end.saturating_sub(start.end) as f32 / 1e6) }?)
    })
}
